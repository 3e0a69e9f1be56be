"""`internalize paper`: make the runs that are missing, reuse what is finished, write the page.

The runs are kept below the report (``runs/<experiment>/seed-<n>``), so that a second call only draws. They are made in
processes of one thread each: tensors this small gain nothing from threads, and the bits do not depend on the machine's
number of cores. What takes hours is not made here: the page shows stored results
(``stored.py``), and ``internalize paper --full`` runs their commands.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from internalize.errors import InputError
from internalize.parallel.pool import Report
from internalize.parallel.runner import KeptJob, RunFolders, Runner
from internalize.parity.experiments.jobs import (
    SEEDS_PER_BATCH,
    CertifyJob,
    SolveJob,
    SuccessJob,
    TrainJob,
)
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.storage.files import refuse_link, refuse_links
from internalize.storage.runs import Run

if TYPE_CHECKING:
    from internalize.report.page import ReportInputs


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in the seed only."""

    name: str
    options: TrainOptions
    seeds: int
    explored: int = 0
    """Of how many, the first ones, the weights are kept at every evaluation, for the page's explorer."""


@dataclass(frozen=True)
class Algorithm:
    """Runs of Algorithm 1 that differ in the seed only, and how often it succeeds with fewer samples."""

    options: SolveOptions
    seeds: int
    success_seeds: int
    success_at: tuple[float, ...] = (0.5, 0.63, 0.79, 1.0, 1.26, 1.59, 2.0)
    """Numbers of samples, in units of the one at which half of all runs are predicted to succeed."""


FULL: Final = "full"
"""Folder below the report of what `--full` makes."""
_OWN_FILES: Final = ("index.html", "figures", "tables", "runs", FULL)
PAPER: Final = Experiment("n30-k16", TrainOptions(), 20, explored=3)
EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    # The longest first, so that the processes end together.
    Experiment("n128-k64-lr0.03", TrainOptions(n=128, k=64, lr=0.03), 3),
    Experiment("n128-k64", TrainOptions(n=128, k=64), 3, explored=1),
    PAPER,
    Experiment("n64-k32", TrainOptions(n=64, k=32), 5),
    Experiment("n30-k8", TrainOptions(k=8), 20),
    Experiment("n30-k4", TrainOptions(k=4), 20),
    Experiment("n30-k2", TrainOptions(k=2), 20),
)
"""The paper's experiment, smaller and larger trees at its settings, and what the largest one needs."""
ALGORITHM: Final = Algorithm(SolveOptions(), 20, 50)


def reproduce(
    out: Path,
    experiments: Sequence[Experiment] = EXPERIMENTS,
    *,
    paper: TrainOptions = PAPER.options,
    algorithm: Algorithm = ALGORITHM,
    first_seed: int = 0,
    processes: int | None = None,
    report: Report = lambda done, total, seen: None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Make what is missing of the experiments and write ``out/index.html``.

    Args:
        out: the report's folder; runs are kept in ``out/runs``.
        experiments: what to train.
        paper: the settings, among those of the experiments, that the paper's claims and figures are about.
        algorithm: what to solve.
        first_seed: every experiment takes its number of seeds from this one up.
        processes: how many runs are made at once; default the machine's cores.
        report: called with updates done, updates to do, and what was seen last.
        say: called with a line about every run that had to be rebuilt.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
    """
    from internalize.report.page import write_report

    began = time.perf_counter()
    names = {path.name for path in out.glob("[!.]*")}
    own = names.intersection(_OWN_FILES)
    if own.isdisjoint(("runs", "tables")):
        own.discard("index.html")  # a page of somebody else's
    if stranger := next(iter(sorted(names - own)), None):
        raise InputError(f"{out} holds {stranger!r}, which is not of a report; choose another --out")
    plan = ReproductionPlan(out, experiments, paper, algorithm, first_seed)
    folders = RunFolders(plan.folder, resume=True, runner=Runner(processes, report=report))
    refuse_links(out, ("index.html", "figures", "tables"))
    refuse_link(plan.folder, out)
    folders.refuse_links([*plan.runs, *plan.certificates])
    again = (out / "index.html").exists()
    rebuilt: set[Path] = set()
    for job in plan.runs:
        rebuilt |= _set_aside_if_unusable(job, say, again=again)
    for job in plan.certificates:
        if plan.folder / job.subject in rebuilt and job.runs[0].path.exists():
            say(f"{job.name} is about a run that was set aside; it is now {job.runs[0].set_aside().name}")
        else:
            _set_aside_if_unusable(job, say, again=again)
    for jobs in (plan.runs, plan.certificates):  # certificates are about finished runs
        folders.run_missing(jobs, "the same command continues")
    written = write_report(out, plan.inputs(), paper=paper)
    figures = sorted(str(path.relative_to(out)) for path in (out / "figures").iterdir())
    seconds = round(time.perf_counter() - began, 1)
    return {"report": str(written.page), "figures": figures, "holds": written.holds, "seconds": seconds}


@dataclass(frozen=True)
class ReproductionPlan:
    """The jobs behind the page, and where their runs are."""

    out: Path
    experiments: Sequence[Experiment]
    paper: TrainOptions
    algorithm: Algorithm
    first_seed: int

    @property
    def folder(self) -> Path:
        """Of all runs."""
        return self.out / "runs"

    @property
    def runs(self) -> list[KeptJob]:
        """What is trained and solved."""
        return [*self.training, self.success, *self.solving]  # many short ones last: the processes end together

    @property
    def training(self) -> list[TrainJob]:
        """Every experiment, some seeds at a time."""
        return [job for experiment in self.experiments for job in self._training(experiment)]

    def _training(self, experiment: Experiment) -> Iterator[TrainJob]:
        seeds = range(self.first_seed, self.first_seed + experiment.seeds)
        for start in range(0, len(seeds), SEEDS_PER_BATCH):
            some = tuple(seeds[start : start + SEEDS_PER_BATCH])
            kept = tuple(seed for seed in some if seed in seeds[: experiment.explored])
            yield TrainJob(self.folder, Path(experiment.name), experiment.options, some, kept)

    @property
    def solving(self) -> list[SolveJob]:
        """Algorithm 1 with every seed."""
        seeds = range(self.first_seed, self.first_seed + self.algorithm.seeds)
        place = Path("algorithm-1")
        return [SolveJob(self.folder, place / f"seed-{s}", replace(self.algorithm.options, seed=s)) for s in seeds]

    @property
    def success(self) -> SuccessJob:
        """Algorithm 1 around the number of samples at which it succeeds half of the time."""
        from internalize.parity.algorithm1.solve import setting_of

        options = replace(self.algorithm.options, seed=self.first_seed)
        half = setting_of(options).samples_for(0.5)
        assert half is not None  # the defaults succeed at every n
        samples = tuple(max(1, round(half * factor)) for factor in self.algorithm.success_at)
        return SuccessJob(self.folder, Path("success"), options, samples, self.algorithm.success_seeds)

    @property
    def certificates(self) -> list[CertifyJob]:
        """Of the first seed of the paper's experiment, and of Algorithm 1."""
        name = next(experiment.name for experiment in self.experiments if experiment.options == self.paper)
        seed = f"seed-{self.first_seed}"
        subjects = (Path(name) / seed, Path("algorithm-1") / seed)
        return [CertifyJob(self.folder, Path("certificates") / subject, subject) for subject in subjects]

    def _explored(self) -> list[Run]:
        """The runs with snapshots, the paper's own first."""
        jobs = sorted(self.training, key=lambda job: job.options != self.paper)
        return [run for job in jobs for seed, run in zip(job.seeds, job.runs, strict=True) if seed in job.snapshots]

    def inputs(self) -> "ReportInputs":
        """Everything that was made, for the page."""
        from internalize.report.page import ReportInputs

        adamw, solved = (job.runs[0] for job in self.certificates)
        return ReportInputs(
            trained=[run for job in self.training for run in job.runs],
            explored=self._explored(),
            solved=[job.runs[0] for job in self.solving],
            success=self.success.runs[0],
            certificates={"AdamW": adamw, "Algorithm 1": solved},
            full=self.out / FULL,
        )


def _set_aside_if_unusable(job: KeptJob, say: Callable[[str], None], *, again: bool) -> set[Path]:
    """Rename a job's runs if one is missing, unreadable or has other settings, and return the folders that are free again.

    All of them, because the last bits of each depend on the others. ``again``: they were all there once. Nothing is deleted: a
    read may have failed for a moment only, and a folder may hold somebody's own run.
    """
    missing = [run.path for run in job.runs if not run.exists]
    try:
        if missing and (again or len(missing) < len(job.runs)):
            raise InputError(f"{missing[0]} is missing")
        job.check(resume=True)
        for run in job.runs:
            if steps := run.checkpoint_steps():
                run.load_checkpoint(max(steps))
    except InputError as error:
        others = len(job.runs) - 1
        together = f" with the {others} that were trained together with it" if others else ""
        say(f"{error}; making it again{together}")
        for run in job.runs:
            if run.path.exists():
                say(f"{run.path} is now {run.set_aside().name}")
        return {run.path for run in job.runs}
    return set()
