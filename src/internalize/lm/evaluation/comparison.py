"""`lm compare`: the methods on the same data and model, at equal updates, tokens or operations, over several seeds.

| budget | what is equal                                                                                         |
| ------ | ----------------------------------------------------------------------------------------------------- |
| steps  | all methods make ``options.steps`` updates                                                            |
| tokens | all methods read the same expected tokens: those of log-icot, or the first method, in as many updates |
| flops  | likewise the operations of training, by the formula of `flops.py`                                     |

With ``advance="steps"`` every method's schedule follows from its number of updates. The first stage has a quarter of
them, unless ``first_steps`` is given. Each later stage has the same number, so that together they have two thirds of
the rest, and the last stage continues to the end. Otherwise stages are those of `lm train` with the same options, and
the updates are a limit.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

from internalize.errors import InputError, KilledReason, MachineError
from internalize.lm.evaluation.jobs import ExecutionSettings, LmJob, LmJobOutcome
from internalize.lm.evaluation.linear_baseline import LINEAR, LinearComparison, SeedRow, compare_with_linear, seed_row
from internalize.lm.evaluation.plan import of_method, stage_begins, updates_by_stage
from internalize.lm.evaluation.shared_first_stage import drop_first_stages, may_begin, share_first_stages
from internalize.lm.options import LM_METHODS, LmMethod, LmTrainOptions, ScheduleOptions, with_adaptive
from internalize.lm.stages.lengths import expected_lengths
from internalize.lm.stages.schedule import Schedule
from internalize.lm.training.flops import model_size
from internalize.lm.training.internalization import SAMPLE
from internalize.lm.training.memory import check_training_memory
from internalize.lm.training.models import PROMPT_FILE, PromptSpec
from internalize.parallel.runner import RunFolders, Runner
from internalize.random_words import check_seed
from internalize.storage.files import Json, present, write_json
from internalize.storage.runs import Run
from internalize.storage.summaries import ROWS, first_solved, mean_of, median_of, over_seeds

Budget = Literal["steps", "tokens", "flops"]
DEFAULT_METHODS: Final[tuple[LmMethod, ...]] = ("cot", "icot", "log-icot", "pause", "none")
SAME_UPDATES: Final = 0.005
"""If the updates of two budgets differ by no more than this fraction, they share a run."""


class TooFewSteps(InputError):  # noqa: N818  (the user sees another InputError, with the number that is enough)
    """An error: a curriculum does not reach its end within its updates."""


class StageCosts(NamedTuple):
    """The expected cost of a training sequence in each planned stage."""

    unsmoothed: tuple[float, ...]
    """Before smoothing begins."""
    smoothed: tuple[float, ...]


@dataclass(frozen=True)
class MethodCost:
    """The schedule of a method and the cost of its training, as functions of its number of updates."""

    base: LmTrainOptions
    """The options of the comparison, with the method."""
    planned: tuple[int, ...]
    """The stages of the method; of adaptive, those without a stall."""
    each: Mapping[Budget, StageCosts]
    """The expected cost of a training sequence, in tokens and in floating-point operations (flops)."""
    per_epoch: int | None
    """Updates per epoch; None for data without epochs."""

    @property
    def stages(self) -> int:
        """The number of planned stages."""
        return len(self.planned)

    def options(self, steps: int, of: int) -> LmTrainOptions:
        """Return the options for ``steps`` updates. Those in updates are scaled by ``steps`` / ``of``, the budget."""
        base, scale = self.base, steps / of
        if self.stages == 1:
            return replace(base, steps=steps)
        first = None if base.first_steps is None else max(1, round(base.first_steps * scale))
        if base.advance == "epochs":
            each = base.stages_per_epoch / scale
            return replace(base, steps=steps, stages_per_epoch=each, first_epochs=base.first_epochs * scale)
        if base.advance == "accuracy":
            each, patience = (max(1, round(updates * scale)) for updates in (base.stage_steps, base.patience))
            return replace(base, steps=steps, first_steps=first, stage_steps=each, patience=patience)
        first = first or max(1, steps // 4)
        stage_steps = 2 * (steps - first) // (3 * (self.stages - 1))
        if stage_steps < 1:
            raise TooFewSteps(f"{steps} updates are too few for the {self.stages} stages of {base.method}")
        return replace(base, steps=steps, first_steps=first, stage_steps=stage_steps)

    def total(self, budget: Budget, steps: int, of: int) -> float:
        """Return the expected tokens or operations of ``steps`` updates. Stages that accuracy ends are assumed to use
        all their updates.
        """
        options = self.options(steps, of)
        begins = stage_begins(options, self.stages, self.per_epoch)
        smooth_from = Schedule(options, self.stages, self.per_epoch).unsmoothed
        updates = updates_by_stage(begins, steps, smooth_from)
        each = (
            early * before + late * after
            for (early, late), before, after in zip(updates, *self.each[budget], strict=True)
        )
        return options.batch * sum(each)

    def steps(self, budget: Budget, total: float, of: int) -> int:
        """Return the number of updates that cost about this number of tokens or operations."""
        tried: dict[int, float] = {}
        mean = sum(self.each[budget].smoothed) / self.stages
        steps = max(1, round(total / (self.base.batch * mean)))
        while steps not in tried:
            tried[steps] = self.total(budget, steps, of)
            steps = max(1, round(total * steps / tried[steps]))
        return min(tried, key=lambda steps: abs(tried[steps] - total))


@dataclass(frozen=True)
class MethodSetting:
    """One method at one budget, which give the runs of one row."""

    method: LmMethod
    budget: Budget
    options: LmTrainOptions
    stages: int
    """The number of stages; for adaptive, of all stages that it may be subdivided into."""
    folder: Path
    """The folder of the runs below --out. Two budgets with the same runs share it."""

    @property
    def stage_steps(self) -> int | None:
        """The updates per stage, if they are fixed beforehand."""
        return self.options.stage_steps if self.stages > 1 and self.options.advance == "steps" else None


@dataclass(frozen=True)
class ComparisonRow:
    """The results of the finished runs of one method at one budget."""

    setting: MethodSetting
    runs: list[Run]
    stages: list[int]
    """The number of stages of each run."""
    each: list[SeedRow]
    against_linear: LinearComparison | None = None

    def to_json(self) -> Json:
        """Return the row for rows.json."""
        results = [run.result for run in self.runs]
        solved = [first_solved(run, count, "exact_match") for run, count in zip(self.runs, self.stages, strict=True)]
        reached = [result["stages"][-1]["stage"] == count for result, count in zip(results, self.stages, strict=True)]
        exact = over_seeds([float(result["exact_match"]) for result in results], results[0]["examples"])
        each = [asdict(one) for one in self.each]
        means = {
            key: statistics.fmean(result[key] for result in results)
            for key in ("steps", "tokens", "tokens_per_answer", "seconds")
        }
        return {
            "method": self.setting.method,
            "budget": self.setting.budget,
            "seeds": len(self.runs),
            "exact_match": exact.accuracy,
            "exact_match_low": exact.accuracy_low,
            "exact_match_high": exact.accuracy_high,
            "word_match": mean_of(each, "word_match"),
            "solved": exact.solved,
            "reached": sum(reached),
            "stages": self.setting.stages,
            "attempts": statistics.fmean(len(one.steps) for one in self.each),
            "stage_steps": self.setting.stage_steps,
            "steps": round(means["steps"]),
            "tokens": round(means["tokens"]),
            "flops": mean_of(results, "flops"),
            "tokens_per_answer": means["tokens_per_answer"],
            "steps_to_99": median_of(solved, "step"),
            "steps_after_explicit": median_of(each, "after_explicit"),
            "each": each,
            "seconds": round(means["seconds"], 3),
            "runs": [str(run.path) for run in self.runs],
            "against_linear": self.against_linear and asdict(self.against_linear),
        }


def measure_costs(
    options: LmTrainOptions,
    methods: Sequence[LmMethod],
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
    device: str = "cpu",
) -> list[MethodCost]:
    """Measure the cost of each method on the data, which are read once. Refuse methods that need too much memory."""
    first, costs = None, list[MethodCost]()
    for method in methods:
        work = of_method(options, method, seed, say, first)
        check_training_memory(work.options, work.config, work.longest, device=device)
        first, source = first or work, work.source
        chains = work.text.chains(work.leveled(source.training_sample(min(source.size or SAMPLE // 10, SAMPLE))))
        size, every_layer = model_size(work.options, work.config), work.options.layer_loss > 0
        tokens, flops = list[tuple[float, ...]](), list[tuple[float, ...]]()
        for smooth in (False, True):
            lengths, squares = expected_lengths(work.stages, chains, smooth=smooth)[:, work.stages.planned].tolist()
            tokens.append(tuple(lengths))
            flops.append(
                tuple(
                    size.training_flops(*each, every_layer=every_layer) for each in zip(lengths, squares, strict=True)
                )
            )
        each: dict[Budget, StageCosts] = {"tokens": StageCosts(*tokens), "flops": StageCosts(*flops)}
        costs.append(MethodCost(work.options, work.stages.planned, each, work.updates_per_epoch))
    return costs


def plan_settings(costs: Sequence[MethodCost], budgets: Sequence[Budget], steps: int) -> list[MethodSetting]:
    """Plan every method at every budget. If the updates are too few for a curriculum, say how many are enough."""
    try:
        return _plan_settings(costs, budgets, steps)
    except TooFewSteps as error:
        least = max(steps, *(cost.base.first_steps or 0 for cost in costs))
        for enough in count(least + 1):
            try:
                _plan_settings(costs, budgets, enough)
            except TooFewSteps:
                continue
            raise InputError(f"steps={steps}: {error}; give at least --steps {enough}") from None
        raise


def _plan_settings(costs: Sequence[MethodCost], budgets: Sequence[Budget], steps: int) -> list[MethodSetting]:
    found: list[MethodSetting] = []
    reference = next((cost for cost in costs if cost.base.method == "log-icot"), costs[0])
    for budget in budgets:
        for cost in costs:
            method, updates, folder = cost.base.method, steps, budget
            if budget != "steps" and cost is not reference:
                updates = cost.steps(budget, reference.total(budget, steps, steps), steps)
            if budget != "steps" and "steps" in budgets and abs(updates - steps) <= SAME_UPDATES * steps:
                updates, folder = steps, "steps"
            options = cost.options(updates, steps)
            found.append(MethodSetting(method, budget, options, cost.planned[-1] + 1, Path(folder) / method))
    return found


def compare(
    options: LmTrainOptions,
    methods: Sequence[LmMethod] = (),
    seeds: Sequence[int] = (0, 1, 2),
    budgets: Sequence[Budget] = ("steps", "tokens"),
    *,
    out: str | Path,
    resume: bool = False,
    jobs: int = 1,
    how: ExecutionSettings = ExecutionSettings(),  # noqa: B008  (frozen)
    report: Callable[[float, float, str], None] = lambda done, total, seen: None,
    refused: Callable[[Path, str], None] | None = None,
    finished: Callable[[LmJobOutcome], None] = lambda outcome: None,
    say: Callable[[str], None] = lambda line: None,
) -> list[ComparisonRow]:
    """Train every method with every seed at every budget, and return a row for each method and budget.

    The runs are those of `lm train`, each in ``out/<budget>/<method>/seed-<seed>``; the rows are also in
    ``out/rows.json``. Methods that begin with the same first stage train it once per seed and budget.

    Args:
        options: the options of all runs, except the method.
        methods: methods to compare. Default: all but icot-steps and doubling; adaptive only if stages end by accuracy.
        seeds: seeds of the runs. Schedules and expected tokens are those of the first seed's data.
        budgets: what is equal between the methods.
        out: a folder for all runs and rows.
        resume: continue runs that were begun. Finished runs stay as they are.
        jobs: number of runs that train at a time. With more than one, a script needs ``if __name__ == "__main__":``.
        how: device, threads and updates between checkpoints of each run.
        report: called with updates done, updates to do, and the latest message.
        refused: called with the folder of a run that cannot be done and the reason; its row then lacks the run.
            Default: once the other runs are done, raise an `InputError`, or a `MachineError` if a process was killed.
        finished: called for each run that this call finishes, with its trained and shared updates.
        say: called with each line that the user should see.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
    """
    methods = methods or with_adaptive(DEFAULT_METHODS, options)
    out, methods, budgets = Path(out), tuple(dict.fromkeys(methods)), tuple(dict.fromkeys(budgets))
    _check(options, methods, seeds, budgets, how)
    failures: list[str] = []
    error: type[Exception] = InputError

    def on_refused(name: str, reason: str) -> None:
        nonlocal error
        failures.append(f"{out / name}: {reason}")
        if isinstance(reason, KilledReason):
            error = MachineError
        if refused is not None:
            refused(out / name, reason)

    def on_finished(job: LmJob, outcome: LmJobOutcome) -> None:
        if outcome.refusal:
            say(f"{job.name} trained a first stage of its own: {outcome.refusal}")
        drop_first_stages(todo)
        finished(outcome)

    folders = RunFolders(out, resume, Runner(jobs, report=report), on_refused)
    costs = measure_costs(options, methods, seeds[0], say, how.device)
    planned = plan_settings(costs, budgets, costs[0].base.steps)
    trained = {setting.folder: setting.options for setting in planned}
    # Seed by seed, so that a comparison that is stopped early has runs of every method.
    todo = [LmJob(out, folder / f"seed-{seed}", o, seed, how) for seed in seeds for folder, o in trained.items()]
    folders.refuse_links(todo)
    for job in todo:
        job.check(resume=resume)
    drop_first_stages(todo)
    how_to_continue = f"the same command with --out {out} --resume continues"
    folders.run_missing(share_first_stages(todo, say), how_to_continue, on_finished, may_begin)
    rows = add_linear_comparison([row for setting in planned if (row := _row(setting, seeds, out))])
    if rows:
        write_json(out / ROWS, {"rows": [row.to_json() for row in rows]})
    if failures and refused is None:
        raise error("; ".join(failures))
    return rows


def _check(
    options: LmTrainOptions,
    methods: Sequence[LmMethod],
    seeds: Sequence[int],
    budgets: Sequence[Budget],
    how: ExecutionSettings,
) -> None:
    """Refuse arguments of `compare` that make no sense."""
    if not (seeds and budgets):
        raise InputError("nothing to compare: give at least one seed and one budget")
    if len(set(seeds)) != len(seeds):
        raise InputError(f"seeds={tuple(seeds)} have a seed twice")
    for name, values, known in (("method", methods, LM_METHODS), ("budget", budgets, get_args(Budget))):
        for value in values:
            if value not in known:
                raise InputError(f"{name}={value!r} is not one of {', '.join(known)}")
    for seed in seeds:
        check_seed(seed)
    if how.checkpoint_steps < 1:
        raise InputError(f"checkpoint_steps={how.checkpoint_steps} must be at least 1")
    if options.advance == "steps" and options.stage_steps != ScheduleOptions.stage_steps:
        raise InputError(
            f"stage_steps={options.stage_steps}: with --advance steps a comparison derives it from --steps and "
            "--first-steps, so that every curriculum ends within the budget"
        )


def _row(setting: MethodSetting, seeds: Sequence[int], out: Path) -> ComparisonRow | None:
    """Return the results of the finished runs of a setting, or None if there are none."""
    found = {seed: run for seed in seeds if (run := Run(out / setting.folder / f"seed-{seed}")).finished}
    stages = [_stages(run, setting) for run in found.values()]
    each = [seed_row(seed, run, count) for (seed, run), count in zip(found.items(), stages, strict=True)]
    return ComparisonRow(setting, list(found.values()), stages, each) if found else None


def add_linear_comparison(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Return the rows, each compared with linear ICoT at the same budget if linear ICoT has a row."""
    linear = {row.setting.budget: row.each for row in rows if row.setting.method == LINEAR}
    return [
        row
        if row.setting.method == LINEAR
        else replace(row, against_linear=compare_with_linear(row.each, linear.get(row.setting.budget, ())))
        for row in rows
    ]


def _stages(run: Run, setting: MethodSetting) -> int:
    """Return the number of stages of a run. It may differ between seeds if they hold out different chains of a file."""
    model = run.path / "model"
    return len(PromptSpec.read(model).hidden) if present(model / PROMPT_FILE) else setting.stages
