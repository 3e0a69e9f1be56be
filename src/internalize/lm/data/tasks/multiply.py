"""Multi-digit multiplication in the format of Deng et al., and the same with a binary tree of sums.

Digits stand least significant first, between blanks. Of d-digit factors a and b, partial product i is a times digit i of
b, with i zeros in front and d + 1 + i digits in all; a sum of partial products up to i has as many. With a = 2365, b = 4347,
one line:

    5 6 3 2 * 7 4 3 4||5 5 5 6 1 + 0 0 6 4 9 0 ( 5 5 1 1 1 1 ) + 0 0 5 9 0 7 0 ( 5 5 6 0 2 8 0 )
    + 0 0 0 0 6 4 9 0 #### 5 5 6 0 8 2 0 1

A running sum, in brackets, follows every partial product but the first (it would be the product itself) and the last (it
would be the answer). The words of a chain, marks included, are as many as the tokens published: `chain_words`.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final

from internalize.counter import words
from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.tasks.base import Task, TaskStream

_WORD_BITS: Final = 64
_MAX_DIGITS: Final = 100


def chain_words(digits: int) -> int:
    """Words of a published chain: partial products, running sums, a + for all but one, a pair of brackets a sum."""
    partials = sum(digits + 1 + i for i in range(digits))
    sums = sum(digits + 1 + i + 2 for i in range(1, digits - 1))
    return partials + (digits - 1) + sums


def running_sums(a: int, b: int, digits: int) -> Example:
    """The example a × b as published. A step is a partial product with its +, or a running sum with its brackets."""
    steps: list[str] = []
    total = 0
    for i, partial in enumerate(_partials(a, b, digits)):
        total += partial
        width = digits + 1 + i
        steps.append(f"+ {_reversed(partial, width)}" if i else _reversed(partial, width))
        if 0 < i < digits - 1:
            steps.append(f"( {_reversed(total, width)} )")
    return _example(a, b, digits, steps, None)


def tree_of_sums(a: int, b: int, digits: int) -> Example:
    """The example a × b with partial products (level 1), then sums of neighbours, level by level; one left over passes up.

    The last sum is the answer and no step.
    """
    row = [(partial, i) for i, partial in enumerate(_partials(a, b, digits))]
    steps = [f"+ {_reversed(p, digits + 1 + i)}" if i else _reversed(p, digits + 1 + i) for p, i in row]
    levels = [1] * len(steps)
    level = 1
    while len(row) > 2:
        level += 1
        pairs = [(left + right, i) for (left, _), (right, i) in zip(row[0::2], row[1::2], strict=False)]
        steps += [f"( {_reversed(total, digits + 1 + i)} )" for total, i in pairs]
        levels += [level] * len(pairs)
        row = pairs + row[len(pairs) * 2 :]
    return _example(a, b, digits, steps, tuple(levels))


@dataclass(frozen=True)
class _Multiplication(Task):
    """Two factors of exactly so many digits, drawn uniformly."""

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
        """Every pair of factors."""
        return (9 * 10 ** (self.digits - 1)) ** 2

    def examples(self, stream: TaskStream, start: int, count: int) -> list[Example]:
        """Examples ``start`` … ``start + count − 1`` of a stream."""
        least = 10 ** (self.digits - 1)
        # A word more than the number needs: then no factor is likelier than another by more than one part in 2^64.
        size = -(-(10 * least).bit_length() // _WORD_BITS) + 1
        data = words(self.seed, stream, 2 * size * start, 2 * size * count).astype("<u8").tobytes()
        width = 8 * size
        drawn = [int.from_bytes(data[at : at + width], "little") for at in range(0, len(data), width)]
        factors = [least + number % (9 * least) for number in drawn]
        return [self.write(a, b) for a, b in zip(factors[0::2], factors[1::2], strict=True)]

    @abstractmethod
    def write(self, a: int, b: int) -> Example:
        """The example a × b."""


@dataclass(frozen=True)
class Multiply(_Multiplication):
    """Multiplication with running sums, exactly as published."""

    name: ClassVar[str] = "multiply"

    def write(self, a: int, b: int) -> Example:
        """The example a × b."""
        return running_sums(a, b, self.digits)


@dataclass(frozen=True)
class MultiplyTree(_Multiplication):
    """Multiplication with a binary tree of sums: as many levels as ⌈log2 digits⌉, and they are known."""

    name: ClassVar[str] = "multiply-tree"

    def write(self, a: int, b: int) -> Example:
        """The example a × b."""
        return tree_of_sums(a, b, self.digits)


def _partials(a: int, b: int, digits: int) -> list[int]:
    for factor in (a, b):
        if not 10 ** (digits - 1) <= factor < 10**digits:
            raise InputError(f"{factor} does not have exactly {digits} digits")
    return [a * int(digit) * 10**i for i, digit in enumerate(reversed(str(b)))]


def _reversed(number: int, width: int) -> str:
    """The digits, least significant first, between blanks."""
    return " ".join(f"{number:0{width}}"[::-1])


def _example(a: int, b: int, digits: int, steps: list[str], levels: tuple[int, ...] | None) -> Example:
    question = f"{_reversed(a, digits)} * {_reversed(b, digits)}"
    return Example(question, tuple(steps), _reversed(a * b, 2 * digits), levels)
