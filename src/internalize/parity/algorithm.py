r"""Algorithm 1: one quantised gradient step a stage, on fresh samples, streamed.

| name     | paper    | meaning                                                                   | where       |
| -------- | -------- | ------------------------------------------------------------------------- | ----------- |
| stage    | t − 1    | stage t of the paper, from 0 here and from 1 in what is reported          | section 3.1 |
| B        | B        | fresh samples a stage: samples stage·B … of the seed's ``train`` stream   | Algorithm 1 |
| rate     | η_t      | learning rate                                                             | Theorem 1   |
| quantise | q        | to the nearest multiple of the grid, halves to the even multiple          | section 2   |
| W[l]     | W^(l+1)  | level form: keys × columns of the layer                                   | section 2.2 |
| step     | –        | (W − η∇̃L)/K before rounding: what a stage's figures are about             | –           |

The step is on all layers. Layers above the stage's have gradient 0 exactly (their gates are shut). The stage's own
layer is 0, so all its columns see one z and its gradient is a single product, keys × B by B × columns. A trained layer's
gradient is not computed where ``freezing.py`` proves that rounding returns every one of its weights; where it does not,
or with ``update="all"``, everything is computed by autograd.

Ties: a step exactly half-way between two multiples goes to the even one. With B finite this is no event to plan for. The
one expectation that lies there, the non-children's at n = 6 (−K/2), is harmless: they may go to 0 or to −K, both at
least K below the children. For n < 6 they go to −K or lower, for the same reason without harm. At n = k = 2 there
are two keys, both children; uniform attention is right, every gradient is 0, and W = 0 is recovered as it is.

Departs from the paper: the grid may be K and the rate calibrated, which is what makes it work below n = 10^29 and is the
default; ``preset="paper"`` is the algorithm verbatim.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from internalize.counter import words
from internalize.errors import InputError
from internalize.options import Grid, SolveOptions, StepOptions
from internalize.parity.freezing import frozen_gradient_bounds, off_child_mass
from internalize.parity.link import get_link
from internalize.parity.prediction import DEFAULT_FAILURE, Setting, impossible, theorem_log10_n
from internalize.parity.streaming import Samples, all_gradients, answers, gradient_at_zero
from internalize.parity.tree import Levels, ParityTree

_DTYPES: Final = {"float32": torch.float32, "float64": torch.float64}


def setting_of(options: SolveOptions) -> Setting:
    """K, grid, rate and oracle of a request, with the preset applied; refuses what the theory has no place for."""
    given = Setting(**{field.name: getattr(options, field.name) for field in fields(StepOptions)})
    if options.preset == "none":
        return given
    # Rounded before the ceiling: 2.0000000000000004 is a whole number that a power got wrong.
    return replace(given, K=float(math.ceil(round(options.n ** (options.epsilon / 16), 12))), grid="1", rate="paper")


def samples_of(options: SolveOptions) -> int:
    """B of a request: as given, as the preset has it, or enough for the default failure probability."""
    if options.preset == "paper":
        return math.ceil(round(options.n ** (2 + options.epsilon), 6))
    if options.samples is not None:
        return options.samples
    setting = setting_of(options)
    enough = setting.samples_for(DEFAULT_FAILURE)
    if enough is None:
        why = impossible(setting) or f"the oracle's error alone makes failures more likely than {DEFAULT_FAILURE:g}"
        raise InputError(f"{why}; give samples to try all the same")
    return enough


@dataclass(frozen=True)
class StageRecord:
    """What one stage did, in units of K: steps on children, largest step elsewhere, distance to the nearest failure.

    ``margin`` is the least distance of a step to a threshold beyond which the column would not be recovered; it
    is negative exactly if one is not.
    """

    stage: int
    signal_min: float
    signal_mean: float
    noise_max: float
    margin: float
    recovered: bool


@dataclass(frozen=True)
class SolveResult:
    """The keys of CONTRACT's ``solve``, why it failed if it did, and the weights in level form."""

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
    weights: tuple[Tensor, ...]

    @property
    def solved(self) -> bool:
        """Every layer recovered and every test sample right."""
        return self.exact_recovery and self.accuracy == 1.0

    def to_json(self) -> dict[str, Any]:
        """Everything but the weights, in plain types."""
        found = {name: value for name, value in vars(self).items() if name != "weights"}
        return found | {"stages": [vars(stage) for stage in self.stages]}

    @staticmethod
    def from_json(found: dict[str, Any], weights: Sequence[Tensor]) -> "SolveResult":
        """The result that ``to_json`` was called on."""
        rest = {name: value for name, value in found.items() if name != "stages"}
        stages = tuple(StageRecord(**stage) for stage in found["stages"])
        return SolveResult(stages=stages, weights=tuple(weights), **rest)


@dataclass(frozen=True)
class Solving:
    """A run of Algorithm 1 between two stages: all that the next one needs."""

    weights: tuple[Tensor, ...]
    records: tuple[StageRecord, ...]
    seconds: float
    step: Tensor
    """W − η∇̃L of the layer that was just trained, before rounding."""
    samples: tuple[int, int]
    """The first sample of the stream that the stage used, and how many."""


def solve(
    options: SolveOptions,
    tree: ParityTree | None = None,
    *,
    begun: Solving | None = None,
    stop_at_failure: bool = False,
    on_stage: Callable[[Solving], None] = lambda solving: None,
) -> SolveResult:
    """Run Algorithm 1 and test its weights on fresh samples in the inference input.

    Under torch.distributed every process calls this with the same options; samples are shared out and gradients summed,
    so that all end with the weights that one process would have.

    Args:
        options: the request.
        tree: the secret tree; by default the one that the seed draws.
        begun: go on from here; by default from the beginning.
        stop_at_failure: end after the first stage that is not recovered, in place of all log2 k.
        on_stage: called after each stage.
    """
    began = time.perf_counter() - (begun.seconds if begun else 0.0)
    tree = ParityTree.draw(options.n, options.k, options.seed) if tree is None else tree
    if (tree.n, tree.k) != (options.n, options.k):
        raise InputError(f"a tree of n={tree.n}, k={tree.k} for a request of n={options.n}, k={options.k}")
    setting, B = setting_of(options), samples_of(options)
    K, unit = setting.amplitude, setting.amplitude if setting.grid == "K" else 1.0
    W = list(begun.weights) if begun else [torch.zeros(g.keys, g.nodes).double() for g in setting.gradients]
    records = list(begun.records) if begun else []
    train = Samples(tree, options.seed, 0, B, "train", options.chunk, _DTYPES[options.dtype], options.device)
    for stage in range(len(records), tree.L):
        rate = K * setting.unit_rates[stage]
        errors = _random_errors(options, W, stage)
        slack = [unit / 2 / rate - float(error.abs().max()) for error in errors]
        samples = replace(train, start=stage * B)
        gradients = _gradients(samples, W, setting, K, stage, slack if options.update == "needed" else None)
        steps = [w - rate * (gradient + error) for w, gradient, error in zip(W, gradients, errors, strict=True)]
        if options.oracle == "adversarial":
            steps[stage] = _pushed(steps[stage], tree, stage, K, unit, rate * options.oracle_error)
        W = [quantise(step, unit) for step in steps]
        records.append(_record(steps[stage], tree, stage, K, unit))
        used = (samples.start, samples.count)
        on_stage(Solving(tuple(W), tuple(records), time.perf_counter() - began, steps[stage], used))
        if stop_at_failure and not records[-1].recovered:
            break
    # Checked again at the end: a later stage's oracle error may have moved a layer that was recovered.
    recovered = len(records) == tree.L and all(
        bool(recovered_columns(w, tree, layer, K).all()) for layer, w in enumerate(W)
    )
    failed = next((record.stage for record in records if not record.recovered), None)
    answer, truth = answers(replace(train, stream="test", count=options.test_samples), W, get_link(options.link))
    accuracy = float((answer * truth > 0).double().mean())
    result = SolveResult(
        exact_recovery=recovered,
        accuracy=accuracy,
        l2_error=float((answer - truth).square().mean()),
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
    )
    return result if result.solved else replace(result, reason=_reason(options, result, tree.levels))


def quantise(x: Float[Tensor, "*shape"], unit: float) -> Float[Tensor, "*shape"]:
    """Nearest multiple of ``unit``; a value half-way between two goes to the even multiple."""
    return (x / unit).round() * unit


def recovered_columns(W: Float[Tensor, "keys nodes"], tree: ParityTree, layer: int, K: float) -> Bool[Tensor, " nodes"]:
    """The columns in which the two true children tie for the maximum and every other key is at least K lower."""
    children, others = _split(W, tree, layer)
    slack = 1e-9 * K  # K need not be a binary number, nor then 2K − K exactly K
    return (children[0] == children[1]) & (others.amax(dim=0) <= children[0] - K + slack)


def _split(W: Tensor, tree: ParityTree, layer: int) -> tuple[Tensor, Tensor]:
    """A layer's children, 2 × nodes, and the layer with its children at −∞."""
    index = torch.tensor(tree.layer_children(layer)).T
    return W.gather(0, index), W.scatter(0, index, -torch.inf)


def _gradients(
    samples: Samples, W: Sequence[Tensor], setting: Setting, K: float, stage: int, slack: Sequence[float] | None
) -> list[Tensor]:
    """The gradient of every layer, 0 where a bound shows that it could not change a rounded weight.

    Args:
        samples: the stage's batch.
        W: all layers.
        setting: gives the link.
        K: amplitude.
        stage: the layer in training.
        slack: how large a gradient of each layer can be and still be rounded away; None computes everything.
    """
    tree, link = samples.tree, get_link(setting.link)
    nothing = [torch.zeros_like(w) for w in W]
    at_start = not bool(W[stage].any())
    below = [bool(recovered_columns(W[layer], tree, layer, K).all()) for layer in range(stage)]
    if slack is not None and at_start and all(below):
        masses = [_mass(W[layer], tree, layer) for layer in range(stage)]
        bounds = frozen_gradient_bounds(tree.levels, link, masses)
        if all(bound < slack[layer] for layer, bound in enumerate(bounds)):
            nothing[stage] = gradient_at_zero(samples, W[:stage], link)
            return nothing
    return [*all_gradients(samples, W, link, stage), *nothing[stage + 1 :]]


def _mass(W: Tensor, tree: ParityTree, layer: int) -> float:
    """Largest softmax weight that a column leaves to its non-children."""
    _, others = _split(W, tree, layer)
    return float((others.logsumexp(dim=0) - W.logsumexp(dim=0)).exp().max())


def _random_errors(options: SolveOptions, W: Sequence[Tensor], stage: int) -> list[Tensor]:
    """The oracle's random error in every layer: a uniform direction over all weights, of the given norm."""
    if options.oracle != "random":
        return [torch.zeros_like(w) for w in W]
    count = sum(w.numel() for w in W)
    pairs = -(-count // 2)
    uniform = (words(options.seed, "oracle", stage * 2 * pairs, 2 * pairs) >> np.uint64(11)) * 2.0**-53
    # Box and Muller: two uniform numbers to two normal ones; 1 − u is never 0.
    radius, angle = np.sqrt(-2 * np.log1p(-uniform[:pairs])), 2 * np.pi * uniform[pairs:]
    normal = torch.from_numpy(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count])
    error = normal * (options.oracle_error / math.sqrt(float((normal * normal).sum())))
    ends = [0, *itertools.accumulate(w.numel() for w in W)]
    return [error[first:end].view_as(w) for w, (first, end) in zip(W, itertools.pairwise(ends), strict=True)]


def _margins(steps: Tensor, tree: ParityTree, stage: int, K: float, unit: float) -> tuple[Tensor, Tensor]:
    """How far each step is from breaking its column's recovery: 2 × nodes for children, keys × nodes for the others.

    A column aims at v, the multiple nearest to its children's mean: children must stay within half a unit of v, others
    below v − K and half a unit. If both children round to one value, v is that value.
    """
    children, others = _split(steps, tree, stage)
    v = quantise(children.mean(dim=0), unit)
    return unit / 2 - (children - v).abs(), v - K + unit / 2 - others


def _pushed(steps: Tensor, tree: ParityTree, stage: int, K: float, unit: float, push: float) -> Tensor:
    """The worst that an error of this size can do: all of it on the step that is closest to a threshold.

    One entry out of place is enough to fail, so to spread the norm over several only wastes it.
    """
    of_children, of_others = _margins(steps, tree, stage, K, unit)
    index = torch.tensor(tree.layer_children(stage)).T
    children, _ = _split(steps, tree, stage)
    away = torch.where(children >= quantise(children.mean(dim=0), unit), 1.0, -1.0).double()
    margins = of_others.scatter(0, index, of_children)
    direction = torch.ones_like(steps).scatter(0, index, away)
    worst = int(margins.argmin())
    pushed = steps.clone()
    pushed.view(-1)[worst] += push * direction.view(-1)[worst]
    return pushed


def _record(steps: Tensor, tree: ParityTree, stage: int, K: float, unit: float) -> StageRecord:
    """A stage's steps in units of K."""
    children, others = _split(steps, tree, stage)
    of_children, of_others = _margins(steps, tree, stage, K, unit)
    margin = min(float(of_children.min()), float(of_others.min()))
    return StageRecord(
        stage=stage + 1,
        signal_min=float(children.min()) / K,
        signal_mean=float(children.mean()) / K,
        noise_max=float(others.masked_fill(others.isneginf(), 0.0).abs().max()) / K,
        margin=margin / K if math.isfinite(margin) else 0.0,
        recovered=bool(recovered_columns(quantise(steps, unit), tree, stage, K).all()),
    )


def _reason(options: SolveOptions, result: SolveResult, levels: Levels) -> str:
    """Why a run failed and what would succeed, in one line."""
    setting, K = setting_of(options), result.K
    where = f"stage {result.failed_stage} failed"
    if result.failed_stage is None:
        where = "the answer is wrong" if result.exact_recovery else "the oracle's error moved a layer not in training"
    record = result.stages[(result.failed_stage or result.steps) - 1]
    attention = (1 - off_child_mass(levels.n, K)) / 2
    limit = f"it takes K > ln n = {math.log(levels.n):.1f}"
    weak = f"K={K:g} leaves each child attention {attention:.2f} among {levels.n} keys ({limit})"
    why = impossible(setting)
    if record.stage > 1 and attention < 0.25:
        # The layers below may be recovered and still compute nothing: their softmax is too flat.
        why = weak
    elif why is None:
        why = f"the noise of B={result.samples_per_stage} samples left a margin of {record.margin:.2f} K"
        why += f", and {weak}" if attention < 0.25 else ""
    return f"{where}: {why}; {_advice(options)}"


def _advice(options: SolveOptions) -> str:
    """What would succeed."""
    setting = setting_of(options)
    usual = replace(setting, K=None, grid="K", rate="calibrated", oracle="none", oracle_error=0.0)
    if (
        options.preset == "none"
        and setting.amplitude >= setting.default_amplitude
        and (enough := setting.samples_for(0.01)) is not None
    ):
        return f"samples={enough} would succeed with probability 0.99"
    text = f"the defaults (grid K, calibrated rate, K={usual.amplitude:g}) would succeed with {usual.samples_for(0.01)}"
    text += " samples and probability 0.99"
    if options.preset == "paper":
        text = f"the theorem's K exceeds ln n for good beyond n = 10^{theorem_log10_n(options.epsilon):.0f}; {text}"
    return text
