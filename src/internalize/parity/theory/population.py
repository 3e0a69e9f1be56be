r"""Exact moments of a stage's one-sample gradient: its expectation (B = ∞), variance and skewness at finite n.

| name       | paper            | meaning                                                          | where           |
| ---------- | ---------------- | ---------------------------------------------------------------- | --------------- |
| keys       | n_t              | M keys that the stage's layer reads                              | section 2.1     |
| nodes      | –                | columns of the stage's layer: nodes of the level it writes       | section 2.1     |
| mean       | ∂L^(t)/∂w_{j,m}  | expected gradient, one number per class of key j                 | Lemma "Stage 1" |
| variance   | –                | variance of the gradient at B = 1; third: third central moment   | –               |
| signal     | 1 + O(n^{−ε/16}) | expected step on a child at the paper's rate, as a fraction of K | Lemma "Stage 1" |
| child      | p[j] = m         | key j is one of the two children of node m                       | section 2.1     |
| inside     | –                | j lies below a child of m, at a level                            | –               |
| outside    | –                | j is in the tree and not below m, at a level                     | –               |
| irrelevant | j ∉ S            | an input bit outside the secret set                              | section 2.1     |

The stage's layer has W = 0, so every node m of its level sees the same \(z = S/M\) with \(S = \sum_{j<M} b_j\), and
\[ \frac{\partial \mathcal L}{\partial w_{j,m}} = \frac1M\,(\phi(z) - b_m)\,\phi'(z)\,(b_j - z) \]
for one sample with true node values in the hidden states. Because b² = 1, every power of it needs only the laws of
S weighted by 1, b_m, b_j and b_m b_j. S is a sum over independent parts: the n − k irrelevant bits, and one
complete subtree under each node of the highest level read. Let r be the root of a subtree, s the sum of its nodes
and j a node in it, and let \(P = E[e^{iws}]\), \(Q = E[r e^{iws}]\), \(P_j = E[b_j e^{iws}]\),
\(Q_j = E[b_j r e^{iws}]\). The nodes of two subtrees and a new root above them sum to \(s_1 + s_2 + r_1 r_2\), and
\(e^{iwr} = \cos w + i r \sin w\) for r = ±1, hence
\[ P \to \cos w\,P^2 + i \sin w\,Q^2, \qquad Q \to \cos w\,Q^2 + i \sin w\,P^2, \]
\[ P_j \to \cos w\,P_j P + i \sin w\,Q_j Q, \qquad Q_j \to \cos w\,Q_j Q + i \sin w\,P_j P, \]
from P = cos w, Q = i sin w at a leaf, and from (P_j, Q_j) = (Q, P) where j is the root itself.

S = 2u − M with u = 0 … M, so the values of these functions at the M + 1 frequencies w = πq/(M + 1) are a discrete
Fourier transform of the weighted laws. The laws give every expectation, for any link.
"""

import math
from dataclasses import dataclass
from functools import cache, reduce
from typing import Final, Literal

import numpy as np
import torch
from numpy.polynomial.polynomial import polyval
from numpy.typing import NDArray

from internalize.environment import check_memory
from internalize.parity.model.link import COSINE, Link
from internalize.parity.task.tree import Levels

Kind = Literal["child", "inside", "outside", "irrelevant"]
Reals = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Powers = tuple[float, ...]
"""A polynomial's coefficients, lowest power first."""
_LATTICES: Final = 12
"""Approximate number of complex numbers held at once per value of S, for the memory check."""


@dataclass(frozen=True)
class KeyClass:
    """Keys of a column that are equal by symmetry: their relation to its node, their level and their number."""

    kind: Kind
    level: int
    count: int


@dataclass(frozen=True)
class StageGradient:
    """Exact moments of the one-sample gradient of a stage (counted from 0), one entry per class of key.

    ``third`` is the third central moment. ``shared`` is the variance of φφ′(b_j − z)/M, the part of the gradient
    that all columns have in common. ``sibling`` is the covariance of the gradients of the two children of one node.
    """

    stage: int
    keys: int
    nodes: int
    classes: tuple[KeyClass, ...]
    mean: Reals
    variance: Reals
    third: Reals
    shared: Reals
    sibling: float
    c: float

    @property
    def paper_rate(self) -> float:
        """The paper's learning rate at K = 1: n_t² / (2c)."""
        return self.keys**2 / (2 * self.c)

    @property
    def signal(self) -> float:
        """Expected step on a child at the paper's rate, as a fraction of K; it tends to 1."""
        return -float(self.mean[0]) * self.paper_rate

    @property
    def noise(self) -> float:
        """Largest standard deviation of a step at the paper's rate and B = 1, as a fraction of K."""
        return math.sqrt(float(self.variance.max())) * self.paper_rate


def key_classes(levels: Levels, stage: int) -> tuple[KeyClass, ...]:
    """Return the non-empty classes of keys of a stage, the children first: at most 2·stage + 3 classes."""
    classes = [KeyClass("child", stage, 2)]
    classes += [KeyClass("inside", level, 2 << (stage - level)) for level in range(stage)]
    others = levels.width(stage) - 2
    classes += [KeyClass("outside", level, others << (stage - level)) for level in range(stage + 1)]
    classes += [KeyClass("irrelevant", 0, levels.n - levels.k)]
    return tuple(found for found in classes if found.count)


def stage_gradient(levels: Levels, stage: int, link: Link = COSINE, kept: float = 1.0) -> StageGradient:
    """Return the moments of the stage's gradient for any link, from the exact weighted laws of S on its lattice.

    ``kept`` is E[label · b_m] of its nodes, where labels are noisy.
    """
    M = levels.level_end[stage]
    lattice = torch.from_numpy((2 * np.arange(M + 1) - M) / M)
    z: Reals = lattice.numpy()
    phi: Reals = link.phi(lattice).numpy()
    slope: Reals = link.slope(lattice).numpy()
    one, m, by_class = _laws(levels, stage)

    def integrate(weighted: Reals, of_phi: Powers, of_slope: int, of_z: Powers) -> float:
        """Return E[weight · a(φ) φ′^q c(z)]."""
        return float(weighted @ (polyval(phi, of_phi) * slope**of_slope * polyval(z, of_z)))

    def moment(q: int, j: Reals, mj: Reals) -> float:
        """Return E[((φ − b_m) φ′ (b_j − z))^q]."""
        a, b, plain, odd = _EXPANSIONS[q]
        without = integrate(one, a, q, plain) + integrate(j, a, q, odd)
        return without + kept * integrate(m, b, q, plain) + kept * integrate(mj, b, q, odd)

    def common(q: int, j: Reals) -> float:
        """Return E[(φ φ′ (b_j − z))^q], for the part that the columns share."""
        _, _, plain, odd = _EXPANSIONS[q]
        power = (0,) * q + (1,)
        return integrate(one, power, q, plain) + integrate(j, power, q, odd)

    # (b_c1 − z)(b_c2 − z) = b_m + z² − z(b_c1 + b_c2), both children have the same law, and b_m b_c1 = b_c2.
    a, b, _, _ = _EXPANSIONS[2]
    j, mj = by_class[0]
    siblings = integrate(m, a, 2, (1,)) + integrate(one, a, 2, (0, 0, 1)) + integrate(j, a, 2, (0, -2))
    of_label = integrate(one, b, 2, (1,)) + integrate(m, b, 2, (0, 0, 1)) + integrate(mj, b, 2, (0, -2))
    siblings += kept * of_label

    mean, square, cube = (np.array([moment(q, j, mj) for j, mj in by_class]) for q in (1, 2, 3))
    shared = np.array([common(2, j) - common(1, j) ** 2 for j, _ in by_class])
    return StageGradient(
        stage=stage,
        keys=M,
        nodes=levels.width(stage + 1),
        classes=key_classes(levels, stage),
        mean=mean / M,
        variance=(square - mean**2) / M**2,
        third=(cube - 3 * mean * square + 2 * mean**3) / M**3,
        shared=shared / M**2,
        sibling=(siblings - float(mean[0]) ** 2) / M**2,
        c=link.c,
    )


@cache
def population(levels: Levels, link: Link = COSINE, kept: tuple[float, ...] = ()) -> tuple[StageGradient, ...]:
    """Return the exact moments of every stage's gradient; ``kept`` has a share of each level, 1 if it is empty."""
    check_memory(16.0 * _LATTICES * levels.T, f"n={levels.n}, k={levels.k}")
    shares = kept or (1.0,) * levels.L
    return tuple(stage_gradient(levels, stage, link, share) for stage, share in enumerate(shares))


def _laws(levels: Levels, stage: int) -> tuple[Reals, Reals, list[tuple[Reals, Reals]]]:
    """Return the laws of S weighted by 1 and by b_m, and by (b_j, b_m b_j) for each class of key."""
    M = levels.level_end[stage]
    w = np.pi * np.arange(M + 1) / (M + 1)
    shift = np.exp(1j * w * M)

    def law(characteristic: Complexes) -> Reals:
        return np.fft.fft(characteristic * shift).real / (M + 1)

    one, m, by_class = _characteristic(levels, stage, np.cos(w) + 0j, 1j * np.sin(w))
    return law(one), law(m), [(law(j), law(mj)) for j, mj in by_class]


def _characteristic(
    levels: Levels, stage: int, cos: Complexes, i_sin: Complexes
) -> tuple[Complexes, Complexes, list[tuple[Complexes, Complexes]]]:
    """Return E[weight · e^{iwS}] for the weights 1 and b_m, and for (b_j, b_m b_j) of each class of key.

    The module's recursion starts from the characteristic functions of one bit, cos w and i sin w.
    """
    tracked = [(i_sin, cos)]  # (P_j, Q_j) for j at levels 0, 1, … of a subtree; the last one is its root's, (Q, P)
    for _ in range(stage):
        Q, P = tracked[-1]
        tracked = [(cos * P_j * P + i_sin * Q_j * Q, cos * Q_j * Q + i_sin * P_j * P) for P_j, Q_j in tracked]
        tracked.append((cos * Q * Q + i_sin * P * P, cos * P * P + i_sin * Q * Q))
    Q, P = tracked[-1]

    subtrees, spare = levels.width(stage), levels.n - levels.k
    rest = [(P, subtrees - 2), (cos, spare)]
    by_class: list[tuple[Complexes, Complexes]] = []
    for key in key_classes(levels, stage):
        P_j, Q_j = tracked[key.level]
        match key.kind:
            case "child" | "inside":
                # b_m is the product of two roots and j is below the first, so weight b_m b_j gives Q_j for the first
                # subtree. For the child itself Q_j is P, because its square is 1.
                by_class.append((_product((P_j, 1), (P, 1), *rest), _product((Q_j, 1), (Q, 1), *rest)))
            case "outside":
                others = [(P_j, 1), (P, subtrees - 3), (cos, spare)]
                by_class.append((_product((P, 2), *others), _product((Q, 2), *others)))
            case "irrelevant":
                others = [(P, subtrees - 2), (i_sin, 1), (cos, spare - 1)]
                by_class.append((_product((P, 2), *others), _product((Q, 2), *others)))
    return _product((P, 2), *rest), _product((Q, 2), *rest), by_class


def _product(*powers: tuple[Complexes, int]) -> Complexes:
    """Return the product of base^exponent by repeated squaring; at least one exponent must be above 0."""
    factors: list[Complexes] = []
    for base, exponent in powers:
        square, bits = base, exponent
        while bits:
            if bits & 1:
                factors.append(square)
            bits >>= 1
            square = square * square
    return reduce(lambda product, factor: product * factor, factors)


# (a, b, c, d), lowest power first: (φ − b_m)^q = a(φ) + b_m b(φ) and (b_j − z)^q = c(z) + b_j d(z), because b² = 1.
_EXPANSIONS: Final[dict[int, tuple[Powers, Powers, Powers, Powers]]] = {
    1: ((0, 1), (-1,), (0, -1), (1,)),
    2: ((1, 0, 1), (0, -2), (1, 0, 1), (0, -2)),
    3: ((0, 3, 0, 1), (-1, 0, -3), (0, -3, 0, -1), (1, 0, 3)),
}
