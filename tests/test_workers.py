"""pool.py: jobs in processes and in ours; one that dies or is refused loses no other; asked to stop, all save."""

import multiprocessing
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from internalize.parallel import pool as workers
from internalize.parallel.interrupt import Interrupted
from internalize.parallel.pool import JobTracker, run_all, torch_threads
from tests import pretend
from tests.pretend import Pretend


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
    """Job 5 may not run beside job 4: job 6 begins before it, and a process without a job waits."""
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


def test_crashes_lose_no_other_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(
        RuntimeError, match=r"the process of here/job-1 ended with status -9; tracebacks are above, and again"
    ):
        run(tmp_path, [1, 7, 1, 8, 9])  # two die: nobody of the first two processes is left
    assert done(tmp_path) == ["job-7", "job-8", "job-9"]
    monkeypatch.setattr(workers, "_work", pretend.cannot_begin)
    with pytest.raises(RuntimeError, match="ended with status 5 before its first run"):
        run(tmp_path / "two", [0, 5, 6])
    assert multiprocessing.active_children() == []


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
    """SIGTERM to a worker alone: it saves, its job is named, and another process takes what waits."""
    stopped: list[int] = []

    def report(done: float, total: float, seen: str) -> None:
        if "job-3" in seen and " in " in seen:
            stopped.append(int(seen.split()[-1]))
        if "job-3 waits" in seen.replace("  ", " "):
            os.kill(stopped[0], signal.SIGTERM)

    with pytest.raises(RuntimeError, match="the process of here/job-3 was stopped by somebody else"):
        run(tmp_path, [3, 5, 6], report)
    assert (tmp_path / "job-3" / "saved").exists()
    assert all((tmp_path / f"job-{number}" / "done").exists() for number in (5, 6))


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
