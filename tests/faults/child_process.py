"""Commands in processes of their own, forked from one that has imported everything, on a disk that fails when it is told to.

The streams, the memory, the threads and whatever else a process finds around it can be taken from it, too (`Around`).
"""

import atexit
import contextlib
import ctypes
import itertools
import multiprocessing
import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Final, Literal, get_args
from unittest import mock

from tests.faults.harness import Answer

Action = Literal["nothing", "kill", "stop", "vanish", "full", "read-only", "unreadable"]
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
"""In the order of failing_disk.c."""
Stream = Literal["heard", "closed", "full", "broken after 0 lines", "broken after 1 lines", "broken after 2 lines"]
Limit = Literal["memory", "files", "threads", "processes"]
PATIENCE: Final = 300.0
"""Seconds after which a command hangs."""
GONE: Final = ".gone"
"""What a folder that vanishes has after its name."""


@dataclass(frozen=True)
class Fault:
    """What the disk does at which call that changes something below the folder (`unreadable`: that reads); counted from 1."""

    action: Action = "nothing"
    at: int = 0


NO_FAULT: Final = Fault()


@dataclass(frozen=True)
class Around:
    """What a process finds around it."""

    streams: tuple[Stream, Stream, Stream] = ("heard", "heard", "heard")
    """Standard input, output and error. One that is broken has a reader that ends after so many lines."""
    limits: Mapping[Limit, int] = field(default_factory=dict)
    """Bytes of memory and number of open files beyond what it has at its beginning; threads and processes that
    may be started, and as many again by each process that it starts."""


USUAL: Final = Around()


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int | None
    """None: it was killed, by us after it had its time."""
    said: str
    """On standard error."""
    calls: int
    """That changed something below the folder; 0 if it was killed."""
    reads: int
    """Calls that read something below the folder; likewise."""
    seconds: float
    cpu_seconds: float
    """Its own, whatever else the machine does; 0 if it was killed."""
    printed: str
    """On standard output."""

    @property
    def answer(self) -> Answer:
        """The same as of a command that was run in this process."""
        bug = "no end in time" if self.status is None else f"signal {-self.status}" if self.status < 0 else ""
        return Answer(self.status or 0, self.printed, self.said, f"{bug}: {self.said[-200:]!r}" if bug else "")


class Child:
    """A command at work in a process of its own."""

    def __init__(
        self, argv: Sequence[str], below: Path, fault: Fault = NO_FAULT, *, small: bool = True, around: Around = USUAL
    ) -> None:
        _start_server()
        self._heard = tempfile.TemporaryDirectory(prefix="heard-")
        self._began = time.monotonic()
        given = (list(argv), below, fault, Path(self._heard.name), small, around)
        self._process = multiprocessing.get_context("forkserver").Process(target=_in_child, args=given)
        self._process.start()

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    @property
    def age(self) -> float:
        """Seconds since it was begun."""
        return time.monotonic() - self._began

    def workers(self) -> list[int]:
        """Numbers of the processes that it has started and that take jobs from it."""
        found: dict[int, bytes] = {}
        with contextlib.suppress(OSError):  # it, or one of them, has just ended
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            found = {int(number): Path(f"/proc/{number}/cmdline").read_bytes() for number in children}
        return [number for number, line in found.items() if b"spawn_main" in line]

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

        def written(name: str, otherwise: str = "") -> str:
            return (heard / name).read_text(errors="replace") if (heard / name).exists() else otherwise

        said, printed, counts = written("said"), written("printed"), written("counts", "0 0 0").split()
        self._heard.cleanup()
        killed = status == -signal.SIGKILL
        return Ended(None if killed else status, said, int(counts[0]), int(counts[1]), took, float(counts[2]), printed)


@cache
def compiled() -> Path | None:
    """Our files of C as a library; None where there is no compiler for them. Removed at the end of this process."""
    folder = tempfile.TemporaryDirectory(prefix="disk-")
    atexit.register(folder.cleanup)
    found = Path(folder.name) / "disk.so"
    command = [*shlex.split(os.environ.get("CC", "cc")), "-O1", "-shared", "-fPIC", "-o", str(found)]
    sources = [str(Path(__file__).with_name(name)) for name in ("failing_disk.c", "refusing_system.c")]
    try:
        subprocess.run([*command, *sources, "-ldl"], check=True, capture_output=True)
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


def _in_child(argv: list[str], below: Path, fault: Fault, heard: Path, small: bool, around: Around) -> None:
    import torch

    from internalize.commands import cli
    from tests.faults.small_commands import make_small

    torch.set_num_threads(1)
    if small:
        make_small()
    sys.argv = ["internalize", *argv]
    library = ctypes.CDLL(None)
    _connect(around.streams, heard)
    before = _limit(around.limits, library)
    library.disk_arm(os.fsencode(below), ACTIONS.index(fault.action), ctypes.c_long(fault.at))
    try:
        try:
            cli.run()
        finally:
            for kind, both in before.items():
                resource.setrlimit(kind, both)
            counts = f"{library.disk_calls()} {library.disk_reads()} {time.process_time()}"
            (heard / "counts").write_text(counts)
    except SystemExit:
        raise
    except BaseException as error:  # also the panics of libraries in Rust
        sys.excepthook(type(error), error, error.__traceback__)  # as the interpreter would; multiprocessing does not


def _connect(streams: Sequence[Stream], heard: Path) -> None:
    """Make these the process's standard streams."""
    for number, (stream, name) in enumerate(zip(streams, ("nothing", "printed", "said"), strict=True)):
        if stream == "full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), number)
        elif stream.startswith("broken"):
            os.dup2(_pipe(int(stream.split()[2])), number)
        elif number:
            os.dup2(os.open(heard / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    for number, name in enumerate(
        ("stdin", "stdout", "stderr")
    ):  # last: a file that is opened takes a number that is free
        if streams[number] == "closed":
            os.close(number)
            setattr(sys, name, None)  # as the interpreter has it then


def _pipe(lines: int) -> int:
    """The end to write to of a pipe whose reader ends after so many lines."""
    reader, writer = os.pipe()

    def read() -> None:
        left = lines
        while left > 0 and (heard := os.read(reader, 1)):
            left -= heard == b"\n"
        os.close(reader)

    if lines:
        threading.Thread(target=read, daemon=True).start()
    else:
        read()
    return writer


def _limit(limits: Mapping[Limit, int], library: ctypes.CDLL) -> dict[int, tuple[int, int]]:
    """Limit this process, and return the limits of the operating system as they were."""
    most = {name: limits.get(name, 2**62) for name in ("threads", "processes")}
    for name in limits.keys() & most.keys():
        os.environ[f"REFUSING_{name.upper()}"] = str(limits[name])
    system: dict[Limit, tuple[int, Callable[[int], int]]] = {
        "memory": (resource.RLIMIT_AS, _memory_and),
        "files": (resource.RLIMIT_NOFILE, _files_and),
    }
    before: dict[int, tuple[int, int]] = {}
    for name in limits.keys() & system.keys():
        kind, most_with = system[name]
        before[kind] = resource.getrlimit(kind)
        resource.setrlimit(kind, (most_with(limits[name]), before[kind][1]))
    library.system_arm(ctypes.c_long(most["threads"]), ctypes.c_long(most["processes"]))
    return before


def _memory_and(more: int) -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + more


def _files_and(more: int) -> int:
    """The number that no file may have, or a greater one, if so many more can be opened: they take those that are free."""
    used = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    return next(itertools.islice((number for number in itertools.count() if number not in used), more, None))
