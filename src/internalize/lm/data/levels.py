r"""The levels of a chain's steps, which tell Log-ICoT on text which steps to remove together.

| source | levels                                                                                   |
| ------ | ---------------------------------------------------------------------------------------- |
| given  | in the data                                                                              |
| graph  | from equations: a step is one level above the highest of the steps whose results it uses |
| thin   | none in the data: the steps are a sequence, of which every 2nd is kept, then every 4th, … |
| steps  | none: half of the remaining steps are removed together                                   |
| tokens | none: half of the remaining tokens are removed together                                  |
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, Literal, get_args

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.rows import short
from internalize.lm.options import LevelSource

ResolvedSource = Literal["given", "graph", "thin", "steps", "tokens"]

_WORDED: Final = 0.1
"""Largest share of examples with steps that are no equations, for levels from the graph."""
_MAX_EQUATION: Final = 1000  # characters; Python itself refuses numbers of more than 4300 digits
_NUMBER: Final = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
# A minus is a sign where no number, bracket or percent sign stands before it: in -2+10 and 5*-2, not in 10-2.
_OPERAND: Final = re.compile(rf"(?:(?<![\d.)%])-)?(?:{_NUMBER})")
_LEFT: Final = re.compile(r"(?=\D*\d)[-\d.,+*/()%$=^×÷]++")
_RESULT: Final = re.compile(rf"(-?)\$?({_NUMBER})(?:/(\d+))?%?")


def graph_levels(steps: Sequence[str]) -> tuple[int, ...] | None:
    """Return the levels of equations, or None if a step is not one. ``<<16-3-4=9>> <<9*2=18>>`` has levels 1 and 2.

    The brackets are optional. A step uses an earlier step if one of its operands is that step's result, the number
    right of its last ``=``. Numbers are compared by value, so 9 equals 9.00. If several steps have the same result, the
    most recent counts. A step that uses no other step has level 1.

    Only the numbers are compared. If a number from the question happens to equal an earlier result, it is taken for
    that result, and the step gets a higher level than necessary.
    """
    levels: list[int] = []
    level_of_result: dict[Fraction, int] = {}
    for step in steps:
        equation = _parse_equation(step)
        if equation is None:
            return None
        operands, result = equation
        level = 1 + max((level_of_result.get(operand, 0) for operand in operands), default=0)
        levels.append(level)
        level_of_result[result] = level
    return tuple(levels)


def resolve_levels(examples: Sequence[Example], source: LevelSource) -> tuple[ResolvedSource, list[Example]]:
    """Return the source of levels with ``auto`` resolved, and the examples with levels from that source.

    ``auto`` is given if every example has levels, otherwise graph if the steps of at least nine tenths of the examples
    are equations, otherwise steps if any example has more than one step, otherwise tokens.
    """
    if source not in get_args(LevelSource):
        raise InputError(f"levels={source!r} is not one of {', '.join(get_args(LevelSource))}")
    if source == "auto":
        if not examples:
            raise InputError("levels=auto has no examples to choose a source from")
        source = _detect_source(examples)
    worded = _worded(examples) if source == "graph" else []
    if len(worded) > _WORDED * len(examples):
        wrong = next(step for step in examples[worded[0]].steps if _parse_equation(step) is None)
        raise InputError(
            f"levels=graph, but step {short(wrong)} of example {worded[0] + 1} is not an equation of numbers like "
            f"16-3-4=9, and {len(worded)} of {len(examples)} examples have such steps; a tenth may"
        )
    if source == "thin" and not any(len(example.steps) > 1 for example in examples):
        raise InputError("thinning keeps every 2nd step, and no chain of these data has more than one step")
    return source, with_levels(examples, source)


def with_levels(examples: Sequence[Example], source: ResolvedSource) -> list[Example]:
    """Return the examples with levels from a source.

    With levels, the steps are sorted by level, so that a stage hides the front of the chain. That order is valid,
    because a step needs only lower levels. Without levels, steps keep their order. If levels come from the graph, a
    chain with steps that are no equations is taken for a sequence: each step is one level above the one before.
    """
    if source in ("thin", "steps", "tokens"):
        return [replace(example, levels=None) for example in examples]
    found: list[Example] = []
    for number, example in enumerate(examples, start=1):
        levels = example.levels
        if source == "graph":
            levels = graph_levels(example.steps) or tuple(range(1, len(example.steps) + 1))
        if levels is None:
            raise InputError(f"levels=given, but example {number} ({short(example.question)}) has none")
        order = sorted(range(len(levels)), key=levels.__getitem__)
        steps = tuple(example.steps[i] for i in order)
        found.append(replace(example, steps=steps, levels=tuple(levels[i] for i in order)))
    return found


def _detect_source(examples: Sequence[Example]) -> ResolvedSource:
    """Return the source that ``auto`` stands for."""
    if all(example.levels is not None for example in examples):
        return "given"
    if any(e.steps for e in examples) and len(_worded(examples)) <= _WORDED * len(examples):
        return "graph"
    return "steps" if any(len(example.steps) > 1 for example in examples) else "tokens"


def _worded(examples: Sequence[Example]) -> list[int]:
    """Return which examples have steps that are no equations."""
    return [i for i, example in enumerate(examples) if graph_levels(example.steps) is None]


def _parse_equation(step: str) -> tuple[list[Fraction], Fraction] | None:
    """Return the operands and the result of a step, or None if it is not an equation of numbers."""
    if len(step) > _MAX_EQUATION:
        return None
    text = "".join(step.split())
    text = text.removeprefix("<<").removesuffix(">>")
    left, _, right = text.rpartition("=")
    result = _RESULT.fullmatch(right)
    if result is None or _LEFT.fullmatch(left) is None or int(result[3] or 1) == 0:
        return None
    value = _number(result[1] + result[2]) / int(result[3] or 1)
    return [_number(operand) for operand in _OPERAND.findall(left.replace("$", ""))], value


def _number(text: str) -> Fraction:
    return Fraction(text.replace(",", "").removesuffix("."))
