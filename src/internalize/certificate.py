"""Certificates: records of checked statements, with what was measured, the bound and the verdict. Both wings use them.

| name     | meaning                                                                                             |
| -------- | --------------------------------------------------------------------------------------------------- |
| measured | the quantity that the statement bounds, in this world; the largest one if there are several         |
| bound    | the statement's right-hand side with explicit constants                                             |
| margin   | bound − measured; negative exactly if the statement is violated                                     |
| verdict  | holds, violated, vacuous (the bound says nothing at this size), not applicable (see the reason)     |

A *world* is what statements are about. In `parity.certificates` it is the paper's model with its task and training; in
`lm.certificates` it is the models that a run on parity has kept.
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
        """Return the fields as plain types. A number that is not finite becomes None."""
        found = {**vars(self), "seeds": list(self.seeds)}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in found.items()}


@dataclass(frozen=True)
class Finding:
    """What a check measured. `Statement.certificate` adds the statement and the data on which it was checked.

    A measured NaN is a violation, because every quantity that the paper bounds is defined.
    """

    measured: float | None
    bound: float | None
    reason: str | None = None
    vacuous: bool = False
    seeds: tuple[int, ...] = ()
    """Seeds of the runs made for this check, in addition to the world's own seed."""

    @property
    def verdict(self) -> Verdict:
        """The verdict that follows from the numbers."""
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
    """Return the finding that a statement does not apply to this world, with the reason."""
    return Finding(None, None, reason)


@dataclass(frozen=True)
class Statement(Generic[W]):
    """A statement: its place in the paper, its claim, and the check."""

    where: str
    claim: str
    check: Callable[[W], Finding]

    def __call__(self, world: W) -> Finding:
        """Check the statement in a world."""
        return self.check(world)

    def certificate(self, name: str, found: Finding, seed: int, dtype: str) -> Certificate:
        """Return the certificate for a finding."""
        numbers, seeds = (found.measured, found.bound, found.margin), (seed, *found.seeds)
        return Certificate(name, f"{self.where}: {self.claim}", *numbers, found.verdict, seeds, dtype, found.reason)


def statement(where: str, claim: str) -> Callable[[Callable[[W], Finding]], Statement[W]]:
    """Return a decorator that turns a check into a statement, given its place in the paper and its claim."""
    return lambda check: Statement(where, claim, check)


def chosen(statements: Mapping[str, Statement[W]], only: Sequence[str] | None) -> dict[str, Statement[W]]:
    """Return the statements named in ``only`` (default: all), in the order of ``statements``."""
    for name in only or ():
        if name not in statements:
            raise InputError(f"there is no statement {name!r}; the statements are {', '.join(statements)}")
    return {name: each for name, each in statements.items() if only is None or name in only}
