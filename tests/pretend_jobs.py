"""Jobs that train nothing, for tests of `pool.py`. Without torch they begin at once."""

import ctypes
import os
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from internalize.errors import MACHINE, InputError
from internalize.parallel import pool
from internalize.parallel.exit_status import end_with
from internalize.parallel.interrupt import Interrupted, Interruptible
from internalize.parallel.pool import ReportProgress


@dataclass(frozen=True)
class Pretend:
    """A job that acts by its number: 1 is killed, 2 is refused, 3 waits to be stopped, 11 crashes, others finish."""

    number: int
    out: Path
    size: int = 40

    @property
    def name(self) -> str:
        return f"here/job-{self.number}"

    @property
    def folder(self) -> Path:
        return self.out / f"job-{self.number}"

    def run(self, seen: ReportProgress) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        seen(1, f"in {os.getpid()}")
        if self.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.number == 11:
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.number == 2:
            raise InputError("the disk is full")
        with Interruptible() as interrupt:
            while self.number == 3 and not interrupt.requested:
                seen(2, "waits")
                time.sleep(0.05)
        if interrupt.requested:
            (self.folder / "saved").touch()
            raise Interrupted
        (self.folder / "done").touch()


def cannot_begin(pipe: Connection) -> None:
    """Exit before the process is ready."""
    os._exit(5)


def killed_early(pipe: Connection) -> None:
    """Kill the process before it is ready."""
    os.kill(os.getpid(), signal.SIGKILL)


def ended_by_a_library(pipe: Connection) -> None:
    """End the process as a library does, for example OpenMP."""
    end_with(MACHINE)
    ctypes.CDLL(None).exit(1)


def killed_at_the_exit(pipe: Connection) -> None:
    """Do all jobs, then kill the process."""
    pool._work(pipe)
    os.kill(os.getpid(), signal.SIGKILL)
