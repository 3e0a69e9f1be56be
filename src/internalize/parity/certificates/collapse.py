r"""Lemma 1: under uniform attention the inputs collapse to −1; and what that does to the next layer's gradient.

| name    | paper   | meaning                                               | where            |
| ------- | ------- | ----------------------------------------------------- | ---------------- |
| first   | n^ε/8   | the first m that the lemma covers                     | Lemma 1          |
| failure | p_1     | exp(−n^{ε/16})                                        | proof of Lemma 1 |
| C2      | C_2     | \(|\varphi(t) + 1| \le C_2 t^2\): half of sup φ″      | proof of Lemma 1 |
| signal  | O(n^−2) | 2c/n_2², by which the gradient at the children stands out | section 3.2  |
| noise   | Ω(n^−1) | the rest R of the gradient, from key to key           | section 3.2      |

**The constant.** By Hoeffding, \(P(|\frac{1}{m-1}\sum_{j<m} b_j| \ge t) \le 2 e^{-(m-1)t^2/2}\) for each of B
samples and fewer than n values of m, so with probability 1 − p_1
\[ \Bigl|\varphi\Bigl(\frac1{m-1}\sum_{j<m} b_j\Bigr) + 1\Bigr| \le \frac{2 C_2}{m-1} \ln\frac{2nB}{p_1}
   \quad\text{for all } m. \]
Departs from the paper: the proof writes m for the m − 1 terms of the mean. Since |φ + 1| ≤ 2 always, the lemma says
nothing about an m whose right side is 2 or more.
"""

import math

import torch

from internalize.certificate import Finding, not_applicable, statement
from internalize.parity.algorithm1.recovery import recovered_weights
from internalize.parity.certificates.world import World
from internalize.parity.task.stages import ParityStage
from internalize.parity.theory.freezing import curvature

_HARD, _CHUNK = 50.0, 8192
"""Weight at which attention on the two children is ½ each to rounding; samples per chunk."""


@statement("Lemma 1", "under uniform attention the inputs collapse: |φ + 1| = O(n^(−ε/16))")
def collapse(world: World) -> Finding:
    """Check Lemma 1 with its constant. Measured: |φ + 1| at the m closest to its bound, among bounds below 2."""
    if world.tree.arity != 2:
        return not_applicable("the lemma is about φ(0) = −1, the link of nodes with two children")
    n, bits = world.tree.n, world.draw(0, world.test_count, "test")
    failure = math.exp(-(n ** (world.epsilon / 16)))
    first = max(math.ceil(n ** (world.epsilon / 8)), 2)
    attention = world.attention(torch.zeros(world.levels.T, world.levels.T, dtype=torch.float64))
    C2, log = curvature(world.link) / 2, math.log(2 * n * len(bits) / failure)
    # The paper's m counts from 1. It is query m − 1 here, which sees the m − 1 positions before it.
    bounds = {m: 2 * C2 / (m - 1) * log for m in range(first, n + 1)}
    values = {m: float((world.link(bits @ attention[:n, m - 1]) + 1).abs().max()) for m in bounds}
    covered = [m for m in bounds if bounds[m] < 2] or [n]
    worst = max(covered, key=lambda m: values[m] / bounds[m])
    where = f"m = {worst}; the bound is below |φ + 1| ≤ 2 at {sum(b < 2 for b in bounds.values())} of {len(bounds)} m"
    return Finding(values[worst], bounds[worst], where, vacuous=bounds[n] >= 2)


@statement(
    "section 3.2", "the gates keep noise below the next layer's signal of O(n^(−2)); under collapse it is Ω(1/n)"
)
def noise(world: World) -> Finding:
    r"""Check section 3.2: the gates keep the noise in the second layer's gradient below its signal.

    Layer 1 computes its level exactly, and layer 2 is still 0. Its gradient at node m and key j is
    \(-\frac{2c}{n_2^2} 1[p[j] = m] + R_{j,m}\). The first term is the signal. Softmax ignores a shift of a column, so
    the noise is the largest difference of two keys' R in one column. Where it is below the signal, the two children
    have the largest steps. Measured: noise over signal under the world's gates, on all inputs or on so many drawn ones
    that sampling adds at most about 0.5 (``prediction.py``, "The limit"). The reason tells what every gate open makes of
    it. The positions below then hold collapsed states (Lemma 1), which differ from those of the nodes by Θ(1), so R
    differs by Θ(1/n). If that noise is below the signal too, there is nothing that gates prevent, and the verdict is
    vacuous.
    """
    if world.levels.L == 1:
        return not_applicable("the tree has no second layer")
    if world.tree.arity != 2:
        return not_applicable(f"section 3.2 is about nodes of two children, these have {world.tree.arity}")
    ratio, _ = _noise(world, world.gates[0])
    opened, spread = _noise(world, torch.ones_like(world.gates[0]))
    reason = f"with every gate open, the noise is {spread * world.tree.n:.2g}/n, {opened:.3g} times the signal"
    return Finding(ratio, 1.0, reason, vacuous=opened < 1)


@torch.no_grad()
def _noise(world: World, gate: torch.Tensor) -> tuple[float, float]:
    """Return the noise in the second layer's gradient over its signal, and itself, under gates of the first layer."""
    levels = world.levels
    first, *others = world.full(recovered_weights(world.tree, "level", _HARD))
    nodes, M = levels.span(2), levels.level_end[1]
    below, here = world.attention(first), world.attention(torch.zeros_like(others[0]))[:, nodes]
    stage = ParityStage(tuple(levels.nodes(1)), tuple(levels.nodes(2)), 2)
    B = 2**world.tree.n if world.exhaustive else math.ceil(64 * M * math.log(M * levels.width(2)))
    total = torch.zeros_like(here)
    for start in range(0, B, _CHUNK):
        count = min(_CHUNK, B - start)
        bits = world.test_bits[start : start + count] if world.exhaustive else world.draw(start, count, "train")
        sequence = world.sequence(bits)
        D = world.stage_input(sequence, stage)
        H = gate * world.link(D @ below) + (1 - gate) * D
        z = H @ here
        error = (world.link(z) - sequence[:, nodes]) * world.link.slope(z)
        total += here * (H.T @ error - (error * z).sum(dim=0))
    signal = 2 * world.link.c * here.amax(dim=0).square()
    pairs = torch.tensor(world.tree.layer_children(1)).T
    R = total / B + torch.zeros_like(total).scatter(0, pairs, signal.expand(2, -1))
    seen = world.visible[:, nodes]
    spread = R.masked_fill(~seen, -torch.inf).amax(dim=0) - R.masked_fill(~seen, torch.inf).amin(dim=0)
    return float((spread / signal).max()), float(spread.max())
