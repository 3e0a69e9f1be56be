r"""Lemma "Frozen gradient" with its constants: how far a trained layer can move, and the K that freezes it.

| name      | paper            | meaning                                                             | where         |
| --------- | ---------------- | ------------------------------------------------------------------- | ------------- |
| mass      | n e^{−K_n}       | μ: largest softmax weight of a column of the layer off its children | Lemma Stage 1 |
| drift     | 2 e^{−Cn^{ε/16}} | δ: distance of a column's ẑ from the mean of its true child values  | Lemma Stage 1 |
| error     | ε_t              | ε: distance of a computed node from its true value                  | section 3.4   |
| steepness | L_φ              | A = sup of φ′ in absolute value                                     | Lemma Frozen… |
| curvature | C_φ, C_2         | C = the Lipschitz constant of φ′                                    | Lemma Frozen… |

**Claim.** Let layers 0 … t−1 be recovered (children tie for the maximum, off-child masses μ_0 … μ_{t−1}) and layer t
be 0. Then for every batch, every trained layer l < t and every weight w of it,
\[ \left|\frac{\partial \mathcal L^{(t)}}{\partial w}\right| \le
   \frac{2 A N_t}{M_t}\; C\,\delta_l \prod_{h=l+1}^{t-1} \bigl(1 + C\,\delta_h\,(\tfrac12 + N_h\,\mu_h)\bigr), \]
with M_t keys and N_t columns in layer t, \(\delta_h = \varepsilon_h + 2\mu_h\), \(\varepsilon_0 = 0\) and
\(\varepsilon_{h+1} = \tfrac12 C\,\delta_h^2\), ε_h the largest error of a child of a column of layer h.

**Proof.** *Drift.* The children of a column tie, so both have weight (1−μ)/2 and ẑ = (1−μ)x̄ + μy, with x̄ the mean of
their states, within ε of s = (b_1+b_2)/2, and |y| ≤ 1. As |s| ≤ 1, |ẑ − s| ≤ (1−μ)ε + 2μ ≤ δ. *Error.* s is −1, 0 or 1,
where φ′ = 0 and φ(s) = b_1 b_2; so |φ′(ẑ)| ≤ Cδ and |φ(ẑ) − φ(s)| ≤ Cδ²/2. *First layer.* w = w_{j,m} moves only the
node m, by φ′(ẑ_m) σ_j (x_j − ẑ_m). Two keys tie for the largest weight, so σ_j ≤ ½, and |x_j − ẑ_m| ≤ 2: the node
moves by at most Cδ_l. *Layers between.* Let a_h be the sum of |derivative| over all states that layer h reads. Layer h
adds φ′(ẑ_γ) Σ_β σ_β^γ ∂x_β for each of its N_h columns γ. A state β is a child of at most one column, where its weight
is at most ½, and in every other column it is at most μ_h: Σ_γ σ_β^γ ≤ ½ + N_h μ_h. So
a_{h+1} ≤ a_h (1 + Cδ_h (½ + N_h μ_h)). *Loss.* Layer t weighs each of its keys 1/M_t, so the loss of one sample, the
sum of (φ(z) − b_m)²/2 over its N_t columns, has a derivative of at most N_t · 2 · A · a_t/M_t. ∎

**Claim, layer t trained too.** If layers 0 … t are recovered, the loss of layer t's level, or of some of its nodes,
moves by at most \(\varepsilon_{t+1}\, C\,\delta_t\) with a weight of layer t, and with one of a layer l < t by at
most
\[ \varepsilon_{t+1}\; C\,\delta_t\,(\tfrac12 + N_t\,\mu_t)\; C\,\delta_l
   \prod_{h=l+1}^{t-1} \bigl(1 + C\,\delta_h\,(\tfrac12 + N_h\,\mu_h)\bigr). \]
**Proof.** Every error that the loss squares is at most \(\varepsilon_{t+1}\). A weight of layer t moves its node by
at most Cδ_t (*first layer*); one of layer l moves all nodes of layer t together by at most Cδ_t (½ + N_t μ_t) a_t
(*layers between*). ∎ So the later stages of a level, under a curriculum that has several, are idle.

**More children.** With r ≥ 2 children that tie, each has weight (1−μ)/r ≤ ½, and the mean s of their true values is one
of the points where \(\varphi_r\) is their product and has slope 0 (``link.py``). No other property of two children is used,
nor is it used at which level a child is, so both claims hold for \(\varphi_r\) and for ragged trees.

**Sums modulo p.** Values are roots of unity and states complex numbers of the unit disc. With the Jacobian of φ in place of
φ′, A the supremum of its operator norm and C its Lipschitz constant, every step of both proofs holds with absolute values,
because \(\varphi\) maps the disc into itself and its Jacobian is 0 at the means of two roots (``residue_link.py``).

The paper bounds the number of positions by T at every step; counting columns instead gives a smaller K. The claims
hold in exact arithmetic.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Final

import torch
from torch import Tensor

from internalize.parity.model.link import Link
from internalize.parity.task.tree import Levels

_GRID: Final = 200_001
_SIDE: Final = 801
"""Points per axis of the grid of the disc."""
_SAFETY: Final = 1.001
"""Bound on the supremum of a smooth function over its largest value on the grid; the true ratio is far less."""

MAX_ERROR: Final = 1e-6
"""Largest error of the answer, on any input, that the default amplitude allows."""


@cache
def steepness(link: Link) -> float:
    """Return A = sup |φ′| on [−1, 1], from a fine grid: π for the cosine, πr/2 with r children."""
    if link.slopes is not None:
        return _SAFETY * float(_jacobians(link)[0].max())
    return _SAFETY * float(link.slope(torch.linspace(-1, 1, _GRID, dtype=torch.float64)).abs().max())


@cache
def curvature(link: Link) -> float:
    """Return C, the Lipschitz constant of φ′ on [−1, 1], from a fine grid: π² for the cosine, 16 for the quartic."""
    if link.slopes is not None:
        return _SAFETY * float(_jacobians(link)[1].max())
    slope = link.slope(torch.linspace(-1, 1, _GRID, dtype=torch.float64))
    return _SAFETY * float(slope.diff().abs().max()) * (_GRID - 1) / 2


@cache
def _jacobians(link: Link) -> tuple[Tensor, Tensor]:
    """Return the norms of φ's Jacobian and of its derivative on a grid of the disc, for a φ of complex numbers.

    A real-linear map z → pz + q conj(z) has the operator norm |p| + |q|. The derivative's norm is at most the root of the
    summed squares of those along the two axes.
    """
    assert link.slopes is not None
    axis = torch.linspace(-1, 1, _SIDE, dtype=torch.float64)
    grid = torch.complex(*torch.meshgrid(axis, axis, indexing="xy"))
    of_z, of_conjugate = link.slopes(grid)
    inside = grid.abs() <= 1 + 2 / _SIDE

    def moved(dim: int) -> Tensor:
        step = 2 / (_SIDE - 1)
        along = (of_z.diff(dim=dim).abs() + of_conjugate.diff(dim=dim).abs()) / step
        return torch.cat([along, along.narrow(dim, 0, 1)], dim=dim)

    second = (moved(0).square() + moved(1).square()).sqrt()
    return (of_z.abs() + of_conjugate.abs())[inside], second[inside]


def off_child_mass(keys: int, gap: float, arity: int = 2) -> float:
    """Return the largest μ of a column whose other keys are all at least ``gap`` below its ``arity`` children."""
    others = (keys - arity) * math.exp(-gap)
    return others / (arity + others)


def drifts(link: Link, masses: Sequence[float]) -> tuple[list[float], float]:
    """Return δ of each recovered layer with these masses, and ε of the nodes that the last of them writes."""
    C, error = curvature(link), 0.0
    found: list[float] = []
    for mass in masses:
        found.append(min(error + 2 * mass, 2.0))  # both ẑ and s are in [−1, 1], and so are both values below
        error = min(C * found[-1] ** 2 / 2, 2.0)
    return found, error


def frozen_gradient_bounds(levels: Levels, link: Link, masses: Sequence[float]) -> list[float]:
    """Return the first claim's bound for each recovered layer with these masses, if the next layer is 0."""
    stage = len(masses)
    loss = 2 * steepness(link) * levels.width(stage + 1) / levels.level_end[stage]
    return [loss * moved for moved in _moved(levels, link, masses)]


def trained_gradient_bounds(levels: Levels, link: Link, masses: Sequence[float], *, exact: bool = True) -> list[float]:
    """Return the second claim's bound for each recovered layer with these masses, if the last one is read out.

    Where labels are not ``exact``, an error that the loss squares is at most 2, as in the first claim.
    """
    top, C = len(masses) - 1, curvature(link)
    delta, error = drifts(link, masses)
    loss = (error if exact else 2.0) * C * delta[top]
    onwards = loss * (0.5 + levels.width(top + 1) * masses[top])
    return [*(onwards * moved for moved in _moved(levels, link, masses[:top])), loss]


def _moved(levels: Levels, link: Link, masses: Sequence[float]) -> list[float]:
    """Return how far a weight of each layer can move all states that the layer after them reads, in total."""
    C, (delta, _) = curvature(link), drifts(link, masses)
    growth = [1 + C * delta[h] * (0.5 + levels.width(h + 1) * mass) for h, mass in enumerate(masses)]
    return [C * own * math.prod(growth[layer + 1 :]) for layer, own in enumerate(delta)]


def default_amplitude(levels: Levels, link: Link, rates: Sequence[float], integer_grid: bool) -> int:
    """Return the least integer K for which the answer is within 1e-6 on every input and no recovered layer ever moves.

    ``rates`` are the stages' learning rates at K = 1. ``integer_grid``: weights are rounded to integers, not to K.
    """
    for K in range(1, 1000):
        masses = [off_child_mass(levels.level_end[layer], K, levels.arity) for layer in range(levels.L)]
        half_step = 0.5 if integer_grid else K / 2
        if drifts(link, masses)[1] <= MAX_ERROR and all(
            K * rates[stage] * bound < half_step
            for stage in range(1, levels.L)
            for bound in frozen_gradient_bounds(levels, link, masses[:stage])
        ):
            return K
    raise AssertionError(f"no amplitude below 1000 freezes n={levels.n}, k={levels.k}")  # masses fall like e^−K
