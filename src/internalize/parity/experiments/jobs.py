"""Parity runs as jobs for `internalize.parallel`, one thread each.

Tensors this small gain nothing from threads, and with one thread the bits do not depend on the machine's number of
cores.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict, get_origin, get_type_hints

from msgspec import Meta

from internalize.certificate import Certificate
from internalize.errors import InputError
from internalize.parallel.interrupt import Interrupted, Interruptible
from internalize.parallel.pool import ReportProgress, torch_threads
from internalize.parallel.runner import KeptJob
from internalize.parity.experiments.grid import Kind, Options, option_types, without_none
from internalize.parity.options import SolveOptions, TrainOptions, stored
from internalize.storage.files import Json
from internalize.storage.runs import Run, begin_runs
from internalize.storage.summaries import SOLVED
from internalize.storage.sweep_store import Schema

if TYPE_CHECKING:
    from internalize.parity.algorithm1.solve import SolveState

SEEDS_PER_BATCH: Final = 10
"""Number of seeds trained together. Do not change it, because the last bits of a run depend on it."""


@dataclass(frozen=True)
class TrainJob(KeptJob):
    """Runs of `train` that differ only in their seeds, trained together."""

    options: TrainOptions
    seeds: tuple[int, ...]
    snapshots: tuple[int, ...] = ()
    """Seeds whose weights are stored at every evaluation."""

    @property
    def runs(self) -> list[Run]:
        """The run of each seed."""
        return [Run(self.out / self.place / f"seed-{seed}") for seed in self.seeds]

    @property
    def name(self) -> str:
        """The job's folder below ``out``, and its seeds."""
        first, last = self.seeds[0], self.seeds[-1]
        return f"{self.place}/seed-{first}" + (f" … {last}" if last != first else "")

    @property
    def size(self) -> int:
        """Number of updates."""
        from internalize.parity.adamw.ensemble import total_steps

        return max(1, total_steps(self.options))

    def check(self, *, resume: bool) -> None:
        """Raise if a folder cannot hold its run, or if a finished run is damaged."""
        from internalize.parity.adamw.train import check_finished, check_snapshots, run_config

        for run, seed in zip(self.runs, self.seeds, strict=True):
            run.check("train", run_config(self.options, seed), resume=resume)
            if run.finished:
                check_finished(run)
                if seed in self.snapshots:
                    check_snapshots(run)

    def run(self, report: ReportProgress) -> None:
        """Train or continue the runs; finished ones stay unchanged."""
        from internalize.parity.adamw.train import TrainProgress, train

        def on_progress(now: TrainProgress) -> None:
            accuracy = sum(m["accuracy"] for m in now.metrics) / len(now.metrics)
            report(now.done, f"stage {now.metrics[0]['stage']}/{now.stages}  accuracy {accuracy:.3f}")

        with torch_threads(1):
            train(self.options, self.seeds, self.runs, snapshots=self.snapshots, resume=True, report=on_progress)


@dataclass(frozen=True)
class SolveJob(KeptJob):
    """One run of Algorithm 1, with the gradient and the weights of every stage."""

    options: SolveOptions

    def check(self, *, resume: bool) -> None:
        """Raise if the folder cannot hold this run, or if a finished run is damaged or lacks the weights of a stage."""
        from internalize.parity.algorithm1.solve_runs import read_solved, solve_config

        run = self.runs[0]
        run.check("solve", solve_config(self.options), resume=resume)
        if run.finished:
            read_solved(run)
        if run.finished and [step for step, _ in run.snapshots()] != list(range(1, len(run.result["stages"]) + 1)):
            raise InputError(f"{run.path / 'snapshots'} lacks the weights of some stages; remove the run's folder")

    def run(self, report: ReportProgress) -> None:
        """Run Algorithm 1, or continue with the next stage."""
        _solve(self.options, self.runs[0], 0, report, snapshots=True)


@dataclass(frozen=True)
class DescentJob(KeptJob):
    """Runs of Algorithm 1 at fewer and fewer samples, by factors of √2, until one fails; and a run at equal samples."""

    options: SolveOptions
    """Options of the first run, with its number of samples."""
    equal: int
    """Samples per stage of the run at equal samples, which is always made."""

    @property
    def size(self) -> int:
        """Estimated number of runs; the actual number is not known beforehand."""
        return 12

    def check(self, *, resume: bool) -> None:
        """Raise if a run has started and ``resume`` is False, or if a finished run is damaged."""
        from internalize.parity.algorithm1.solve_runs import read_solved

        for run in self.runs:
            if run.exists and not resume:
                raise InputError(f"{run.path}: this run has already started; add --resume, or choose another --out")
            if run.finished:
                read_solved(run)

    def descent(self) -> Iterator[Run]:
        """Yield the runs at fewer and fewer samples, up to the first that failed or is not finished yet."""
        from internalize.parity.algorithm1.solve_runs import read_solved

        assert self.options.samples is not None
        halvings = range(2 * self.options.samples.bit_length() + 1)
        for samples in dict.fromkeys(max(1, round(self.options.samples / 2 ** (half / 2))) for half in halvings):
            run = self.at(samples)
            yield run
            if not (run.finished and read_solved(run).accuracy >= SOLVED):
                return

    def at(self, samples: int) -> Run:
        """Return the run with ``samples`` samples per stage."""
        return Run(self.out / self.place / f"samples-{samples}")

    @property
    def runs(self) -> list[Run]:
        """All runs that are known to be needed."""
        return [self.at(self.equal), *self.descent()]

    def run(self, report: ReportProgress) -> None:
        """Make the missing runs. The descent checks each result before it continues."""
        for number, run in enumerate(chain([self.at(self.equal)], self.descent())):
            if not run.finished:
                samples = int(run.path.name.removeprefix("samples-"))
                _solve(replace(self.options, samples=samples), run, min(number, self.size), report)


def _solve(options: SolveOptions, run: Run, done: int, report: ReportProgress, *, snapshots: bool = False) -> None:
    from internalize.parity.algorithm1.solve_runs import solve_kept

    def on_stage(solving: "SolveState") -> None:
        record = solving.records[-1]
        report(done, f"B={solving.samples[1]}  stage {record.stage}  margin {record.margin:.2f} K")
        if interrupt.requested:  # all finished stages are saved
            raise Interrupted

    with torch_threads(1), Interruptible() as interrupt:
        solve_kept(options, run, resume=True, snapshots=snapshots, on_stage=on_stage)


class Certified(TypedDict):
    """The fields of a stored result of `certify`."""

    certificates: Annotated[list[Certificate], Meta(min_length=1)]


@dataclass(frozen=True)
class CertifyJob(KeptJob):
    """The certificates of a finished run, stored in their own folder."""

    subject: Path
    """The run's folder below ``out``."""

    def check(self, *, resume: bool) -> None:
        """Raise if stored certificates belong to another run or are damaged. They never need ``resume``."""
        kept = self.runs[0]
        kept.check("certify", {"run": str(self.subject)}, resume=True)
        if kept.finished:
            kept.result_as(Certified)

    def run(self, report: ReportProgress) -> None:
        """Check every statement."""
        from internalize.parity.certificates import World, certify

        kept = self.runs[0]
        with torch_threads(1), begin_runs([kept], "certify", [{"run": str(self.subject)}], resume=True):
            certificates = certify(World.of_run(Run.open(self.out / self.subject)))
            kept.finish({"certificates": [certificate.to_json() for certificate in certificates]})


class SuccessPoint(TypedDict):
    """The number of seeds that were solved at one number of samples."""

    samples: int
    seeds: int
    successes: Annotated[int, Meta(ge=0)]


class SuccessResult(TypedDict):
    """The fields of the result of a `SuccessJob`."""

    points: list[SuccessPoint]


@dataclass(frozen=True)
class SuccessJob(KeptJob):
    """Counts the seeds that Algorithm 1 solves at each of several numbers of samples; weights are not stored."""

    options: SolveOptions
    """Options of the runs, with the first of the seeds."""
    samples: tuple[int, ...]
    seeds: int

    @property
    def config(self) -> dict[str, Any]:
        """The job's `config.json`."""
        return {**stored(self.options), "samples": list(self.samples), "seeds": self.seeds}

    @property
    def size(self) -> int:
        """Number of runs of Algorithm 1."""
        return len(self.samples) * self.seeds

    def check(self, *, resume: bool) -> None:
        """Raise if the folder belongs to another job, or if its result is not complete."""
        kept = self.runs[0]
        kept.check("success", self.config, resume=resume)
        if kept.finished:
            points = kept.result_as(SuccessResult)["points"]
            wanted = [(samples, self.seeds) for samples in self.samples]
            if [(own["samples"], own["seeds"]) for own in points] != wanted:
                raise InputError(f"{kept.path / 'result.json'} lacks {self.seeds} seeds at each of {self.samples}")
            if any(own["successes"] > own["seeds"] for own in points):
                raise InputError(f"{kept.path / 'result.json'} has more successes than seeds")

    def run(self, report: ReportProgress) -> None:
        """Count successes at each number of samples. A stopped job restarts from the beginning; it takes seconds."""
        kept, first = self.runs[0], self.options.seed
        seeds = tuple(range(first, first + self.seeds))
        with begin_runs([kept], "success", [self.config], resume=True), Interruptible() as interrupt:
            points: list[Json] = []
            for samples in self.samples:
                job = CellJob(replace(self.options, samples=samples), seeds, stop_at_failure=True)
                successes = sum(row["exact_recovery"] for row in job.run(lambda done, text: None))
                if interrupt.requested:
                    raise Interrupted
                points.append({"samples": samples, "seeds": self.seeds, "successes": successes})
                report(len(points) * self.seeds, f"B={samples}  {successes} of {self.seeds} solved")
            kept.finish({"points": points})


# Cells of a sweep, whose rows go to one store


@dataclass(frozen=True)
class CellJob:
    """Cells that are computed together: one cell of `solve`, or seeds of one setting of `train`."""

    options: Options
    seeds: tuple[int, ...]
    stop_at_failure: bool = False

    @property
    def kind(self) -> Kind:
        """The command that the options belong to."""
        return "solve" if isinstance(self.options, SolveOptions) else "train"

    @property
    def name(self) -> str:
        """The size n, k and the seeds."""
        first, last = self.seeds[0], self.seeds[-1]
        return f"n={self.options.n} k={self.options.k} seed {first}" + (f" … {last}" if last != first else "")

    @property
    def size(self) -> int:
        """Number of cells."""
        return len(self.seeds)

    def rows(self) -> list[Json]:
        """Return the columns of each cell that are known before it is computed."""
        flat = flat_options(self.options)
        if self.kind == "solve":
            flat["stop_at_failure"] = self.stop_at_failure
        rows = [{**flat, "seed": seed} for seed in self.seeds]
        return [{"cell": _digest(self.kind, row), **row} for row in rows]

    def run(self, report: ReportProgress) -> list[Json]:
        """Compute the cells. On an interrupt, stop at the next stage or evaluation; nothing is stored."""

        def go_on(text: str) -> None:
            report(0, text)
            if interrupt.requested:
                raise Interrupted

        with torch_threads(1), Interruptible() as interrupt:
            if isinstance(self.options, SolveOptions):
                results = [self._solve(self.options, seed, go_on) for seed in self.seeds]
            else:
                results = _train(self.options, self.seeds, go_on)
        return [
            {**row, "status": "done", "reason": None, **result}
            for row, result in zip(self.rows(), results, strict=True)
        ]

    def refused(self, reason: str) -> list[Json]:
        """Return the rows of cells that cannot be computed."""
        return [{**row, "status": "failed", "reason": reason} for row in self.rows()]

    def _solve(self, options: SolveOptions, seed: int, go_on: Callable[[str], None]) -> Json:
        from internalize.parity.algorithm1.solve import solve

        found = solve(
            replace(options, seed=seed),
            stop_at_failure=self.stop_at_failure,
            on_stage=lambda solving: go_on(f"stage {len(solving.records)}"),
        ).to_json()
        return {name: found[name] for name in found if name not in ("stages", "K", "grid")} | {"K_used": found["K"]}


def _train(options: TrainOptions, seeds: Sequence[int], go_on: Callable[[str], None]) -> list[Json]:
    from internalize.parity.adamw.train import train

    try:
        results = train(
            options, seeds, report=lambda now: go_on(f"stage {now.metrics[0]['stage']}, step {now.done}/{now.total}")
        )
    except InputError:
        if len(seeds) == 1:
            raise
        # A run that diverges must not fail the others, so each is trained alone.
        alone: list[Json] = []
        for seed in seeds:
            try:
                alone += _train(options, [seed], go_on)
            except InputError as error:
                alone.append({"status": "failed", "reason": str(error)})
        return alone
    company = " ".join(map(str, seeds))
    return [{"together": company, "steps_made": result.pop("steps"), **result} for result in results]


def flat_options(options: Options) -> Json:
    """Return the options of a cell as columns; a list has the notation of the grid's words."""
    kinds = option_types("solve" if isinstance(options, SolveOptions) else "train")
    values = {name: value for name, value in stored(options).items() if name in kinds}
    for name, value in values.items():
        if get_origin(kinds[name]) is tuple:
            values[name] = "+".join(map(str, value))
        elif kinds[name] is float and value is not None:
            values[name] = float(value)  # 20 and 20.0 are one cell
    return values


@cache
def cell_schema(kind: Kind) -> Schema:
    """Return the columns of a kind's cells."""
    options = {name: wanted if wanted in (int, float, bool) else str for name, wanted in option_types(kind).items()}
    extra = {"stop_at_failure": bool} if kind == "solve" else {}
    return {"cell": str, "status": str, "reason": str, **options, **extra, "seed": int, **_result_columns(kind)}


def _result_columns(kind: Kind) -> Schema:
    """Return the columns of a cell's result. `steps_made` and `K_used` are values of the run; `steps` and `K` options."""
    from internalize.parity.adamw.train import Result
    from internalize.parity.algorithm1.solve import SolveOutcome

    hints, renamed = get_type_hints(Result) | {"together": str}, {"steps": "steps_made"}
    if kind == "solve":
        hints, renamed = get_type_hints(SolveOutcome), {"K": "K_used"}
    kept = [name for name in hints if name not in ("seed", "stages", "grid", "reason")]
    return {renamed.get(name, name): without_none(hints[name]) for name in kept}


def _digest(kind: Kind, row: Json) -> str:
    content = json.dumps({"kind": kind, **row}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]
