"""One runner for many configurations: `compare`, `sweep`, `paper` and `lm compare` only describe what to run.

| class      | what it is                                                                                         |
| ---------- | -------------------------------------------------------------------------------------------------- |
| Runner     | where jobs run: processes of this machine or a Ray cluster, how many at a time, and a progress callback |
| KeptJob    | a job that keeps its results in run folders, so that it can be resumed                             |
| RunFolders | a folder of run folders; `fill` runs the jobs that are not finished there                          |

A sweep instead keeps its rows in `storage.sweep_store` and adds results to that store itself.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from internalize.errors import InputError, MachineError
from internalize.parallel.cluster import load_ray, run_on_ray
from internalize.parallel.pool import J, JobTracker, Killed, MayBegin, Report, ReportProgress, run_all
from internalize.storage.files import refuse_link, refuse_links
from internalize.storage.runs import Run
from internalize.storage.summaries import ROWS

Backend = Literal["processes", "ray"]


@dataclass(frozen=True)
class Runner:
    """Where jobs run, and the callback for their progress."""

    processes: int | None = None
    """Jobs at a time. Default: the number of cores, or of CPUs of the cluster."""
    backend: Backend = "processes"
    address: str | None = None
    """Address of the Ray cluster. Default: start a cluster on this machine."""
    attempts: int = 3
    """How often a job is started if its process is killed."""
    report: Report = lambda done, total, seen: None

    def __post_init__(self) -> None:
        if self.processes is not None and not 1 <= self.processes <= 1024:
            raise InputError(f"jobs={self.processes} is outside 1 … 1024")
        if self.backend == "ray":
            load_ray(self.address)  # refuse a missing cluster before anything is written
        elif self.address is not None:
            raise InputError(f"address={self.address!r} is for a Ray cluster; add --backend ray")

    def run(
        self,
        jobs: Sequence[J],
        *,
        refused: Callable[[J, str], None],
        finished: Callable[[J, Any], None] = lambda job, result: None,
        report: Report | None = None,
        may_begin: MayBegin[J] = lambda job, running: True,
        how_to_continue: str,
    ) -> list[Killed[J]]:
        """Run the jobs, and return those whose processes were killed too often.

        `refused` and `finished` are called in this process with each job that ends. A Ray cluster ignores `may_begin`.

        Raises:
            Interrupted: after Ctrl-C or SIGTERM, with everything saved.
        """
        tracker = JobTracker(jobs, report or self.report, refused, finished)
        if self.backend == "ray":
            return run_on_ray(tracker, self.address, self.processes, how_to_continue, attempts=self.attempts)
        processes = self.processes or os.cpu_count() or 1
        return run_all(tracker, processes, how_to_continue, attempts=self.attempts, may_begin=may_begin)


@dataclass(frozen=True)
class KeptJob(ABC):
    """A job that keeps its results in run folders."""

    out: Path
    place: Path
    """Path below ``out`` of the job's run folder, or of the folder that holds its runs."""

    @property
    def runs(self) -> list[Run]:
        """The runs of this job that are known before it starts."""
        return [Run(self.out / self.place)]

    @property
    def name(self) -> str:
        """The path below ``out``."""
        return str(self.place)

    @property
    def size(self) -> int:
        """The amount of work: updates or runs."""
        return 1

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return all(run.finished for run in self.runs)

    def tidy(self) -> None:
        """Clean up finished runs whose process was killed after it wrote the result."""
        for run in self.runs:
            if run.finished:
                run.tidy()

    @abstractmethod
    def check(self, *, resume: bool) -> None:
        """Raise an error if a folder cannot become this job's, or if a finished run is damaged."""

    @abstractmethod
    def run(self, report: ReportProgress, /) -> object:
        """Make the missing runs, and continue those that were started."""


K = TypeVar("K", bound=KeptJob)


@dataclass(frozen=True)
class RunFolders:
    """A folder of run folders that jobs fill."""

    out: Path
    resume: bool = False
    runner: Runner = Runner(1)
    on_refused: Callable[[str, str], None] | None = None
    """Called with the name of a job that cannot be done and the reason, a `KilledReason` if the machine ended it.
    Default: raise an error once the other jobs are done."""

    def __post_init__(self) -> None:
        if Run(self.out).exists:
            raise InputError(f"{self.out} is a run folder itself; a comparison keeps its runs in folders below --out")
        refuse_links(self.out, ("figures", ROWS))

    def refuse_links(self, jobs: Sequence[KeptJob]) -> None:
        """Raise an error if a link leads to a run folder outside of ``out``."""
        for run in (run for job in jobs for run in job.runs):
            refuse_link(run.path, self.out)

    def fill(self, jobs: Sequence[KeptJob]) -> None:
        """Run the jobs that are not finished. If one of the folders cannot be used, raise an error before any job runs.

        Raises:
            Interrupted: after Ctrl-C or SIGTERM, with everything saved.
        """
        self.refuse_links(jobs)
        for job in jobs:
            job.check(resume=self.resume)
        self.run_missing(jobs, f"the same command with --out {self.out} --resume continues")

    def run_missing(
        self,
        jobs: Sequence[K],
        how_to_continue: str,
        finished: Callable[[K, Any], None] = lambda job, result: None,
        may_begin: Callable[[K, Sequence[K]], bool] = lambda job, running: True,
    ) -> None:
        """Run the jobs that are not finished, without checking their folders first."""
        self.refuse_links(jobs)
        for job in jobs:
            job.tidy()
        refusals: list[str] = []

        def refused(job: K, reason: str) -> None:
            refusals.append(f"{job.name}: {reason}")
            if self.on_refused is not None:
                self.on_refused(job.name, reason)

        killed = self.runner.run(
            [job for job in jobs if not job.finished],
            refused=refused,
            finished=finished,
            may_begin=may_begin,
            how_to_continue=how_to_continue,
        )
        for lost in killed:
            refused(lost.job, lost.reason)
        if killed and self.on_refused is None:
            raise MachineError(f"{'; '.join(refusals)}; finished runs are kept, and {how_to_continue}")
        if refusals and self.on_refused is None:
            raise InputError("; ".join(dict.fromkeys(refusals)))
