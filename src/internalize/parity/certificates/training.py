r"""The statements about training: well-trained layers, the first step, the later steps, errors and freezing.

| name   | paper              | meaning                                                       | where                  |
| ------ | ------------------ | ------------------------------------------------------------- | ---------------------- |
| delta  | exp(−C n^{ε/16})   | allowed deviation of a well-trained layer's attention, states | Def. "Well-trained"    |
| mass   | n e^{−K_n}         | μ: attention of a column off its two children                 | Lemma "Stage 1"        |
| spread | 2 exp(−C n^{ε/16}) | μ + |σ_1 − ½| + |σ_2 − ½| of a column, the largest of a layer | Eq. (upper-interm.)    |
| error  | ε_t                | largest error of a node written by layers 1 … t               | Lemma "Inductive Step" |
| C2     | C_2                | |φ(s + x) − φ(s)| ≤ C_2 x² at s = −1, 0, 1: half of sup φ″    | Lemma "Stage 1"        |
| step   | K 1[p[j]=m] + Δ    | a stage's layer after the step, before rounding               | Lemma "Stage 1"        |

**Explicit δ.** The paper's C is "some constant" with \(n e^{-K_n} \le e^{-C n^{\epsilon/16}}\). If K is known, the left
side itself is used: \(\delta_\ell = \mu_\ell = (n_\ell - 2)/(2e^K + n_\ell - 2)\). The induction closes if
\(9 C_2 \delta \le 1\). This is the paper's own condition, and the only one for weights of another origin.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from internalize.certificate import Finding, not_applicable, statement
from internalize.parity.algorithm1.recovery import quantize, recovered_columns, split
from internalize.parity.certificates.architecture import ROUNDING
from internalize.parity.certificates.world import World
from internalize.parity.theory.freezing import curvature, drifts, frozen_gradient_bounds, off_child_mass

_CHUNK = 8192
_COMPARED_BITS = 62
"""Largest number of bits of a sample that are compared, so that they are one integer."""
_SAMPLES_PER_STAGE, _EQUAL_PAIRS = 20_000, 5_000_000
"""Largest number of samples of a stage that are compared, and of expected pairs of equal ones."""


def declared_masses(world: World) -> list[float] | None:
    """Return μ of each layer as K implies it; None for weights of another origin."""
    if world.departure:
        return None
    assert world.algorithm is not None
    keys, K, arity = world.keys, world.algorithm.amplitude, world.tree.arity
    return [off_child_mass(keys(layer), K, arity) for layer in range(world.levels.L)]


@statement(
    'Definition "Well-trained layer"',
    "attention is within δ of ½ on both children, and the states within δ of the truth",
)
def well_trained(world: World) -> Finding:
    r"""Check that \((1-\delta)/2 \le \sigma_{c_1}, \sigma_{c_2} \le 1/2\) and that states are within δ of the truth.

    With r children, ½ is 1/r.

    Measured: the least δ for which a layer meets the definition, at the layer where it is largest relative to its
    bound, on all inputs or drawn ones. Bound: as explained above. If a child has more than half of the attention,
    no δ suffices.
    """
    closing = 1 / (9 * curvature(world.link) / 2)
    masses, r = declared_masses(world), world.tree.arity
    errors = _layer_errors(world)
    worst = (-1.0, 0.0, 0.0, "")
    for layer in range(world.levels.L):
        on_children = _on_children(world, layer)
        if float(on_children.max()) > 1 / r + ROUNDING:
            top = float(on_children.max())
            share = "½" if r == 2 else f"1/{r}"
            return Finding(
                max(r * top - 1, 1.0), closing, f"layer {layer + 1}: a child has attention {top:.4f} > {share}"
            )
        least = float(on_children.min())
        delta = max(1 - r * least, errors[layer])
        bound = min(closing, masses[layer]) if masses else closing
        where = f"layer {layer + 1}: a child's attention is {least:.4f}, an error {errors[layer]:.2g}"
        worst = max(worst, (delta / (bound + ROUNDING), delta, bound, where))
    return Finding(worst[1], worst[2] + ROUNDING, worst[3])


@statement('Lemma "Stage 1"', "one step makes layer 1 well-trained: |Δ| < ½ in units of the grid")
def stage_one(world: World) -> Finding:
    """Check Lemma "Stage 1": one step makes layer 1 well-trained. See :func:`_step_finding`."""
    return _step_finding(world, range(1))


@statement('Lemma "Inductive Step"', "one step makes the next layer well-trained: |Δ| < ½")
def inductive_step(world: World) -> Finding:
    """Check Lemma "Inductive Step": one step makes the layer above well-trained layers 1 … t well-trained."""
    if world.levels.L == 1:
        return not_applicable("k=2 has one stage only")
    return _step_finding(world, range(1, world.levels.L))


@statement('Lemma "Hidden States"', "computed nodes are within δ of the truth, shown ones exact, padded ones 0")
def hidden_states(world: World) -> Finding:
    """Check Lemma "Hidden States": below the readout computed nodes are within δ, shown ones exact, padded ones 0.

    Measured: the largest deviation. Bound: rounding for shown and padded positions, otherwise δ as K implies it.
    """
    levels, masses = world.levels, declared_masses(world)
    sequence = world.sequence(world.test_bits[:1024])
    delta = max(drifts(world.link, masses[: layer + 1])[1] for layer in range(levels.L)) if masses else 0.0
    exact, computed = 0.0, 0.0
    for stage in world.stages:
        X = world.streams(world.stage_input(sequence, stage))
        shown = [m for m in range(levels.T) if m not in stage.hidden]
        for layer in range(stage.layers):
            state, end = X[layer][layer], levels.level_end[layer]
            if end > levels.n:
                computed = max(computed, float((state - sequence)[:, levels.n : end].abs().max()))
            untouched = [m for m in shown if m < levels.n or m >= end]
            exact = max(exact, float((state - sequence)[:, untouched].abs().max()))
            padded = [m for m in stage.hidden if m >= end]
            if padded:
                exact = max(exact, float(state[:, padded].abs().max()))
    if not exact <= ROUNDING:
        return Finding(exact, ROUNDING, "a shown or padded position has changed")
    if not masses:  # the lemma assumes that layers are within some δ; a measured δ would be compared with itself
        return Finding(exact, ROUNDING, "shown and padded positions only: δ of these weights is not known")
    return Finding(computed, delta + ROUNDING, vacuous=delta >= 1)


@statement("section 3.4", "ε_{t+1} ≤ max{ε_t, C_2 (2δ + ε_t)²}: errors do not add up")
def recursion(world: World) -> Finding:
    r"""Check section 3.4: \(\epsilon_{t+1} \le \max\{\epsilon_t, C_2 (\text{spread} + \epsilon_t)^2\}\).

    Measured: the error that layer t + 1 writes, where it is closest to \(C_2(\cdot)^2\), if that is below 2.
    """
    C2, reached = curvature(world.link) / 2, 0.0
    found: list[tuple[float, float, float]] = []
    for layer, error in enumerate(_layer_errors(world)):
        on_children, attention = _on_children(world, layer), world.layer_attention(layer)
        spread = attention.sum(dim=0) - on_children.sum(dim=0) + (on_children - 1 / world.tree.arity).abs().sum(dim=0)
        bound = C2 * (float(spread.max()) + reached) ** 2 + ROUNDING
        found.append((error / bound, error, bound))
        reached = max(reached, error)
    speaking = [entry for entry in found if entry[2] < 2]
    _, error, bound = max(speaking or found)
    return Finding(error, bound, None if speaking else "C_2 (spread + ε)² is 2 or more in every layer", not speaking)


@statement('Lemma "Frozen gradient"', "the gradient of a trained weight is nearly 0")
def frozen_gradient(world: World) -> Finding:
    """Check Lemma "Frozen gradient" with the constants of ``freezing.py``: trained weights have gradients of nearly 0.

    Measured: the gradient closest to its bound, on a batch of 64, because the bound holds for every batch.
    """
    levels = world.levels
    if levels.L == 1:
        return not_applicable("k=2 has one stage only, so no layer is trained before another")
    if world.curriculum != "log-icot":
        return not_applicable(f"trained by {world.curriculum}; the lemma is about the stages of Log-ICoT")
    sequence, worst = world.sequence(world.some_bits(64)), (-1.0, 0.0, 0.0)
    for stage in range(1, levels.L):
        full = _before(world, stage)
        gap = [_gap(world, w, layer) for layer, w in enumerate(full[:stage])]
        if min(gap) <= 0:
            untrained = gap.index(min(gap)) + 1
            return not_applicable(f"layer {untrained} is not trained: its children do not tie for the maximum")
        masses = [off_child_mass(world.keys(layer), g, world.tree.arity) for layer, g in enumerate(gap)]
        full = [w.clone().requires_grad_() for w in full]
        now = world.stages[stage]
        loss = world.loss(world.output(world.stage_input(sequence, now), now.layers, full), sequence, now)
        found = torch.autograd.grad(loss, full[:stage])
        for gradient, bound in zip(found, frozen_gradient_bounds(levels, world.link, masses), strict=True):
            largest = float(gradient.abs().max())
            worst = max(worst, (largest / (bound + 1e-15), largest, bound + 1e-15))
    return Finding(worst[1], worst[2])


@statement('Lemma "Frozen gradient"', "a trained layer keeps its weights to the end")
def frozen_weights(world: World) -> Finding:
    """Check that a layer keeps its weights after its stage (Lemma "Frozen gradient"). Measured: the largest change."""
    if why := _history_unknown(world, "lemma"):
        return not_applicable(why)
    K = world.algorithm.amplitude if world.algorithm else 1.0
    for layer, weights in enumerate(world.history):
        if not _recovered(world, weights, layer, K):
            return not_applicable(f"layer {layer + 1} was not recovered at its own stage")
    moved = [
        float((later[layer] - world.history[layer][layer]).abs().max())
        for layer in range(len(world.history))
        for later in (*world.history[layer + 1 :], world.whole or world.weights)
    ]
    return Finding(max(moved, default=0.0), 0.0)


@statement("proof of Theorem 1", "after stage t layer t is trained and those above are 0")
def stage_order(world: World) -> Finding:
    """Check a step of the proof of Theorem 1: after stage t the layers above t are still 0, and layer t is not.

    Measured: the number of pairs (stage, layer) that violate it. At n = k = 2 weights of 0 are already right.
    """
    if why := _history_unknown(world, "theorem"):
        return not_applicable(why)
    nothing_to_learn = world.tree.n == 2
    wrong = 0
    for stage, weights in enumerate(world.history):
        wrong += not (bool(weights[stage].any()) or nothing_to_learn)
        wrong += sum(bool(w.any()) for w in weights[stage + 1 :])
    return Finding(float(wrong), 0.0)


def _history_unknown(world: World, statement: str) -> str | None:
    """Say why a statement about the weights after each stage does not apply; None if it does."""
    if world.curriculum != "log-icot":
        return f"trained by {world.curriculum}; the {statement} is about the stages of Log-ICoT"
    return None if world.history else "the weights after each stage are not known (solve --snapshots stores them)"


@statement("Algorithm 1", "no two stages share a sample, and no sample is drawn again")
def fresh_samples(world: World) -> Finding:
    r"""Check that every stage of Algorithm 1 draws samples that no other stage used, and none of them twice.

    Measured: samples used twice. If the stages' ranges overlap, these are the samples in two of them. Otherwise the
    bits themselves are compared, over all stages: for the distance d at which most samples are equal to the one d
    before them, it is the number of such samples beyond what chance allows.

    **Chance.** Let p be the probability that two fresh samples agree on the bits that are compared, all n of them or
    the first 62. For one d the indicators of agreement are independent, because along i, i + d, i + 2d, … differences
    of independent uniform samples are independent and uniform. So of N samples k or more agree with probability at
    most \(e^{-N D(k/N)}\), with \(D(q) = q\ln\frac qp + (1-q)\ln\frac{1-q}{1-p}\) (Chernoff). Chance allows fewer than
    the least k for which this is at most \(10^{-6}/N^2\). The number of distances is below N², so fresh samples exceed
    it at some d with probability at most 10^−6. Samples that come again in another order are found only if n is so
    large that a few equal samples are more than chance.
    """
    if not world.ranges:
        return not_applicable("which samples each stage used is not known")
    used = sorted(world.ranges)
    twice = sum(max(a + size - b, 0) for (a, size), (b, _) in itertools.pairwise(used))
    if twice:
        return Finding(float(twice), 0.0, "the ranges of two stages overlap")
    bits = min(world.tree.n, _COMPARED_BITS)
    most = min(_SAMPLES_PER_STAGE, math.isqrt(2 * _EQUAL_PAIRS * 2**bits) // len(used))
    used = [(start, min(count, most)) for start, count in used]
    N = sum(count for _, count in used)
    repeated, distance = _most_repeated(world, used, bits)
    allowed = most_by_chance(N, 2.0**-bits)
    reason = f"{repeated} of {N} samples equal the one {distance} before them; chance allows {allowed}"
    return Finding(float(max(repeated - allowed, 0)), 0.0, reason)


def _most_repeated(world: World, ranges: Sequence[tuple[int, int]], bits: int) -> tuple[int, int]:
    """Return the number of samples that equal the one some distance before them, at the distance where it is largest.

    Also return that distance. Only the first ``bits`` bits of a sample are compared.
    """
    places = torch.cat([torch.arange(start, start + count) for start, count in ranges])
    power = 2 ** torch.arange(bits)
    drawn = [(world.draw(first, count, "train")[:, :bits] < 0).long() @ power for first, count in _chunks(ranges)]
    code, order = torch.cat(drawn).sort(stable=True)
    places, apart, step = places[order], [torch.ones(0, dtype=torch.long)], 1
    while step < len(code) and bool((equal := code[step:] == code[:-step]).any()):
        apart.append((places[step:] - places[:-step])[equal])
        step += 1
    distances, counts = np.unique(torch.cat(apart).numpy(), return_counts=True)
    return (int(counts.max()), int(distances[counts.argmax()])) if len(counts) else (0, 1)


def most_by_chance(N: int, p: float) -> int:
    """Return the largest number of N samples that chance makes equal to the one d before them, for every d."""

    def divergence(k: int) -> float:
        return k * math.log(k / N / p) + ((N - k) * math.log((N - k) / N / (1 - p)) if k < N else 0.0)

    limit = math.log(1e6 * N**2)
    return next((k - 1 for k in range(math.ceil(N * p) + 1, N + 1) if divergence(k) >= limit), N)


def _chunks(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges in chunks that fit in memory."""
    for start, count in ranges:
        for first in range(start, start + count, _CHUNK):
            yield first, min(_CHUNK, start + count - first)


def _step_finding(world: World, stages: range) -> Finding:
    r"""Check that each stage's step \(-\eta_t \nabla\mathcal L^{(t)}\) rounds to a well-trained layer.

    The lemmas need \(|\Delta_{j,m}| < 1/2\) in units of the grid. Softmax ignores a shift of a column, so Δ of a
    child is taken relative to the value v that the children round to. Δ of another key is taken relative to v − K
    and only from above, because a non-child that falls does no harm. Measured: the largest such Δ; at least 1 if
    the stored layer is not recovered.
    """
    if why := step_unknown(world):
        return not_applicable(why)
    assert world.algorithm is not None
    if world.algorithm.oracle != "none":
        return not_applicable("the step had an oracle's error, which is not stored")
    tree, worst, constant = world.tree, 0.0, 0.0
    for step in (step_of(world, stage) for stage in stages):
        K, unit, pairs = step.K, step.unit, step.pairs
        keys, size = world.levels.level_end[step.stage], 1 / world.algorithm.gradients[step.stage].paper_rate
        signal = torch.zeros_like(step.gradient).scatter(0, torch.tensor(pairs).T, size)
        remainder = float((step.gradient + signal)[:keys].abs().max())
        constant = max(constant, remainder * tree.n ** (2 + world.epsilon / 8))
        children, others = split(step.columns, pairs)
        v = quantize(children.mean(dim=0), unit)
        worst = max(worst, float((children - v).abs().max()) / unit, float((others - v + K).max()) / unit)
        if not step.recovered:
            return Finding(max(worst, 1.0), 0.5, f"the stored layer {step.stage + 1} is not recovered")
    return Finding(worst, 0.5, f"|R| ≤ {constant:.3g} n^(−2−ε/8) in the paper's expansion of the gradient")


def step_unknown(world: World) -> str | None:
    """Say why the steps of a world's stages are not known; None if they are."""
    return world.departure or (None if world.ranges else "which samples each stage used is not known")


@dataclass(frozen=True)
class StageStep:
    """The step of a stage (counted from 0) on its own layer, with the samples' gradient and no error of an oracle."""

    stage: int
    gradient: Tensor
    """T × nodes."""
    columns: Tensor
    """−η_t times the gradient, which are the weights before rounding; −∞ at invisible keys."""
    pairs: Sequence[tuple[int, ...]]
    K: float
    rate: float
    unit: float
    recovered: bool
    """Whether the stored weights of the layer are recovered."""


def step_of(world: World, stage: int) -> StageStep:
    """Return the step of a stage (counted from 0) on its own layer."""
    setting, nodes = world.algorithm, world.levels.span(stage + 1)
    assert setting is not None
    K, rate = setting.amplitude, setting.amplitude * setting.unit_rates[stage]
    at_zero = world.gated_as_printed
    gradient = _gradient_at_zero(world, stage) if at_zero else gradients_by_autograd(world, stage)[stage][:, nodes]
    columns = (-rate * gradient).masked_fill(~world.visible[:, nodes], -torch.inf)
    recovered = _recovered(world, _after(world, stage), stage, K)
    unit = K if setting.grid == "K" else 1.0
    return StageStep(stage, gradient, columns, world.tree.layer_children(stage), K, rate, unit, recovered)


def trained_gradient_limit(world: World, stage: int) -> float:
    """Return a bound on the gradients of the trained layers below a stage, for any batch; infinite if there is none.

    It is the bound of ``freezing.py``, which assumes the paper's mask and gates and children that tie.
    """
    trained = list(enumerate(_before(world, stage)[:stage]))
    gap = [_gap(world, w, layer) for layer, w in trained]
    if min(gap, default=1.0) <= 0 or not world.masked_and_gated_as_printed:
        return math.inf
    masses = [off_child_mass(world.keys(layer), g) for layer, g in enumerate(gap)]
    return max(frozen_gradient_bounds(world.levels, world.link, masses), default=0.0)


@torch.no_grad()
def _gradient_at_zero(world: World, stage: int) -> Tensor:
    """Return the gradient of a stage's layer at 0 (T × nodes), on the stage's samples, under the prescribed gates."""
    levels, (_, B) = world.levels, world.ranges[stage]
    below = [world.attention(w) for w in _before(world, stage)[:stage]]
    nodes = [levels.span(layer + 1) for layer in range(stage + 1)]
    A = world.attention(torch.zeros(levels.T, levels.T, dtype=torch.float64))[:, nodes[stage]]
    total = torch.zeros_like(A)
    for sequence in _batch(world, stage):
        H = world.stage_input(sequence, world.stages[stage])
        for layer in range(stage):
            H[:, nodes[layer]] = world.link(H @ below[layer][:, nodes[layer]])
        z = H @ A
        R = (world.link(z) - sequence[:, nodes[stage]]) * world.link.slope(z)
        total += A * (H.T @ R - (R * z).sum(dim=0))
    return total / B


def gradients_by_autograd(world: World, stage: int) -> list[Tensor]:
    """Return the gradients of a stage's loss in layers 0 … ``stage``, T × T, on the stage's samples, under any gates.

    Gates other than the paper's may bring other levels' columns into the loss.
    """
    W, now = _before(world, stage), world.stages[stage]
    moving = [w.clone().requires_grad_() for w in W[: stage + 1]]
    totals = [torch.zeros_like(w) for w in moving]
    for sequence in _batch(world, stage):
        output = world.output(world.stage_input(sequence, now), now.layers, [*moving, *W[stage + 1 :]])
        loss = world.loss(output, sequence, now) * len(sequence)
        for total, found in zip(totals, torch.autograd.grad(loss, moving), strict=True):
            total += found
    return [total / world.ranges[stage][1] for total in totals]


def _batch(world: World, stage: int) -> Iterator[Tensor]:
    """Yield the true sequences of a stage's samples, a chunk at a time."""
    for first, count in _chunks([world.ranges[stage]]):
        yield world.sequence(world.draw(first, count, "train"))


def _after(world: World, stage: int) -> Sequence[Tensor]:
    """Return the weights after a stage (from 0), or the final ones, equal by freezing, if they were not stored."""
    return world.history[stage] if world.history else world.whole or world.weights


def _before(world: World, stage: int) -> list[Tensor]:
    """Return the T × T weights before a stage (counted from 0): those of the earlier stages, and 0."""
    found = world.full(_after(world, max(stage - 1, 0)))
    return [w if layer < stage else torch.zeros_like(w) for layer, w in enumerate(found)]


def _recovered(world: World, weights: Sequence[Tensor], layer: int, K: float) -> bool:
    columns = world.written(world.full(weights)[layer], layer)
    return bool(recovered_columns(columns, world.tree.layer_children(layer), K).all())


def _on_children(world: World, layer: int) -> Tensor:
    """Return the attention on the two true children of each node of a layer: 2 × nodes."""
    return world.layer_attention(layer).gather(0, torch.tensor(world.tree.layer_children(layer)).T)


def _gap(world: World, W: Tensor, layer: int) -> float:
    """Return how far children are above all other keys, at least, over a layer's columns; ≤ 0 if they do not tie."""
    children, others = split(world.written(W, layer), world.tree.layer_children(layer))
    return float((children.amin(dim=0) - others.amax(dim=0)).min()) if bool((children == children[0]).all()) else 0.0


@torch.no_grad()
def _layer_errors(world: World) -> list[float]:
    """Return the largest error that each layer writes, on the inference input."""
    sequence = world.sequence(world.test_bits)
    X = world.streams(world.inference_input(world.test_bits))
    return [
        float((X[layer][layer] - sequence)[:, world.levels.span(layer)].abs().max())
        for layer in range(1, world.levels.L + 1)
    ]
