r"""Wrong labels: nodes of the training chain whose value is flipped, each at random with one rate.

| name  | meaning                                                                                   |
| ----- | ----------------------------------------------------------------------------------------- |
| rate  | q, the probability that a node is flipped                                                 |
| noisy | which nodes: all of them, all steps but the answer, or all with the error carried upwards |
| kept  | E[label · true value] of each node                                                        |
| flips | one bit per sample and node: whether the label differs from the true value                |

A flip ξ = ±1 is independent of the input, with E ξ = 1 − 2q. Without carrying, a noisy node keeps 1 − 2q. If errors
are *carried*, the chain stays consistent after a wrong step: a label is the product of the children's labels, and
is then flipped with probability q. It is the true value times the flips of all nodes of its subtree, so a node over
s nodes (itself among them) keeps (1 − 2q)^s. For a complete tree s = 2^{ℓ} − 1 at level ℓ.

A flip is independent of the input, so in the moments of ``population.py`` every odd power of a label brings a factor 1 − 2q (or
what the node keeps), and even powers none.

Only the samples of training are noisy. Held-out samples and tests have the true values.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from internalize.parity.options import Noisy
from internalize.parity.task.bitmatrix import LONG, Words
from internalize.parity.task.tree import Levels, ParityTree
from internalize.random_words import words

_WORDS: Final = 2**21
"""Random words that are held at a time: 16 MB."""


@dataclass(frozen=True)
class LabelNoise:
    """The noise of the training labels."""

    rate: float = 0.0
    noisy: Noisy = "nodes"

    def kept(self, levels: Levels) -> tuple[float, ...]:
        """Return E[label · true value] for each node."""
        exponents = list(levels.sizes) if self.noisy == "carried" else [1] * (levels.T - levels.n)
        if self.noisy == "steps":
            exponents[-1] = 0
        return tuple((1 - 2 * self.rate) ** exponent for exponent in exponents)

    def flips(self, tree: ParityTree, seed: int, start: int, count: int) -> Words | None:
        """Return which labels of ``count`` samples are flipped, one row per sample; None without noise.

        Node n + i is bit i % 64 of word i // 64, as the bits in ``packed_words``.
        """
        if not self.rate:
            return None
        step = max(_WORDS // (tree.T - tree.n), 1)
        blocks = (
            self._block(tree, seed, first, min(step, start + count - first))
            for first in range(start, start + count, step)
        )
        return np.concatenate([np.zeros((0, -(-(tree.T - tree.n) // LONG)), dtype=np.uint64), *blocks])

    def _block(self, tree: ParityTree, seed: int, start: int, count: int) -> Words:
        nodes = tree.T - tree.n
        drawn = words(seed, "noise", start * nodes, count * nodes).reshape(count, nodes)
        found = drawn < np.uint64(self.rate * 2.0**64)
        if self.noisy == "steps":
            found[:, -1] = False
        if self.noisy == "carried":
            for m in range(tree.n, tree.T):
                for child in tree.children(m):
                    if child >= tree.n:
                        found[:, m - tree.n] ^= found[:, child - tree.n]
        padded = np.pad(found, ((0, 0), (0, -nodes % LONG)))
        return np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.uint64)
