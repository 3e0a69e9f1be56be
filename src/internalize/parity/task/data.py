r"""Bits, traces and the padded inputs of the stages.

| name            | paper      | meaning                                            | where       |
| --------------- | ---------- | -------------------------------------------------- | ----------- |
| bits            | b ∈ {±1}^n | uniform input bits, one row per sample             | section 2.1 |
| sequence        | b ∈ {±1}^T | the bits, then the k − 1 node values               | section 3.1 |
| stage_input     | D          | the sequence with the hidden positions padded by 0 | section 3.1 |
| inference_input | D_test     | the bits, then k − 1 zeros                         | section 3.1 |

Sample i of a seed does not depend on the batch, the chunk or the number of processes: it is made of its own words of a
counter-based random stream.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from jaxtyping import Inexact, Int8
from torch import Tensor

from internalize.parity.task.bitmatrix import LONG, Words, filled, transposed, write_nodes
from internalize.parity.task.noise import LabelNoise
from internalize.parity.task.stages import ParityStage
from internalize.parity.task.tree import Levels, ParityTree
from internalize.random_words import Stream, words

EXACT: Final = LabelNoise()
"""Labels that are the true values."""
COMPLEX: Final = {torch.float32: torch.complex64, torch.float64: torch.complex128}
"""The complex dtype of the same precision."""


def state_dtype(levels: Levels, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of states: that of weights, or the complex dtype of the same precision."""
    return dtype if levels.modulus == 2 else COMPLEX[dtype]


def roots_of_unity(p: int) -> Tensor:
    """Return the encodings of 0 … p − 1, in double precision."""
    angles = 2 * math.pi * torch.arange(p, dtype=torch.float64) / p
    return torch.polar(torch.ones_like(angles), angles)


def packed_words(n: int, seed: int, start: int, count: int, stream: Stream = "train") -> Words:
    """Draw ``count`` samples, one row each: position j is bit j % 64 of word j // 64, and bits beyond n are 0."""
    row = -(-n // LONG)
    drawn = words(seed, stream, start * row, count * row).reshape(count, row)
    if n % LONG:
        drawn[:, -1] &= np.uint64(2 ** (n % LONG) - 1)
    return drawn


def draw_bits(
    n: int, seed: int, start: int, count: int, stream: Stream = "train", dtype: torch.dtype = torch.float32
) -> Inexact[Tensor, "B n"]:
    """Draw the same samples as ±1, one row each: a drawn 0 is +1, a drawn 1 is −1."""
    return _signs(packed_words(n, seed, start, count, stream), n, dtype)


def draw_inputs(
    levels: Levels, seed: int, start: int, count: int, stream: Stream = "train", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw samples, one row each: bits, or p-th roots of unity in the complex dtype that belongs to ``dtype``."""
    if levels.modulus == 2:
        return draw_bits(levels.n, seed, start, count, stream, dtype)
    return as_roots(draw_residues(levels, seed, start, count, stream), levels.modulus, dtype)


def draw_residues(levels: Levels, seed: int, start: int, count: int, stream: Stream = "train") -> Int8[Tensor, "B n"]:
    """Draw samples of values 0 … p − 1, one row each: random words modulo p, whose bias is below 2^−61."""
    drawn = words(seed, stream, start * levels.n, count * levels.n) % np.uint64(levels.modulus)
    return torch.from_numpy(drawn.astype(np.int8)).view(count, levels.n)  # pyright: ignore[reportUnknownMemberType]


def as_roots(residues: Int8[Tensor, "*shape"], p: int, dtype: torch.dtype) -> Tensor:
    """Return the roots of unity that encode values 0 … p − 1."""
    return roots_of_unity(p).to(COMPLEX[dtype]).to(residues.device)[residues.long()]


def add_trace(tree: ParityTree, bits: Inexact[Tensor, "*runs B n"]) -> Inexact[Tensor, "*runs B T"]:
    """Return the sequence: the bits, then the value b_m = b_{c_1[m]} · b_{c_2[m]} of every node."""
    sequence = bits.new_empty((*bits.shape[:-1], tree.T))
    sequence[..., : tree.n] = bits
    for level in range(1, tree.L + 1):
        first, *others = zip(*tree.layer_children(level - 1), strict=True)
        values = sequence[..., first]
        for other in others:
            values = values * sequence[..., other]
        sequence[..., tree.levels.span(level)] = values
    return sequence


def draw_sequences(
    tree: ParityTree, seed: int, start: int, count: int, stream: Stream = "train", noise: LabelNoise = EXACT
) -> Int8[Tensor, "T B"]:
    """Draw the sequences of the same samples, one row per position, with nodes computed for 64 samples at a time.

    Sums modulo an odd p have their values 0 … p − 1.
    The values of nodes are labels: they differ from the true values where ``noise`` flips them.
    """
    if tree.modulus != 2:
        values = torch.empty(tree.T, count, dtype=torch.int8)
        values[: tree.n] = draw_residues(tree.levels, seed, start, count, stream).T
        for m in range(tree.n, tree.T):
            values[m] = values[list(tree.children(m))].sum(dim=0) % tree.modulus
        return values
    rows = packed_words(tree.n, seed, start, count, stream)
    states = transposed(rows, filled(0, count), room=tree.T, native=False)
    write_nodes(tree, states, tree.L)
    if (flips := noise.flips(tree, seed, start, count)) is not None:
        states[tree.n : tree.T] ^= transposed(flips, filled(0, count), native=False)[: tree.T - tree.n]
    return _signs(states[: tree.T], count, torch.int8)


def draw_flips(
    tree: ParityTree, noise: LabelNoise, seed: int, start: int, count: int, dtype: torch.dtype = torch.float32
) -> Inexact[Tensor, "B nodes"] | None:
    """Draw the labels of the same samples over their true values, −1 where a label is wrong; None without noise."""
    flips = noise.flips(tree, seed, start, count)
    return None if flips is None else _signs(flips, tree.T - tree.n, dtype)


def _signs(rows: Words, count: int, dtype: torch.dtype) -> Tensor:
    """Return the first ``count`` bits of every row as ±1."""
    drawn = np.unpackbits(rows.astype("<u8").view(np.uint8), axis=1, count=count, bitorder="little")
    return torch.from_numpy(drawn).to(dtype).mul_(-2).add_(1)  # pyright: ignore[reportUnknownMemberType]


def pad(
    sequence: Inexact[Tensor, "*runs B T"], hidden: Sequence[int], value: float = 0.0
) -> Inexact[Tensor, "*runs B T"]:
    """Return a copy in which the hidden positions have ``value``."""
    padded = sequence.clone()
    padded[..., list(hidden)] = value
    return padded


def stage_input(sequence: Inexact[Tensor, "*runs B T"], stage: ParityStage) -> Inexact[Tensor, "*runs B T"]:
    """Return the input of a stage: the sequence with the stage's hidden positions padded."""
    return pad(sequence, stage.hidden)


def inference_input(bits: Inexact[Tensor, "*runs B n"], T: int) -> Inexact[Tensor, "*runs B T"]:
    """Return the inference input: the bits and no chain of thought (the paper's stage-L input still shows the root)."""
    return torch.nn.functional.pad(bits, (0, T - bits.shape[-1]))
