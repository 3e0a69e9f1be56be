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
from typing import Any, Final, Generic, Protocol, TypeVar

from internalize.errors import MACHINE, InputError, KilledReason, MachineError, is_of_machine
from internalize.parallel.exit_status import end_with
from internalize.parallel.interrupt import Interrupted, Interruptible

ReportProgress = Callable[[int, str], None]
"""How a job says how far it is: of its size, and in words. If the job was asked to stop, this raises SIGTERM in its process."""


class Job(Protocol):
    """Something to do, picklable. What takes long is kept in files, to go on from there if it was begun before."""

    @property
    def name(self) -> str:
        """What it is called in progress and if its process dies."""
        ...

    @property
    def size(self) -> int:
        """How much there is to do, in the unit of `report`; 1 or more."""
        ...

    def run(self, report: ReportProgress, /) -> object:
        """Do it, and hand back what is not in files. Raises InputError if it cannot be done, Interrupted once it has saved
        after SIGTERM.
        """
        ...


J = TypeVar("J", bound=Job)
Report = Callable[[float, float, str], None]
"""Called with how much is done, how much there is to do, and what was seen last."""
Refused = Callable[[J, str], None]
"""Called with a job that cannot be done, and why."""
Finished = Callable[[J, Any], None]
"""Called with a job that was done, and what it handed back."""
MayBegin = Callable[[J, Sequence[J]], bool]
"""Called with a job and the jobs being run; returns whether the job may begin beside them."""


def run_all(
    tracker: "JobTracker[J]",
    processes: int,
    how_to_continue: str,
    *,
    attempts: int = 1,
    may_begin: MayBegin[J] = lambda job, running: True,
) -> "list[Killed[J]]":
    """Run the jobs of a tracker, `processes` at a time, and return those whose processes were killed.

    One at a time needs no other process.

    Args:
        tracker: the jobs, and who hears of them.
        processes: how many at once.
        how_to_continue: what the user is told after an interruption or a crash.
        attempts: how often a job is started whose process is killed, by the system when memory runs out for instance.
        may_begin: whether a job may begin beside those being run; later jobs may overtake it. It must, if there are none.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
        MachineError: no process could be started.
    """
    killed: list[Killed[J]] = []
    with Interruptible() as interrupt:
        if min(processes, len(tracker.jobs)) > 1:
            pool = _ProcessPool(tracker, attempts, interrupt, may_begin)
            pool.work(processes)
            killed = pool.killed
            if pool.crashes and not interrupt.requested:
                lost = [*pool.crashes, *(f"{each.job.name}: {each.reason}" for each in killed)]
                raise RuntimeError(f"{'; '.join(lost)}; tracebacks are above, and {how_to_continue}")
            if pool.waiting and not interrupt.requested:
                raise MachineError(f"{pool.failure}; what is finished is kept, and {how_to_continue}")
        else:
            _one_by_one(tracker, interrupt)
    if interrupt.requested:
        raise Interrupted(how_to_continue)
    return killed


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


def _one_by_one(tracker: "JobTracker[J]", interrupt: Interruptible) -> None:
    for number, job in enumerate(tracker.jobs):
        if interrupt.requested:
            return

        def seen(done: int, text: str, number: int = number) -> None:
            if interrupt.requested:  # before the job could hear of it
                signal.raise_signal(signal.SIGTERM)
            tracker.at(number, Place(done, text))

        try:
            how = outcome(job, seen)
        except Interrupted:
            interrupt.requested = True
            return
        tracker.ended(number, how)


class JobTracker(Generic[J]):
    """Jobs in their order; tracks overall progress and the outcome of each job.

    `report` is called whenever a job says how far it is. `refused` and `finished` are called in this process; after a refusal
    the others go on.
    """

    def __init__(
        self,
        jobs: Sequence[J],
        report: Report,
        refused: Refused[J],
        finished: Finished[J] = lambda job, handed: None,
    ) -> None:
        self.jobs = jobs
        self._report, self._refused, self._finished = report, refused, finished
        self._places = [0] * len(jobs)
        self._done, self._total = 0, sum(job.size for job in jobs)
        self._count = 0

    def at(self, number: int, place: "Place") -> None:
        """A job is there now."""
        self._done += place.done - self._places[number]
        self._places[number] = place.done
        seen = f"{self._count}/{len(self.jobs)} runs  {self.jobs[number].name}  {place.text}"
        self._report(self._done, self._total, seen)

    def ended(self, number: int, how: "Ended") -> None:
        """A job is done, or cannot be."""
        if how.refusal is None:
            self._finished(self.jobs[number], how.handed)
        else:
            self._refused(self.jobs[number], how.refusal)
        self.gone(number)

    def gone(self, number: int) -> None:
        """Nobody works at a job any more."""
        self._count += 1
        self.at(number, Place(self.jobs[number].size, "ended"))


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
    """Its job is finished and handed this back, or cannot be done for this reason."""

    refusal: str | None = None
    handed: object = None


def outcome(job: Job, report: ReportProgress = lambda done, text: None) -> Ended:
    """Do a job, and say how it ended."""
    try:
        return Ended(handed=job.run(report))
    except InputError as error:
        return Ended(str(error))


@dataclass(frozen=True)
class Killed(Generic[J]):
    """A job whose process was killed as often as it was started, and by what."""

    job: J
    reason: KilledReason


_CRASHES: Final = {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE}
"""Statuses of processes that died of a mistake in C code, which may be ours."""


def _how_killed(status: int) -> str | None:
    """How the machine or somebody else ended a process; None if a bug did."""
    if status == 0:
        return "was stopped by somebody else"
    if status == MACHINE:
        return "was ended by the machine or a library, whose message is above"
    if status > 0 or status in _CRASHES:
        return None
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"was killed by {name}{' (likely too little memory)' if name == 'SIGKILL' else ''}"


# The process that began them


@dataclass
class _Worker:
    process: SpawnProcess
    job: int | None = None
    ready: bool = False
    """It has asked for a job."""


class _ProcessPool(Generic[J]):
    """Processes at work, by the pipes to them."""

    def __init__(self, tracker: JobTracker[J], attempts: int, interrupt: Interruptible, may_begin: MayBegin[J]) -> None:
        self.jobs, self.tracker, self.interrupt, self.may_begin = tracker.jobs, tracker, interrupt, may_begin
        self.waiting = deque(range(len(self.jobs)))
        self.left = [attempts] * len(self.jobs)
        self.workers: dict[Connection, _Worker] = {}
        self.idle: list[Connection] = []
        self.crashes: list[str] = []
        self.killed: list[Killed[J]] = []
        self.failure = ""
        """Why there are fewer processes than there should be."""

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
                idle, self.idle = self.idle, []
                for pipe in filter(self.workers.__contains__, idle):
                    self._assign(pipe)
        finally:
            for worker in self.workers.values():
                worker.process.kill()

    def _hire(self) -> None:
        """Start one more process. If the system does not let us, the others do its work."""
        context = multiprocessing.get_context("spawn")
        try:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            with _deaf_to_ctrl_c():
                process.start()
        except OSError as error:  # no more processes, open files or memory
            self.failure = f"cannot start a process: {error.strerror}"
            return
        theirs.close()  # so that the end of the process is the end of the pipe
        self.workers[ours] = _Worker(process)

    def _hear(self, pipe: Connection) -> None:
        worker = self.workers[pipe]
        try:
            message: Ready | Place | Ended = pipe.recv()
            if isinstance(message, Place) and worker.job is not None:
                self.tracker.at(worker.job, message)
                return
            if isinstance(message, Ended) and worker.job is not None:
                self.tracker.ended(worker.job, message)
            worker.job, worker.ready = None, True
            self.idle.append(pipe)
        except (EOFError, OSError):
            self._gone(pipe)

    def _assign(self, pipe: Connection) -> None:
        """Give an idle process the next job that may begin; without one, end the process or, if jobs wait, leave it idle."""
        running = [self.jobs[worker.job] for worker in self.workers.values() if worker.job is not None]
        job = next((job for job in self.waiting if self.may_begin(self.jobs[job], running)), None)
        if job is None and self.waiting:
            self.idle.append(pipe)
            return
        if job is not None:
            self.waiting.remove(job)
        self.workers[pipe].job = job
        with contextlib.suppress(OSError):  # it died; `_hear` finds out
            pipe.send(None if job is None else self.jobs[job])

    def _gone(self, pipe: Connection) -> None:
        """A process has ended: it was told to, or something went wrong that is no refusal."""
        worker = self.workers.pop(pipe)
        pipe.close()
        worker.process.join()
        if self.interrupt.requested:
            return
        status = worker.process.exitcode or 0
        killed = _how_killed(status)
        if worker.job is not None:
            self._lost(worker.job, status, killed)
        elif not worker.ready:  # it did not even begin, and neither would the next: the others go on without it
            how = f"a process {killed or f'ended with status {status}'} before its first run"
            if killed:
                self.failure = how
            else:
                self.crashes.append(how)
            return
        if self.waiting:
            self._hire()

    def _lost(self, number: int, status: int, killed: str | None) -> None:
        """Start a job again whose process was killed, or give it up."""
        self.left[number] -= 1
        if killed and status and self.left[number]:
            self.waiting.appendleft(number)
            return
        job = self.jobs[number]
        if killed:
            self.killed.append(Killed(job, KilledReason(f"its process {killed}")))
        else:
            self.crashes.append(f"the process of {job.name} ended with status {status}")
        self.tracker.gone(number)


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
    end_with(MACHINE)  # should a library end this process
    try:
        _work_on_jobs(pipe)
    except BaseException as error:
        end_with(MACHINE if is_of_machine(error) else 1)
        raise
    end_with(0)


def _work_on_jobs(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def seen(done: int, text: str) -> None:
        try:
            pipe.send(Place(done, text))
        except OSError:  # left behind by a parent that was killed: save and stop
            signal.raise_signal(signal.SIGTERM)

    message: Ready | Ended = Ready()
    while (job := _ask(pipe, message)) is not None:
        try:
            message = outcome(job, seen)
        except Interrupted:
            return


def _ask(pipe: Connection, message: Ready | Ended) -> Job | None:
    """The next job; None if there is none, or nobody to say so."""
    try:
        pipe.send(message)
        return pipe.recv()
    except (EOFError, OSError):
        return None
