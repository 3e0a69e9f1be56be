"""Attention masks as booleans: ``visible[j, m]`` says whether query m may look at key j.

| name        | paper              | meaning                                   | where        |
| ----------- | ------------------ | ----------------------------------------- | ------------ |
| level_mask  | C_{j,m} = 0        | a node sees all positions of lower levels | Definition 1 |
| causal_mask | the sum over j < m | a position sees all earlier ones          | Definition 3 |

The first position sees nothing under either mask. The softmax over nothing is 0 here, never NaN; its gate is 0 in the
paper's model, so nothing depends on the choice.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from internalize.errors import InputError
from internalize.parity.task.tree import Levels


def causal_mask(levels: Levels) -> Bool[Tensor, "T T"]:
    """Key j is visible to query m if j < m."""
    return torch.ones(levels.T, levels.T, dtype=torch.bool).triu(diagonal=1)


def level_mask(levels: Levels) -> Bool[Tensor, "T T"]:
    """The level-restricted causal mask: inputs see earlier inputs, a node sees every position of lower levels."""
    visible = causal_mask(levels)
    for level in range(1, levels.L + 1):
        nodes = levels.span(level)
        visible[nodes.start :, nodes] = False
    return visible


def named_mask(name: str, levels: Levels) -> Bool[Tensor, "T T"]:
    """The mask of that name, ``level`` or ``causal``."""
    masks = {"level": level_mask, "causal": causal_mask}
    if name not in masks:
        raise InputError(f"mask {name!r} is not level or causal (Definition 1)")
    return masks[name](levels)


def masked_softmax(
    logits: Float[Tensor, "*runs keys queries"], visible: Bool[Tensor, "keys queries"]
) -> Float[Tensor, "*runs keys queries"]:
    """Column-wise softmax over the visible keys; a query that sees none attends to nothing."""
    blind = ~visible.any(dim=-2, keepdim=True)
    logits = logits.masked_fill(~(visible | blind), -torch.inf)
    return logits.softmax(dim=-2).masked_fill(blind, 0.0)
