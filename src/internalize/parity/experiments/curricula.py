"""`internalize compare`: the curricula under AdamW and Algorithm 1, at equal samples and by their cost to reach 99 %.

| optimizer   | a run                                                           | cost to reach 99 %                 |
| ----------- | --------------------------------------------------------------- | ---------------------------------- |
| adamw       | a stage ends when its level is learned, the last stage when all | first evaluation of the last stage |
|             | updates are used; every method has the same number of updates   | with 99 % accuracy                 |
| algorithm-1 | one step per stage on B samples; at equal samples, every method | stages × the least B, searched     |
|             | divides Log-ICoT's default total over its stages                | downwards by √2 until a run fails  |

Besides the curricula there are two ways to have all of the chain's loss and no chain at inference: ``transfer`` is cot,
with the columns of its one layer copied into layers; ``hidden-loss`` is none with the loss on hidden nodes.

AdamW runs at several learning rates, and a method's best one is its row. A stage may be idle: the first stage of a
level can train the whole level, which leaves nothing to the level's other stages. The rows count idle stages.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

import tyro
from msgspec import UNSET, Meta, UnsetType, field
from msgspec.structs import replace

from internalize.curriculum import METHODS, Curriculum, Method
from internalize.errors import InputError
from internalize.parallel.runner import RunFolders
from internalize.parity.experiments.jobs import DescentJob, TrainJob
from internalize.parity.options import LearnedGateOptions, SampleOptions, SolveOptions, TrainOptions
from internalize.parity.task.stages import parity_stages
from internalize.parity.task.tree import Levels
from internalize.random_words import check_seed
from internalize.storage.files import Json
from internalize.storage.runs import Run
from internalize.storage.summaries import (
    SOLVED,
    Amount,
    Count,
    SeedsRow,
    SizedRow,
    Some,
    first_solved,
    keep_rows,
    lower_median,
    median_of,
    over_seeds,
)

Scheme = Literal[Method, "transfer", "hidden-loss"]
SCHEMES: Final[dict[Scheme, Json]] = {
    **{method: {"curriculum": method} for method in METHODS},
    "transfer": {"curriculum": "cot", "transfer": True},
    "hidden-loss": {"curriculum": "none", "hidden_loss": True},
}
"""The options of each curriculum that can be compared."""
Optimizer = Literal["adamw", "algorithm-1"]
OPTIMIZERS: Final[tuple[Optimizer, ...]] = get_args(Optimizer)
Say = Callable[[str], None]
Milliseconds = Annotated[float, Meta(gt=0, le=1e15)]


@dataclass(frozen=True)
class CompareOptions(LearnedGateOptions, SampleOptions):
    """What is compared, and the settings that all runs share. The settings of AdamW are the paper's."""

    TITLE: ClassVar = "Comparison"

    # The command line has its own options for these three.
    sizes: Annotated[tuple[tuple[int, int], ...], tyro.conf.Suppress] = ((30, 16),)
    seeds: Annotated[tuple[int, ...], tyro.conf.Suppress] = (0, 1, 2, 3, 4)
    eval_every: Annotated[int, tyro.conf.Suppress] = 5
    methods: tuple[Scheme, ...] = METHODS
    """Curricula to compare. cot is evaluated with its chain written; transfer is cot with its columns as layers, and
    hidden-loss is none with the loss on every node."""
    skip: tuple[int, ...] = ()
    """For log-icot: levels from 1 without a stage of their own. Only --study curricula uses it."""
    optimizers: tuple[Optimizer, ...] = OPTIMIZERS
    """Optimizers to use."""
    variants: tuple[str, ...] = ()
    """For ablations, gates and simplifications: the variants to run, such as "mask=causal". Default: all."""
    lr: tuple[float, ...] = (0.1, 0.03)
    """Learning rates of AdamW to try. The best per curriculum is shown; studies other than curricula use the first."""
    steps: int = 500
    """Gradient steps of AdamW per level of the tree."""
    repeats: int = 100
    """For latencies: number of answers to time per batch size."""

    def __post_init__(self) -> None:
        for name in ("sizes", "seeds", "methods", "optimizers", "lr"):
            values: tuple[object, ...] = getattr(self, name)
            # Methods and optimizers may be repeated; each is compared once.
            repeated = len(set(values)) != len(values) and name not in ("methods", "optimizers")
            if not values or repeated:
                raise InputError(f"{name}={values} must name at least one value, and no value twice")
        for name, values, known in (
            ("method", self.methods, tuple(SCHEMES)),
            ("optimizer", self.optimizers, OPTIMIZERS),
        ):
            for value in values:
                if value not in known:
                    raise InputError(f"{name}={value!r} is not one of {', '.join(known)}")
        if self.repeats < 1:
            raise InputError(f"repeats={self.repeats} must be at least 1")
        for n, k in self.sizes:
            if not Levels(n, k).complete:
                raise InputError(f"k={k} is not a power of two (the paper's trees are compared, section 2.1)")
        for seed in self.seeds:
            check_seed(seed)

    def train(self, n: int, k: int, **changes: Any) -> TrainOptions:
        """Return the options of AdamW at this size, with the first learning rate unless ``changes`` has another."""
        same = ("steps", "batch", "eval_every", "eval_samples", "gate_bias", "gate_penalty")
        given: dict[str, Any] = {name: getattr(self, name) for name in same} | {"lr": self.lr[0]} | changes
        return TrainOptions(n=n, k=k, **given)


class CurriculumRow(SeedsRow, frozen=True, kw_only=True, tag="curricula"):
    """The results of a method under one optimizer at one size. Costs to reach 99 % are lower medians over seeds."""

    method: Scheme
    optimizer: Optimizer
    lr: Amount | None
    """The best learning rate; None under Algorithm 1."""
    budget_samples: Count
    stages: Count
    passes: Count
    passes_by_level: Count
    idle_stages: Amount | None
    steps_to_99: Amount | None
    samples_to_99: Amount | None
    seconds_to_99: Amount | None
    seconds: Amount
    tried: list[Json] = field(default_factory=list[Json])
    """The results of each learning rate, or of each number of samples."""
    runs: list[str] = field(default_factory=list[str])
    skip: list[int] | UnsetType = UNSET
    """Levels without a stage of their own, if there are any."""
    latency_ms: Milliseconds | UnsetType = UNSET
    latency_ms_low: Milliseconds | UnsetType = UNSET
    latency_ms_high: Milliseconds | UnsetType = UNSET
    latency_ms_1000: Milliseconds | UnsetType = UNSET
    latency_ms_1000_low: Milliseconds | UnsetType = UNSET
    latency_ms_1000_high: Milliseconds | UnsetType = UNSET
    latency_ms_by_level: Milliseconds | UnsetType = UNSET
    latency_ms_by_level_low: Milliseconds | UnsetType = UNSET
    latency_ms_by_level_high: Milliseconds | UnsetType = UNSET
    latency_ms_by_level_1000: Milliseconds | UnsetType = UNSET
    latency_ms_by_level_1000_low: Milliseconds | UnsetType = UNSET
    latency_ms_by_level_1000_high: Milliseconds | UnsetType = UNSET


class LatencyRow(SizedRow, frozen=True, kw_only=True, tag="latency"):
    """The latency of one way to answer, at one size and batch size."""

    by: Literal["node", "level", "direct"]
    batch: Some
    passes: Count
    latency_ms: Milliseconds
    latency_ms_low: Milliseconds
    latency_ms_high: Milliseconds
    repeats: Some


def compare(options: CompareOptions, folders: RunFolders, say: Say = lambda line: None) -> list[CurriculumRow]:
    """Make the missing runs, and return a row per size, optimizer and method.

    The runs are in ``out/curricula``, and the rows are also in ``out/rows.json``.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
    """
    entries = [
        (_AdamW if optimizer == "adamw" else _Algorithm)(options, folders.out, n, k, method)
        for n, k in options.sizes
        for optimizer in dict.fromkeys(options.optimizers)
        for method in dict.fromkeys(options.methods)
    ]
    # Seed by seed, so that a comparison that is stopped early has results of every method.
    folders.fill([job for seed in options.seeds for entry in entries for job in entry.jobs(seed)])
    found = _with_latency([row for entry in entries if (row := entry.row())], options.repeats)
    for row in found:
        if row.idle_stages:
            say(
                f"n={row.n} k={row.k} {row.optimizer} {row.method}: {row.idle_stages} of {row.stages} stages idle; an "
                "earlier stage had learned their level"
            )
    keep_rows(folders.out, [row.to_json() for row in found])
    return found


@dataclass(frozen=True)
class _MethodRuns:
    """The runs of one method under one optimizer at one size, which make one row."""

    options: CompareOptions
    out: Path
    n: int
    k: int
    method: Scheme

    @property
    def asked(self) -> Json:
        """The options that make the method."""
        return {**SCHEMES[self.method], "skip": self.skip}

    @property
    def stages(self) -> int:
        schedule = Curriculum(self.asked["curriculum"], skip=self.skip)
        return len(parity_stages(Levels(self.n, self.k), schedule))

    @property
    def skip(self) -> tuple[int, ...]:
        """The levels without a stage of their own; only log-icot has such."""
        return self.options.skip if self.method == "log-icot" else ()

    def place(self, optimizer: str) -> Path:
        return Path("curricula") / f"n{self.n}-k{self.k}" / optimizer / self.method

    def row_of(
        self, optimizer: Optimizer, results: Sequence[Json], samples: int, solved: Sequence[Json | None], **more: Any
    ) -> CurriculumRow:
        """Return the row of these results, each on ``samples`` held-out samples, and of the costs in ``solved``."""
        written = self.method == "cot"
        return CurriculumRow(
            method=self.method,
            optimizer=optimizer,
            n=self.n,
            k=self.k,
            stages=self.stages,
            passes=self.k - 1 if written else 1,
            passes_by_level=self.k.bit_length() - 1 if written else 1,
            skip=list(self.skip) if self.skip else UNSET,
            **vars(over_seeds([result["accuracy"] for result in results], samples)),
            seconds=round(statistics.fmean(result["seconds"] for result in results), 3),
            steps_to_99=median_of(solved, "step"),
            samples_to_99=median_of(solved, "samples"),
            seconds_to_99=median_of(solved, "seconds"),
            **more,
        )


class _AdamW(_MethodRuns):
    """The runs of a method under AdamW at every learning rate; the best rate makes the row."""

    def job(self, seed: int, lr: float) -> TrainJob:
        options = self.options.train(self.n, self.k, advance="accuracy", lr=lr, **self.asked)
        return TrainJob(self.out, self.place(f"adamw-lr{lr}"), options, (seed,))

    def jobs(self, seed: int) -> list[TrainJob]:
        return [self.job(seed, lr) for lr in self.options.lr]

    def row(self) -> CurriculumRow | None:
        rows = [row for lr in self.options.lr if (row := self._at(lr))]
        if not rows:
            return None
        keys = ("lr", "seeds", "solved", "accuracy", "steps_to_99")
        tried = [{key: getattr(row, key) for key in keys} for row in rows]
        return replace(max(rows, key=_goodness), tried=tried)

    def _at(self, lr: float) -> CurriculumRow | None:
        runs = [run for seed in self.options.seeds for run in self.job(seed, lr).runs if run.finished]
        if not runs:
            return None
        return self.row_of(
            "adamw",
            [run.result for run in runs],
            self.options.eval_samples,
            [first_solved(run, self.stages) for run in runs],
            lr=lr,
            budget_samples=self.options.steps * (self.k.bit_length() - 1) * self.options.batch,
            idle_stages=lower_median([idle_stages(run) for run in runs]),
            runs=[str(run.path) for run in runs],
        )


def _goodness(row: CurriculumRow) -> tuple[float, ...]:
    steps = math.inf if row.steps_to_99 is None else row.steps_to_99
    return row.solved, -steps, row.accuracy


def idle_stages(run: Run) -> int:
    """Count the stages that ended without an update, because their level was learned before."""
    steps: dict[int, list[int]] = {}
    for line in run.metrics():
        steps.setdefault(line["stage"], []).append(line["step"])
    *ended, _ = steps.values()
    return sum(own[0] == own[-1] for own in ended)


@cache
def default_samples(n: int, k: int) -> int:
    """Return Log-ICoT's default samples per stage, with which every comparison begins."""
    from internalize.parity.algorithm1.solve import samples_of

    return samples_of(SolveOptions(n=n, k=k))


class _Algorithm(_MethodRuns):
    """The runs of a method under Algorithm 1, at fewer and fewer samples and at equal samples."""

    @property
    def budget(self) -> int:
        """Total samples of every method at equal samples: Log-ICoT's default."""
        return (self.k.bit_length() - 1) * default_samples(self.n, self.k)

    def job(self, seed: int) -> DescentJob:
        from internalize.parity.algorithm1.weight_layouts import stages_of

        most = default_samples(self.n, self.k)
        options = SolveOptions(n=self.n, k=self.k, seed=seed, samples=most, **self.asked)
        equal = max(1, self.budget // len(stages_of(options)))
        return DescentJob(self.out, self.place("algorithm-1") / f"seed-{seed}", options, equal)

    def jobs(self, seed: int) -> list[DescentJob]:
        return [self.job(seed)]

    def row(self) -> CurriculumRow | None:
        jobs = [job for seed in self.options.seeds if (job := self.job(seed)).finished]
        if not jobs:
            return None
        return self.row_of(
            "algorithm-1",
            [job.at(job.equal).result for job in jobs],
            SolveOptions.test_samples,
            [_least(job) for job in jobs],
            lr=None,
            budget_samples=self.budget,
            idle_stages=median_of([next(job.descent()).result for job in jobs], "idle_stages"),
            tried=_tried(jobs),
            runs=list(dict.fromkeys(str(run.path) for job in jobs for run in job.runs)),
        )


def _least(job: DescentJob) -> Json | None:
    """Return the cost of the fewest samples with 99 % accuracy; None if the default is not enough."""
    enough = [result for run in job.descent() if (result := run.result)["accuracy"] >= SOLVED]
    if not enough:
        return None
    steps, samples, seconds = (enough[-1][key] for key in ("steps", "samples_per_stage", "seconds"))
    return {"step": steps, "samples": steps * samples, "seconds": seconds}


def _tried(jobs: Sequence[DescentJob]) -> list[Json]:
    """Count the seeds at each number of samples of the descents, and those that are solved."""
    found: dict[int, list[bool]] = {}
    for result in (run.result for job in jobs for run in job.descent()):
        found.setdefault(result["samples_per_stage"], []).append(result["accuracy"] >= SOLVED)
    return [{"samples_per_stage": B, "seeds": len(own), "solved": sum(own)} for B, own in found.items()]


def _with_latency(rows: Sequence[CurriculumRow], repeats: int) -> list[CurriculumRow]:
    """Time the models of all rows together, one model per row: the first seed's."""
    from internalize.parity.model.latency import BATCHES, measure_latency, models_of

    found: list[Json] = [{} for _ in rows]
    subjects = [
        (own, subject) for own, row in zip(found, rows, strict=True) for subject in models_of(Run(Path(row.runs[0])))
    ]
    for batch in BATCHES:
        measured = measure_latency([subject for _, subject in subjects], batch, repeats)
        for (own, subject), latency in zip(subjects, measured, strict=True):
            name = "latency_ms" + ("_by_level" if subject.by == "level" else "") + (f"_{batch}" if batch > 1 else "")
            own |= {name: latency.median, f"{name}_low": latency.low, f"{name}_high": latency.high}
    return [replace(row, **own) for row, own in zip(rows, found, strict=True)]


def compare_latency(options: CompareOptions, folders: RunFolders, say: Say = lambda line: None) -> list[LatencyRow]:
    """Time every way to answer at every size and batch size. The rows are also in ``out/rows.json``."""
    from internalize.parity.model.latency import BATCHES, measure_latency, new_models

    subjects = [subject for n, k in options.sizes for subject in new_models(n, k)]
    found: list[LatencyRow] = []
    for place, batch in enumerate(BATCHES):
        folders.runner.report(place, len(BATCHES), f"batch {batch}")
        for subject, latency in zip(subjects, measure_latency(subjects, batch, options.repeats), strict=True):
            levels = subject.model.levels
            times: Json = {"latency_ms": latency.median, "latency_ms_low": latency.low, "latency_ms_high": latency.high}
            about: Json = {"n": levels.n, "k": levels.k, "by": subject.by, "batch": batch, "passes": subject.passes}
            found.append(LatencyRow(**about, **times, repeats=latency.repeats))
    folders.runner.report(len(BATCHES), len(BATCHES), "timed")
    say("the models are untrained, because the latency does not depend on the weights")
    keep_rows(folders.out, [row.to_json() for row in found])
    return found
