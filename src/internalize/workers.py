"""Many jobs at once: processes that take the next job until there is none.

Each process talks to the one that began it by a pipe of its own, so one that dies takes nothing with it but its job: that
job is named, another process takes its place, and the others go on. A job says what it does; nothing in here knows.
"""

import contextlib
import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Generic, Protocol, TypeVar

from internalize.errors import InputError
from internalize.interrupt import Interrupted, Interruptible

Seen = Callable[[int, str], None]
"""How a job says how far it is: of its size, and in words. If the job was asked to stop, this raises SIGTERM in its process."""


class Job(Protocol):
    """Something to do, picklable. It keeps what it makes in files, and goes on from there if it was begun before."""

    @property
    def name(self) -> str:
        """What it is called in progress and if its process dies."""
        ...

    @property
    def size(self) -> int:
        """How much there is to do, in the unit of `seen`; 1 or more."""
        ...

    def run(self, seen: Seen) -> None:
        """Do it. Raises InputError if it cannot be done, Interrupted once it has saved after SIGTERM."""
        ...


J = TypeVar("J", bound=Job)
Report = Callable[[float, float, str], None]
"""Called with how much is done, how much there is to do, and what was seen last."""


def run_all(
    jobs: Sequence[J],
    processes: int,
    report: Report,
    refused: Callable[[J, str], None],
    how_to_go_on: str = "--resume goes on",
) -> None:
    """Run the jobs, so many at once. One at a time needs no other process.

    Args:
        jobs: what to do, in this order.
        processes: how many at once.
        report: called whenever a job says how far it is.
        refused: called with a job that cannot be done, and why; the others go on.
        how_to_go_on: what the user is told after an interruption or a crash.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
    """
    progress = _Progress(jobs, report)
    with Interruptible() as interrupt:
        if min(processes, len(jobs)) > 1:
            crew = _Crew(jobs, progress, refused, interrupt)
            crew.work(processes)
            if crew.crashes and not interrupt.requested:
                raise RuntimeError(f"{'; '.join(crew.crashes)}; tracebacks are above, and {how_to_go_on}")
        else:
            _one_by_one(jobs, progress, refused, interrupt)
    if interrupt.requested:
        raise Interrupted(how_to_go_on)


@contextlib.contextmanager
def torch_threads(count: int) -> Generator[None]:
    """While entered, torch computes with so many threads: the last bits of a run depend on it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _one_by_one(
    jobs: Sequence[J], progress: "_Progress", refused: Callable[[J, str], None], interrupt: Interruptible
) -> None:
    for number, job in enumerate(jobs):
        if interrupt.requested:
            return

        def seen(done: int, text: str, number: int = number) -> None:
            if interrupt.requested:  # before the job could hear of it
                signal.raise_signal(signal.SIGTERM)
            progress.at(number, Place(done, text))

        try:
            job.run(seen)
        except InputError as error:
            refused(job, str(error))
        except Interrupted:
            interrupt.requested = True
            return
        progress.ended(number)


class _Progress:
    """How far all jobs are together."""

    def __init__(self, jobs: Sequence[Job], report: Report) -> None:
        self.names, self.sizes = [job.name for job in jobs], [job.size for job in jobs]
        self.report = report
        self.places = [0] * len(jobs)
        self.done, self.total = 0, sum(self.sizes)
        self.finished = 0

    def at(self, number: int, place: "Place") -> None:
        self.done += place.done - self.places[number]
        self.places[number] = place.done
        self.report(
            self.done, self.total, f"{self.finished}/{len(self.names)} runs  {self.names[number]}  {place.text}"
        )

    def ended(self, number: int) -> None:
        self.finished += 1
        self.at(number, Place(self.sizes[number], "ended"))


# What a process says


@dataclass(frozen=True)
class Ready:
    """It waits for a job."""


@dataclass(frozen=True)
class Place:
    """How far its job is."""

    done: int
    text: str


@dataclass(frozen=True)
class Ended:
    """Its job is finished, or cannot be done for this reason."""

    refusal: str | None = None


# The process that began them


@dataclass
class _Worker:
    process: SpawnProcess
    job: int | None = None


class _Crew(Generic[J]):
    """Processes at work, by the pipes to them."""

    def __init__(
        self, jobs: Sequence[J], progress: _Progress, refused: Callable[[J, str], None], interrupt: Interruptible
    ) -> None:
        self.jobs, self.progress, self.refused, self.interrupt = jobs, progress, refused, interrupt
        self.waiting = deque(range(len(jobs)))
        self.workers: dict[Connection, _Worker] = {}
        self.crashes: list[str] = []

    def work(self, processes: int) -> None:
        """Until every job has ended, or was asked to."""
        try:
            for _ in range(min(processes, len(self.jobs))):
                self._hire()
            stopped = False
            while self.workers:
                if self.interrupt.requested and not stopped:
                    stopped = True
                    self.waiting.clear()
                    for worker in self.workers.values():
                        worker.process.terminate()  # a job that has begun saves first
                for pipe in wait(list(self.workers), timeout=0.2):
                    assert isinstance(pipe, Connection)
                    self._hear(pipe)
        finally:
            for worker in self.workers.values():
                worker.process.kill()

    def _hire(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs,), daemon=True)
        with _deaf_to_ctrl_c():
            process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        self.workers[ours] = _Worker(process)

    def _hear(self, pipe: Connection) -> None:
        worker = self.workers[pipe]
        try:
            message: Ready | Place | Ended = pipe.recv()
            if isinstance(message, Place) and worker.job is not None:
                self.progress.at(worker.job, message)
                return
            if isinstance(message, Ended) and worker.job is not None:
                self._ended(worker.job, message.refusal)
            worker.job = self.waiting.popleft() if self.waiting else None
            pipe.send(None if worker.job is None else self.jobs[worker.job])
        except (EOFError, OSError):
            self._gone(pipe)

    def _ended(self, number: int, refusal: str | None) -> None:
        if refusal is not None:
            self.refused(self.jobs[number], refusal)
        self.progress.ended(number)

    def _gone(self, pipe: Connection) -> None:
        """A process has ended: it was told to, or something went wrong that is no refusal."""
        worker = self.workers.pop(pipe)
        pipe.close()
        worker.process.join()
        if self.interrupt.requested or (worker.process.exitcode == 0 and worker.job is None):
            return
        if worker.job is None:  # it did not even begin, and neither would the next
            self.waiting.clear()
            self.crashes.append(f"a process ended with status {worker.process.exitcode} before its first run")
            return
        status = worker.process.exitcode
        how = f"ended with status {status}" if status else "was stopped by somebody else"
        self.crashes.append(f"the process of {self.jobs[worker.job].name} {how}")
        self.progress.ended(worker.job)
        if self.waiting:
            self._hire()


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Generator[None]:
    """What is begun in here ignores Ctrl-C from its first moment: the terminal sends it to all, and the parent decides."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# The others


def _work(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def seen(done: int, text: str) -> None:
        try:
            pipe.send(Place(done, text))
        except OSError:  # left behind by a parent that was killed: save and stop
            signal.raise_signal(signal.SIGTERM)

    message: Ready | Ended = Ready()
    while (job := _ask(pipe, message)) is not None:
        try:
            job.run(seen)
            message = Ended()
        except InputError as error:
            message = Ended(str(error))
        except Interrupted:
            return


def _ask(pipe: Connection, message: Ready | Ended) -> Job | None:
    """The next job; None if there is none, or nobody to say so."""
    try:
        pipe.send(message)
        return pipe.recv()
    except (EOFError, OSError):
        return None
