"""Where is it? A multi-hop task in words whose steps form a binary tree.

Things are in things: ``the coin is in the cup . the cup is in the box . …``, several such chains in one question, their
facts shuffled. "Is in" is transitive, so two facts that meet give a third, and the steps are these: level 1 joins
neighbouring facts, level 2 joins what level 1 found, and so on; one left over passes up. The last one names the answer and
is no step. A chain of h hops has ⌈log2 h⌉ − 1 levels. Words and marks stand between blanks, so that a word is a token.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import perm
from typing import ClassVar, Final

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.tasks.base import Task, TaskStream
from internalize.random_words import words

# A thing's place in this list is part of every example ever drawn: append nothing, reorder nothing.
_LIST: Final = (
    "bag barn barrel basin basket bath bed bin boat bottle bowl box bucket bus cabin cabinet cage car carton cart "
    "cave chest closet coach coat coffer cradle crate cup cupboard desk drawer envelope flask garage glove hall "
    "hat house hut jar jug kettle locker mug net oven pail pan parcel pocket pot pouch purse sack safe shed shelf "
    "ship shoe shop sleeve sock suitcase tank tent tin tower train tray trunk tub van vase wagon wallet "
)
THINGS: Final = tuple(_LIST.split())


@dataclass(frozen=True)
class Hops(Task):
    """Follow so many hops from a thing to where it is in the end, among the facts of as many chains."""

    hops: int = 4
    chains: int = 2
    seed: int = 0
    name: ClassVar[str] = "hops"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hops < 2:
            raise InputError(f"hops={self.hops} must be at least 2 (one hop is a fact of the question)")
        if self.chains < 1:
            raise InputError(f"chains={self.chains} must be at least 1 (one leads to the answer)")
        if self.chains * (self.hops + 1) > len(THINGS):
            raise InputError(
                f"hops={self.hops} in chains={self.chains} take {self.chains * (self.hops + 1)} different things; "
                f"there are {len(THINGS)}"
            )

    @property
    def questions(self) -> int:
        """Every choice of things, at least; the order of the facts comes on top."""
        return perm(len(THINGS), self.chains * (self.hops + 1))

    def examples(self, stream: TaskStream, start: int, count: int) -> list[Example]:
        """Examples ``start`` … ``start + count − 1`` of a stream."""
        import numpy as np

        facts = self.chains * self.hops
        row = len(THINGS) + facts
        drawn = words(self.seed, stream, start * row, count * row).reshape(count, row)
        things = np.argsort(drawn[:, : len(THINGS)], axis=1, kind="stable")[:, : self.chains * (self.hops + 1)]
        orders = np.argsort(drawn[:, len(THINGS) :], axis=1, kind="stable")
        return [
            self.write([THINGS[t] for t in ts], os) for ts, os in zip(things.tolist(), orders.tolist(), strict=True)
        ]

    def write(self, things: list[str], order: list[int]) -> Example:
        """The example of these chains, one after another, the first one asked for, with the facts in this order."""
        length = self.hops + 1
        chains = [things[at : at + length] for at in range(0, len(things), length)]
        facts = [_fact(inner, outer) for chain in chains for inner, outer in pairwise(chain)]
        asked = chains[0]
        steps, levels = _join_facts(asked)
        question = " ".join([*(facts[i] for i in order), f"where is the {asked[0]} ?"])
        return Example(question, tuple(steps), asked[-1], tuple(levels))


def _fact(inner: str, outer: str) -> str:
    return f"the {inner} is in the {outer} ."


def _join_facts(chain: list[str]) -> tuple[list[str], list[int]]:
    """What the facts of a chain give when neighbours are joined, level by level, and the levels."""
    steps: list[str] = []
    levels: list[int] = []
    ends = chain  # of the facts that are left: fact i is from ends[i] to ends[i + 1]
    while len(ends) > 3:
        whole = len(ends) - (len(ends) % 2 == 0)  # the ends of the facts that have a neighbour to be joined with
        pairs = ends[:whole:2]
        steps += [_fact(inner, outer) for inner, outer in pairwise(pairs)]
        levels += [1 + max(levels, default=0)] * (len(pairs) - 1)
        ends = pairs + ends[whole:]
    return steps, levels
