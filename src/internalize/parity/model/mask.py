"""Attention masks as booleans: ``visible[j, m]`` says whether query m may attend to key j.

| name        | paper              | meaning                                   | where        |
| ----------- | ------------------ | ----------------------------------------- | ------------ |
| level_mask  | C_{j,m} = 0        | a node sees all positions of lower levels | Definition 1 |
| causal_mask | the sum over j < m | a position sees all earlier ones          | Definition 3 |

The first position sees no key under either mask. The softmax over no keys is 0 here, never NaN. The gate of that
position is 0 in the paper's model, so nothing depends on this choice.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from internalize.errors import InputError
from internalize.parity.task.tree import Levels


def causal_mask(levels: Levels) -> Bool[Tensor, "T T"]:
    """Return the mask in which query m sees key j if j < m."""
    return torch.ones(levels.T, levels.T, dtype=torch.bool).triu(diagonal=1)


def level_mask(levels: Levels) -> Bool[Tensor, "T T"]:
    """Return the level-restricted causal mask: inputs see earlier inputs, nodes see all positions of lower levels."""
    visible = causal_mask(levels)
    for level in range(1, levels.L + 1):
        nodes = levels.span(level)
        visible[nodes.start :, nodes] = False
    return visible


def named_mask(name: str, levels: Levels) -> Bool[Tensor, "T T"]:
    """Return the mask called ``name``: ``level`` or ``causal``."""
    masks = {"level": level_mask, "causal": causal_mask}
    if name not in masks:
        raise InputError(f"mask {name!r} is not level or causal (Definition 1)")
    return masks[name](levels)


def masked_softmax(
    logits: Float[Tensor, "*runs keys queries"], visible: Bool[Tensor, "keys queries"]
) -> Float[Tensor, "*runs keys queries"]:
    """Return the column-wise softmax over the visible keys; all weights of a query that sees no key are 0."""
    blind = ~visible.any(dim=-2, keepdim=True)
    logits = logits.masked_fill(~(visible | blind), -torch.inf)
    return logits.softmax(dim=-2).masked_fill(blind, 0.0)
