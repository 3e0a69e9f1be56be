"""Processes that a launcher such as torchrun starts together: which one this is, and how an error in one ends all."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from internalize.errors import InputError, MachineError

_POLL: Final = 0.1
"""Seconds between two checks whether another process has failed."""
_WAIT: Final = 5.0
"""Seconds that a failed process waits for the others to end, because they may read its error from its own store."""
_TIMEOUT: Final = timedelta(minutes=30)
"""How long the processes wait for one another; the Trainer's default."""


@dataclass(frozen=True)
class Launched:
    """One of several processes, or the only one."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and messages."""
        return self.rank == 0


def launched() -> Launched:
    """Return which process this is, from the variables that launchers set. Raise an error if some are missing."""
    count = _number("WORLD_SIZE", 1, 2**31) if "WORLD_SIZE" in os.environ else 1
    if "RANK" in os.environ and "WORLD_SIZE" not in os.environ:
        raise InputError("RANK is set and WORLD_SIZE is not; start the processes with a launcher such as torchrun")
    if count == 1:
        return Launched()
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise InputError(f"WORLD_SIZE={count} without {name}; start the processes with a launcher such as torchrun")
    _number("MASTER_PORT", 1, 65535)
    return Launched(_number("RANK", 0, count - 1), count)


def _number(name: str, least: int, most: int) -> int:
    value = os.environ[name]
    if not (value.isascii() and value.isdigit() and len(value) < 20 and least <= int(value) <= most):
        raise InputError(f"{name}={value!r} is not a number from {least} to {most}; torchrun sets it")
    return int(value)


@contextlib.contextmanager
def joined(device: str = "cpu", say: Callable[[str], None] = lambda line: None) -> Generator[Launched]:
    """Join the other processes of the launcher, if there are any.

    A process that fails tells the others, which may be waiting for it in a collective operation. They end with its
    status.

    Args:
        device: the device of the computation.
        say: called with the reason if this process ends because of another one.
    """
    here = launched()
    if here.count == 1:
        yield here
        return
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous  # pyright: ignore[reportUnknownVariableType]

    store: Any = next(iter(rendezvous("env://", timeout=_TIMEOUT)))[0]
    backend = "nccl" if device.startswith("cuda") and torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=here.rank, world_size=here.count, timeout=_TIMEOUT)
    done = threading.Event()
    watch = threading.Thread(target=_end_with_the_others, args=(store.clone(), done, say), daemon=True)
    watch.start()
    try:
        yield here
    except (InputError, MachineError) as error:
        done.set()
        watch.join()
        _end_the_others(store, here, error.status, str(error))
        raise
    dist.barrier()  # no process leaves while another one may still fail
    done.set()
    watch.join()
    dist.destroy_process_group()


def _end_the_others(store: Any, here: Launched, status: int, reason: str) -> None:
    """Tell the others why this process ends, and wait until all know, because the store may end with this process."""
    import torch.distributed as dist

    until = time.monotonic() + _WAIT
    with contextlib.suppress(dist.DistError):  # raised if the process that holds the store has ended
        store.set("refused", f"{status} process {here.rank}: {reason}")
        store.add("ended", 1)
        while store.add("ended", 0) < here.count and time.monotonic() < until:
            time.sleep(_POLL)


def _end_with_the_others(store: Any, done: threading.Event, say: Callable[[str], None]) -> None:
    """End this process at once if another one fails. Nothing is lost: only the first writes, and only whole files."""
    import torch.distributed as dist

    with contextlib.suppress(dist.DistError):  # raised if the process that holds the store has ended
        while not store.check(["refused"]):
            if done.wait(_POLL):
                return
        status, _, reason = store.get("refused").decode().partition(" ")
        store.add("ended", 1)
        say(f"ends with {reason}")
        os._exit(int(status))
