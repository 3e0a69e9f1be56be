"""Commands in processes of their own, forked from one that has imported everything, on a disk that fails when it is told to."""

import atexit
import ctypes
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Final, Literal
from unittest import mock

Action = Literal["nothing", "kill", "stop", "vanish", "full", "read-only"]
ACTIONS: Final[tuple[Action, ...]] = ("nothing", "kill", "stop", "vanish", "full", "read-only")
"""In the order of failing_disk.c."""
PATIENCE: Final = 300.0
"""Seconds after which a command hangs."""
GONE: Final = ".gone"
"""What a folder that vanishes has after its name."""


@dataclass(frozen=True)
class Fault:
    """What the disk does at which call that changes something below the folder; calls are counted from 1."""

    action: Action = "nothing"
    at: int = 0


NO_FAULT: Final = Fault()


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int | None
    """None: it was killed."""
    said: str
    """On standard error."""
    calls: int
    """That changed something below the folder; 0 if it was killed."""
    seconds: float
    cpu_seconds: float
    """Its own, whatever else the machine does; 0 if it was killed."""


class Child:
    """A command at work in a process of its own."""

    def __init__(self, argv: Sequence[str], below: Path, fault: Fault = NO_FAULT, *, small: bool = True) -> None:
        _start_server()
        self._heard = tempfile.TemporaryDirectory(prefix="heard-")
        self._began = time.monotonic()
        given = (list(argv), below, fault, Path(self._heard.name), small)
        self._process = multiprocessing.get_context("forkserver").Process(target=_in_child, args=given)
        self._process.start()

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    def memory(self) -> int:
        """Bytes that it has in memory; 0 if it has ended."""
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGESIZE")

    def kill(self) -> None:
        """kill -9, unless it has ended."""
        self._process.kill()

    def go_on(self) -> None:
        """After it was stopped."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def wait_until_stopped(self) -> bool:
        """Whether it was; False if it has ended."""
        end = time.monotonic() + PATIENCE
        while self.alive and time.monotonic() < end:
            stat = Path(f"/proc/{self._process.pid}/stat")
            if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "T":
                return True
            time.sleep(0.005)
        return False

    def wait(self, seconds: float = PATIENCE) -> Ended:
        """Its end; killed after so many seconds."""
        self._process.join(seconds)
        self._process.kill()
        self._process.join()
        took, heard = time.monotonic() - self._began, Path(self._heard.name)
        status = self._process.exitcode
        said = (heard / "said").read_text(errors="replace") if (heard / "said").exists() else ""
        counts = (heard / "counts").read_text().split() if (heard / "counts").exists() else ("0", "0")
        self._heard.cleanup()
        return Ended(None if status == -signal.SIGKILL else status, said, int(counts[0]), took, float(counts[1]))


@cache
def compiled() -> Path | None:
    """failing_disk.c as a library; None where there is no compiler for it. Removed at the end of this process."""
    folder = tempfile.TemporaryDirectory(prefix="disk-")
    atexit.register(folder.cleanup)
    found = Path(folder.name) / "disk.so"
    command = [*shlex.split(os.environ.get("CC", "cc")), "-O1", "-shared", "-fPIC", "-o", str(found)]
    source = Path(__file__).with_name("failing_disk.c")
    try:
        subprocess.run([*command, str(source), "-ldl"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found


@cache
def _start_server() -> None:
    """The process that all children are forked from, with the disk that fails."""
    library = compiled()
    if library is None:
        raise RuntimeError("the faults of disks need a C compiler (CC, or cc) and Linux")
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.faults.preload"])
    with mock.patch.dict(os.environ, {"LD_PRELOAD": str(library)}):
        forkserver.ensure_running()


def _in_child(argv: list[str], below: Path, fault: Fault, heard: Path, small: bool) -> None:
    import torch

    from internalize.commands import cli
    from tests.faults.small_commands import make_small

    torch.set_num_threads(1)
    if small:
        make_small()
    for number, name in ((1, "printed"), (2, "said")):
        os.dup2(os.open(heard / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.argv = ["internalize", *argv]
    disk = ctypes.CDLL(None)
    disk.disk_arm(os.fsencode(below), ACTIONS.index(fault.action), ctypes.c_long(fault.at))
    try:
        cli.run()
    finally:
        (heard / "counts").write_text(f"{disk.disk_calls()} {time.process_time()}")
