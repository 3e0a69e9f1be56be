"""The base class of all tasks."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from typing import ClassVar, Literal

from internalize.lm.data.example import Example
from internalize.random_words import check_seed

TaskStream = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Task(ABC):
    """A generator of examples. Example i of a stream depends only on the task's options, its seed and i."""

    name: ClassVar[str]
    later: ClassVar[frozenset[str]] = frozenset()
    """Options that earlier versions lack. A spec leaves them out where they have their default, so it stays the same."""

    def __post_init__(self) -> None:
        check_seed(asdict(self)["seed"])

    @property
    @abstractmethod
    def questions(self) -> int:
        """The number of different questions."""

    @property
    def children(self) -> tuple[tuple[int, ...], ...] | None:
        """The inputs of each element of the chain, the answer last: the question's words, numbered from 0, then the
        steps.

        None if they are not known, or differ between examples.
        """
        return None

    def implied(self, example: Example, step: int, text: str) -> str | None:
        """Return the answer that a chain leads to if one step, counted from 0, has this text; None if not known."""
        return None

    @abstractmethod
    def examples(self, stream: TaskStream, start: int, count: int) -> list[Example]:
        """Return examples ``start`` … ``start + count − 1`` of a stream."""

    def example(self, stream: TaskStream, index: int) -> Example:
        """Return example ``index`` of a stream."""
        return self.examples(stream, index, 1)[0]

    @property
    def spec(self) -> str:
        """The spec that `get_task` reads, with the seed."""
        default = {field.name: field.default for field in fields(self)}
        own = {name: each for name, each in asdict(self).items() if name not in self.later or each != default[name]}
        return f"{self.name}:{','.join(f'{name}={value}' for name, value in own.items())}"
