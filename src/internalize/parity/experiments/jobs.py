"""Runs of the parity wing as jobs for a pool of processes (``internalize.parallel.pool``), one thread each.

Tensors this small gain nothing from threads, and the bits do not depend on the machine's number of cores.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from internalize.errors import InputError
from internalize.parallel.interrupt import Interrupted, Interruptible
from internalize.parallel.pool import Report, ReportProgress, run_all, torch_threads
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.storage.runs import Run, begin_runs
from internalize.storage.summaries import SOLVED

if TYPE_CHECKING:
    from internalize.parity.algorithm1.solve import SolveState

SEEDS_PER_BATCH: Final = 10
"""Seeds trained together: fixed, because the last bits of a run depend on it."""


@dataclass(frozen=True)
class ComparisonSettings:
    """Where a comparison keeps its runs, how many are made at once, and who is told."""

    out: Path
    resume: bool = False
    processes: int = 1
    report: Report = lambda done, total, seen: None
    refused: Callable[[str, str], None] | None = None
    """Called with the name of a run that cannot be made, and why. Without this, an InputError once the others are made."""

    def __post_init__(self) -> None:
        if not 1 <= self.processes <= 1024:
            raise InputError(f"jobs={self.processes} is outside 1 … 1024")
        if Run(self.out).exists:
            raise InputError(f"{self.out} is a run folder itself; a comparison keeps its runs in folders below --out")


@dataclass(frozen=True)
class ParityJob(ABC):
    """Something that is kept in run folders."""

    out: Path
    place: Path
    """Of the run's folder, or of the folder that holds the runs, below ``out``."""

    @property
    def runs(self) -> list[Run]:
        """All that there are to make, as far as is known."""
        return [Run(self.out / self.place)]

    @property
    def name(self) -> str:
        """The folder below ``out``."""
        return str(self.place)

    @property
    def size(self) -> int:
        """Updates, or runs."""
        return 1

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return all(run.finished for run in self.runs)

    def check(self, *, resume: bool) -> None:
        """Refuse folders that have runs already, unless they are to be continued, and finished runs that are damaged."""
        from internalize.parity.algorithm1.checkpoints import read_solved

        for run in self.runs:
            if run.exists and not resume:
                raise InputError(f"{run.path}: this run was begun already; add --resume, or choose another --out")
            if run.finished:
                read_solved(run)

    @abstractmethod
    def run(self, seen: ReportProgress) -> None:
        """Make the runs that are missing, and go on with those that were begun."""


@dataclass(frozen=True)
class TrainJob(ParityJob):
    """Runs of `train` that differ in their seeds only, trained together."""

    options: TrainOptions
    seeds: tuple[int, ...]
    snapshots: tuple[int, ...] = ()
    """Seeds whose weights are kept at every evaluation."""

    @property
    def runs(self) -> list[Run]:
        """One a seed."""
        return [Run(self.out / self.place / f"seed-{seed}") for seed in self.seeds]

    @property
    def name(self) -> str:
        """The folder below ``out``, and the seeds."""
        first, last = self.seeds[0], self.seeds[-1]
        return f"{self.place}/seed-{first}" + (f" … {last}" if last != first else "")

    @property
    def size(self) -> int:
        """Updates."""
        from internalize.parity.adamw.ensemble import total_steps

        return max(1, total_steps(self.options))

    def check(self, *, resume: bool) -> None:
        """Refuse folders that cannot become these runs', and finished runs that are damaged."""
        from internalize.parity.adamw.train import check_finished, check_snapshots, run_config

        for run, seed in zip(self.runs, self.seeds, strict=True):
            run.check("train", run_config(self.options, seed), resume=resume)
            if run.finished:
                check_finished(run)
                if seed in self.snapshots:
                    check_snapshots(run)

    def run(self, seen: ReportProgress) -> None:
        """Train the runs, or continue them; finished ones are left as they are."""
        from internalize.parity.adamw.train import TrainProgress, train

        def report(now: TrainProgress) -> None:
            accuracy = sum(m["accuracy"] for m in now.metrics) / len(now.metrics)
            seen(now.done, f"stage {now.metrics[0]['stage']}/{now.stages}  accuracy {accuracy:.3f}")

        with torch_threads(1):
            train(self.options, self.seeds, self.runs, snapshots=self.snapshots, resume=True, report=report)


@dataclass(frozen=True)
class SolveJob(ParityJob):
    """One run of Algorithm 1, with the gradient and the weights of every stage."""

    options: SolveOptions

    def check(self, *, resume: bool) -> None:
        """The same, and the options must be the run's; every stage of a finished run must have its weights."""
        from internalize.parity.algorithm1.checkpoints import solve_config

        super().check(resume=resume)
        run = self.runs[0]
        run.check("solve", solve_config(self.options), resume=resume)
        if run.finished and [step for step, _ in run.snapshots()] != list(range(1, len(run.result["stages"]) + 1)):
            raise InputError(f"{run.path / 'snapshots'} has not the weights of every stage; remove the run's folder")

    def run(self, seen: ReportProgress) -> None:
        """Solve, or go on with the next stage."""
        _solve(self.options, self.runs[0], 0, seen, snapshots=True)


@dataclass(frozen=True)
class DescentJob(ParityJob):
    """Runs of Algorithm 1 at fewer and fewer samples a stage, by factors of √2, until one fails; and one at given samples."""

    options: SolveOptions
    """With the number of samples to begin with."""
    equal: int
    """Samples a stage of the run that is made in any case."""

    @property
    def size(self) -> int:
        """Runs. How many there will be is not known beforehand: taken to be a dozen."""
        return 12

    def descent(self) -> Iterator[Run]:
        """The runs at fewer and fewer samples, up to the first that failed or is not finished yet."""
        from internalize.parity.algorithm1.checkpoints import read_solved

        assert self.options.samples is not None
        halvings = range(2 * self.options.samples.bit_length() + 1)
        for samples in dict.fromkeys(max(1, round(self.options.samples / 2 ** (half / 2))) for half in halvings):
            run = self.at(samples)
            yield run
            if not (run.finished and read_solved(run).accuracy >= SOLVED):
                return

    def at(self, samples: int) -> Run:
        """The run at so many samples a stage."""
        return Run(self.out / self.place / f"samples-{samples}")

    @property
    def runs(self) -> list[Run]:
        """All that there are to make, as far as is known."""
        return [self.at(self.equal), *self.descent()]

    def run(self, seen: ReportProgress) -> None:
        """Make the runs that are missing; the descent looks at each before it goes on to the next."""
        for number, run in enumerate(chain([self.at(self.equal)], self.descent())):
            if not run.finished:
                samples = int(run.path.name.removeprefix("samples-"))
                _solve(replace(self.options, samples=samples), run, min(number, self.size), seen)


def _solve(options: SolveOptions, run: Run, done: int, seen: ReportProgress, *, snapshots: bool = False) -> None:
    from internalize.parity.algorithm1.checkpoints import solve_kept

    def on_stage(solving: "SolveState") -> None:
        record = solving.records[-1]
        seen(done, f"B={solving.samples[1]}  stage {record.stage}  margin {record.margin:.2f} K")
        if interrupt.requested:  # all finished stages are saved
            raise Interrupted

    with torch_threads(1), Interruptible() as interrupt:
        solve_kept(options, run, resume=True, snapshots=snapshots, on_stage=on_stage)


@dataclass(frozen=True)
class CertifyJob(ParityJob):
    """The certificates of a finished run, kept in a folder of their own."""

    subject: Path
    """The run's folder, below ``out``."""

    def check(self, *, resume: bool) -> None:
        """Certificates are what they are, whoever asks again; but they must be of this run, and whole."""
        kept = self.runs[0]
        kept.check("certify", {"run": str(self.subject)}, resume=True)
        if kept.finished and not isinstance(kept.result.get("certificates"), list):
            raise InputError(f"{kept.path / 'result.json'} has no list of certificates")

    def run(self, seen: ReportProgress) -> None:
        """Check every statement."""
        from internalize.parity.certificates import World, certify

        kept = self.runs[0]
        with torch_threads(1), begin_runs([kept], "certify", [{"run": str(self.subject)}], resume=True):
            certificates = certify(World.of_run(Run.open(self.out / self.subject)))
            kept.finish({"certificates": [certificate.to_json() for certificate in certificates]})


@dataclass(frozen=True)
class SuccessJob(ParityJob):
    """How many of some seeds Algorithm 1 solves at each of several numbers of samples; their weights are not kept."""

    options: SolveOptions
    """With the first of the seeds."""
    samples: tuple[int, ...]
    seeds: int

    @property
    def config(self) -> dict[str, Any]:
        """What `config.json` says."""
        return {**asdict(self.options), "samples": list(self.samples), "seeds": self.seeds}

    @property
    def size(self) -> int:
        """Runs of the algorithm."""
        return len(self.samples) * self.seeds

    def check(self, *, resume: bool) -> None:
        """Refuse another's folder, and a finished one that has not every point."""
        kept = self.runs[0]
        kept.check("success", self.config, resume=resume)
        if kept.finished:
            points = kept.result.get("points")
            listed = cast(list[Any], points) if isinstance(points, list) else []
            if [point.get("samples") for point in listed if isinstance(point, dict)] != [*self.samples]:
                raise InputError(f"{kept.path / 'result.json'} has not a point for each of {self.samples}")

    def run(self, seen: ReportProgress) -> None:
        """One number of samples after another; stopped, it begins anew: all of it is seconds."""
        from internalize.parity.algorithm1.solve import solve

        kept, first = self.runs[0], self.options.seed
        with (
            torch_threads(1),
            begin_runs([kept], "success", [self.config], resume=True),
            Interruptible() as interrupt,
        ):
            points: list[dict[str, int]] = []
            for samples in self.samples:
                successes = 0
                for number in range(self.seeds):
                    asked = replace(self.options, samples=samples, seed=first + number)
                    successes += solve(asked, stop_at_failure=True).exact_recovery
                    if interrupt.requested:
                        raise Interrupted
                points.append({"samples": samples, "seeds": self.seeds, "successes": successes})
                seen(len(points) * self.seeds, f"B={samples}  {successes} of {self.seeds} solved")
            kept.finish({"points": points})


def tidy_finished(jobs: Sequence[ParityJob]) -> None:
    """Remove what a kill after a run's result has left in its folder."""
    for run in (run for job in jobs for run in job.runs if run.finished):
        run.tidy()


def carry_out(jobs: Sequence[ParityJob], how: ComparisonSettings) -> None:
    """Make the runs that are missing; refuse before any if a folder is not theirs.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
    """
    for job in jobs:
        job.check(resume=how.resume)
    failures: list[str] = []

    def refused(job: ParityJob, reason: str) -> None:
        failures.append(f"{job.name}: {reason}")
        if how.refused is not None:
            how.refused(job.name, reason)

    again = f"the same command with --out {how.out} --resume goes on"
    tidy_finished(jobs)
    run_all([job for job in jobs if not job.finished], how.processes, how.report, refused, again)
    if failures and how.refused is None:
        raise InputError("; ".join(failures))
