"""`lm compare`: the methods on the same data and model, at equal updates and at equal tokens, over several seeds.

| budget | what is equal                                                                                              |
| ------ | ---------------------------------------------------------------------------------------------------------- |
| steps  | every method makes ``options.steps`` updates                                                               |
| tokens | every method reads, by expectation, the tokens that log-icot (or else the first method) reads in as many   |

With ``advance="steps"`` the schedule follows from the updates, the same way for every method: the first stage has a quarter
of them, unless ``first_steps`` says how many; the stages that remove something share two thirds of what is left; and the last
one goes on to the end. Otherwise stages are those of `lm train` with the same options, and the updates a limit.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Final, Literal, get_args

from internalize.errors import InputError, KilledReason, MachineError
from internalize.lm.evaluation.jobs import ExecutionSettings, LmJob, LmJobOutcome
from internalize.lm.evaluation.linear_baseline import LINEAR, LinearComparison, SeedRow, compare_with_linear, seed_row
from internalize.lm.evaluation.plan import expected_lengths, of_method, stage_begins, updates_by_stage
from internalize.lm.evaluation.shared_first_stage import drop_first_stages, may_begin, share_first_stages
from internalize.lm.options import LM_METHODS, LmMethod, LmTrainOptions, ScheduleOptions, with_adaptive
from internalize.lm.stages.schedule import Schedule
from internalize.lm.training.internalization import SAMPLE
from internalize.lm.training.memory import check_training_memory
from internalize.lm.training.models import PROMPT_FILE, PromptSpec
from internalize.parallel.runner import RunFolders, Runner
from internalize.random_words import check_seed
from internalize.storage.files import Json, present, write_json
from internalize.storage.runs import Run
from internalize.storage.summaries import ROWS, first_solved, mean_of, median_of, over_seeds

Budget = Literal["steps", "tokens"]
DEFAULT_METHODS: Final[tuple[LmMethod, ...]] = ("cot", "icot", "log-icot", "pause", "none")
SAME_UPDATES: Final = 0.005
"""Updates that differ by no more than this fraction are the same run."""


class TooFewSteps(InputError):  # noqa: N818  (the user is told by an InputError that knows how many are enough)
    """A curriculum does not come to its end within its updates."""


@dataclass(frozen=True)
class MethodCost:
    """A method's schedule, and the tokens that it reads, as functions of its number of updates."""

    base: LmTrainOptions
    """As asked for, with the method."""
    planned: tuple[int, ...]
    """Which stages it goes through; adaptive, unless one stalls."""
    lengths: tuple[tuple[float, ...], tuple[float, ...]]
    """Expected tokens of a training sequence in each of them: before smoothing sets in, and from there on."""
    per_epoch: int | None
    """Updates of an epoch."""

    @property
    def stages(self) -> int:
        """How many stages it goes through."""
        return len(self.planned)

    def options(self, steps: int, of: int) -> LmTrainOptions:
        """For so many updates, where the common budget is ``of``: what is counted in updates is scaled by their ratio."""
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

    def tokens(self, steps: int, of: int) -> float:
        """Expected tokens in so many updates. Where accuracy decides, stages are taken to end as late as they may."""
        options = self.options(steps, of)
        begins = stage_begins(options, self.stages, self.per_epoch)
        smooth_from = Schedule(options, self.stages, self.per_epoch).unsmoothed
        updates = updates_by_stage(begins, steps, smooth_from)
        each = (
            early * before + late * after for (early, late), before, after in zip(updates, *self.lengths, strict=True)
        )
        return options.batch * sum(each)

    def steps(self, tokens: float, of: int) -> int:
        """Updates in which the method reads so many tokens."""
        tried: dict[int, float] = {}
        mean = sum(self.lengths[1]) / self.stages
        steps = max(1, round(tokens / (self.base.batch * mean)))
        while steps not in tried:
            tried[steps] = self.tokens(steps, of)
            steps = max(1, round(tokens * steps / tried[steps]))
        return min(tried, key=lambda steps: abs(tried[steps] - tokens))


@dataclass(frozen=True)
class MethodSetting:
    """One method at one budget: the runs of one row."""

    method: LmMethod
    budget: Budget
    options: LmTrainOptions
    stages: int
    """How many there are; of adaptive, those that it may be subdivided into among them."""
    folder: Path
    """Below --out; the same for two budgets that come to the same runs."""

    @property
    def stage_steps(self) -> int | None:
        """Updates of a stage, where they are fixed beforehand."""
        return self.options.stage_steps if self.stages > 1 and self.options.advance == "steps" else None


@dataclass(frozen=True)
class ComparisonRow:
    """What the finished runs of one method at one budget came to."""

    setting: MethodSetting
    runs: list[Run]
    stages: list[int]
    """How many stages each of them has."""
    each: list[SeedRow]
    against_linear: LinearComparison | None = None

    def to_json(self) -> Json:
        """One row of rows.json."""
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
    """What each method costs on the data, read once. One for which this machine has too little memory is refused."""
    first, costs = None, list[MethodCost]()
    for method in methods:
        work = of_method(options, method, seed, say, first)
        check_training_memory(work.options, work.config, work.longest, device=device)
        first, source = first or work, work.source
        chains = work.text.chains(work.leveled(source.training_sample(min(source.size or SAMPLE // 10, SAMPLE))))
        before, after = (
            tuple(float(lengths[stage]) for stage in work.stages.planned)
            for lengths in (expected_lengths(work.stages, chains, smooth=smooth)[0] for smooth in (False, True))
        )
        costs.append(MethodCost(work.options, work.stages.planned, (before, after), work.updates_per_epoch))
    return costs


def plan_settings(costs: Sequence[MethodCost], budgets: Sequence[Budget], steps: int) -> list[MethodSetting]:
    """Every method at every budget, or why a curriculum does not fit, with the least number of updates that is enough."""
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
            if budget == "tokens" and cost is not reference:
                updates = cost.steps(reference.tokens(steps, steps), steps)
            if budget == "tokens" and "steps" in budgets and abs(updates - steps) <= SAME_UPDATES * steps:
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

    The runs are those of `lm train`, each in ``out/<budget>/<method>/seed-<seed>``; the rows are also in ``out/rows.json``.
    Methods that begin with the same first stage train it once per seed and budget.

    Args:
        options: what the runs have in common; its method does not matter.
        methods: which to compare. Default: all but icot-steps and doubling, adaptive where stages end by accuracy.
        seeds: of the runs. Schedules and expected tokens are those of the first one's data.
        budgets: what is to be equal.
        out: a folder for all of it.
        resume: continue what was begun; finished runs are left as they are.
        jobs: how many train at once. With more than one, a script needs ``if __name__ == "__main__":`` around its call.
        how: device, threads and updates between checkpoints of each.
        report: called with updates done, updates to do, and what was seen last.
        refused: called with the folder of a run that cannot be done, and why; it is then missing in its row. Without this,
            an `InputError` once the other runs are done, or a `MachineError` if its process was killed.
        finished: called with what was trained and what was shared, for each run that this call finishes.
        say: called with a line for what a user should know.

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
    planned = plan_settings(measure_costs(options, methods, seeds[0], say, how.device), budgets, options.steps)
    trained = {setting.folder: setting.options for setting in planned}
    # Seed by seed, so that whoever stops early has something of every method.
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
    if not (seeds and budgets):
        raise InputError("nothing to compare: name at least one seed and one budget")
    if len(set(seeds)) != len(seeds):
        raise InputError(f"seeds={tuple(seeds)} name a seed twice")
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
    """What the finished runs of a setting came to; None if there is none."""
    found = {seed: run for seed in seeds if (run := Run(out / setting.folder / f"seed-{seed}")).finished}
    stages = [_stages(run, setting) for run in found.values()]
    each = [seed_row(seed, run, count) for (seed, run), count in zip(found.items(), stages, strict=True)]
    return ComparisonRow(setting, list(found.values()), stages, each) if found else None


def add_linear_comparison(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Return the rows, each compared with linear ICoT at the same budget, if there is such a row."""
    linear = {row.setting.budget: row.each for row in rows if row.setting.method == LINEAR}
    return [
        row
        if row.setting.method == LINEAR
        else replace(row, against_linear=compare_with_linear(row.each, linear.get(row.setting.budget, ())))
        for row in rows
    ]


def _stages(run: Run, setting: MethodSetting) -> int:
    """How many stages a run has: of a file the longest chain may be one that another seed holds out."""
    model = run.path / "model"
    return len(PromptSpec.read(model).hidden) if present(model / PROMPT_FILE) else setting.stages
