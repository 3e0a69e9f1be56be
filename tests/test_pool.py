"""pool.py: a job that dies or is refused loses no other, in this process or in others; a signal makes all save."""

import errno
import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from internalize.errors import MachineError
from internalize.parallel import pool as workers
from internalize.parallel.interrupt import Interrupted
from internalize.parallel.pool import JobTracker, run_all, torch_threads
from tests import pretend_jobs as pretend
from tests.pretend_jobs import Pretend


def run(out: Path, numbers: list[int], report: Any = lambda *_: None, processes: int = 2) -> list[tuple[int, str]]:
    refused: list[tuple[int, str]] = []
    jobs = [Pretend(number, out) for number in numbers]
    run_all(JobTracker(jobs, report, lambda job, reason: refused.append((job.number, reason))), processes, "again")
    return refused


def done(out: Path) -> list[str]:
    return sorted(path.parent.name for path in out.glob("*/done"))


@pytest.mark.parametrize("processes", [1, 2])
def test_refused(tmp_path: Path, processes: int):
    seen: list[tuple[float, float, str]] = []
    refused = run(tmp_path, [0, 2, 5, 6], lambda *place: seen.append(place), processes)
    assert refused == [(2, "the disk is full")]
    assert done(tmp_path) == ["job-0", "job-5", "job-6"]
    assert seen[-1][:2] == (160, 160)
    assert seen[-1][2].startswith("4/4 runs  here/job-")
    assert [place for place, _, _ in seen] == sorted(place for place, _, _ in seen)
    assert run(tmp_path, [], processes=processes) == []


def test_a_job_that_may_not_begin_yet_is_overtaken(tmp_path: Path):
    """Job 5 may not run beside job 4, so job 6 begins before it, and a process without a job waits."""
    began: list[int] = []

    def may_begin(job: Pretend, running: Sequence[Pretend]) -> bool:
        return job.number != 5 or 4 not in [other.number for other in running]

    def report(done: float, total: float, seen: str) -> None:
        if "in " in seen:
            began.append(int(seen.split("job-")[1][0]))

    jobs = [Pretend(number, tmp_path) for number in (4, 5, 6)]
    run_all(JobTracker(jobs, report, lambda job, reason: None), 2, "again", may_begin=may_begin)
    assert sorted(began) == [4, 5, 6]
    assert began.index(5) > began.index(4)
    assert done(tmp_path) == ["job-4", "job-5", "job-6"]


def test_a_killed_process_loses_no_other_job(tmp_path: Path):
    """Two jobs kill their process at every attempt. Both first processes are lost, and the other jobs finish."""
    started: list[str] = []
    jobs = [Pretend(number, tmp_path) for number in (1, 7, 1, 8, 9)]
    tracker = JobTracker(jobs, lambda done, total, seen: started.append(seen), lambda job, reason: None)
    killed = run_all(tracker, 2, "again", attempts=2)
    assert [lost.job.number for lost in killed] == [1, 1]
    assert killed[0].reason == "its process was killed by SIGKILL (likely too little memory)"
    assert sum("job-1  in " in seen for seen in started) == 4
    assert done(tmp_path) == ["job-7", "job-8", "job-9"]


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        (pretend.cannot_begin, RuntimeError, "a process ended with status 5 before its first run"),
        (pretend.killed_early, MachineError, "a process was killed by SIGKILL .* before its first run"),
        (
            pretend.ended_by_a_library,
            MachineError,
            "by the machine or a library, whose message is above before its first",
        ),
    ],
)
def test_processes_that_do_not_begin(
    work: Any, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(workers, "_work", work)
    with pytest.raises(error, match=message):
        run(tmp_path, [0, 5, 6])
    assert multiprocessing.active_children() == []


def test_a_crash_in_c_is_a_bug(tmp_path: Path):
    with pytest.raises(RuntimeError, match=r"the process of here/job-11 ended with status -11; .* and again"):
        run(tmp_path, [11, 5])
    assert done(tmp_path) == ["job-5"]


def test_finished_work_is_not_lost_by_a_death_at_the_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "_work", pretend.killed_at_the_exit)
    assert run(tmp_path, [0, 5, 6]) == []
    assert done(tmp_path) == ["job-0", "job-5", "job-6"]


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EMFILE])
def test_processes_that_the_system_refuses(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The processes that could be started do all the work. If none could, one line says why."""
    whole, left = SpawnProcess.start, [1]

    def start(process: SpawnProcess) -> None:
        if not left:
            raise OSError(number, os.strerror(number))
        left.pop()
        whole(process)

    monkeypatch.setattr(SpawnProcess, "start", start)
    with pytest.raises(MachineError, match="cannot start a process"):
        run(tmp_path / "killed", [1, 5, 6])  # the only process that could be started is killed
    left.append(1)
    assert run(tmp_path / "one", [0, 5, 6]) == []
    assert done(tmp_path / "one") == ["job-0", "job-5", "job-6"]
    with pytest.raises(MachineError, match=f"cannot start a process: {os.strerror(number)}"):
        run(tmp_path / "none", [0, 5, 6])


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_jobs_save(tmp_path: Path, processes: int, number: signal.Signals):
    def interrupt(done: float, total: float, seen: str) -> None:
        if "waits" in seen and done >= 40 and not stopped:
            stopped.append(seen)
            signal.raise_signal(number)

    stopped: list[str] = []
    with pytest.raises(Interrupted, match="again"):
        run(tmp_path, [0, 3, 3, 3], interrupt, processes)
    assert (tmp_path / "job-3" / "saved").exists()
    assert stopped[0].startswith("1/4 runs  here/job-3  waits")
    assert multiprocessing.active_children() == []


def test_a_process_that_somebody_else_stops_loses_no_other_job(tmp_path: Path):
    """After SIGTERM to a single process its job saves and is named, and another process takes the remaining jobs."""
    stopped: list[int] = []

    def report(done: float, total: float, seen: str) -> None:
        if "job-3" in seen and " in " in seen:
            stopped.append(int(seen.split()[-1]))
        if "job-3 waits" in seen.replace("  ", " "):
            os.kill(stopped[0], signal.SIGTERM)

    jobs = [Pretend(number, tmp_path) for number in (3, 5, 6)]
    (lost,) = run_all(JobTracker(jobs, report, lambda job, reason: None), 2, "again", attempts=3)
    assert (lost.job.number, lost.reason) == (3, "its process was stopped by another process")
    assert (tmp_path / "job-3" / "saved").exists()
    assert all((tmp_path / f"job-{number}" / "done").exists() for number in (5, 6))


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
