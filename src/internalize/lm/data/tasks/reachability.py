"""Reachability in a directed graph, in the form of ProsQA (Hao et al., Coconut): is Tom a blick or a dax?

The question is a shuffled list of facts, a start X, and two candidates. One of them can be reached from X: it is the
answer. The steps are the facts on the walk from X to it. The last step names the answer, as in ProsQA.

    form=words     Tom is a fep . each fep is a dax . Ida is a gorp . each gorp is a blick . is Tom a blick or a dax ?
                   Tom is a fep . each fep is a dax .                                        dax
    form=symbols   t > f . f > d . i > g . g > b . t ? b or d
                   t > f, f > d                                                              d

A graph is made of two walks of ``hops`` facts, from X to the true candidate and from another start Y to the wrong one.
They have no node in common. The other nodes are *below* or *above* the walks, half of each:

- Nodes below are dead ends. Facts lead to them from every kind of node, and from them only to other nodes below.
- Nodes above cannot be reached from X and Y. Facts lead from them to every kind of node but X and Y.

So no fact leads from what X or Y reach to what reaches a candidate, except on the two walks. It follows that X reaches
the true candidate on exactly one walk, and does not reach the wrong one. All this is the same for both walks, and a
fair coin decides which start is asked for. So nothing but the walk tells which candidate is the answer.

Names are drawn from fixed lists, so graphs of all sizes have the same vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import perm
from string import ascii_lowercase
from typing import ClassVar, Final, Literal, TypeVar

from internalize.errors import InputError, check_choices
from internalize.lm.data.example import Example
from internalize.lm.data.tasks.base import Task, TaskStream
from internalize.random_words import words

# Every example depends on the order and length of these lists: append nothing, reorder nothing.
_PEOPLE: Final = "Ada Ben Cleo Dan Eva Finn Gus Hana Ida Jon Kim Lea"
_NOUNS: Final = (
    "blick bolm brask clorn crelt dax delp drulm fep flirn frusp gelt glorp gorp grilp hesk hopple hulp jask jorn kelm "
    "klib lemp lorf mibb molk neft nurl plick prulm quib rask relf sorp spilm stelb tarn thulp timp trosk pulm velp "
    "vorn wask wulf yelm zib zorp"
)
PEOPLE: Final = tuple(_PEOPLE.split())
NOUNS: Final = tuple(_NOUNS.split())
SYMBOLS: Final = (*ascii_lowercase, *"ABCDEF")
Edge = tuple[int, int]
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Reachability(Task):
    """The task of finding which of two nodes can be reached in a graph of ``nodes`` nodes and ``edges`` facts.

    The number of facts on the walk is uniform between ``fewest`` and ``hops``; 0 means that all walks have ``hops``.
    """

    form: Literal["words", "symbols"] = "words"
    nodes: int = 20
    edges: int = 30
    hops: int = 4
    fewest: int = 0
    seed: int = 0
    name: ClassVar[str] = "graph"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)
        most = len(SYMBOLS) if self.form == "symbols" else 2 + len(NOUNS)
        if self.hops < 2:
            raise InputError(f"hops={self.hops} must be at least 2 (one hop is a fact of the question)")
        if self.fewest and not 2 <= self.fewest <= self.hops:
            raise InputError(f"fewest={self.fewest} is neither 0 (always hops) nor within 2 … hops={self.hops}")
        if not 2 * self.hops + 2 <= self.nodes <= most:
            raise InputError(
                f"nodes={self.nodes} is outside {2 * self.hops + 2} … {most} (two walks of hops={self.hops} with their "
                f"starts, and the names of form={self.form})"
            )
        room = min(2 * hops + len(_candidates(self.nodes, hops)) for hops in self._walks)
        if not self.nodes - 2 <= self.edges <= room:
            raise InputError(
                f"edges={self.edges} is outside {self.nodes - 2} … {room} (a fact per node but the starts, and the "
                f"room of nodes={self.nodes} with hops={self.hops})"
            )

    @property
    def _walks(self) -> range:
        """The numbers of facts that a walk may have."""
        return range(self.fewest or self.hops, self.hops + 1)

    @property
    def questions(self) -> int:
        """The number of choices of names for the two walks. The other facts and the order of facts give more."""
        if self.form == "symbols":
            return sum(perm(len(SYMBOLS), 2 * hops + 2) for hops in self._walks)
        return perm(len(PEOPLE), 2) * sum(perm(len(NOUNS), 2 * hops) for hops in self._walks)

    def examples(self, stream: TaskStream, start: int, count: int) -> list[Example]:
        """Return examples ``start`` … ``start + count − 1`` of a stream."""
        # The number of facts on the walk, the coins, a word per name, and at most two per fact: which one, and its place.
        row = 2 + self.nodes + 2 * self.edges
        drawn = words(self.seed, stream, start * row, count * row).reshape(count, row)
        return [self.write(iter(own.tolist())) for own in drawn]

    def write(self, drawn: Iterator[int]) -> Example:
        """Return the example of these random words."""
        hops = self._walks[next(drawn) % len(self._walks)]
        coins = next(drawn)
        names = self._names(hops, drawn)
        above = (self.nodes - 2 * hops - 2) // 2
        walks = [[above + start, *(above + 2 + 2 * i + start for i in range(hops))] for start in range(2)]
        edges = [edge for walk in walks for edge in pairwise(walk)]
        edges += _further_edges(self.nodes, hops, self.edges, drawn)
        facts = [self._fact(names, edge, above) for edge in _sample(edges, len(edges), drawn)]
        if coins % 2:
            walks.reverse()
        asked, (true, wrong) = names[walks[0][0]], (names[walk[-1]] for walk in walks)
        first, second = (true, wrong) if coins // 2 % 2 else (wrong, true)
        steps = [self._fact(names, edge, above) for edge in pairwise(walks[0])]
        if self.form == "symbols":
            return Example(f"{' . '.join(facts)} . {asked} ? {first} or {second}", tuple(steps), true)
        return Example(f"{' '.join(facts)} is {asked} a {first} or a {second} ?", tuple(steps), true)

    def _names(self, hops: int, drawn: Iterator[int]) -> list[str]:
        """Return a name for each node. In words, the two starts are people."""
        if self.form == "symbols":
            return _sample(SYMBOLS, self.nodes, drawn)
        above = (self.nodes - 2 * hops - 2) // 2
        people, nouns = _sample(PEOPLE, 2, drawn), _sample(NOUNS, self.nodes - 2, drawn)
        return [*nouns[:above], *people, *nouns[above:]]

    def _fact(self, names: Sequence[str], edge: Edge, above: int) -> str:
        start, end = (names[node] for node in edge)
        if self.form == "symbols":
            return f"{start} > {end}"
        return f"{start} is a {end} ." if above <= edge[0] < above + 2 else f"each {start} is a {end} ."


@lru_cache(maxsize=256)
def _candidates(nodes: int, hops: int) -> tuple[Edge, ...]:
    """Return all facts that a graph may have beside its walks.

    Nodes are numbered so that every fact leads to a higher number: first those above the walks, then the two starts,
    the walks, and those below.
    """
    starts = (nodes - 2 * hops - 2) // 2
    walks, below = starts + 2, starts + 2 + 2 * hops
    from_above = [(u, v) for u in range(starts) for v in range(u + 1, nodes) if not starts <= v < walks]
    return (*from_above, *((u, v) for u in range(starts, nodes) for v in range(max(u + 1, below), nodes)))


@lru_cache(maxsize=256)
def _first_edges(nodes: int, hops: int) -> tuple[tuple[Edge, ...], ...]:
    """Return the facts that connect each node above or below with the rest of the graph: it has one of them."""
    starts = (nodes - 2 * hops - 2) // 2
    below = starts + 2 + 2 * hops
    from_above = [tuple((u, v) for v in range(u + 1, below) if not starts <= v < starts + 2) for u in range(starts)]
    to_below = [tuple((u, v) for u in range(starts, v)) for v in range(below, nodes)]
    return (*from_above, *to_below)


def _further_edges(nodes: int, hops: int, edges: int, drawn: Iterator[int]) -> list[Edge]:
    """Return random facts beside the walks: one that connects each other node, and then any others."""
    found = [choices[next(drawn) % len(choices)] for choices in _first_edges(nodes, hops)]
    taken = set(found)
    rest = [edge for edge in _candidates(nodes, hops) if edge not in taken]
    return found + _sample(rest, edges - 2 * hops - len(found), drawn)


def _sample(items: Sequence[_Item], count: int, drawn: Iterator[int]) -> list[_Item]:
    """Return ``count`` different items in random order. Each takes one random word."""
    left = list(items)
    for i in range(count):
        other = i + next(drawn) % (len(left) - i)
        left[i], left[other] = left[other], left[i]
    return left[:count]
