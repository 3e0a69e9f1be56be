"""The end of a written step, which tells when the slots of the next hidden steps are due."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StepEnd:
    """The rule that tells from a step's tokens so far whether the step is complete. Exactly one field is set."""

    length: int | None = None
    """All steps have this number of tokens."""
    token: int | None = None
    """All steps end with this token and have it nowhere else."""

    @classmethod
    def of(cls, steps: Iterable[Sequence[int]]) -> "StepEnd | None":
        """Return the rule that holds for these steps, or None if none does."""
        lengths, last, inside = set[int](), set[int](), set[int]()
        for step in steps:
            lengths.add(len(step))
            last.add(step[-1])
            inside.update(step[:-1])
        if len(lengths) <= 1:
            return cls(length=next(iter(lengths), 1))
        if len(last) == 1 and not last & inside:
            return cls(token=last.pop())
        return None

    def reached(self, tokens: int, latest: int) -> bool:
        """Return whether a step with so many tokens is complete, of which ``latest`` is the last one."""
        return tokens == self.length if self.length is not None else latest == self.token
