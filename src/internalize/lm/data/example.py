"""One example: a question, the steps of a chain of thought, and the answer."""

from dataclasses import dataclass, field
from typing import NamedTuple

from internalize.errors import InputError


class Place(NamedTuple):
    """The place of an example in its file."""

    file: str
    unit: str
    """The unit that the number counts: line of a file, item of an array, or row of a table."""
    number: int
    """From 1."""

    def __str__(self) -> str:
        return f"{self.unit} {self.number} of {self.file}"


@dataclass(frozen=True)
class Example:
    """A question with its chain of thought.

    `levels`, if known, has one number per step: the step's height in the dependency graph, as in `curriculum.py`. A
    step needs only steps of lower levels.
    """

    question: str
    steps: tuple[str, ...]
    answer: str
    levels: tuple[int, ...] | None = None
    place: Place | None = field(default=None, compare=False, repr=False)
    """Known for examples from files. Two examples are equal wherever they were read."""

    def __post_init__(self) -> None:
        for name in ("question", "answer"):
            if not getattr(self, name).strip():
                raise InputError(f"the {name} is empty")
        if any(not step.strip() for step in self.steps):
            raise InputError("a step is empty")
        if self.levels is not None and len(self.levels) != len(self.steps):
            raise InputError(f"{len(self.levels)} levels for {len(self.steps)} steps; each step has one")
