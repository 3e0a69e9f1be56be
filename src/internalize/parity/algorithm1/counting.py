r"""The gradient at W = 0 by counting bits, for trained layers that compute bits.

| name    | paper | meaning                                                                         | where       |
| ------- | ----- | ------------------------------------------------------------------------------- | ----------- |
| M       | n_t   | keys                                                                            | section 2.1 |
| S       | M z   | sum of a sample's states: an integer if they are ±1                             | section 3.3 |
| turned  | –     | the samples with S < 0                                                          | –           |
| D       | –     | number of samples of one \|S\| at which a key and a target differ               | –           |
| epsilon | ε_t   | distance of a computed node from its true value, by ``freezing.py``             | section 3.4 |

At W = 0 the gradient is \(\frac1{MB}\sum_i (\phi(z_i) - b_{mi})\,\phi'(z_i)\,(x_{ji} - z_i)\). Since z is the mean
of the x_j, the last term subtracts from each column its mean over the keys, so constants of a column do not matter.
If all states are ±1, z is S/M, and φφ′ is an odd function of it, because φ is even or odd; so is φ′ if φ is even. So all
samples of one |S| have one weight, after the signs of the constant 1 and, for an even φ, of the targets are reversed where
S < 0. With
\(\sum_i x_j b_m = \#i - 2D_{jm}\) over the samples of each |S|, the gradient is
\[ \frac{2}{MB} \sum_{s} \phi'(s/M) \bigl(D^{s}_{jm} - \phi(s/M)\,D^{s}_{j1}\bigr) \quad\text{less its mean over } j. \]
The D are integers, counted 64 samples per machine word. Rounding happens only in the float64 sum over s, which has some
hundred terms per chunk.

**Bound.** Let the true nodes be within ε of the computed ones. Then the counted gradient is within
\[ \frac{\varepsilon}{M}\,(2A^2 + 4C + 4A) + \frac{8A}{M}\,u\,(\text{terms} + M + 68), \qquad u = 2^{-53}, \]
of the gradient, with A = sup |φ′| and C the Lipschitz constant of φ′, as in ``freezing.py``.
**Proof.** One sample's term f = (φ(z) − b)φ′(z)(x_j − z) has |∂f/∂x_j| ≤ 2A and |∂f/∂z| ≤ 2A² + 4C + 2A, because φ,
b, x_j and z are in [−1, 1]; x_j and the mean z move by at most ε. This is the first part. The weights are within 64uA
of φ′ and φφ′. The sums over s and chunks have ``terms`` terms, and no partial sum exceeds AB in size. So each of the
two sums is off by at most uAB · (terms + 64). Their differences are at most 2AB in size, so computing these, their mean
over the M keys in any order, what is left of them and the quotient rounds by at most uAB · (2 + (2M + 2) + 4 + 4).
Subtracting the mean doubles the error of the two sums together. The factor 2/(MB) leaves at most
8Au · (terms + 64)/M + 2Au · (2M + 12)/M, which is below the bound by more than the terms of order u². ∎

For quantized layers ε is of the order of the square of the softmax mass off the children. At the default amplitude
the bound is then at most a millionth of half a step. That is less than what float32 loses, and far less than the
error that the paper allows its approximate oracle (n^{−2−ε/8}, section 2.1). An entry closer than the bound to a
threshold of rounding is recomputed from the real states in float64.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from internalize.parity.algorithm1.streaming import Samples, gradient_at_zero, summed
from internalize.parity.model.link import Link
from internalize.parity.task.bitmatrix import (
    LONG,
    Integers,
    Words,
    differing,
    filled,
    ones,
    transposed,
    use_native,
    write_nodes,
)
from internalize.parity.task.data import packed_words
from internalize.parity.task.native import one_ahead
from internalize.parity.task.tree import ParityTree
from internalize.parity.theory.freezing import curvature, drifts, steepness

_CHUNK: Final = 2**18
"""Samples per chunk, enough that the samples of most |S| fill several words."""
_CHUNK_BITS: Final = 2**30
"""Largest number of bits per chunk: 128 MB, of which a few copies are held."""
_NEAR: Final = 1 / 16
"""Largest bound, as a share of half a step, at which counting pays. Above it, many entries are recomputed."""


def gradient_to_round(
    samples: Samples, below: Sequence[Tensor], masses: Sequence[float], link: Link, half: float
) -> Float[Tensor, "keys nodes"]:
    """Return the gradient at W = 0 of the layer above recovered ones, as fast as rounded weights allow.

    Args:
        samples: the batch. Counting is used only in float32 on the CPU.
        below: the trained layers, recovered.
        masses: the largest softmax weight off the children in each of them.
        link: φ.
        half: the rounded weight changes at the odd multiples of this gradient.
    """
    bound = counting_bound(samples, masses, link)
    if (
        samples.tree.modulus != 2
        or samples.dtype != torch.float32
        or samples.device != "cpu"
        or not bound < _NEAR * half
    ):
        return gradient_at_zero(samples, below, link)
    found = counted_gradient(samples, len(below), link)
    doubtful = ((found.abs() / half) % 2 - 1).abs() * half <= bound
    columns = cast(list[int], doubtful.any(dim=0).nonzero()[:, 0].tolist())
    if columns:
        exact = gradient_at_zero(replace(samples, dtype=torch.float64), below, link, columns)
        found[:, columns] = torch.where(doubtful[:, columns], exact, found[:, columns])
    return found


def counted_gradient(samples: Samples, stage: int, link: Link) -> Float[Tensor, "keys nodes"]:
    """Return the gradient at W = 0 of the layer that the stage trains, if the layers below compute the true values."""
    tree = samples.tree
    M, nodes = tree.levels.level_end[stage], tree.levels.width(stage + 1)
    # Transposing costs about as much as comparing with 64 more targets.
    native = use_native(M * (nodes + LONG) * samples.count // LONG)
    of_one, of_targets = np.zeros((M, 1)), np.zeros((M, nodes))
    for states, flips, turned, sizes, ends in _chunks(samples.share(), stage, native):
        z = torch.from_numpy(sizes).double() / M
        slope, both = link.slope(z).numpy(), (link(z) * link.slope(z)).numpy()
        keys, labels = states[:M], states[M : M + nodes]
        targets = labels ^ turned if tree.arity % 2 == 0 else labels.copy()
        if flips is not None:
            targets ^= flips[M - tree.n : M - tree.n + nodes]
        differing(keys, targets, ends, slope, total=of_targets, native=native)
        differing(keys, turned[None], ends, both, total=of_one, native=native)
        del states, flips, turned, keys, labels, targets  # frees them before the next chunk is made
    total = summed(torch.from_numpy(of_targets - of_one))
    return 2 * (total - total.mean(dim=0)) / (M * samples.count)


def counting_bound(samples: Samples, masses: Sequence[float], link: Link) -> float:
    """Return the bound above, for recovered layers with these masses off the children."""
    M, A, C = samples.tree.levels.level_end[len(masses)], steepness(link), curvature(link)
    deltas, _ = drifts(link, masses)
    epsilon = max((min(C * delta**2 / 2, 2.0) for delta in deltas), default=0.0)
    terms = (M // 2 + 1) * math.ceil(samples.count / _chunk(samples))
    return (epsilon * (2 * A**2 + 4 * C + 4 * A) + 8 * A * 2.0**-53 * (terms + M + 68)) / M


def _chunk(samples: Samples) -> int:
    return samples.chunk or max(min(_CHUNK_BITS // samples.tree.n, _CHUNK), 1)


def _chunks(
    samples: Samples, stage: int, native: bool
) -> Iterator[tuple[Words, Words | None, Words, Integers, Integers]]:
    tree, size, end = samples.tree, _chunk(samples), samples.start + samples.count

    def drawn(first: int) -> tuple[Words, Words | None, Integers]:
        count = min(size, end - first)
        rows = packed_words(tree.n, samples.seed, first, count, samples.stream)
        return rows, samples.noise.flips(tree, samples.seed, first, count), ones(rows)

    for rows, flips, minus in one_ahead(drawn, range(samples.start, end, size)):
        of_nodes = _node_ones(tree, rows, stage, native) if stage else 0
        yield _sorted(tree, rows, flips, tree.levels.level_end[stage] - 2 * (minus + of_nodes), stage + 1, native)


def _node_ones(tree: ParityTree, rows: Words, level: int, native: bool) -> Integers:
    """Count the nodes of levels 1 … ``level`` that are −1, for each sample."""
    n, M = tree.n, tree.levels.level_end[level]
    states = transposed(rows, filled(0, len(rows)), room=M, native=native)
    write_nodes(tree, states, level)
    return ones(transposed(states, filled(n, M), native=native))[: len(rows)]


def _sorted(
    tree: ParityTree, rows: Words, flips: Words | None, S: Integers, level: int, native: bool
) -> tuple[Words, Words | None, Words, Integers, Integers]:
    """Sort samples by |S|. The samples of each |S| begin a new word, and unused bits are 0.

    Return the true states up to ``level``, one row per position; the flips of all nodes, if labels are noisy; the turned
    samples; the different |S|, and for each the word before which its samples end.
    """
    size = np.abs(S)
    sizes = np.bincount(size).nonzero()[0]
    counts = np.bincount(size)[sizes]
    lengths = -(-counts // LONG) * LONG
    ends = lengths.cumsum()
    # numpy sorts 16-bit integers by counting, which is faster.
    by_size = np.argsort(size.astype(np.uint16 if tree.T < 2**16 else np.int64), kind="stable")
    order = np.full(ends[-1], -1)
    order[np.arange(len(S)) + np.repeat(ends - lengths - (counts.cumsum() - counts), counts)] = by_size
    states = transposed(rows, order, room=tree.levels.level_end[level], native=native)
    write_nodes(tree, states, level)
    turned = np.packbits((order >= 0) & (S[order] < 0), bitorder="little").view("<u8").astype(np.uint64)
    sorted_flips = None if flips is None else transposed(flips, order, native=native)
    return states, sorted_flips, turned, sizes, ends // LONG
