"""The record that a certificate is: what a statement bounds, what was measured, and the verdict.

| name     | meaning                                                                                             |
| -------- | --------------------------------------------------------------------------------------------------- |
| measured | the quantity that the statement bounds, in this world; the largest one if there are many            |
| bound    | the statement's right-hand side with its constants explicit                                         |
| margin   | bound − measured: negative exactly if the statement is violated                                     |
| verdict  | holds, violated, vacuous (the bound says nothing at this size), not applicable (see the reason)     |
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["holds", "violated", "vacuous", "not applicable"]


@dataclass(frozen=True)
class Certificate:
    """One statement of the paper, checked in one world."""

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
        found: dict[str, Any] = dict(vars(self))
        for name in ("measured", "bound", "margin"):
            value: float | None = found[name]
            found[name] = value if value is not None and math.isfinite(value) else None
        return found | {"seeds": list(self.seeds)}


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
