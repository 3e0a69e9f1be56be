"""Exact recovery: when a rounded layer has found the children of its nodes, and how far a step is from failing.

| name     | paper           | meaning                                                                   | where       |
| -------- | --------------- | ------------------------------------------------------------------------- | ----------- |
| columns  | –               | keys × nodes of a layer, before or after rounding; −∞ at an invisible key | section 2.2 |
| pairs    | c_1[m], c_2[m]  | the children of each column                                               | section 2.1 |
| quantize | q               | to the nearest multiple of the grid, halves to the even multiple          | section 2   |
| unit     | –               | the grid: 1, K, or 0 for no rounding                                      | section 2   |
| push     | ε of the oracle | how far an adversary can move one step of each column                     | section 2.1 |

Recovery is up to a shift of each column, because Theorem 1 is about the output, and softmax ignores a shift. The
paper's proof has the weights K and 0 themselves; what these cost in samples is in docs/finite-n.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from internalize.parity.model.weights import Form, weight_shapes
from internalize.parity.task.tree import ParityTree

Pairs = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class StageRecord:
    """The steps of a stage in units of K: on children, the largest elsewhere, the distance to the nearest failure.

    ``margin`` is the least distance of a step from the threshold beyond which its column is not recovered; it is
    negative exactly if a column is not recovered. ``idle``: no weight of any layer changed.
    """

    stage: int
    signal_min: float
    signal_mean: float
    noise_max: float
    margin: float
    recovered: bool
    idle: bool = False


def quantize(x: Float[Tensor, "*shape"], unit: float) -> Float[Tensor, "*shape"]:
    """Round to the nearest multiple of ``unit``, ties to the even multiple. With unit 0, return a copy."""
    return (x / unit).round() * unit if unit else x.clone()


def recovered_columns(columns: Float[Tensor, "keys nodes"], pairs: Pairs, K: float) -> Bool[Tensor, " nodes"]:
    """Return the columns in which the true children tie for the maximum and every other key is at least K lower."""
    children, others = split(columns, pairs)
    slack = 1e-9 * K  # in floating point 2K − K need not be exactly K
    return (children == children[0]).all(dim=0) & (others.amax(dim=0) <= children[0] - K + slack)


def recovered_weights(tree: ParityTree, form: Form, K: float) -> list[Float[Tensor, "keys nodes"]]:
    """Return the weights that Algorithm 1 aims at: K at the children, 0 elsewhere."""
    found = [torch.zeros(shape, dtype=torch.float64) for shape in weight_shapes(tree.levels, form).values()]
    for number, w in enumerate(found):
        nodes = range(tree.n, tree.T) if form == "cot" else tree.levels.nodes(number + 1)
        columns = w[:, nodes.start : nodes.stop] if form == "block" else w
        columns.scatter_(0, torch.tensor([tree.children(m) for m in nodes]).T, K)
    return found


def split(columns: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Return the children (2 × nodes in the paper), and the columns with their children at −∞."""
    index = torch.tensor(pairs).T
    return columns.gather(0, index), columns.scatter(0, index, -torch.inf)


def off_child_share(columns: Tensor, pairs: Pairs) -> float:
    """Return the largest softmax weight that a column gives to its non-children."""
    _, others = split(columns, pairs)
    return float((others.logsumexp(dim=0) - columns.logsumexp(dim=0)).exp().max())


def margins(steps: Tensor, pairs: Pairs, K: float, unit: float) -> tuple[Tensor, Tensor]:
    """Return how far each step is from breaking its column's recovery: 2 × nodes for children, keys × nodes for others.

    Let v be the multiple of ``unit`` nearest to the mean of a column's children. Children must stay within unit/2
    of v, and other keys below v − K + unit/2. If both children round to one value, v is that value.
    """
    children, others = split(steps, pairs)
    v = quantize(children.mean(dim=0), unit)
    return unit / 2 - (children - v).abs(), v - K + unit / 2 - others


def worst_push(
    steps: Tensor, pairs: Pairs, K: float, unit: float, push: float | Float[Tensor, " nodes"]
) -> Float[Tensor, "keys nodes"]:
    """Return the adversary's worst error: all of it on the step that it moves farthest beyond a threshold.

    One misplaced entry is enough to fail, so spreading the norm over several entries only weakens the error.
    """
    of_children, of_others = margins(steps, pairs, K, unit)
    index = torch.tensor(pairs).T
    children, _ = split(steps, pairs)
    away = torch.where(children >= quantize(children.mean(dim=0), unit), 1.0, -1.0).double()
    left = of_others.scatter(0, index, of_children) - push
    direction = torch.ones_like(steps).scatter(0, index, away)
    worst = torch.zeros(steps.numel(), dtype=torch.bool)
    worst[int(left.argmin())] = True
    return torch.where(worst.view_as(steps), direction * push, 0.0)


def stage_record(number: int, steps: Tensor, pairs: Pairs, K: float, unit: float, *, idle: bool) -> StageRecord:
    """Return the record of a stage, with its steps in units of K."""
    children, others = split(steps, pairs)
    of_children, of_others = margins(steps, pairs, K, unit)
    margin = min(float(of_children.min()), float(of_others.min()))
    return StageRecord(
        stage=number,
        signal_min=float(children.min()) / K,
        signal_mean=float(children.mean()) / K,
        noise_max=float(others.masked_fill(others.isneginf(), 0.0).abs().max()) / K,
        margin=margin / K if math.isfinite(margin) else 0.0,
        recovered=bool(recovered_columns(quantize(steps, unit), pairs, K).all()),
        idle=idle,
    )
