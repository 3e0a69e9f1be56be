r"""Algorithm 1: one quantized gradient step per stage, on fresh samples, streamed.

| name     | paper    | meaning                                                                     | where       |
| -------- | -------- | --------------------------------------------------------------------------- | ----------- |
| stage    | t − 1    | stage t of the paper, counted from 0 here and from 1 in results             | section 3.1 |
| B        | B        | fresh samples per stage: samples stage·B … of the seed's ``train`` stream   | Algorithm 1 |
| rate     | η_t      | learning rate                                                               | Theorem 1   |
| unit     | –        | the grid that weights are rounded to: 1, K, or 0 for no rounding            | section 2   |
| W        | W^(l+1)  | the layers' weights in the form of the run (``weight_layouts.py``)          | section 2.2 |
| step     | –        | (W − η∇̃L)/K before rounding; stage records describe these                   | –           |

Each stage steps all layers. Layers above the stage's layer have gradient exactly 0, because the readout does not
depend on them. The stage's own layer is 0, so all its columns see one z and its gradient is a single product,
keys × B by B × columns. A trained layer's gradient is not computed where ``freezing.py`` proves that rounding
restores every weight of it. Otherwise, or with ``update="all"``, autograd computes all gradients.

The same loop runs other masks, gates and curricula: see ``weight_layouts.py``. Without rounding (``grid="none"``)
no two children tie, so nothing is recovered *exactly*; whether the answers are right is measured separately.

Ties: a step exactly half-way between two multiples rounds to the even one. At finite B this hardly occurs. Only one
expectation lies half-way, that of non-children at n = 6 (−K/2). It is harmless, because 0 and −K are both at least
K below the children. For n < 6 non-children round to −K or lower, which is harmless for the same reason. At
n = k = 2 both keys are children, so uniform attention is right, every gradient is 0, and W = 0 is recovered.

Departs from the paper: by default the grid is K and the rate is calibrated, which makes the algorithm work below
n = 10^29. ``preset="paper"`` is the algorithm verbatim.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from internalize.errors import InputError
from internalize.parity.algorithm1.recovery import StageRecord, quantize, stage_record, worst_push
from internalize.parity.algorithm1.streaming import Samples
from internalize.parity.algorithm1.weight_layouts import LevelModel, form_of, model_of, stages_of
from internalize.parity.model.metrics import is_right
from internalize.parity.model.weights import columns_as_layers
from internalize.parity.options import MAX_SAMPLES, Grid, SolveOptions, StepOptions
from internalize.parity.task.data import EXACT
from internalize.parity.task.tree import Levels, ParityTree
from internalize.parity.theory.freezing import off_child_mass
from internalize.parity.theory.prediction import (
    DEFAULT_FAILURE,
    Setting,
    impossible,
    theorem_log10_n,
    without_prediction,
)
from internalize.random_words import normals

_LEAKS = 0.75
"""If the mean step on children is below this share of K and the noise is small, the layers below are the cause."""


def setting_of(options: SolveOptions) -> Setting:
    """Return K, grid, rate and oracle of a request with its preset applied; raise if the theory does not cover them."""
    given = Setting(**{field.name: getattr(options, field.name) for field in fields(StepOptions)})
    if options.preset == "none":
        return given
    # Rounded before the ceiling, because a power that is an integer may come out as 2.0000000000000004.
    return replace(given, K=float(math.ceil(round(options.n ** (options.epsilon / 16), 12))), grid="1", rate="paper")


def samples_of(options: SolveOptions) -> int:
    """Return B of a request: as given, from the preset, or enough for the default failure probability.

    The probability is predicted for Log-ICoT with the paper's mask and gates, and for grid K if nothing is rounded.
    """
    if options.preset == "paper":
        samples = math.ceil(round(options.n ** (2 + options.epsilon), 6))
        if samples > MAX_SAMPLES:
            raise InputError(
                f"epsilon={options.epsilon:g}: n^(2+ε) = {samples:.3g} samples are more than {MAX_SAMPLES}"
            )
        return samples
    if options.samples is not None:
        return options.samples
    setting = setting_of(options)
    if setting.grid == "none":
        setting = replace(setting, grid="K")
    enough = setting.samples_for(DEFAULT_FAILURE)
    if enough is None:
        why = impossible(setting) or f"the oracle's error alone makes failures more likely than {DEFAULT_FAILURE:g}"
        raise InputError(f"{why}; set samples to try it anyway")
    return enough


@dataclass(frozen=True)
class SolveOutcome:
    """The outcome of ``solve`` under the contract's keys, with the reason if it failed."""

    exact_recovery: bool
    accuracy: float
    l2_error: float
    max_error: float
    samples_per_stage: int
    K: float
    grid: Grid
    steps: int
    seconds: float
    failed_stage: int | None
    stages: tuple[StageRecord, ...]
    reason: str | None
    idle_stages: int = 0


@dataclass(frozen=True, kw_only=True)
class SolveResult(SolveOutcome):
    """The outcome, and the weights in the form of the run."""

    weights: tuple[Tensor, ...]

    @property
    def solved(self) -> bool:
        """Whether every layer is recovered and every test sample is right."""
        return self.exact_recovery and self.accuracy == 1.0

    def to_json(self) -> dict[str, Any]:
        """Return everything but the weights, in plain types."""
        found = {name: value for name, value in vars(self).items() if name != "weights"}
        return found | {"stages": [vars(stage) for stage in self.stages]}


@dataclass(frozen=True)
class SolveState:
    """A run of Algorithm 1 between two stages: everything that the next stage needs."""

    weights: tuple[Tensor, ...]
    records: tuple[StageRecord, ...]
    seconds: float
    step: Tensor
    """W − η∇̃L of the layer that was just trained, before rounding."""
    samples: tuple[int, int]
    """The first sample of the stream that the stage used, and the number of samples."""
    gradient: Tensor
    """∇L of that layer as estimated from the samples, before the oracle's error."""


def solve(
    options: SolveOptions,
    tree: ParityTree | None = None,
    *,
    begun: SolveState | None = None,
    stop_at_failure: bool = False,
    on_stage: Callable[[SolveState], None] = lambda solving: None,
) -> SolveResult:
    """Run Algorithm 1 and test its weights on fresh samples in the inference input.

    Under torch.distributed every process calls this with the same options. Each takes a share of the samples, and
    gradients are summed, so that all processes end with the weights that a single process would have.

    Args:
        options: the request.
        tree: the secret tree; by default the one that the seed draws.
        begun: the state to continue from; by default the run starts at the first stage.
        stop_at_failure: stop after the first stage that is not recovered.
        on_stage: called after each stage.
    """
    began = time.perf_counter() - (begun.seconds if begun else 0.0)
    tree = ParityTree.drawn(options, options.seed) if tree is None else tree
    if (tree.n, tree.k) != (options.n, options.k):
        raise InputError(f"the tree has n={tree.n}, k={tree.k}, but the options have n={options.n}, k={options.k}")
    if tree.modulus != options.modulus:
        raise InputError(f"the tree has values modulo {tree.modulus}, but the options have {options.modulus}")
    if tree.arity != options.arity:
        raise InputError(f"the nodes of the tree have {tree.arity} children, but the options have {options.arity}")
    setting, B = setting_of(options), samples_of(options)
    model, stages = model_of(options, tree, setting), stages_of(options)
    K, unit = setting.amplitude, {"K": setting.amplitude, "1": 1.0, "none": 0.0}[setting.grid]
    W = list(begun.weights) if begun else model.start()
    records = list(begun.records) if begun else []
    dtype: torch.dtype = getattr(torch, options.dtype)
    train = Samples(tree, options.seed, 0, B, "train", options.chunk, dtype, options.device, setting.label_noise)
    for number, stage in list(enumerate(stages))[len(records) :]:
        layer, rate = stage.trained, model.rate(stage)
        errors = _random_errors(options, W, number)
        slack = [unit / 2 / float(torch.as_tensor(rate).max()) - float(error.abs().max()) for error in errors]
        samples = replace(train, start=number * B)
        gradients = model.gradients(samples, W, stage, slack if options.update == "needed" else None)
        steps = [w - rate * (gradient + error) for w, gradient, error in zip(W, gradients, errors, strict=True)]
        pairs = model.pairs(layer)
        if options.oracle == "adversarial":
            push = worst_push(model.columns(steps[layer], layer), pairs, K, unit, rate * options.oracle_error)
            steps[layer] = model.added(steps[layer], layer, push)
        before, W = W, [quantize(step, unit) for step in steps]
        idle = all(torch.equal(old, new) for old, new in zip(before, W, strict=True))
        records.append(stage_record(number + 1, model.columns(steps[layer], layer), pairs, K, unit, idle=idle))
        used = (samples.start, samples.count)
        seconds = time.perf_counter() - began
        on_stage(SolveState(tuple(W), tuple(records), seconds, steps[layer], used, gradients[layer]))
        if stop_at_failure and not records[-1].recovered:
            break
    # Checked again at the end: a later stage may have moved a layer that was recovered.
    recovered = len(records) == len(stages) and all(model.recovered(W, layer) for layer in range(len(W)))
    failed = next((record.stage for record in records if not record.recovered), None)
    if options.transfer:
        W, model = columns_as_layers(W[0], tree.levels), LevelModel(tree, setting, options)
    answer, truth = model.answers(replace(train, stream="test", count=options.test_samples, noise=EXACT), W)
    accuracy = float(is_right(answer, truth, tree.modulus).double().mean())
    result = SolveResult(
        exact_recovery=recovered,
        accuracy=accuracy,
        l2_error=float((answer - truth).abs().square().mean()),
        max_error=float((answer - truth).abs().max()),
        samples_per_stage=B,
        K=K,
        grid=setting.grid,
        steps=len(records),
        seconds=time.perf_counter() - began,
        failed_stage=failed,
        stages=tuple(records),
        reason=None,
        weights=tuple(W),
        idle_stages=sum(record.idle and record.recovered for record in records),
    )
    return result if result.solved else replace(result, reason=_reason(options, result, tree.levels))


def _random_errors(options: SolveOptions, W: Sequence[Tensor], stage: int) -> list[Tensor]:
    """Return the oracle's random error in every layer: of the given norm, in a uniform direction over all weights."""
    if options.oracle != "random":
        return [torch.zeros_like(w) for w in W]
    count = sum(w.numel() for w in W)
    normal = torch.from_numpy(normals(options.seed, "oracle", stage, count))
    error = normal * (options.oracle_error / math.sqrt(float((normal * normal).sum())))
    ends = [0, *itertools.accumulate(w.numel() for w in W)]
    return [error[first:end].view_as(w) for w, (first, end) in zip(W, itertools.pairwise(ends), strict=True)]


def _reason(options: SolveOptions, result: SolveResult, levels: Levels) -> str:
    """Say why a run failed and what would succeed, in one line."""
    setting, K = setting_of(options), result.K
    where = f"stage {result.failed_stage} failed"
    if result.failed_stage is None:
        where = "the answer is wrong" if result.exact_recovery else "the oracle's error moved a layer not in training"
    record = result.stages[(result.failed_stage or result.steps) - 1]
    attention = (1 - off_child_mass(levels.n, K, levels.arity)) / levels.arity
    limit = f"K > ln n = {math.log(levels.n):.1f} is needed"
    weak = f"K={K:g} leaves each child attention {attention:.2f} among {levels.n} keys ({limit})"
    why = impossible(setting) if setting.grid != "none" else None
    if departure := _departure(options, record.stage):
        why = f"{departure}; {result.accuracy:.1%} of the answers are right"
    elif record.stage > 1 and attention < 0.25:
        # The layers below may be recovered and still compute nothing, because their softmax is too flat.
        why = weak
    elif why is None and record.stage > 1 and record.signal_mean < _LEAKS and record.noise_max < 0.5:
        why = f"the layers below leave a signal of {record.signal_mean:.2f} K, for {weak}, and the rest leaks"
    elif why is None:
        why = f"the noise of B={result.samples_per_stage} samples left a margin of {record.margin:.2f} K"
        why += f", and {weak}" if attention < 0.25 else ""
    return f"{where}: {why}; {_advice(options)}"


def _departure(options: SolveOptions, stage: int) -> str | None:
    """Say which condition of recovery a request drops; None if none. Gates matter only after the first stage."""
    if not options.hidden_loss and (why := without_prediction(options.schedule(), Levels.of(options))):
        return why
    if options.gates == "ones" and stage > 1:
        return "with gates=ones every layer overwrites the input bits, which collapse (Lemma 1)"
    if options.gates == "cot" and stage > 1:
        return "with gates=cot every layer overwrites all nodes, including those that earlier layers computed"
    if setting_of(options).grid == "none":
        return "grid=none does not round, so no two children tie and no layer is frozen"
    return None


def _advice(options: SolveOptions) -> str:
    """Say what would succeed. Predictions cover only the paper's model, so other requests are referred to it."""
    setting, model = setting_of(options), ""
    usual = replace(setting, K=None, grid="K", rate="calibrated", oracle="none", oracle_error=0.0)
    if options.curriculum in ("none", "cot") or options.skip or form_of(options) == "block" or setting.grid == "none":
        model = "log-icot, level mask, paper gates, "
    elif (
        options.preset == "none"
        and setting.amplitude >= setting.default_amplitude
        and (enough := setting.samples_for(0.01)) is not None
    ):
        return f"samples={enough} would succeed with probability 0.99"
    text = f"the defaults ({model}grid K, calibrated rate, K={usual.amplitude:g}) would succeed with"
    text += f" {usual.samples_for(0.01)} samples and probability 0.99"
    if options.preset == "paper":
        text = f"the theorem's K stays above ln n only beyond n = 10^{theorem_log10_n(options.epsilon):.0f}; {text}"
    return text
