"""Exact recovery: when a rounded layer has the children of its nodes, and how far a step is from losing one.

| name     | paper             | meaning                                                                     | where       |
| -------- | ----------------- | --------------------------------------------------------------------------- | ----------- |
| columns  | –                 | keys × nodes of a layer, before or after rounding; −∞ at a key out of sight | section 2.2 |
| pairs    | c_1[m], c_2[m]    | the two children of each column                                             | section 2.1 |
| quantise | q                 | to the nearest multiple of the grid, halves to the even multiple            | section 2   |
| unit     | –                 | the grid: 1, K, or 0 for no rounding                                        | section 2   |
| push     | ε of the oracle   | how far an adversary can move one step of each column                       | section 2.1 |
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from internalize.parity.model.weights import Form, weight_shapes
from internalize.parity.task.tree import ParityTree

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class StageRecord:
    """What one stage did, in units of K: steps on children, largest step elsewhere, distance to the nearest failure.

    ``margin`` is the least distance of a step to a threshold beyond which the column would not be recovered; it
    is negative exactly if one is not. ``idle``: no weight of any layer changed.
    """

    stage: int
    signal_min: float
    signal_mean: float
    noise_max: float
    margin: float
    recovered: bool
    idle: bool = False


def quantise(x: Float[Tensor, "*shape"], unit: float) -> Float[Tensor, "*shape"]:
    """Nearest multiple of ``unit``, the even one of two that are equally near. A unit of 0 rounds nothing, and copies."""
    return (x / unit).round() * unit if unit else x.clone()


def recovered_columns(columns: Float[Tensor, "keys nodes"], pairs: Pairs, K: float) -> Bool[Tensor, " nodes"]:
    """The columns in which the two true children tie for the maximum and every other key is at least K lower."""
    children, others = split(columns, pairs)
    slack = 1e-9 * K  # K need not be a binary number, nor then 2K − K exactly K
    return (children[0] == children[1]) & (others.amax(dim=0) <= children[0] - K + slack)


def recovered_weights(tree: ParityTree, form: Form, K: float) -> list[Float[Tensor, "keys nodes"]]:
    """Return the weights that Algorithm 1 aims at: K at the children, 0 elsewhere."""
    found = [torch.zeros(shape, dtype=torch.float64) for shape in weight_shapes(tree.levels, form).values()]
    for number, w in enumerate(found):
        nodes = range(tree.n, tree.T) if form == "cot" else tree.levels.nodes(number + 1)
        columns = w[:, nodes.start : nodes.stop] if form == "block" else w
        columns.scatter_(0, torch.tensor([tree.children(m) for m in nodes]).T, K)
    return found


def split(columns: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """The children, 2 × nodes, and the columns with their children at −∞."""
    index = torch.tensor(pairs).T
    return columns.gather(0, index), columns.scatter(0, index, -torch.inf)


def off_child_share(columns: Tensor, pairs: Pairs) -> float:
    """Largest softmax weight that a column leaves to its non-children."""
    _, others = split(columns, pairs)
    return float((others.logsumexp(dim=0) - columns.logsumexp(dim=0)).exp().max())


def margins(steps: Tensor, pairs: Pairs, K: float, unit: float) -> tuple[Tensor, Tensor]:
    """How far each step is from breaking its column's recovery: 2 × nodes for children, keys × nodes for the others.

    A column aims at v, the multiple nearest to its children's mean: children must stay within half a unit of v, others
    below v − K and half a unit. If both children round to one value, v is that value.
    """
    children, others = split(steps, pairs)
    v = quantise(children.mean(dim=0), unit)
    return unit / 2 - (children - v).abs(), v - K + unit / 2 - others


def worst_push(
    steps: Tensor, pairs: Pairs, K: float, unit: float, push: float | Float[Tensor, " nodes"]
) -> Float[Tensor, "keys nodes"]:
    """The worst that an adversary can add to the steps: all of its error on the step that it takes farthest beyond a threshold.

    One entry out of place is enough to fail, so to spread the norm over several only wastes it.
    """
    of_children, of_others = margins(steps, pairs, K, unit)
    index = torch.tensor(pairs).T
    children, _ = split(steps, pairs)
    away = torch.where(children >= quantise(children.mean(dim=0), unit), 1.0, -1.0).double()
    left = of_others.scatter(0, index, of_children) - push
    direction = torch.ones_like(steps).scatter(0, index, away)
    worst = torch.zeros(steps.numel(), dtype=torch.bool)
    worst[int(left.argmin())] = True
    return torch.where(worst.view_as(steps), direction * push, 0.0)


def stage_record(number: int, steps: Tensor, pairs: Pairs, K: float, unit: float, *, idle: bool) -> StageRecord:
    """A stage's steps in units of K."""
    children, others = split(steps, pairs)
    of_children, of_others = margins(steps, pairs, K, unit)
    margin = min(float(of_children.min()), float(of_others.min()))
    return StageRecord(
        stage=number,
        signal_min=float(children.min()) / K,
        signal_mean=float(children.mean()) / K,
        noise_max=float(others.masked_fill(others.isneginf(), 0.0).abs().max()) / K,
        margin=margin / K if math.isfinite(margin) else 0.0,
        recovered=bool(recovered_columns(quantise(steps, unit), pairs, K).all()),
        idle=idle,
    )
