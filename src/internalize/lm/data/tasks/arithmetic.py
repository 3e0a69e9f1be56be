"""Nested arithmetic modulo a small number: the steps evaluate inner brackets first.

    ( ( 3 + 4 ) * 2 ) - ( 5 * 6 )       modulo 10
    3 + 4 = 7   5 * 6 = 0   7 * 2 = 4   4

A step is one operation on two numbers, with its result. Its level is the nesting depth of what it evaluates: 1 for an
operation on two numbers of the question, otherwise one more than the deeper of its two brackets. Steps are in the order
of their levels and, within a level, from left to right. The outermost operation gives the answer and is not a step.

Every number is 0 … modulo − 1, results too (so 2 - 5 is 7 modulo 10), and one token. ``shape`` says how brackets nest:

| shape | a bracket of depth d has                                       | steps         |
| ----- | -------------------------------------------------------------- | ------------- |
| mixed | one operand of depth d − 1, the other of any depth below d     | at least d − 1 |
| line  | one operand of depth d − 1, the other is a number: a sequence, in which each step continues the one before | d − 1 |
| tree  | two operands of depth d − 1: a complete binary tree            | 2^d − 2       |
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from internalize.errors import InputError, check_choices
from internalize.lm.data.example import Example
from internalize.lm.data.tasks.base import Task, TaskStream
from internalize.random_words import words

_OPERATIONS: Final = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
_SIGNS: Final = tuple(_OPERATIONS)
_MAX_DEPTH: Final = {"mixed": 8, "line": 64, "tree": 8}
_MAX_MODULO: Final = 100


@dataclass(frozen=True)
class Arithmetic(Task):
    """The value of an expression of nesting depth ``depth``, modulo a number.

    The depth is uniform between ``fewest`` and ``depth``; 0 means that all expressions have ``depth``.
    """

    depth: int = 3
    modulo: int = 10
    shape: Literal["mixed", "line", "tree"] = "mixed"
    fewest: int = 0
    seed: int = 0
    name: ClassVar[str] = "arithmetic"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)
        if not 2 <= self.depth <= _MAX_DEPTH[self.shape]:
            raise InputError(
                f"depth={self.depth} is outside 2 … {_MAX_DEPTH[self.shape]} for shape={self.shape} "
                "(an expression of depth 1 has no brackets)"
            )
        if not 2 <= self.modulo <= _MAX_MODULO:
            raise InputError(f"modulo={self.modulo} is outside 2 … {_MAX_MODULO} (a token per number)")
        if self.fewest and not 2 <= self.fewest <= self.depth:
            raise InputError(f"fewest={self.fewest} is neither 0 (always depth) nor within 2 … depth={self.depth}")

    @property
    def questions(self) -> int:
        """The number of expressions."""
        of_depth = [self.modulo]
        for depth in range(1, self.depth + 1):
            deepest = of_depth[-1]
            others = {"mixed": sum(of_depth), "line": self.modulo, "tree": deepest}[self.shape]
            # The deepest operand is the left or the right one; pairs in which both are have been counted twice.
            both = deepest**2 if self.shape != "line" or depth == 1 else 0
            of_depth.append(len(_SIGNS) * (2 * deepest * others - both))
        return sum(of_depth[self.fewest or self.depth :])

    def examples(self, stream: TaskStream, start: int, count: int) -> list[Example]:
        """Return examples ``start`` … ``start + count − 1`` of a stream."""
        operations = self.depth if self.shape == "line" else 2**self.depth - 1
        row = 1 + 3 * operations + operations + 1  # three words per operation and one per number
        drawn = words(self.seed, stream, start * row, count * row).reshape(count, row)
        return [self._write(iter(own.tolist())) for own in drawn]

    def _write(self, drawn: Iterator[int]) -> Example:
        """Return the example of these random words."""
        fewest = self.fewest or self.depth
        steps: list[tuple[int, str]] = []
        question, answer = self._expression(fewest + next(drawn) % (self.depth - fewest + 1), drawn, steps)
        steps = sorted(steps[:-1], key=lambda step: step[0])
        return Example(question, tuple(text for _, text in steps), str(answer), tuple(level for level, _ in steps))

    def _expression(self, depth: int, drawn: Iterator[int], steps: list[tuple[int, str]]) -> tuple[str, int]:
        """Return an expression of this depth and its value, and append the steps that evaluate it with their levels."""
        if depth == 0:
            number = next(drawn) % self.modulo
            return str(number), number
        sign, left_deeper, other = _SIGNS[next(drawn) % len(_SIGNS)], next(drawn) % 2, next(drawn) % depth
        deep = depth - 1
        shallow = {"mixed": other, "line": 0, "tree": deep}[self.shape]
        operands = (deep, shallow) if left_deeper else (shallow, deep)
        written: list[str] = []
        values: list[int] = []
        for own in operands:
            text, value = self._expression(own, drawn, steps)
            written.append(f"( {text} )" if own else text)
            values.append(value)
        result = _OPERATIONS[sign](*values) % self.modulo
        steps.append((depth, f"{values[0]} {sign} {values[1]} = {result}"))
        return f" {sign} ".join(written), result
