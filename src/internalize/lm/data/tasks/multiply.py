"""Multi-digit multiplication in the format of Deng et al., and the same with a binary tree of sums.

Digits are written least significant first and separated by spaces. For d-digit factors a and b, partial product i is a
times digit i of b, with i zeros in front and d + 1 + i digits in all. A sum of partial products up to i has the same
number of digits. For a = 2365 and b = 4347 (one line):

    5 6 3 2 * 7 4 3 4||5 5 5 6 1 + 0 0 6 4 9 0 ( 5 5 1 1 1 1 ) + 0 0 5 9 0 7 0 ( 5 5 6 0 2 8 0 )
    + 0 0 0 0 6 4 9 0 #### 5 5 6 0 8 2 0 1

A running sum, in brackets, follows every partial product except the first, where it would be the product itself, and
the last, where it would be the answer. A chain has as many words, marks included, as the published chain has tokens.
"""

from abc import abstractmethod
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Final

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.tasks.base import Task, TaskStream
from internalize.random_words import words

_WORD_BITS: Final = 64
_MAX_DIGITS: Final = 100


@dataclass(frozen=True)
class _Multiplication(Task):
    """A multiplication of two uniformly drawn factors of exactly ``digits`` digits."""

    digits: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.digits <= _MAX_DIGITS:
            raise InputError(
                f"digits={self.digits} is outside 2 … {_MAX_DIGITS} (one digit has no partial products to add)"
            )

    @property
    def questions(self) -> int:
        """The number of pairs of factors."""
        return (9 * 10 ** (self.digits - 1)) ** 2

    def examples(self, stream: TaskStream, start: int, count: int) -> list[Example]:
        """Return examples ``start`` … ``start + count − 1`` of a stream."""
        least = 10 ** (self.digits - 1)
        # With one word more than the number needs, the probabilities of factors differ by at most one part in 2^64.
        size = -(-(10 * least).bit_length() // _WORD_BITS) + 1
        data = words(self.seed, stream, 2 * size * start, 2 * size * count).astype("<u8").tobytes()
        width = 8 * size
        drawn = [int.from_bytes(data[at : at + width], "little") for at in range(0, len(data), width)]
        factors = [least + number % (9 * least) for number in drawn]
        return [self.write(a, b) for a, b in zip(factors[0::2], factors[1::2], strict=True)]

    def write(self, a: int, b: int) -> Example:
        """Return the example a × b."""
        for factor in (a, b):
            if not 10 ** (self.digits - 1) <= factor < 10**self.digits:
                raise InputError(f"{factor} does not have exactly {self.digits} digits")
        partials = [a * int(digit) * 10**i for i, digit in enumerate(reversed(str(b)))]
        written = [f"+ {self._reversed(p, i)}" if i else self._reversed(p, i) for i, p in enumerate(partials)]
        steps, levels = self._chain(partials, written)
        question = f"{' '.join(str(a)[::-1])} * {' '.join(str(b)[::-1])}"
        return Example(question, tuple(steps), self._reversed(a * b, self.digits - 1), levels)

    @abstractmethod
    def _chain(self, partials: list[int], steps: list[str]) -> tuple[list[str], tuple[int, ...] | None]:
        """Return all steps, given those of the partial products, and their levels if they are known."""

    def implied(self, example: Example, step: int, text: str) -> str:
        """Return the answer with another value of a step: each partial product and each sum is added to the rest."""
        change = _value(text) - _value(example.steps[step])
        return self._reversed(_value(example.answer) + change, self.digits - 1)

    def _reversed(self, number: int, i: int) -> str:
        """Return the digits of a sum of partial products up to i, least significant first, separated by spaces."""
        return " ".join(f"{number:0{self.digits + 1 + i}}"[::-1])


@dataclass(frozen=True)
class Multiply(_Multiplication):
    """A multiplication with running sums, exactly as published.

    A step is a partial product with its +, or a running sum with its brackets.
    """

    name: ClassVar[str] = "multiply"

    def _chain(self, partials: list[int], steps: list[str]) -> tuple[list[str], None]:
        sums = [[f"( {self._reversed(total, i)} )"] for i, total in enumerate(accumulate(partials))]
        sums[0] = sums[-1] = []
        return [step for partial, own in zip(steps, sums, strict=True) for step in (partial, *own)], None


@dataclass(frozen=True)
class MultiplyTree(_Multiplication):
    """A multiplication with a binary tree of sums. It has ⌈log2 digits⌉ levels, and they are known.

    The partial products have level 1. Each further level has the sums of neighbors; an unpaired number moves up a
    level. The last sum is the answer and not a step.
    """

    name: ClassVar[str] = "multiply-tree"

    def _chain(self, partials: list[int], steps: list[str]) -> tuple[list[str], tuple[int, ...]]:
        row = [(partial, i) for i, partial in enumerate(partials)]
        levels = [1] * len(steps)
        while len(row) > 2:
            pairs = [(left + right, i) for (left, _), (right, i) in zip(row[0::2], row[1::2], strict=False)]
            steps += [f"( {self._reversed(total, i)} )" for total, i in pairs]
            levels += [levels[-1] + 1] * len(pairs)
            row = pairs + row[len(pairs) * 2 :]
        return steps, tuple(levels)


def _value(text: str) -> int:
    """Return the number in a step or an answer, whose digits are least significant first."""
    return int("".join(filter(str.isdigit, text))[::-1])
