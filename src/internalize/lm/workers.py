"""Many runs of `lm train` at once: processes that take the next run until there is none.

Each process talks to the one that began it by a pipe of its own, so one that dies takes nothing with it but its run: that
run is named, another process takes its place, and the others go on. Tiny models gain nothing from threads, so each process
has one, and the bits do not depend on how many processes there are.
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
from pathlib import Path

from internalize.errors import InputError
from internalize.interrupt import Interrupted, Interruptible
from internalize.lm.options import LmTrainOptions
from internalize.runs import Run


@dataclass(frozen=True)
class Job:
    """One run of `lm train`."""

    options: LmTrainOptions
    seed: int
    folder: Path


@dataclass(frozen=True)
class How:
    """What all runs have in common."""

    device: str = "cpu"
    threads: int = 1
    checkpoint_steps: int = 200


Report = Callable[[float, float, str], None]
"""Called with updates done, updates to do, and what was seen last."""
Refused = Callable[[Job, str], None]
"""Called with a run that cannot be done, and why."""


def train_all(jobs: Sequence[Job], processes: int, how: How, report: Report, refused: Refused) -> None:
    """Train the runs, or continue them; finished ones are left as they are. One at a time needs no other process.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
    """
    progress = _Progress(jobs, report)
    with Interruptible() as interrupt:
        if min(processes, len(jobs)) > 1:
            _Crew(jobs, how, progress, refused, interrupt).work(processes)
        else:
            _one_by_one(jobs, how, progress, refused, interrupt)
    if interrupt.requested:
        raise Interrupted("--resume goes on")


def _one_by_one(
    jobs: Sequence[Job], how: How, progress: "_Progress", refused: Refused, interrupt: Interruptible
) -> None:
    for number, job in enumerate(jobs):
        if interrupt.requested:
            return

        def seen(place: Place, number: int = number) -> None:
            if interrupt.requested:  # before the run could hear of it
                signal.raise_signal(signal.SIGTERM)
            progress.at(number, place)

        try:
            _train(job, how, seen)
        except InputError as error:
            refused(job, str(error))
        progress.ended(number)


class _Progress:
    """How far all runs are together, in updates."""

    def __init__(self, jobs: Sequence[Job], report: Report) -> None:
        self.jobs, self.report = jobs, report
        self.total = sum(job.options.steps for job in jobs)
        self.done = [0] * len(jobs)
        self.finished = 0

    def at(self, number: int, place: "Place") -> None:
        self.done[number] = place.done
        self._show(number, place.text)

    def ended(self, number: int) -> None:
        self.done[number] = self.jobs[number].options.steps
        self.finished += 1
        self._show(number, "ended")

    def _show(self, number: int, text: str) -> None:
        job = self.jobs[number]
        runs = f"{self.finished}/{len(self.jobs)} runs"
        self.report(sum(self.done), self.total, f"{runs}  {job.options.method} seed {job.seed} {text}")


# What a process says


@dataclass(frozen=True)
class Ready:
    """It waits for a run."""


@dataclass(frozen=True)
class Place:
    """How far its run is."""

    done: int
    text: str


@dataclass(frozen=True)
class Ended:
    """Its run is finished, or cannot be done for this reason."""

    refusal: str | None = None


# The process that began them


@dataclass
class _Worker:
    process: SpawnProcess
    job: int | None = None


class _Crew:
    """Processes at work, by the pipes to them."""

    def __init__(
        self, jobs: Sequence[Job], how: How, progress: _Progress, refused: Refused, interrupt: Interruptible
    ) -> None:
        self.jobs, self.how, self.progress, self.refused, self.interrupt = jobs, how, progress, refused, interrupt
        self.waiting = deque(range(len(jobs)))
        self.workers: dict[Connection, _Worker] = {}
        self.crashes: list[str] = []

    def work(self, processes: int) -> None:
        """Until every run has ended, or was asked to."""
        try:
            for _ in range(min(processes, len(self.jobs))):
                self._hire()
            stopped = False
            while self.workers:
                if self.interrupt.requested and not stopped:
                    stopped = True
                    self.waiting.clear()
                    for worker in self.workers.values():
                        worker.process.terminate()  # a run that has begun saves first
                for pipe in wait(list(self.workers), timeout=0.2):
                    assert isinstance(pipe, Connection)
                    self._hear(pipe)
        finally:
            for worker in self.workers.values():
                worker.process.kill()
        if self.crashes and not self.interrupt.requested:
            raise RuntimeError(f"{'; '.join(self.crashes)}; tracebacks are above, and --resume tries again")

    def _hire(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self.how), daemon=True)
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
        if worker.process.exitcode == 0 or self.interrupt.requested:
            return
        if worker.job is None:  # it did not even begin, and neither would the next
            self.waiting.clear()
            self.crashes.append(f"a process ended with status {worker.process.exitcode} before its first run")
            return
        status = worker.process.exitcode
        self.crashes.append(f"the process of {self.jobs[worker.job].folder} ended with status {status}")
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


def _work(pipe: Connection, how: How) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prepare(how.threads)

    def seen(place: Place) -> None:
        try:
            pipe.send(place)
        except OSError:  # left behind by a parent that was killed: save and stop
            signal.raise_signal(signal.SIGTERM)

    message: Ready | Ended = Ready()
    while (job := _ask(pipe, message)) is not None:
        try:
            _train(job, how, seen)
            message = Ended()
        except InputError as error:
            message = Ended(str(error))
        except Interrupted:
            return


def _prepare(threads: int) -> None:
    import torch

    from internalize.lm.quiet import quiet_transformers

    torch.set_num_threads(threads)
    quiet_transformers()


def _ask(pipe: Connection, message: Ready | Ended) -> Job | None:
    """The next run; None if there is none, or nobody to say so."""
    try:
        pipe.send(message)
        return pipe.recv()
    except (EOFError, OSError):
        return None


def _train(job: Job, how: How, seen: Callable[[Place], None]) -> None:
    from internalize.lm.train import Progress, train

    def report(now: Progress) -> None:
        what = f"stage {now.metrics['stage']}/{now.stages}  exact match {now.metrics['exact_match']:.3f}"
        seen(Place(now.done, what))

    train(
        job.options,
        job.seed,
        Run(job.folder),
        device=how.device,
        resume=True,
        checkpoint_steps=how.checkpoint_steps,
        report=report,
    )
