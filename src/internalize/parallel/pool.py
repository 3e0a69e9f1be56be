"""A process pool that restarts crashed workers.

Each worker process has its own pipe to the parent, so one that dies loses nothing but its job. The job is named,
another process replaces the worker, and the others continue. The pool knows nothing of what a job does.
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
"""Callback through which a job reports progress: units done and a message. If the job should stop, the callback raises
SIGTERM in the job's process."""


class Job(Protocol):
    """A picklable unit of work. Long work is kept in files, and continues from them if it was started before."""

    @property
    def name(self) -> str:
        """The name in progress reports and if the job's process dies."""
        ...

    @property
    def size(self) -> int:
        """The amount of work in the unit of `report`; at least 1."""
        ...

    def run(self, report: ReportProgress, /) -> object:
        """Run the job, and return the results that are not in files.

        Raise InputError if the job cannot be done, and Interrupted after SIGTERM, once progress is saved.
        """
        ...


J = TypeVar("J", bound=Job)
Report = Callable[[float, float, str], None]
"""Called with the work done, the total work, and the latest message."""
Refused = Callable[[J, str], None]
"""Called with a job that cannot be done, and the reason."""
Finished = Callable[[J, Any], None]
"""Called with a finished job and what it returned."""
MayBegin = Callable[[J, Sequence[J]], bool]
"""Called with a job and the running jobs; returns whether the job may start alongside them."""


def run_all(
    tracker: "JobTracker[J]",
    processes: int,
    how_to_continue: str,
    *,
    attempts: int = 1,
    may_begin: MayBegin[J] = lambda job, running: True,
) -> "list[Killed[J]]":
    """Run the jobs of a tracker, `processes` at a time, and return those whose processes were killed too often.

    If `processes` is 1, the jobs run in this process.

    Args:
        tracker: the jobs, and the callbacks for their progress and outcome.
        processes: jobs at a time.
        how_to_continue: what the user is told after an interruption or a crash.
        attempts: how often a job is started if its process is killed, for example when memory runs out.
        may_begin: whether a job may start alongside those running. Later jobs may overtake a job that waits. If no job
            is running, it must return True.

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
                raise MachineError(f"{pool.failure}; finished runs are kept, and {how_to_continue}")
        else:
            _one_by_one(tracker, interrupt)
    if interrupt.requested:
        raise Interrupted(how_to_continue)
    return killed


@contextlib.contextmanager
def torch_threads(count: int) -> Generator[None]:
    """Let torch compute with `count` threads while entered. The last bits of a run depend on this number."""
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
            if interrupt.requested:  # the signal came before the job set its own handler
                signal.raise_signal(signal.SIGTERM)
            tracker.progress(number, Progress(done, text))

        try:
            ended = outcome(job, seen)
        except Interrupted:
            interrupt.requested = True
            return
        tracker.ended(number, ended)


class JobTracker(Generic[J]):
    """Tracks overall progress and the outcome of each job.

    `report` is called whenever a job reports progress. `refused` and `finished` are called in this process. After a
    refusal, the other jobs continue.
    """

    def __init__(
        self, jobs: Sequence[J], report: Report, refused: Refused[J], finished: Finished[J] = lambda job, result: None
    ) -> None:
        self.jobs = jobs
        self._report, self._refused, self._finished = report, refused, finished
        self._done_by_job = [0] * len(jobs)
        self._done, self._total = 0, sum(job.size for job in jobs)
        self._closed = 0

    def progress(self, number: int, progress: "Progress") -> None:
        """Record and report the progress of a job."""
        self._done += progress.done - self._done_by_job[number]
        self._done_by_job[number] = progress.done
        seen = f"{self._closed}/{len(self.jobs)} runs  {self.jobs[number].name}  {progress.text}"
        self._report(self._done, self._total, seen)

    def ended(self, number: int, ended: "Ended") -> None:
        """Record that a job has finished or was refused."""
        if ended.refusal is None:
            self._finished(self.jobs[number], ended.result)
        else:
            self._refused(self.jobs[number], ended.refusal)
        self.close(number)

    def close(self, number: int) -> None:
        """Count a job as ended, whatever its outcome."""
        self._closed += 1
        self.progress(number, Progress(self.jobs[number].size, "ended"))


# Messages of a worker process to its parent


@dataclass(frozen=True)
class Ready:
    """The worker waits for a job."""


@dataclass(frozen=True)
class Progress:
    """The progress of the worker's job."""

    done: int
    text: str


@dataclass(frozen=True)
class Ended:
    """The outcome of the worker's job: what it returned, or the reason why it cannot be done."""

    refusal: str | None = None
    result: object = None


def outcome(job: Job, report: ReportProgress = lambda done, text: None) -> Ended:
    """Run a job and return its outcome."""
    try:
        return Ended(result=job.run(report))
    except InputError as error:
        return Ended(str(error))


@dataclass(frozen=True)
class Killed(Generic[J]):
    """A job whose process was killed every time it was started, and the reason."""

    job: J
    reason: KilledReason


_CRASHES: Final = {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE}
"""Statuses of processes that crashed in C code, which may be ours."""


def _how_killed(status: int) -> str | None:
    """Return how the machine or another process ended a worker, or None if a bug did."""
    if status == 0:
        return "was stopped by another process"
    if status == MACHINE:
        return "was ended by the machine or a library, whose message is above"
    if status > 0 or status in _CRASHES:
        return None
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"was killed by {name}{' (likely too little memory)' if name == 'SIGKILL' else ''}"


# The parent process


@dataclass
class _Worker:
    process: SpawnProcess
    job: int | None = None
    ready: bool = False
    """Whether it has asked for a job."""


class _ProcessPool(Generic[J]):
    """The worker processes and the jobs that wait for one."""

    def __init__(self, tracker: JobTracker[J], attempts: int, interrupt: Interruptible, may_begin: MayBegin[J]) -> None:
        self.jobs, self.tracker, self.interrupt, self.may_begin = tracker.jobs, tracker, interrupt, may_begin
        self.waiting = deque(range(len(self.jobs)))
        self.left = [attempts] * len(self.jobs)
        self.workers: dict[Connection, _Worker] = {}
        self.idle: list[Connection] = []
        self.crashes: list[str] = []
        self.killed: list[Killed[J]] = []
        self.failure = ""
        """Why there are fewer workers than there should be."""

    def work(self, processes: int) -> None:
        """Run the jobs until all have ended, or until an interruption has stopped those that run."""
        try:
            for _ in range(min(processes, len(self.jobs))):
                self._hire()
            stopped = False
            while self.workers:
                if self.interrupt.requested and not stopped:
                    stopped = True
                    self.waiting.clear()
                    for worker in self.workers.values():
                        worker.process.terminate()  # a running job saves first
                for pipe in wait(list(self.workers), timeout=0.2):
                    assert isinstance(pipe, Connection)
                    self._receive(pipe)
                idle, self.idle = self.idle, []
                for pipe in filter(self.workers.__contains__, idle):
                    self._assign(pipe)
        finally:
            for worker in self.workers.values():
                worker.process.kill()

    def _hire(self) -> None:
        """Start one more worker. If the system does not allow it, the others do its work."""
        context = multiprocessing.get_context("spawn")
        try:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            with _ignoring_ctrl_c():
                process.start()
        except OSError as error:  # no more processes, open files or memory
            self.failure = f"cannot start a process: {error.strerror}"
            return
        theirs.close()  # so that the pipe ends when the worker does
        self.workers[ours] = _Worker(process)

    def _receive(self, pipe: Connection) -> None:
        worker = self.workers[pipe]
        try:
            message: Progress | Ended | None = pipe.recv()
            if isinstance(message, Progress) and worker.job is not None:
                self.tracker.progress(worker.job, message)
                return
            if isinstance(message, Ended) and worker.job is not None:
                self.tracker.ended(worker.job, message)
            worker.job, worker.ready = None, True
            self.idle.append(pipe)
        except (EOFError, OSError):
            self._remove(pipe)

    def _assign(self, pipe: Connection) -> None:
        """Give an idle worker the next job that may start. If there is none, end it, but keep it while jobs wait."""
        running = [self.jobs[worker.job] for worker in self.workers.values() if worker.job is not None]
        job = next((job for job in self.waiting if self.may_begin(self.jobs[job], running)), None)
        if job is None and self.waiting:
            self.idle.append(pipe)
            return
        if job is not None:
            self.waiting.remove(job)
        self.workers[pipe].job = job
        with contextlib.suppress(OSError):  # it died; `_receive` finds out
            pipe.send(None if job is None else self.jobs[job])

    def _remove(self, pipe: Connection) -> None:
        """Remove a worker that has ended, because it was told to or died, and replace it if jobs wait."""
        worker = self.workers.pop(pipe)
        pipe.close()
        worker.process.join()
        if self.interrupt.requested:
            return
        status = worker.process.exitcode or 0
        killed = _how_killed(status)
        if worker.job is not None:
            self._lost(worker.job, status, killed)
        elif not worker.ready:  # it failed to start, and so would its replacement: the others continue without it
            how = f"a process {killed or f'ended with status {status}'} before its first run"
            if killed:
                self.failure = how
            else:
                self.crashes.append(how)
            return
        if self.waiting:
            self._hire()

    def _lost(self, number: int, status: int, killed: str | None) -> None:
        """Queue the job of a killed worker again, or give it up."""
        self.left[number] -= 1
        if killed and status and self.left[number]:
            self.waiting.appendleft(number)
            return
        job = self.jobs[number]
        if killed:
            self.killed.append(Killed(job, KilledReason(f"its process {killed}")))
        else:
            self.crashes.append(f"the process of {job.name} ended with status {status}")
        self.tracker.close(number)


@contextlib.contextmanager
def _ignoring_ctrl_c() -> Generator[None]:
    """Make processes that are started while entered ignore Ctrl-C from their first moment.

    The terminal sends Ctrl-C to all of them, and the parent decides what to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# The worker processes


def _work(pipe: Connection) -> None:
    end_with(MACHINE)  # in case a library ends this process
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
            pipe.send(Progress(done, text))
        except OSError:  # the parent was killed: save and stop
            signal.raise_signal(signal.SIGTERM)

    message: Ended | None = None  # the first message only asks for a job
    while (job := _ask(pipe, message)) is not None:
        try:
            message = outcome(job, seen)
        except Interrupted:
            return


def _ask(pipe: Connection, message: Ended | None) -> Job | None:
    """Return the next job; None if there is none, or if the parent has died."""
    try:
        pipe.send(message)
        return pipe.recv()
    except (EOFError, OSError):
        return None
