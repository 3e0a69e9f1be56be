"""Where is it? A multi-hop task in words whose steps form a binary tree.

Things are in things: ``the coin is in the cup . the cup is in the box . …``. A question has several such chains, with
their facts shuffled. "Is in" is transitive, so two facts that share a thing give a third fact, which is a step. Level 1
joins neighboring facts, level 2 joins the facts of level 1, and so on; an unpaired fact moves up a level. The last
joined fact names the answer and is not a step. A chain of h hops has ⌈log2 h⌉ − 1 levels. Spaces separate words and
marks, so that each is a token.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import perm
from typing import ClassVar, Final

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.tasks.base import Task, TaskStream
from internalize.random_words import words

# Every example depends on the order and length of this list: append nothing, reorder nothing.
_LIST: Final = (
    "bag barn barrel basin basket bath bed bin boat bottle bowl box bucket bus cabin cabinet cage car carton cart "
    "cave chest closet coach coat coffer cradle crate cup cupboard desk drawer envelope flask garage glove hall "
    "hat house hut jar jug kettle locker mug net oven pail pan parcel pocket pot pouch purse sack safe shed shelf "
    "ship shoe shop sleeve sock suitcase tank tent tin tower train tray trunk tub van vase wagon wallet "
)
THINGS: Final = tuple(_LIST.split())


@dataclass(frozen=True)
class Hops(Task):
    """The task of finding where a thing is after ``hops`` hops, among the facts of ``chains`` chains."""

    hops: int = 4
    chains: int = 2
    seed: int = 0
    name: ClassVar[str] = "hops"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hops < 2:
            raise InputError(f"hops={self.hops} must be at least 2 (one hop is a fact of the question)")
        if self.chains < 1:
            raise InputError(f"chains={self.chains} must be at least 1 (one chain leads to the answer)")
        if self.chains * (self.hops + 1) > len(THINGS):
            raise InputError(
                f"hops={self.hops} in chains={self.chains} take {self.chains * (self.hops + 1)} different things; "
                f"there are {len(THINGS)}"
            )

    @property
    def questions(self) -> int:
        """The number of choices of things. The order of the facts, which gives more questions, is not counted."""
        return perm(len(THINGS), self.chains * (self.hops + 1))

    def examples(self, stream: TaskStream, start: int, count: int) -> list[Example]:
        """Return examples ``start`` … ``start + count − 1`` of a stream."""
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
        """Return the example with these chains, given one after another, and this order of facts. It asks for the first
        chain's last thing.
        """
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
    """Join neighboring facts of a chain level by level, and return the resulting facts and their levels."""
    steps: list[str] = []
    levels: list[int] = []
    ends = chain  # ends of the remaining facts: fact i leads from ends[i] to ends[i + 1]
    while len(ends) > 3:
        whole = len(ends) - (len(ends) % 2 == 0)  # number of ends of the facts that have a partner
        pairs = ends[:whole:2]
        steps += [_fact(inner, outer) for inner, outer in pairwise(pairs)]
        levels += [1 + max(levels, default=0)] * (len(pairs) - 1)
        ends = pairs + ends[whole:]
    return steps, levels
