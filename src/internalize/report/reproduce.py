"""`internalize paper`: make the missing runs, reuse finished ones, write the page.

Runs are kept in the report's folder (``runs/<experiment>/seed-<n>``), so a second call only draws. Each process uses
one thread: tensors this small gain nothing from more, and results do not depend on the machine's number of cores.
Results that take hours are not made here: the page shows stored ones (``stored.py``), and ``internalize paper --full``
runs their commands.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from internalize.errors import InputError
from internalize.parallel.pool import Report
from internalize.parallel.runner import KeptJob, RunFolders, Runner
from internalize.parity.experiments.jobs import SEEDS_PER_BATCH, CertifyJob, SolveJob, SuccessJob, TrainJob
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.storage.files import refuse_link, refuse_links

if TYPE_CHECKING:
    from internalize.report.page import ReportInputs


@dataclass(frozen=True)
class Experiment:
    """Runs that differ only in the seed."""

    name: str
    options: TrainOptions
    seeds: int
    explored: int = 0
    """Number of seeds, the first ones, whose weights are kept at every evaluation for the page's explorer."""


@dataclass(frozen=True)
class Algorithm:
    """Runs of Algorithm 1 that differ only in the seed, and a measurement of its success rate over samples."""

    options: SolveOptions
    seeds: int
    success_seeds: int
    success_at: tuple[float, ...] = (0.5, 0.63, 0.79, 1.0, 1.26, 1.59, 2.0)
    """Numbers of samples, as multiples of the number at which half of all runs are predicted to succeed."""


FULL: Final = "full"
"""Folder in the report for the results of `--full`."""
_OWN_FILES: Final = ("index.html", "figures", "tables", "runs", FULL)
PAPER: Final = Experiment("n30-k16", TrainOptions(), 20, explored=3)
EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    # Longest first, so that the processes end at about the same time.
    Experiment("n128-k64-lr0.03", TrainOptions(n=128, k=64, lr=0.03), 3),
    Experiment("n128-k64", TrainOptions(n=128, k=64), 3, explored=1),
    PAPER,
    Experiment("n64-k32", TrainOptions(n=64, k=32), 5),
    Experiment("n30-k8", TrainOptions(k=8), 20),
    Experiment("n30-k4", TrainOptions(k=4), 20),
    Experiment("n30-k2", TrainOptions(k=2), 20),
)
"""The paper's experiment, smaller and larger trees with its settings, and the learning rate that the largest needs."""
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
    """Make the missing runs of the experiments and write ``out/index.html``.

    Args:
        out: the report's folder; runs are kept in ``out/runs``.
        experiments: what to train.
        paper: the settings of the experiment that the claims and figures are about.
        algorithm: the runs of Algorithm 1.
        first_seed: the first seed of every experiment.
        processes: runs at a time; by default the number of cores.
        report: called with updates done, total updates, and the latest message.
        say: called with a line about every run that had to be made again.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
    """
    from internalize.report.page import write_report

    began = time.perf_counter()
    names = {path.name for path in out.glob("[!.]*")}
    own = names.intersection(_OWN_FILES)
    if own.isdisjoint(("runs", "tables")):
        own.discard("index.html")  # a page that is not ours
    if foreign := min(names - own, default=None):
        raise InputError(f"{out} holds {foreign!r}, which is not part of a report; choose another --out")
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
    for jobs in (plan.runs, plan.certificates):  # certificates need finished runs
        folders.run_missing(jobs, "the same command continues")
    written = write_report(out, plan.inputs(), paper=paper)
    figures = sorted(str(path.relative_to(out)) for path in (out / "figures").iterdir())
    seconds = round(time.perf_counter() - began, 1)
    return {"report": str(written.page), "figures": figures, "holds": written.holds, "seconds": seconds}


@dataclass(frozen=True)
class ReproductionPlan:
    """The jobs behind the page, and the folders of their runs."""

    out: Path
    experiments: Sequence[Experiment]
    paper: TrainOptions
    algorithm: Algorithm
    first_seed: int

    @property
    def folder(self) -> Path:
        """The folder of all runs."""
        return self.out / "runs"

    @property
    def runs(self) -> list[KeptJob]:
        """All jobs but the certificates."""
        return [*self.training, self.success, *self.solving]  # short ones last, so that the processes end together

    @property
    def training(self) -> list[TrainJob]:
        """The jobs that train the experiments, several seeds per job."""
        return [job for experiment in self.experiments for job in self._training(experiment)]

    def _training(self, experiment: Experiment) -> Iterator[TrainJob]:
        seeds = range(self.first_seed, self.first_seed + experiment.seeds)
        for start in range(0, len(seeds), SEEDS_PER_BATCH):
            some = tuple(seeds[start : start + SEEDS_PER_BATCH])
            kept = tuple(seed for seed in some if seed in seeds[: experiment.explored])
            yield TrainJob(self.folder, Path(experiment.name), experiment.options, some, kept)

    @property
    def solving(self) -> list[SolveJob]:
        """The runs of Algorithm 1, one per seed."""
        seeds = range(self.first_seed, self.first_seed + self.algorithm.seeds)
        place = Path("algorithm-1")
        return [SolveJob(self.folder, place / f"seed-{s}", replace(self.algorithm.options, seed=s)) for s in seeds]

    @property
    def success(self) -> SuccessJob:
        """Algorithm 1 around the number of samples at which it is predicted to succeed half of the time."""
        from internalize.parity.algorithm1.solve import setting_of

        options = replace(self.algorithm.options, seed=self.first_seed)
        half = setting_of(options).samples_for(0.5)
        assert half is not None  # the defaults succeed at every n
        samples = tuple(max(1, round(half * factor)) for factor in self.algorithm.success_at)
        return SuccessJob(self.folder, Path("success"), options, samples, self.algorithm.success_seeds)

    @property
    def certificates(self) -> list[CertifyJob]:
        """The certificates of the first seed of the paper's experiment and of Algorithm 1."""
        name = next(experiment.name for experiment in self.experiments if experiment.options == self.paper)
        seed = f"seed-{self.first_seed}"
        subjects = (Path(name) / seed, Path("algorithm-1") / seed)
        return [CertifyJob(self.folder, Path("certificates") / subject, subject) for subject in subjects]

    def inputs(self) -> "ReportInputs":
        """Return the finished runs for the page."""
        from internalize.report.page import ReportInputs

        adamw, solved = (job.runs[0] for job in self.certificates)
        own_first = sorted(self.training, key=lambda job: job.options != self.paper)
        return ReportInputs(
            trained=[run for job in self.training for run in job.runs],
            explored=[
                run for job in own_first for seed, run in zip(job.seeds, job.runs, strict=True) if seed in job.snapshots
            ],
            solved=[job.runs[0] for job in self.solving],
            success=self.success.runs[0],
            certificates={"AdamW": adamw, "Algorithm 1": solved},
            full=self.out / FULL,
        )


def _set_aside_if_unusable(job: KeptJob, say: Callable[[str], None], *, again: bool) -> set[Path]:
    """Rename a job's runs if one is missing, unreadable or has other settings, and return the folders that are now
    free.

    All runs of the job are renamed, because the last bits of each depend on the others. ``again`` says that all of them
    existed once. Nothing is deleted: a read may have failed only for a moment, and a folder may hold a run of the
    user's.
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
        together = f" with the {others} trained together with it" if others else ""
        say(f"{error}; making it again{together}")
        for run in job.runs:
            if run.path.exists():
                say(f"{run.path} is now {run.set_aside().name}")
        return {run.path for run in job.runs}
    return set()
