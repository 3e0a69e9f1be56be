"""Processes for the tests of lm/workers.py that train nothing, so that they begin at once. No torch in here."""

import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from internalize.errors import InputError
from internalize.interrupt import Interrupted, Interruptible
from internalize.lm import workers


def pretend(job: workers.Job, how: workers.How, seen: Callable[[workers.Place], None]) -> None:
    """What a run does, by its seed: 1 dies once, 2 is refused, 3 goes on until it is stopped, all others end."""
    job.folder.mkdir(parents=True, exist_ok=True)
    seen(workers.Place(1, f"in {os.getpid()}"))
    if job.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if job.seed == 2:
        raise InputError("the disk is full")
    with Interruptible() as interrupt:
        while job.seed == 3 and not interrupt.requested:
            seen(workers.Place(2, "waits"))
            time.sleep(0.05)
    if interrupt.requested:
        (job.folder / "saved").touch()
        raise Interrupted
    (job.folder / "done").touch()


def work(pipe: Connection, how: workers.How) -> None:
    """In place of `workers._work`, in the process that was begun."""
    workers._train = pretend
    workers._prepare = lambda threads: None
    workers._work(pipe, how)


def cannot_begin(pipe: Connection, how: workers.How) -> None:
    """A process that dies before it is ready."""
    os._exit(5)
