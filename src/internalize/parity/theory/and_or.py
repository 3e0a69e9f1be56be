r"""Trees of AND and OR: where the argument for parity breaks, with exact expected steps.

| name      | meaning                                                                                        |
| --------- | ---------------------------------------------------------------------------------------------- |
| b         | −1 is false, 1 is true; AND is the smaller of two values, OR the larger                        |
| operation | of each level: AND at all levels, OR at all levels, or AND and OR in turn                      |
| p         | probability that a node is true                                                                |
| centered  | whether keys have their mean subtracted                                                        |
| bias      | a constant that is added to z before the link, at the step only                                |
| ρ         | limit of a grandchild's expected step over a child's                                           |

The mean of two values still determines AND and OR, so a link exists: φ is −1 at −1 and at 0, and 1 at 1, with slope 0 at
the three (for OR, −φ(−t)). The quintic \(\varphi'(t) = \tfrac{15}{2}\, t (1 - t^2)(t + \tfrac{8}{15})\) is the polynomial
of least degree. A trained layer computes, and stays frozen, as for parity. The step from W = 0 is what breaks.

**Nodes are biased.** A key's gradient is \(\frac1M E[(\varphi(z) - b_m)\varphi'(z)(b_j - z)]\). From stage 2 on, z does not
concentrate at 0 but at a mean \(z_0\) between −1 and 0 (AND) or between 0 and 1 (OR), because the nodes among the keys are
biased. The link returns to the same value at both ends of that interval, so there φ′ is 0, or has both signs. Where it is
negative, the children's weights fall.

**Claim.** Suppose that a bias or another link gives \(\varphi'(z_0) \ne 0\), and keys are centered. Then as n → ∞ the expected
step on key j is proportional to \(\operatorname{Cov}(b_m, b_j)\), and a grandchild's over a child's is
\[ \rho = \frac{1}{1 + p} \quad \text{(AND, grandchildren true with probability p)}, \qquad
   \rho = \frac{1}{2 - p} \quad \text{(OR)}, \]
both more than ½. **Proof.** z − z_0 is of order \(n^{-1/2}\) and its covariance with \(b_j\) of order 1/n, so the gradient is
\(-\varphi'(z_0)\operatorname{Cov}(b_m, b_j)/M\) to leading order, for every key alike. Given the child c, m and the grandchild
g are independent, so \(\operatorname{Cov}(m, g) = \operatorname{Cov}(m, c)\operatorname{Cov}(c, g)/\operatorname{Var}(c)\). With
values 0 and 1 and c = AND of two independent nodes, \(\operatorname{Cov}(c, g) = p^2(1-p)\) and
\(\operatorname{Var}(c) = p^2(1-p^2)\). OR is AND of the negations. ∎

So a rate that moves the children to K, as the paper's and the calibrated one do, moves grandchildren beyond K/2. They
round to K as well, with any number of samples, and the layer is not recovered. Parity has ρ = 0: a leaf and a parity above
it are uncorrelated. Neither a link nor a bias changes ρ, which is a ratio of covariances. Without centering, all keys of a
level have an additional step of the same size, \(-E[(\varphi - b_m)\varphi']\,E[b_j - z]/M\) to leading order, which may
help or harm.

**What a rate can repair.** With a lower rate, which moves the children to \(K/(1+\rho)\), children round to K and
grandchildren to 0. The threshold is then half-way between them: noise may be \((1-\rho)/2\) of a child's step, in place of
½. That costs a factor \((1-\rho)^{-2}\) in samples, 9 above fair leaves, where ρ = ⅔. Under AND alone \(p = 2^{-2^\ell}\) and
ρ → 1, so the factor grows like \(p^{-2}\), beyond all bounds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from internalize.errors import InputError
from internalize.parity.task.tree import Levels
from internalize.parity.theory.population import Kind

Operation = Literal["and", "or", "alternating"]
Reals = NDArray[np.float64]
Complexes = NDArray[np.complex128]
_VALUES: Final = (-1, 1)


@dataclass(frozen=True)
class ExpectedStep:
    """The exact mean and variance of minus the one-sample gradient of a class of keys."""

    kind: Kind
    level: int
    mean: float
    variance: float


def operation_at(operation: Operation, level: int) -> Literal["and", "or"]:
    """Return the operation of the nodes of a level, from 1; `alternating` begins with AND."""
    return ("and" if level % 2 else "or") if operation == "alternating" else operation


def truth(operation: Operation, levels: Levels) -> tuple[float, ...]:
    """Return the probability that a node of levels 0 … L is true."""
    found = [0.5]
    for level in range(1, levels.L + 1):
        p = found[-1]
        found.append(p * p if operation_at(operation, level) == "and" else 1 - (1 - p) ** 2)
    return tuple(found)


def grandchild_share(operation: Operation, levels: Levels, level: int) -> float:
    """Return ρ of the nodes of a level from 2 on: 1/(1 + p), or 1/(2 − p) if the children are ORs."""
    p = truth(operation, levels)[level - 2]
    return 1 / (1 + p) if operation_at(operation, level - 1) == "and" else 1 / (2 - p)


def link_of(operation: Literal["and", "or"], t: Reals) -> tuple[Reals, Reals]:
    """Return φ and φ′ of AND or OR."""
    if operation == "or":
        value, slope = link_of("and", -t)
        return -value, slope
    return -1 + 2 * t**2 + 2.5 * t**3 - t**4 - 1.5 * t**5, 7.5 * t * (1 - t**2) * (t + 8 / 15)


def expected_steps(
    levels: Levels, stage: int, operation: Operation, *, centered: bool = False, bias: float = 0.0
) -> list[ExpectedStep]:
    """Return the exact steps of a stage (counted from 0) on every class of keys, the children first."""
    if not levels.complete or (levels.arity, levels.modulus) != (2, 2):
        raise InputError(f"k={levels.k}: trees of AND and OR are complete and have two children per node")
    M = levels.level_end[stage]
    w = np.pi * np.arange(M + 1) / (M + 1)
    wave = [np.exp(1j * w * value) for value in _VALUES]
    tree, tracked = _subtrees(operation, stage, wave)
    join = operation_at(operation, stage + 1)
    whole, cos = tree[0] + tree[1], np.cos(w) + 0j
    subtrees, spare = levels.width(stage) if stage else levels.k, levels.n - levels.k
    rest, means = whole ** (subtrees - 2) * cos**spare, [2 * p - 1 for p in truth(operation, levels)]
    node = _joined(join, tree, tree)

    lattice = (2 * np.arange(M + 1) - M) / M
    level_means = [means[level] * (levels.width(level) if level else levels.k) for level in range(stage + 1)]
    z = lattice - (sum(level_means) / M if centered else 0)
    phi, slope = link_of(join, z + bias)

    def step(kind: Kind, level: int, joint: Sequence[Sequence[Complexes]]) -> ExpectedStep:
        moments = [0.0, 0.0]
        for m, own in zip(_VALUES, joint, strict=True):
            for j, characteristic in zip(_VALUES, own, strict=True):
                law = np.fft.fft(characteristic * np.exp(1j * w * M)).real / (M + 1)
                key = j - (means[level] if centered and kind != "irrelevant" else 0)
                gradient = -(phi - m) * slope * (key - z) / M
                moments = [total + float(law @ gradient**q) for q, total in enumerate(moments, start=1)]
        return ExpectedStep(kind, level, moments[0], moments[1] - moments[0] ** 2)

    found: list[ExpectedStep] = []
    for level in reversed(range(stage + 1)):
        by_key = [_joined(join, [tracked[level][a][x] for a in (0, 1)], tree) for x in (0, 1)]
        below = [[by_key[x][m] * rest for x in (0, 1)] for m in (0, 1)]
        found.append(step("inside" if level < stage else "child", level, below))
    if subtrees > 2:
        for level in range(stage + 1):
            beside = [tracked[level][0][x] + tracked[level][1][x] for x in (0, 1)]
            others = whole ** (subtrees - 3) * cos**spare
            found.append(step("outside", level, [[node[m] * beside[x] * others for x in (0, 1)] for m in (0, 1)]))
    if spare:
        others = whole ** (subtrees - 2) * cos ** (spare - 1)
        found.append(step("irrelevant", 0, [[node[m] * wave[x] / 2 * others for x in (0, 1)] for m in (0, 1)]))
    return found


def samples_between(steps: Sequence[ExpectedStep], entries: int) -> float | None:
    r"""Return about how many samples separate children from all other keys if the threshold is half-way between them.

    The largest of that many normal deviations is \(\sqrt{2 \ln \text{entries}}\) standard deviations. None if some key's
    expected step is not below the children's: then no rate and no number of samples helps.
    """
    child, others = steps[0], steps[1:]
    gap = child.mean - max(other.mean for other in others)
    if gap <= 0:
        return None
    return 2 * math.log(entries) * max(step.variance for step in steps) / (gap / 2) ** 2


def _joined(operation: Literal["and", "or"], one: Sequence[Complexes], other: Sequence[Complexes]) -> list[Complexes]:
    """Return the sums of products over the pairs of values that make a node false, and that make it true."""
    if operation == "and":
        return [one[0] * other[0] + one[0] * other[1] + one[1] * other[0], one[1] * other[1]]
    return [one[0] * other[0], one[0] * other[1] + one[1] * other[0] + one[1] * other[1]]


def _subtrees(
    operation: Operation, height: int, wave: Sequence[Complexes]
) -> tuple[list[Complexes], list[list[list[Complexes]]]]:
    """Return E[1{root = r} e^{iws}] of a tree of this height, and with 1{key = x} for one key of each of its levels."""
    tree = [own / 2 for own in wave]
    nothing = np.zeros_like(tree[0])

    def at_root(tree: Sequence[Complexes]) -> list[list[Complexes]]:
        return [[tree[0], nothing], [nothing, tree[1]]]

    tracked = [at_root(tree)]
    for level in range(1, height + 1):
        join, below = operation_at(operation, level), tree
        tree = [wave[r] * joined for r, joined in enumerate(_joined(join, below, below))]
        by_key = [[_joined(join, [own[a][x] for a in (0, 1)], below) for x in (0, 1)] for own in tracked]
        tracked = [[[wave[r] * own[x][r] for x in (0, 1)] for r in (0, 1)] for own in by_key]
        tracked.append(at_root(tree))
    return tree, tracked
