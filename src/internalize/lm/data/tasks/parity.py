"""k-parity as tokens: the paper's task in text.

The question is n bits, and the answer is the parity of the k secret ones. There are two chains:

- ``tree``, the paper's: the steps are the internal nodes of the parity tree except the root, bottom to top, each the
  XOR of its two children. The answer is the root (section 2.1).
- ``running``: step i is the parity of the first i secret bits, i = 1 … k − 1. Each step needs the one before, so there
  are no levels. k may be any number.

The secret set and the bits are drawn as for the paper's own model, so a seed gives the same problem in both wings.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Final, Literal

from internalize.errors import InputError, check_choices
from internalize.lm.data.example import Example
from internalize.lm.data.tasks.base import Task, TaskStream
from internalize.random_words import words

_WORD_BITS: Final = 64
_MAX_N: Final = 100_000


@dataclass(frozen=True)
class Parity(Task):
    """The parity of k secret bits out of n. Levels are the heights of the tree's nodes: 1 … log2 k − 1."""

    n: int = 16
    k: int = 8
    chain: Literal["tree", "running"] = field(default="tree", kw_only=True)
    seed: int = 0
    name: ClassVar[str] = "parity"
    later: ClassVar[frozenset[str]] = frozenset({"chain"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)
        if self.k < 2:
            raise InputError(f"k={self.k} must be at least 2 (the parity of one bit is that bit)")
        if self.chain == "tree" and self.k & (self.k - 1):
            raise InputError(
                f"k={self.k} is not a power of two from 2 up (the parity tree is complete, section 2.1); "
                "chain=running takes any k"
            )
        if not self.k <= self.n <= _MAX_N:
            raise InputError(
                f"n={self.n} is outside k={self.k} … {_MAX_N} (the secret set is k of the n bits, section 2.1)"
            )

    @property
    def questions(self) -> int:
        """The number of words of n bits."""
        return 2**self.n

    @cached_property
    def secret(self) -> tuple[int, ...]:
        """The secret set, sorted: the positions of the k smallest of n random words."""
        order: list[int] = words(self.seed, "secret", 0, self.n).argsort(kind="stable").tolist()
        return tuple(sorted(order[: self.k]))

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """The level of each step of the tree: k/2 of level 1, k/4 of level 2, …, 2 of level log2 k − 1."""
        return tuple(level for level in range(1, self.k.bit_length() - 1) for _ in range(self.k >> level))

    @property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of each element, the answer last.

        A node of the tree has two, which are secret bits, or nodes of the level below. A running parity has the one
        before and a secret bit; the first has only its bit.
        """
        if self.chain == "running":
            first, *bits = self.secret
            return ((first,), *((self.n + i, bit) for i, bit in enumerate(bits)))
        nodes = range(self.n, self.n + self.k - 2)
        below = (*self.secret, *nodes)
        return tuple(zip(below[0::2], below[1::2], strict=True))

    def implied(self, example: Example, step: int, text: str) -> str:
        """Return the answer with another value of a step: all that is computed from the step changes with it."""
        return str(int(example.answer) ^ int(example.steps[step]) ^ int(text))

    def examples(self, stream: TaskStream, start: int, count: int) -> list[Example]:
        """Return examples ``start`` … ``start + count − 1`` of a stream."""
        import numpy as np

        row = -(-self.n // _WORD_BITS)
        drawn = words(self.seed, stream, start * row, count * row).astype("<u8").view(np.uint8).reshape(count, row * 8)
        bits = np.unpackbits(drawn, axis=1, count=self.n, bitorder="little")
        questions = np.full((count, 2 * self.n), ord(" "), dtype=np.uint8)
        questions[:, ::2] = bits + ord("0")
        asked = questions.tobytes().decode("ascii")
        tree = [bits[:, list(self.secret)]]
        while self.chain == "tree" and tree[-1].shape[1] > 1:
            tree.append(tree[-1][:, 0::2] ^ tree[-1][:, 1::2])
        chains = np.concatenate(tree[1:], axis=1) if tree[1:] else np.bitwise_xor.accumulate(tree[0], axis=1)
        nodes = (chains + ord("0")).tobytes().decode("ascii")
        steps, levels = chains.shape[1] - 1, self.levels if self.chain == "tree" else None
        examples: list[Example] = []
        for i in range(count):
            question, at = asked[2 * self.n * i : 2 * self.n * (i + 1) - 1], (steps + 1) * i
            examples.append(Example(question, tuple(nodes[at : at + steps]), nodes[at + steps], levels))
        return examples
