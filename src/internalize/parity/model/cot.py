r"""Explicit chain of thought: the one-layer model that writes the chain, node by node or level by level.

| name     | paper                     | meaning                                     | where       |
| -------- | ------------------------- | ------------------------------------------- | ----------- |
| W        | W, one layer              | T × (k−1): keys, and the nodes as queries   | section 1.1 |
| forward  | teacher forcing           | every node from *shown* values below it     | section 3.1 |
| generate | autoregressive generation | every node from *generated* values below it | section 3.1 |

The paper compares with this model (Kim and Suzuki 2025) without restating it: Definition 3 with one layer, gate 1
on every position > n, and the level mask. One matrix serves all levels, so the model must write each level to read
it again.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from internalize.parity.model.link import COSINE, Link
from internalize.parity.model.mask import level_mask, masked_softmax
from internalize.parity.model.transformer import check_width
from internalize.parity.task.tree import Levels

Written = Literal["node", "level"]
"""Write the chain node by node, or a whole level at a time."""


def chain_passes(levels: Levels, by: Written) -> list[range]:
    """Return the positions that each pass of generation writes: k − 1 single nodes or L whole levels."""
    if by == "level":
        return [levels.nodes(level) for level in range(1, levels.L + 1)]
    return [range(m, m + 1) for m in range(levels.n, levels.T)]


class CoTTransformer(nn.Module):
    """The one-layer model of explicit CoT: gate 1 on the nodes, initial weights 0."""

    visible: Tensor

    def __init__(
        self, n: int, k: int, link: Link = COSINE, runs: Sequence[int] = (), dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.levels = Levels(n, k, link.arity, link.modulus)
        self.link = link
        self.register_buffer("visible", level_mask(self.levels)[:, n:])
        self.W = nn.Parameter(torch.zeros(*runs, self.levels.T, self.levels.T - n, dtype=dtype))

    def attention(self) -> Float[Tensor, "*runs T nodes"]:
        """Return the softmax weights: rows keys, columns nodes."""
        return masked_softmax(self.W, self.visible)

    def forward(self, D: Float[Tensor, "*data B T"]) -> Float[Tensor, "*runs B T"]:
        """Return the input bits, then every node computed from the tokens shown below it (teacher forcing)."""
        check_width(D, self.levels)
        Y = self.link(D @ self.attention())
        return torch.cat([D[..., : self.levels.n].expand(*Y.shape[:-1], -1), Y], dim=-1)

    def generate(self, bits: Float[Tensor, "*data B n"], by: Written = "node") -> Float[Tensor, "*runs B T"]:
        """Write the chain after the bits: each pass reads what earlier passes wrote.

        The values are fed back without rounding to ±1, because the model has no tokens other than its states.
        """
        attention: Tensor = self.attention()
        runs = (bits[..., :1, :1] * attention[..., :1, :1]).shape[:-2]
        sequence = bits.new_zeros((*runs, bits.shape[-2], self.levels.T))
        sequence[..., : self.levels.n] = bits
        for nodes in chain_passes(self.levels, by):
            read = self.levels.level_end[self.levels.level_of(nodes.start) - 1]
            columns = slice(nodes.start - self.levels.n, nodes.stop - self.levels.n)
            sequence[..., nodes.start : nodes.stop] = self.link(sequence[..., :read] @ attention[..., :read, columns])
        return sequence
