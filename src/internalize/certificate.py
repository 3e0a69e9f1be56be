"""The record that a certificate is: what a statement bounds, what was measured, and the verdict. Both wings have such statements.

| name     | meaning                                                                                             |
| -------- | --------------------------------------------------------------------------------------------------- |
| measured | the quantity that the statement bounds, in this world; the largest one if there are many            |
| bound    | the statement's right-hand side with its constants explicit                                         |
| margin   | bound − measured: negative exactly if the statement is violated                                     |
| verdict  | holds, violated, vacuous (the bound says nothing at this size), not applicable (see the reason)     |

A *world* is whatever statements are about: in `parity.certificates` the paper's model with its task and training, in
`lm.certificates` the models that a run on parity has kept.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from internalize.errors import InputError

Verdict = Literal["holds", "violated", "vacuous", "not applicable"]
W = TypeVar("W")


@dataclass(frozen=True)
class Certificate:
    """One statement, checked in one world."""

    statement: str
    claim: str
    measured: float | None
    bound: float | None
    margin: float | None
    verdict: Verdict
    seeds: tuple[int, ...]
    dtype: str
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain types, finite numbers or null."""
        found = {**vars(self), "seeds": list(self.seeds)}
        endless = {name: None for name, value in found.items() if isinstance(value, float) and not math.isfinite(value)}
        return found | endless


@dataclass(frozen=True)
class Finding:
    """What a check found; the framework adds which statement it is and on what data it was checked.

    A NaN among the measured values is a violation: nothing that the paper bounds is undefined.
    """

    measured: float | None
    bound: float | None
    reason: str | None = None
    vacuous: bool = False
    seeds: tuple[int, ...] = ()
    """Seeds of runs that were made for this check, besides the world's own."""

    @property
    def verdict(self) -> Verdict:
        """The verdict that the numbers give."""
        if self.measured is None or self.bound is None:
            return "not applicable"
        if not self.measured <= self.bound:
            return "violated"
        return "vacuous" if self.vacuous else "holds"

    @property
    def margin(self) -> float | None:
        """Bound − measured."""
        return None if self.measured is None or self.bound is None else self.bound - self.measured


def not_applicable(reason: str) -> Finding:
    """The statement does not speak about this world, and why."""
    return Finding(None, None, reason)


@dataclass(frozen=True)
class Statement(Generic[W]):
    """A statement: where it is in the paper, what it claims, and the check."""

    where: str
    claim: str
    check: Callable[[W], Finding]

    def __call__(self, world: W) -> Finding:
        """Check the statement in a world."""
        return self.check(world)

    def certificate(self, name: str, found: Finding, seed: int, dtype: str) -> Certificate:
        """The record of what was found."""
        numbers, seeds = (found.measured, found.bound, found.margin), (seed, *found.seeds)
        return Certificate(name, f"{self.where}: {self.claim}", *numbers, found.verdict, seeds, dtype, found.reason)


def statement(where: str, claim: str) -> Callable[[Callable[[W], Finding]], Statement[W]]:
    """Make a check the statement that it checks: where it is in the paper, and what it claims."""
    return lambda check: Statement(where, claim, check)


def chosen(statements: Mapping[str, Statement[W]], only: Sequence[str] | None) -> dict[str, Statement[W]]:
    """The statements that are asked for (default: all), in their own order."""
    for name in only or ():
        if name not in statements:
            raise InputError(f"there is no statement {name!r}; there are {', '.join(statements)}")
    return {name: each for name, each in statements.items() if only is None or name in only}
