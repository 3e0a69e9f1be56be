r"""Lemma 1: under uniform attention the inputs collapse to −1.

| name    | paper  | meaning                                           | where                  |
| ------- | ------ | ------------------------------------------------- | ---------------------- |
| first   | n^ε/8  | the first m that the lemma covers                 | Lemma 1                |
| failure | p_1    | exp(−n^{ε/16})                                    | proof of Lemma 1       |
| C2      | C_2    | \(|\varphi(t) + 1| \le C_2 t^2\): half of sup φ″  | proof of Lemma 1       |

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
from internalize.parity.certificates.world import World
from internalize.parity.theory.freezing import curvature


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
