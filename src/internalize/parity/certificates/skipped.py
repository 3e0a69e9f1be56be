r"""The lower bound: from W = 0, every level with four nodes or more needs a stage of its own.

| name          | meaning                                                                                          |
| ------------- | ------------------------------------------------------------------------------------------------ |
| skipped level | a level that no stage supervises; training keeps its columns equal (``symmetry.py``)               |
| y             | the common value of a skipped level: \(\phi(\sigma\cdot b)\) of the keys b below it               |
| r             | number of consecutive skipped levels ℓ … ℓ + r − 1; those below ℓ are exact                         |
| strict        | on [−1, 1], φ(t) = −1 only at t = 0, and φ(t) = 1 only at \|t\| = 1                               |
| R             | 2^{r+1}, the subtrees with a root at level ℓ − 1 below a node of level ℓ + r                       |
| capacity      | an upper bound on the bits whose parity a chain of skipped levels and one node can compute         |

Attention columns are points of a simplex, in which softmax is dense. *Exact* means equal to the true value on every
input. Losses are continuous on the compact simplex, so if no column is exact, the loss has a positive infimum, which no
training passes. It stays positive if the levels below ℓ are only close to exact.

**Theorem 1 (one skipped level).** Let φ be strict. Above one skipped level, at most one node is exact; and if one is,
φ(½) = 0. With φ(½) = 0 one can be: φ(φ(mean of four)) is the parity of its four grandchildren.

**Proof.** Node m of level ℓ + 1 outputs \(\phi(t)\), \(t = \alpha\cdot b + \beta y\) with weights ≥ 0 of sum 1. Each key
of a level below ℓ is a character with at most \(2^{\ell-1}\) of the \(2^{\ell+1}\) leaves of m, and different keys are
different characters. Exact means t = ±1 where m = 1, and t = 0 where m = −1.

- *α on two keys i ≠ j.* \(b_i b_j\) is a character with at most \(2^\ell\) leaves of m, so neither 1 nor m. Some input
  has m = 1 and \(b_i \ne b_j\), where |t| < 1. No.
- *α on one key i.* If β = 0, t is never 0. Otherwise y = b_i where m = 1, and \(y = -c\,b_i\) with c = α/β where m = −1,
  so c ≤ 1. Now y = 1 exactly where all keys that σ reads agree. The characters that are 1 on this set are generated
  by the products of two such keys. If c < 1 the set is {m = 1, b_i = 1}, and those characters are
  \(\{1, m, b_i, m b_i\}\). To generate them takes three keys at least. They lie in one coset, so two of them have the
  product m, which has \(2^{\ell+1}\) leaves of m, and a product of two keys has at most \(2^\ell\). No. If c = 1 the
  set is {m b_i = 1}, so σ reads two keys, \(b_p b_q = m b_i\), and m is a product of three keys, with at most
  \(3 \cdot 2^{\ell-1}\) leaves of m. No.
- *α = 0.* t = y is the same for all such nodes, and different nodes have different values: at most one is exact. Let it
  be m, and vary one leaf in each of its four subtrees of level ℓ − 1, with all else +1. The keys become these bits or
  the constant 1, with masses \(\sigma_1 \dots \sigma_4\) on the bits, and \(f = \sigma\cdot b\) must be 0 or ±1 where
  two bits are −1, and a zero of φ where one is. So \(2\sigma_i \notin \{0, 1, 2\}\) and
  \(\sigma_i + \sigma_j \in \{\tfrac12, 1\}\) for i ≠ j. A sum of 1 leaves 0 for the others; so all σ_i are ¼, and
  f = ½ where one bit is −1. ∎

The cosine has φ(½) = 0. The quartic has φ(½) = −1/8: with it, no level at all can be skipped.

**Capacity lemma.** Let \(D(\delta) = 1 - \phi(1 - \delta)\), and \(\hat D \ge D\) convex and increasing with
\(\hat D(0) = 0\). Let units h = 1 … r and last the node t have as inputs convex combinations of R bits and the
constant 1 (total mass \(s_h\)) and of earlier units j (masses \(\gamma_{hj}\)). Let \(F_j(x)\) be what reaches t if unit
j alone falls by x: \(v_j = x\), \(v_h = \sum_{j \le i < h} \gamma_{hi} \hat D(v_i)\) above it, and \(F_j(x) = v_t\). If
φ(u_t) is the parity of the bits, then \(R \le 2 s_t + \sum_{j \le r} 2 s_j / x_j\) with \(F_j(x_j) = 1\).

**Proof.** With all bits +1, every unit is 1. Flip bit i. The input of unit h falls by
\(v_h(i) = 2 s_h p_h(i) + \sum_{j<h} \gamma_{hj} D(v_j(i))\), with \(\sum_i p_h(i) \le 1\); and \(v_t(i) = 1\), because
u_t must become 0. With \(\hat D\) in place of D, \(v_t(i) \le g(p_1(i), \dots, p_t(i))\), where g is convex, increasing
and 0 at 0. Let a_j be the mass with \(g(a_j e_j) = 1\), that is \(2 s_j a_j = x_j\). If \(\sum_j p_j/a_j < 1\), then p
is a convex combination of 0 and the \(a_j e_j\) with a positive weight of 0, so g(p) < 1. Hence
\(1 \le \sum_j p_j(i)/a_j\), and summed over the bits \(R \le \sum_j 1/a_j\). ∎

*Boxes.* Each term rises with its own s_j and with the masses γ above it. So in a box of masses, the upper corner bounds
the sum. ``capacity`` returns the largest bound over boxes that cover all masses. For r = 2 the masses are
\(\gamma_{t1}, \gamma_{t2}, s_2\). For r = 3 they are \(s_2, s_3, s_t\), and x_j has the simpler bound
\(x_j \ge \min_{h > j} \hat D^{-1}(x_h/(1 - s_h))\) with x_t = 1: as \(v_h \le (1 - s_h) \max_{i<h} \hat D(v_i)\),
\(v_h \ge x_h\) needs some i < h with \(v_i \ge \hat D^{-1}(x_h/(1 - s_h)) \ge x_i\), from t down to j.

**Theorem 2 (r ≥ 2).** Let φ be strict and ``capacity(φ, 2) < 8`` and ``capacity(φ, 3) < 16``. Then no node above r ≥ 2
skipped levels is exact. This covers the cosine and the quartic.

**Proof.** Vary one leaf in each of the R subtrees, with all else +1. A key below level ℓ lies in one subtree or in
none, so it becomes one bit or 1; the node becomes the parity of the R bits, and the lemma applies. For r ≥ 4, a unit
more at the bottom adds at most \(2/x_1 \le 2/\delta^*\), with \(\delta^*\) the positive fixed point of
\(\hat D\): as \(x_t = 1 \ge \delta^*\) and \(\hat D^{-1}\) rises, every x_j is at least \(\delta^*\). It is below 16
for both links, and R grows by at least 16. ∎

**Corollary.** A curriculum of whole levels that is passed from W = 0 has a stage for each of the levels 1 … L − 2 and
for the root. *Proof.* Take the lowest run of skipped levels ℓ … ℓ + r − 1 and the stage of level ℓ + r; levels below
are exact, as their stages were passed. If r ≥ 2, no node is exact. If r = 1, at most one is, so level ℓ + 1 is the
root. ∎ So it has at least L − 1 = log2 k − 1 stages; with the quartic, L. Log-ICoT has L.

**What it does not say.** Weights are exact numbers here. The collapsed point is a saddle, so in floating point a
difference in the last bit can grow until the nodes part. Levels below ℓ are taken to be exact; a stage that spoils them
and finds another way is not excluded.
"""

from functools import cache
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from internalize.certificate import Finding, not_applicable, statement
from internalize.parity.certificates.world import World
from internalize.parity.model.link import Link
from internalize.parity.theory.freezing import curvature

Reals = NDArray[np.float64]

_GRID = 4000
"""Points of [0, 2] at which the convex bound of D is computed."""
_NEAR = 1e-3
"""Half the width of the neighborhoods of 0 and ±1 that the check of strictness leaves out."""


def is_strict(link: Link) -> bool:
    """Return whether φ is −1 only at 0 and 1 only at ±1, checked on a grid that leaves out the next neighbors."""
    t = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    inner = link(t)[(t.abs() > _NEAR) & (t.abs() < 1 - _NEAR)]
    return bool((inner.abs() < 1).all())


@cache
def convex_drop(link: Link) -> tuple[Reals, Reals]:
    """Return δ on a grid of [0, 2] and an upper bound of a convex function above D there.

    Its slope is the largest slope of D so far, so that it is convex and above D. Between two points of the grid the
    slope of D exceeds that of both by at most the curvature times the half distance.
    """
    delta = np.linspace(0, 2, _GRID + 1)
    slope = link.slope(torch.from_numpy(1 - delta)).numpy()
    width = delta[1]
    largest = np.maximum.accumulate(np.maximum(slope[1:], slope[:-1]) + curvature(link) * width / 2)
    return delta, np.concatenate([[0.0], np.cumsum(largest * width)])


def _drop(link: Link, value: Reals) -> Reals:
    """Return the convex function above D, which is linear between the points of the grid and beyond it."""
    delta, bound = convex_drop(link)
    return np.interp(value, delta, bound) + _steepest(link) * np.maximum(value - delta[-1], 0)


_OTHER_TREE = "the theorem is about complete trees in which every node has two children"


def _inverse(link: Link, value: Reals) -> Reals:
    """Return the δ at which the convex function reaches a value."""
    delta, bound = convex_drop(link)
    return np.interp(value, bound, delta) + np.maximum(value - bound[-1], 0) / _steepest(link)


def _steepest(link: Link) -> float:
    delta, bound = convex_drop(link)
    return float((bound[-1] - bound[-2]) / (delta[-1] - delta[-2]))


@cache
def capacity(link: Link, r: int, boxes: int = 50) -> float:
    """Return an upper bound on the bits whose parity a node above r = 2 or 3 skipped levels can compute.

    Args:
        link: φ.
        r: number of skipped levels.
        boxes: intervals into which each mass in [0, 1] is divided.
    """
    edges = np.linspace(0, 1, boxes + 1)
    corners = np.array(list(product(range(boxes), repeat=3)))
    low, high = edges[corners].T, edges[corners + 1].T
    with np.errstate(divide="ignore"):
        if r == 2:
            inside = low[0] + low[1] <= 1
            (g1, g2, _), (_, _, s2) = high[:, inside], high[:, inside]
            rest, st = 1 - low[2, inside], 1 - low[0, inside] - low[1, inside]
            below: Reals = np.zeros(len(g1))
            above: Reals = np.full(len(g1), 1e6)
            for _ in range(60):  # x_1 by bisection; ``below`` stays on the safe side
                middle: Reals = (below + above) / 2
                y = _drop(link, middle)
                reached = g1 * y + g2 * _drop(link, rest * y) >= 1
                below = np.where(reached, below, middle)
                above = np.where(reached, middle, above)
            return float((2 * st + 2 * s2 / _inverse(link, 1 / g2) + 2 / below).max())
        x3 = _inverse(link, 1 / (1 - low[2]))
        x2 = np.minimum(_inverse(link, x3 / (1 - low[1])), x3)
        x1 = np.minimum(np.minimum(_inverse(link, x2 / (1 - low[0])), _inverse(link, x3 / (1 - low[1]))), x3)
    return float((2 * high[2] + 2 * high[1] / x3 + 2 * high[0] / x2 + 2 / x1).max())


def fixed_point(link: Link) -> float:
    """Return a lower bound of the positive δ at which the convex function above D crosses the diagonal."""
    delta, bound = convex_drop(link)
    return float(delta[np.argmax(bound[1:] >= delta[1:])])


def skippable(link: Link) -> bool:
    """Return whether Theorem 1 allows the level below the root to be skipped: φ(½) = 0."""
    return abs(float(link(torch.tensor(0.5, dtype=torch.float64)))) < 1e-9


@statement("docs/stages.md, Theorem 1", "above one skipped level no two nodes are exact")
def skipped_level(world: World) -> Finding:
    """Check what the proof of Theorem 1 uses of this world: its link, and the keys that its nodes see.

    Measured: the nodes above a skipped level that are equal to another one or are the product of at most three of the
    keys below it, each of which would let the proof fail. A link that is not strict counts as one more.
    """
    levels, tree = world.levels, world.tree
    if not world.in_papers_tree:
        return not_applicable(_OTHER_TREE)
    if levels.L < 3:
        return not_applicable(f"k={tree.k}: no level with four nodes has a level of two nodes above it")
    rng = np.random.Generator(np.random.Philox(11))
    code = [int(word) for word in rng.integers(1, 2**62, size=tree.n)]
    for m in range(tree.n, levels.T):
        left, right = tree.children(m)
        code.append(code[left] ^ code[right])
    found = 0 if is_strict(world.link) else 1
    for level in range(1, levels.L - 1):
        nodes = list(levels.nodes(level + 1))
        seen = world.visible[:, nodes].any(dim=1)
        keys = [code[j] for j in range(levels.T) if bool(seen[j]) and j not in levels.nodes(level)]
        pairs = {a ^ b for number, a in enumerate(keys) for b in keys[:number]}
        targets = [code[m] for m in nodes]
        found += len(targets) - len(set(targets))
        found += sum(target in pairs | set(keys) or any(target ^ key in pairs for key in keys) for target in targets)
    return Finding(float(found), 0.0, None if found else "strict link; no node is a product of three keys")


@statement("docs/stages.md, Theorem 2", "no node above two or more skipped levels is exact")
def skipped_levels(world: World) -> Finding:
    """Check the condition of Theorem 2 on the link. Measured: the largest capacity over 2^{r+1} for r = 2 and 3."""
    if not world.in_papers_tree:
        return not_applicable(_OTHER_TREE)
    if not is_strict(world.link):
        return Finding(float("inf"), 1.0, "φ is ±1 at points other than 0 and ±1")
    found = {r: capacity(world.link, r) for r in (2, 3)}
    more = 2 / fixed_point(world.link)
    worst = max(found[2] / 8, found[3] / 16, more / 16)
    told = f"capacity {found[2]:.2f} of 8 bits, {found[3]:.2f} of 16, and at most {more:.2f} for each level more"
    return Finding(worst, 1 - 1e-9, told)
