"""What every task is."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

from internalize.lm.data.example import Example
from internalize.random_words import check_seed

TaskStream = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Task(ABC):
    """A generator of examples. Example i of a stream is a function of the task's options, its seed and i alone."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_seed(asdict(self)["seed"])

    @property
    @abstractmethod
    def questions(self) -> int:
        """How many different questions there are."""

    @property
    def children(self) -> tuple[tuple[int, ...], ...] | None:
        """What each element of the chain, the answer last, is made of: words of the question from 0 and, after those, steps.
        None where that is not known, or not the same for every example.
        """
        return None

    @abstractmethod
    def examples(self, stream: TaskStream, start: int, count: int) -> list[Example]:
        """Examples ``start`` … ``start + count − 1`` of a stream."""

    def example(self, stream: TaskStream, index: int) -> Example:
        """Example ``index`` of a stream."""
        return self.examples(stream, index, 1)[0]

    @property
    def spec(self) -> str:
        """The task as `get_task` reads it, its seed included."""
        return f"{self.name}:{','.join(f'{name}={value}' for name, value in asdict(self).items())}"
