"""The parity tree: positions, levels, parents and children. Only this file converts the paper's counting.

| name             | paper                 | meaning                                        | where       |
| ---------------- | --------------------- | ---------------------------------------------- | ----------- |
| n, k, L, T       | n, k = 2^L, T = n+k−1 | input bits, secret size, height, positions     | section 2.1 |
| secret           | S                     | the secret set, sorted                         | section 2.1 |
| pairing          | –                     | the secret set in the order of the leaves      | section 2.1 |
| arity            | 2                     | number of children of a node                   | section 2.1 |
| modulus          | 2                     | p: a bit is a p-th root of unity               | section 2.1 |
| level_end[l]     | n_{l+1}               | level l is range(level_end[l−1], level_end[l]) | section 2.1 |
| level_of(m)      | h[m+1] − 1            | level of a position; 0 for the input bits      | section 2.1 |
| children, parent | c_1, c_2, p           | a node is the product of its children          | section 2.1 |

The paper counts positions, levels, layers and stages from 1, the code from 0. The paper's n_ℓ is the *last* position of
level ℓ; counted from 0 the same number is the *end* of that level, so every range below needs no correction. Layer l
reads positions 0 … level_end[l] − 1 and writes level l + 1.

Departs from the paper: a node may have any number r of children, and the tree need not be complete. A level is made of
the items that have no parent yet, the latest level first, r by r from the left. At most r − 1 items are left over; they
wait, and become children at the level that uses them. So a branch that is too short is attached directly above, and no
node copies another one: a copy would have its original's value, and both would tie as children. Every item of a level
but the last r − 1 is used, so each node has a child one level below it, and the height is the least possible. With
r = 2 and k = 2^L nothing is left over, and this is the paper's tree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from internalize.errors import InputError
from internalize.parity.options import TreeOptions
from internalize.random_words import words


@dataclass(frozen=True)
class Levels:
    """The positions of k-parity on n bits, by level: everything that does not depend on the secret set."""

    n: int
    k: int
    arity: int = 2
    modulus: int = 2

    def __post_init__(self) -> None:
        if self.modulus not in (2, 3, 5):
            raise InputError(
                f"modulus={self.modulus} is not 2, 3 or 5: the law of a sum takes (M + 1)^(modulus − 1) numbers"
            )
        if self.modulus != 2 and self.arity != 2:
            raise InputError(f"arity={self.arity}: sums modulo {self.modulus} are defined for nodes with 2 children")
        if self.arity < 2:
            raise InputError(f"arity={self.arity} is less than 2: a node with one child would be a copy of it")
        if self.k < self.arity or (self.k - 1) % (self.arity - 1):
            several = f"1 more than a multiple of {self.arity - 1} and " if self.arity > 2 else ""
            raise InputError(f"k={self.k} must be {several}at least {self.arity}: a node has {self.arity} children")
        if self.n < self.k:
            raise InputError(f"n={self.n} is less than k={self.k} (the secret set is k of the n bits, section 2.1)")

    @staticmethod
    def of(options: TreeOptions) -> "Levels":
        """Return the levels of a request."""
        return Levels(options.n, options.k, options.arity, options.modulus)

    @property
    def L(self) -> int:
        """Height of the tree, layers of the model, stages of Log-ICoT: log2 k."""
        return len(self.level_end) - 1

    @property
    def T(self) -> int:
        """Length of the sequence: n input bits and (k − 1)/(arity − 1) nodes."""
        return self.level_end[-1]

    @property
    def complete(self) -> bool:
        """Whether this is the paper's kind of tree: every leaf is L levels below the root."""
        return self.k == self.arity**self.L

    @cached_property
    def level_end(self) -> tuple[int, ...]:
        r"""Ends of levels 0 … L, from n to T; in the paper's tree \(n_{l+1} = n + k(1 - 2^{-l})\)."""
        ends, items = [self.n], self.k
        while items > 1:
            nodes, left = divmod(items, self.arity)
            ends.append(ends[-1] + nodes)
            items = nodes + left
        return tuple(ends)

    @cached_property
    def families(self) -> tuple[tuple[int, ...], ...]:
        """Children of each node, with the leaves counted from 0 to k − 1 and the nodes from k on."""
        items, found = list(range(self.k)), list[tuple[int, ...]]()
        while len(items) > 1:
            used = len(items) - len(items) % self.arity
            first = self.k + len(found)
            found += [tuple(items[at : at + self.arity]) for at in range(0, used, self.arity)]
            items = [*range(first, self.k + len(found)), *items[used:]]
        return tuple(found)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of nodes at and below each node."""
        found: list[int] = []
        for family in self.families:
            found.append(1 + sum(found[child - self.k] for child in family if child >= self.k))
        return tuple(found)

    def width(self, level: int) -> int:
        """Return the number of nodes of a level ≥ 1: k / 2^level in the paper's tree."""
        return self.level_end[level] - self.level_end[level - 1]

    def nodes(self, level: int) -> range:
        """Return the positions of a level; level 0 is the input bits."""
        return range(self.level_end[level - 1] if level else 0, self.level_end[level])

    def span(self, level: int) -> slice:
        """Return the positions of a level as a slice."""
        return slice(self.nodes(level).start, self.level_end[level])

    def level_of(self, position: int) -> int:
        """Return the level of a position: 0 for an input bit, L for the root."""
        if not 0 <= position < self.T:
            raise InputError(f"position {position} is outside 0 … {self.T - 1} (n bits and the nodes)")
        return next(level for level, end in enumerate(self.level_end) if position < end)


@dataclass(frozen=True)
class ParityTree:
    """The tree over a secret set: every node is the product of its children, two in the paper.

    Neighbors in ``pairing`` share a parent. Without ``pairing``, the sorted secret set is paired in order.
    """

    n: int
    secret: tuple[int, ...]
    pairing: tuple[int, ...] = ()
    arity: int = 2
    modulus: int = 2

    def __post_init__(self) -> None:
        Levels(self.n, len(self.secret), self.arity, self.modulus)
        if any(not 0 <= j < self.n for j in self.secret) or len(set(self.secret)) != self.k:
            raise InputError(f"secret={self.secret} must be {self.k} different positions from 0 … {self.n - 1}")
        object.__setattr__(self, "secret", tuple(sorted(self.secret)))
        object.__setattr__(self, "pairing", self.pairing or self.secret)
        if tuple(sorted(self.pairing)) != self.secret:
            raise InputError(f"pairing={self.pairing} is not an order of secret={self.secret}")

    @staticmethod
    def draw(n: int, k: int, seed: int, arity: int = 2, modulus: int = 2) -> "ParityTree":
        """Draw a tree over a uniform secret set (section 2.1): the positions of the k smallest of n random words."""
        Levels(n, k, arity, modulus)
        import numpy as np  # here, so that the command line can check n and k without it

        order = np.argsort(words(seed, "secret", 0, n), kind="stable")
        return ParityTree(n, tuple(order[:k].tolist()), arity=arity, modulus=modulus)

    @staticmethod
    def drawn(options: TreeOptions, seed: int) -> "ParityTree":
        """Draw the tree of a request."""
        return ParityTree.draw(options.n, options.k, seed, options.arity, options.modulus)

    @staticmethod
    def of(config: Mapping[str, Any]) -> "ParityTree":
        """Return the tree of a run from its `config.json`."""
        pairing = tuple(config.get("pairing", ()))
        more = (config.get("arity", 2), config.get("modulus", 2))
        return ParityTree(config["n"], tuple(config["secret"]), pairing, *more)

    @property
    def k(self) -> int:
        """Size of the secret set."""
        return len(self.secret)

    @cached_property
    def levels(self) -> Levels:
        """The positions by level."""
        return Levels(self.n, self.k, self.arity, self.modulus)

    @property
    def L(self) -> int:
        """Height of the tree: log2 k."""
        return self.levels.L

    @property
    def T(self) -> int:
        """Length of the sequence: the bits and the nodes."""
        return self.levels.T

    @property
    def root(self) -> int:
        """Position of the answer: the last one."""
        return self.T - 1

    @cached_property
    def _families(self) -> tuple[tuple[int, ...], ...]:
        places = (*self.pairing, *range(self.n, self.T))
        return tuple(tuple(sorted(places[child] for child in family)) for family in self.levels.families)

    def children(self, position: int) -> tuple[int, ...]:
        """Return the children c_1 < c_2 < … of a node."""
        if not self.n <= position < self.T:
            raise InputError(f"position {position} has no children; nodes are {self.n} … {self.T - 1}")
        return self._families[position - self.n]

    def layer_children(self, layer: int) -> tuple[tuple[int, ...], ...]:
        """Return the children of the nodes that a layer writes (level ``layer + 1``), from left to right."""
        return tuple(self.children(m) for m in self.levels.nodes(layer + 1))

    @cached_property
    def _parents(self) -> dict[int, int]:
        return {child: self.n + node for node, family in enumerate(self._families) for child in family}

    def parent(self, position: int) -> int | None:
        """Return the parent of a position; None for the root and for bits outside the secret set."""
        self.levels.level_of(position)
        return self._parents.get(position)
