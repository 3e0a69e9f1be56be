r"""Bits, traces and the padded inputs of the stages.

| name            | paper      | meaning                                            | where       |
| --------------- | ---------- | -------------------------------------------------- | ----------- |
| bits            | b ∈ {±1}^n | uniform input bits, one row a sample               | section 2.1 |
| sequence        | b ∈ {±1}^T | the bits, then the k − 1 node values               | section 3.1 |
| stage_input     | D          | the sequence with the hidden positions padded by 0 | section 3.1 |
| inference_input | D_test     | the bits, then k − 1 zeros                         | section 3.1 |

Sample i of a seed is the same bits whatever the batch, the chunk or the number of processes: it owns its words of a
counter-based stream.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int8
from torch import Tensor

from internalize.parity.task.bitmatrix import LONG, Words, filled, transposed, write_nodes
from internalize.parity.task.stages import ParityStage
from internalize.parity.task.tree import ParityTree
from internalize.random_words import Stream, words


def packed_words(n: int, seed: int, start: int, count: int, stream: Stream = "train") -> Words:
    """Samples ``start`` … ``start + count − 1``, one row each, bit j % 64 of word j // 64 for position j; bits beyond n are 0."""
    row = -(-n // LONG)
    drawn = words(seed, stream, start * row, count * row).reshape(count, row)
    if n % LONG:
        drawn[:, -1] &= np.uint64(2 ** (n % LONG) - 1)
    return drawn


def draw_bits(
    n: int, seed: int, start: int, count: int, stream: Stream = "train", dtype: torch.dtype = torch.float32
) -> Float[Tensor, "B n"]:
    """The same samples as ±1, one row each: a drawn 0 is +1, a drawn 1 is −1."""
    return _signs(packed_words(n, seed, start, count, stream), n, dtype)


def add_trace(tree: ParityTree, bits: Float[Tensor, "*runs B n"]) -> Float[Tensor, "*runs B T"]:
    """The sequence: the bits and, behind them, every node's value b_m = b_{c_1[m]} · b_{c_2[m]}."""
    sequence = bits.new_empty((*bits.shape[:-1], tree.T))
    sequence[..., : tree.n] = bits
    left, right = zip(*tree.layer_children(0), strict=True)
    values = bits[..., left] * bits[..., right]
    for level in range(1, tree.L + 1):
        sequence[..., tree.levels.span(level)] = values
        values = values[..., 0::2] * values[..., 1::2]  # above the leaves, siblings are neighbours
    return sequence


def draw_sequences(
    tree: ParityTree, seed: int, start: int, count: int, stream: Stream = "train"
) -> Int8[Tensor, "T B"]:
    """The sequences of the same samples, one row a position: nodes are exclusive ors of the packed bits, 64 at a time."""
    rows = packed_words(tree.n, seed, start, count, stream)
    states = transposed(rows, filled(0, count), room=tree.T, native=False)
    write_nodes(tree, states, tree.L)
    return _signs(states[: tree.T], count, torch.int8)


def _signs(rows: Words, count: int, dtype: torch.dtype) -> Tensor:
    """The first bits of every row as ±1."""
    drawn = np.unpackbits(rows.astype("<u8").view(np.uint8), axis=1, count=count, bitorder="little")
    return torch.from_numpy(drawn).to(dtype).mul_(-2).add_(1)  # pyright: ignore[reportUnknownMemberType]


def pad(sequence: Float[Tensor, "*runs B T"], hidden: Sequence[int], value: float = 0.0) -> Float[Tensor, "*runs B T"]:
    """A copy with the hidden positions 0, or another value."""
    padded = sequence.clone()
    padded[..., list(hidden)] = value
    return padded


def stage_input(sequence: Float[Tensor, "*runs B T"], stage: ParityStage) -> Float[Tensor, "*runs B T"]:
    """The input of a stage: the sequence with the stage's hidden positions padded."""
    return pad(sequence, stage.hidden)


def inference_input(bits: Float[Tensor, "*runs B n"], T: int) -> Float[Tensor, "*runs B T"]:
    """The inference input: the bits, and no chain of thought at all (the paper's stage L still shows the root)."""
    return torch.nn.functional.pad(bits, (0, T - bits.shape[-1]))
