"""The word problem of a group: what is the product of these elements?

The question is ``length`` elements g1 g2 …, one token each. Step i is the running product p_i = g1 … g_i for i = 1 …
length − 1, and the answer is the whole product. So each step continues the one before: p_(i+1) = p_i · g_(i+1). There
are no levels.

| group      | elements                                    | tokens                                                |
| ---------- | ------------------------------------------- | ----------------------------------------------------- |
| S3, S4, S5 | permutations of 1 … m                       | the images of 1 … m in a row: 231 maps 1 to 2, 2 to 3 |
|            |                                             | and 3 to 1                                            |
| A4, A5     | the even ones among them                    | the same                                              |
| Z2, Z3, …  | the numbers 0 … m − 1, added modulo m       | the numbers                                           |

A product of permutations is read from left to right: g·h maps x to h(g(x)), so 231·213 = 132. With ``fewest`` below
``length`` the questions have different lengths. The word problem of Z2 is the parity of all bits.
"""

import re
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import factorial
from typing import TYPE_CHECKING, ClassVar, Final

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.tasks.base import Task, TaskStream
from internalize.random_words import words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PERMUTATIONS: Final = ("S3", "S4", "S5", "A4", "A5")
_CYCLIC: Final = re.compile("Z([1-9][0-9]{0,2})")
_LARGEST: Final = factorial(5)
_MAX_LENGTH: Final = 1000


@dataclass(frozen=True)
class WordProblem(Task):
    """The product of ``length`` uniformly drawn elements of a group.

    The number of elements is uniform between ``fewest`` and ``length``; 0 means that all questions have ``length``.
    """

    group: str = "S5"
    length: int = 16
    fewest: int = 0
    seed: int = 0
    name: ClassVar[str] = "words"

    def __post_init__(self) -> None:
        super().__post_init__()
        cyclic = _CYCLIC.fullmatch(self.group)
        if self.group not in _PERMUTATIONS and not (cyclic and 2 <= int(cyclic[1]) <= _LARGEST):
            raise InputError(
                f"group={self.group} is none of {', '.join(_PERMUTATIONS)} and Z2 … Z{_LARGEST} (a token per element)"
            )
        if not 2 <= self.length <= _MAX_LENGTH:
            raise InputError(f"length={self.length} is outside 2 … {_MAX_LENGTH} (the elements of a question)")
        if not 0 <= self.fewest <= self.length:
            raise InputError(f"fewest={self.fewest} is outside 0 … length={self.length} (0: always length)")

    @property
    def questions(self) -> int:
        """The number of sequences of elements."""
        order = len(_elements(self.group))
        return sum(order**length for length in range(self.fewest or self.length, self.length + 1))

    @property
    def children(self) -> tuple[tuple[int, ...], ...] | None:
        """The product before and the element, of each step; the first step is the first element.

        None if the questions have different lengths.
        """
        if self.fewest not in (0, self.length):
            return None
        return ((0,), *((self.length + i - 1, i) for i in range(1, self.length)))

    def implied(self, example: Example, step: int, text: str) -> str:
        """Return the answer with another value of a step: its product with the elements that come after the step."""
        names, table = _elements(self.group), _products(self.group)
        product = names.index(text)
        for element in example.question.split()[step + 1 :]:
            product = int(table[product, names.index(element)])
        return names[product]

    def examples(self, stream: TaskStream, start: int, count: int) -> list[Example]:
        """Return examples ``start`` … ``start + count − 1`` of a stream."""
        import numpy as np

        names, table = _elements(self.group), _products(self.group)
        row = 1 + self.length
        drawn = words(self.seed, stream, start * row, count * row).reshape(count, row)
        fewest = self.fewest or self.length
        lengths = fewest + (drawn[:, 0] % np.uint64(self.length - fewest + 1)).astype(np.int64)
        elements = (drawn[:, 1:] % np.uint64(len(names))).astype(np.int64)
        running = elements.copy()
        for i in range(1, self.length):
            running[:, i] = table[running[:, i - 1], elements[:, i]]
        rows: list[tuple[int, list[int], list[int]]] = list(
            zip(lengths.tolist(), elements.tolist(), running.tolist(), strict=True)
        )
        examples: list[Example] = []
        for length, asked, products in rows:
            *steps, answer = (names[product] for product in products[:length])
            examples.append(Example(" ".join(names[element] for element in asked[:length]), tuple(steps), answer))
        return examples


@cache
def _elements(group: str) -> tuple[str, ...]:
    """Return the tokens of a group's elements, in ascending order."""
    kind, size = group[0], int(group[1:])
    if kind == "Z":
        return tuple(map(str, range(size)))
    found = permutations(range(1, size + 1))
    return tuple("".join(map(str, images)) for images in found if kind == "S" or _is_even(images))


def _is_even(images: tuple[int, ...]) -> bool:
    """Return whether a permutation has an even number of inversions."""
    return sum(a > b for i, a in enumerate(images) for b in images[i + 1 :]) % 2 == 0


@cache
def _products(group: str) -> "NDArray[np.int64]":
    """Return the table of products: entry (g, h) is the number of the element g·h."""
    import numpy as np

    names = _elements(group)
    if group[0] == "Z":
        numbers = np.arange(len(names))
        return (numbers[:, None] + numbers) % len(names)
    number = {name: i for i, name in enumerate(names)}
    return np.array([[number["".join(h[int(x) - 1] for x in g)] for h in names] for g in names])
