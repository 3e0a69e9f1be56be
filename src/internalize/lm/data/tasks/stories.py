"""Word problems whose chain is a sequence of sums. Each sum uses the result of the one before.

``Mia has 37 apples. Mia buys 45 more. Mia gives away 12. How many apples does Mia have?`` has the steps
``<<37+45=82>> <<82-12=70>>`` and the answer 70. Steps are written as in GSM8K, so that ``--levels graph`` finds that
each needs the one before. With ``fewest`` below ``steps`` the chains have different lengths.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.tasks.base import Task, TaskStream
from internalize.random_words import words

# Every example depends on the order and length of these lists: append nothing, reorder nothing.
_NAMES: Final = "Ada Ben Cleo Dan Eva Finn Gus Hana Ida Jon Kim Lea Mia Ned Ola Pia Rex Sam Tom Una Vera Zoe"
_THINGS: Final = "apples balls books boxes cards coins cups eggs keys nuts pens pins plums rings seeds toys"
NAMES: Final = tuple(_NAMES.split())
COUNTED: Final = tuple(_THINGS.split())
GAINS: Final = ("buys {} more", "finds {} more", "gets {} more", "makes {} more")
LOSSES: Final = ("gives away {}", "loses {}", "sells {}", "throws away {}")
_MAX_STEPS: Final = 64
_MAX_DIGITS: Final = 6


@dataclass(frozen=True)
class Stories(Task):
    """The task of counting things after ``steps`` changes, each by a number of at most ``digits`` digits.

    The number of changes is uniform between ``fewest`` and ``steps``; 0 means that all examples have ``steps``.
    """

    steps: int = 4
    digits: int = 2
    fewest: int = 0
    seed: int = 0
    name: ClassVar[str] = "stories"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.steps <= _MAX_STEPS:
            raise InputError(f"steps={self.steps} is outside 1 … {_MAX_STEPS} (the changes of a story)")
        if not 1 <= self.digits <= _MAX_DIGITS:
            raise InputError(f"digits={self.digits} is outside 1 … {_MAX_DIGITS}")
        if not 0 <= self.fewest <= self.steps:
            raise InputError(f"fewest={self.fewest} is outside 0 … steps={self.steps} (0: always steps)")

    @property
    def questions(self) -> int:
        """The number of choices of a name, a thing, the first number and the verbs. The other numbers give more."""
        return len(NAMES) * len(COUNTED) * 10**self.digits * len(GAINS + LOSSES) ** self.steps

    def examples(self, stream: TaskStream, start: int, count: int) -> list[Example]:
        """Return examples ``start`` … ``start + count − 1`` of a stream."""
        row = 4 + 2 * self.steps
        drawn = words(self.seed, stream, start * row, count * row).reshape(count, row)
        return [self._write(row.tolist()) for row in drawn]

    def implied(self, example: Example, step: int, text: str) -> str:
        """Return the answer with another result of a step. The later sums continue from it."""
        return str(int(example.answer) + _result(text) - _result(example.steps[step]))

    def _write(self, drawn: list[int]) -> Example:
        """Return the example of these random words: name, thing, number of changes, first number, then the changes."""
        name, thing = NAMES[drawn[0] % len(NAMES)], COUNTED[drawn[1] % len(COUNTED)]
        fewest = self.fewest or self.steps
        changes = fewest + drawn[2] % (self.steps - fewest + 1)
        most = 10**self.digits - 1
        have = 1 + drawn[3] % most
        told, steps = [f"{name} has {have} {thing}."], list[str]()
        for verb, number in zip(drawn[4::2][:changes], drawn[5::2], strict=False):
            # Something must be left, so that no number is negative.
            gains, (which, amount) = have == 1 or verb % 2 == 0, (verb // 2, number)
            by = 1 + amount % (most if gains else min(most, have - 1))
            phrases = GAINS if gains else LOSSES
            told.append(f"{name} {phrases[which % len(phrases)].format(by)}.")
            now = have + by if gains else have - by
            steps.append(f"<<{have}{'+' if gains else '-'}{by}={now}>>")
            have = now
        told.append(f"How many {thing} does {name} have?")
        return Example(" ".join(told), tuple(steps), str(have))


def _result(step: str) -> int:
    """Return the result of a sum such as ``<<37+45=82>>``."""
    return int(step.strip("<>").partition("=")[2])
