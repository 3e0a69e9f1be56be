"""`lm plan`: the cost of a curriculum before training, in stages, updates, tokens, floating-point operations and
GPU-hours.

Tokens are those that the model reads in training: question, slots, shown steps and answer, without padding. Their
number is an expectation over the data and over the random choices of `TextStages.training`, which are replay and
smoothing. The stages, their slots and their first updates come from `Internalization` and `Schedule`. `flops.py` has
the formulas.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal, get_args

from internalize.errors import InputError
from internalize.lm.data.readers import Say
from internalize.lm.options import LM_METHODS, LmMethod, LmTrainOptions, with_method
from internalize.lm.stages.chains import Chain
from internalize.lm.stages.lengths import expected_lengths
from internalize.lm.stages.removal import TextStages
from internalize.lm.stages.schedule import Schedule
from internalize.lm.training.answer_costs import AnswerCost, answer_costs, written_cost
from internalize.lm.training.flops import Gpu, ModelSize, model_size
from internalize.lm.training.internalization import SAMPLE, Internalization
from internalize.lm.training.models import load_tokenizer, model_config

By = Literal["stages", "steps"]


def stage_begins(options: LmTrainOptions, stages: int, updates_per_epoch: int | None) -> list[int]:
    """Return the first update of every stage, and the one after the last stage, if every stage uses all its updates.

    With ``advance="accuracy"`` a stage ends one update after an evaluation, so it may take a little more than
    ``stage_steps``.
    """
    schedule = Schedule(options, stages + 1, updates_per_epoch)
    while len(schedule.begins) <= stages:
        done = schedule.begins[-1] + max(int(schedule.longest(len(schedule.begins) - 1)) - 1, 1)
        moved = schedule.advance(-(-done // options.eval_every) * options.eval_every, 0.0)
        assert moved, "a stage must end when it has used its updates"
    return schedule.begins


@dataclass(frozen=True)
class StagePlan:
    """The plan of one stage."""

    stage: int
    """The number of the stage, from 1. For adaptive, only the stages without a stall are planned."""
    hidden: int
    """Number of hidden units of the longest chain."""
    slots: int
    steps: int
    """Updates."""
    tokens_per_update: float
    tokens: int
    flops: float


@dataclass(frozen=True)
class MethodPlan:
    """The plan of a whole run of one method."""

    method: LmMethod
    levels: str
    """The resolved source of levels."""
    unit: str
    """The unit of removal: step or token."""
    stages: tuple[StagePlan, ...]
    steps: int
    tokens: int
    flops: float
    gpu_hours: float
    upper_bound: bool
    """Whether a run may take less. Then no stage but the last takes more updates than planned."""
    reason: str | None
    """Why it is an upper bound, or why a stage is never reached."""
    answer: AnswerCost
    """An answer at the last stage."""
    warning: str | None
    """A line that says that such an answer costs more than one with its chain written."""
    ratio_to_icot: float | None = None
    """Operations of training as a fraction of those of icot, if icot is also planned."""


@dataclass(frozen=True)
class Plan:
    """The plans of several methods on the same data and model."""

    data: str
    examples: int
    """Number of examples on which lengths are measured."""
    batch: int
    model: str
    size: ModelSize
    longest: int
    """Number of tokens of the longest sequence."""
    written: AnswerCost
    """An answer with the whole chain written before it."""
    methods: tuple[MethodPlan, ...]

    def to_json(self) -> dict[str, Any]:
        """Return one object. The keys of a single method are also at its top level."""
        found = asdict(self)
        return {**found, **found["methods"][0]} if len(self.methods) == 1 else found


def plan(
    options: LmTrainOptions,
    methods: Sequence[LmMethod],
    *,
    seed: int = 0,
    by: By = "stages",
    gpu: Gpu | None = None,
    say: Say = lambda line: None,
) -> Plan:
    """Plan the training of each method with these options, in place of ``options.method``.

    Args:
        options: the options of training. Side and cutoff apply only to icot and icot-steps.
        methods: the methods to plan.
        seed: the seed of the data.
        by: stages: every stage uses all its updates, the last as many as the others, so the number of stages tells
            methods apart. steps: ``options.steps`` updates in all, of which the last stage has the rest, as in
            training.
        gpu: the GPU. Default: an A100 in bfloat16 at two fifths of its peak.
        say: called with each line that the user should see.
    """
    gpu = gpu or Gpu()
    methods = tuple(dict.fromkeys(methods))
    _check_methods(options, methods, by)
    works: list[Internalization] = []
    for method in methods:  # only the first method needs the test examples, for the words of the tokenizer
        asked = replace(options, test_examples=1) if works else options
        works.append(of_method(asked, method, seed, say, *works[:1]))
    first = works[0]
    longest = max(work.longest for work in works)
    spare, place = max(work.spare for work in works), first.longest_example.place
    size = model_size(options, model_config(options, len(first.tokenizer), first.text.end, longest, spare, place))
    count = min(first.source.size or SAMPLE // 10, SAMPLE)
    examples = first.source.first(count)
    plans = [_method_plan(work, work.text.chains(work.leveled(examples)), by, size, gpu) for work in works]
    icot = next((planned.flops for planned in plans if planned.method == "icot"), None)
    for line in dict.fromkeys(filter(None, (planned.warning for planned in plans))):
        say(f"{', '.join(planned.method for planned in plans if planned.warning == line)}: {line}")
    return Plan(
        data=first.source.spec,
        examples=count,
        batch=options.batch,
        model=options.model,
        size=size,
        longest=longest,
        written=written_cost(size, first.text.chains(examples)),
        methods=tuple(replace(p, ratio_to_icot=None if icot is None else p.flops / icot) for p in plans),
    )


def of_method(
    options: LmTrainOptions, method: LmMethod, seed: int, say: Say, first: Internalization | None = None
) -> Internalization:
    """Return the `Internalization` of a method. With ``first`` it reuses that method's tokenizer and data."""
    tokenizer, source = (first.tokenizer, first.source) if first else (load_tokenizer(options.model), None)
    return Internalization(with_method(options, method), tokenizer, seed=seed, source=source, say=say)


def updates_by_stage(begins: Sequence[int], total: int, unsmoothed: int) -> list[tuple[int, int]]:
    """Return each stage's updates before smoothing begins, and after that, in a run of ``total`` updates.

    ``begins`` come from `stage_begins`. The last stage continues to the end.
    """
    borders = [min(begin, total) for begin in begins[:-1]] + [total]
    early = [max(min(end, unsmoothed) - begin, 0) for begin, end in pairwise(borders)]
    return [(few, end - begin - few) for few, (begin, end) in zip(early, pairwise(borders), strict=True)]


def _check_methods(options: LmTrainOptions, methods: Sequence[LmMethod], by: By) -> None:
    """Refuse arguments of `plan` that make no sense."""
    if not methods:
        raise InputError("methods is empty; give at least one to plan")
    for method in methods:
        if method not in LM_METHODS:
            raise InputError(f"method={method!r} is not one of {', '.join(LM_METHODS)}")
    if (options.side != "left" or options.cutoff is not None) and not {"icot", "icot-steps"}.intersection(methods):
        raise InputError(f"side and cutoff belong to icot and icot-steps, and the plan is for {', '.join(methods)}")
    if by not in get_args(By):
        raise InputError(f"by={by!r} is neither stages nor steps")


def _method_plan(work: Internalization, chains: Sequence[Chain], by: By, size: ModelSize, gpu: Gpu) -> MethodPlan:
    """Plan one method."""
    options, stages = work.options, work.stages
    begins = stage_begins(options, len(stages.planned), work.updates_per_epoch)
    assert len(work.schedule.begins) == 1 or work.schedule.begins == begins[:-1], "as training does"
    total = begins[-1] if by == "stages" else options.steps
    unsmoothed = expected_lengths(stages, chains, smooth=False)
    smoothed = expected_lengths(stages, chains)
    rows: list[StagePlan] = []
    by_stage = updates_by_stage(begins, total, work.schedule.unsmoothed)
    for stage, (early, late) in zip(stages.planned, by_stage, strict=True):
        updates = early + late
        tokens, squares = options.batch * (early * unsmoothed[:, stage] + late * smoothed[:, stage])
        rows.append(
            StagePlan(
                stage=stage + 1,
                hidden=stages.hidden[stage],
                slots=stages.stage_slots[stage] if options.padded else 0,
                steps=updates,
                tokens_per_update=float(tokens / updates if updates else options.batch * smoothed[0, stage]),
                tokens=round(float(tokens)),
                flops=size.training_flops(float(tokens), float(squares), every_layer=options.layer_loss > 0),
            )
        )
    flops = sum(row.flops for row in rows)
    costs = answer_costs(size, stages, chains)
    return MethodPlan(
        method=options.method,
        levels=work.levels,
        unit=work.text.unit,
        stages=tuple(rows),
        steps=total,
        tokens=sum(row.tokens for row in rows),
        flops=flops,
        gpu_hours=gpu.hours(flops),
        # A subdivided stage takes more updates than planned, but no run takes more than its updates in all.
        upper_bound=(options.advance == "accuracy" or options.stop_at is not None)
        and (by == "steps" or not options.subdivides),
        reason=_bound_reason(options, stages, begins, total),
        answer=costs.answer,
        warning=costs.warning,
    )


def _bound_reason(options: LmTrainOptions, stages: TextStages, begins: Sequence[int], total: int) -> str | None:
    """Return why a plan is an upper bound, or why a stage is never reached."""
    said: list[str] = []
    if missed := [(s, begin) for s, begin in zip(stages.planned, begins, strict=False) if begin >= total]:
        stage, begin = missed[0]
        said.append(f"steps={total} ends before stage {stage + 1} of {stages.count} begins, which is after {begin}")
    if options.subdivides:
        said.append(
            f"planned with everything hidden at once; if that stalls for patience={options.patience} updates it continues "
            f"as log-icot, whose stages are subdivided if they stall, at worst into {stages.count} of one step each"
        )
    elif options.advance == "accuracy":
        said.append("an upper bound: a stage ends sooner if held-out exact match reaches the threshold")
    if options.stop_at is not None:
        said.append(f"an upper bound: training ends sooner if exact match reaches stop_at={options.stop_at:g}")
    return "; ".join(said) or None
