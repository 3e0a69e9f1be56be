"""The parity tree: positions, levels, parents and children. Only this file converts the paper's counting.

| name             | paper                 | meaning                                        | where       |
| ---------------- | --------------------- | ---------------------------------------------- | ----------- |
| n, k, L, T       | n, k = 2^L, T = n+k−1 | input bits, secret size, height, positions     | section 2.1 |
| secret           | S                     | the secret set, sorted                         | section 2.1 |
| pairing          | –                     | the secret set in the order of the leaves      | section 2.1 |
| level_end[l]     | n_{l+1}               | level l is range(level_end[l−1], level_end[l]) | section 2.1 |
| level_of(m)      | h[m+1] − 1            | level of a position; 0 for the input bits      | section 2.1 |
| children, parent | c_1, c_2, p           | a node is the product of its children          | section 2.1 |

The paper counts positions, levels, layers and stages from 1, the code from 0. The paper's n_ℓ is the *last* position of
level ℓ; counted from 0 the same number is the *end* of that level, so every range below needs no correction. Layer l
reads positions 0 … level_end[l] − 1 and writes level l + 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from internalize.errors import InputError
from internalize.random_words import words


@dataclass(frozen=True)
class Levels:
    """The positions of k-parity on n bits, by level: everything that does not depend on the secret set."""

    n: int
    k: int

    def __post_init__(self) -> None:
        if self.k < 2 or self.k & (self.k - 1):
            raise InputError(f"k={self.k} is not a power of two, at least 2 (the parity tree is complete, section 2.1)")
        if self.n < self.k:
            raise InputError(f"n={self.n} is less than k={self.k} (the secret set is k of the n bits, section 2.1)")

    @property
    def L(self) -> int:
        """Height of the tree, layers of the model, stages of Log-ICoT: log2 k."""
        return self.k.bit_length() - 1

    @property
    def T(self) -> int:
        """Length of the sequence: n input bits and k − 1 nodes."""
        return self.n + self.k - 1

    @cached_property
    def level_end(self) -> tuple[int, ...]:
        r"""Ends of levels 0 … L: \(n_{l+1} = n + k(1 - 2^{-l})\), from n to T."""
        return tuple(self.n + self.k - (self.k >> level) for level in range(self.L + 1))

    def width(self, level: int) -> int:
        """Return the number of nodes of a level ≥ 1: k / 2^level."""
        return self.k >> level

    def subtree(self, level: int) -> int:
        """Return the number of nodes at and below a node of a level, without input bits."""
        return 2**level - 1

    def nodes(self, level: int) -> range:
        """Return the positions of a level; level 0 is the input bits."""
        return range(self.level_end[level - 1] if level else 0, self.level_end[level])

    def span(self, level: int) -> slice:
        """Return the positions of a level as a slice."""
        return slice(self.nodes(level).start, self.level_end[level])

    def level_of(self, position: int) -> int:
        """Return the level of a position: 0 for an input bit, L for the root."""
        if not 0 <= position < self.T:
            raise InputError(f"position {position} is outside 0 … {self.T - 1} (n + k − 1 positions)")
        return next(level for level, end in enumerate(self.level_end) if position < end)


@dataclass(frozen=True)
class ParityTree:
    """The complete binary tree over a secret set: every node is the product of two positions.

    Neighbors in ``pairing`` share a parent. Without ``pairing``, the sorted secret set is paired in order.
    """

    n: int
    secret: tuple[int, ...]
    pairing: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        Levels(self.n, len(self.secret))
        if any(not 0 <= j < self.n for j in self.secret) or len(set(self.secret)) != self.k:
            raise InputError(f"secret={self.secret} must be {self.k} different positions from 0 … {self.n - 1}")
        object.__setattr__(self, "secret", tuple(sorted(self.secret)))
        object.__setattr__(self, "pairing", self.pairing or self.secret)
        if tuple(sorted(self.pairing)) != self.secret:
            raise InputError(f"pairing={self.pairing} is not an order of secret={self.secret}")

    @staticmethod
    def draw(n: int, k: int, seed: int) -> "ParityTree":
        """Draw a tree over a uniform secret set (section 2.1): the positions of the k smallest of n random words."""
        Levels(n, k)
        import numpy as np  # here, so that the command line can check n and k without it

        order = np.argsort(words(seed, "secret", 0, n), kind="stable")
        return ParityTree(n, tuple(order[:k].tolist()))

    @staticmethod
    def of(config: Mapping[str, Any]) -> "ParityTree":
        """Return the tree of a run from its `config.json`."""
        return ParityTree(config["n"], tuple(config["secret"]), tuple(config.get("pairing", ())))

    @property
    def k(self) -> int:
        """Size of the secret set."""
        return len(self.secret)

    @cached_property
    def levels(self) -> Levels:
        """The positions by level."""
        return Levels(self.n, self.k)

    @property
    def L(self) -> int:
        """Height of the tree: log2 k."""
        return self.levels.L

    @property
    def T(self) -> int:
        """Length of the sequence: n + k − 1."""
        return self.levels.T

    @property
    def root(self) -> int:
        """Position of the answer: the last one."""
        return self.T - 1

    @cached_property
    def _pairs(self) -> tuple[tuple[int, int], ...]:
        # A queue: nodes are numbered bottom to top and left to right, so the nodes n, n + 1, … take their children two
        # by two from the leaves and then from the nodes themselves.
        halves = iter((*self.pairing, *range(self.n, self.root)))
        return tuple((min(pair), max(pair)) for pair in zip(halves, halves, strict=True))

    def children(self, position: int) -> tuple[int, int]:
        """Return the two children c_1 < c_2 of a node."""
        if not self.n <= position < self.T:
            raise InputError(f"position {position} has no children; nodes are {self.n} … {self.T - 1}")
        return self._pairs[position - self.n]

    def layer_children(self, layer: int) -> tuple[tuple[int, int], ...]:
        """Return the children of the nodes that a layer writes (level ``layer + 1``), from left to right."""
        return tuple(self.children(m) for m in self.levels.nodes(layer + 1))

    @cached_property
    def _parents(self) -> dict[int, int]:
        return {child: self.n + node for node, pair in enumerate(self._pairs) for child in pair}

    def parent(self, position: int) -> int | None:
        """Return the parent of a position; None for the root and for bits outside the secret set."""
        self.levels.level_of(position)
        return self._parents.get(position)
