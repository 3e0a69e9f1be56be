"""The paper's idea, once: which steps of a chain of thought are hidden at each stage, and which are supervised.

Pure: integers in, integers out, for parity and for text alike. Nothing else in the package decides removal.

| name       | meaning                                                              | where        |
| ---------- | -------------------------------------------------------------------- | ------------ |
| chain      | the steps and, last, the answer: ``length`` elements, 0 … length − 1 | section 3.1  |
| step       | an element of the chain that is not the answer                       |              |
| hidden     | steps replaced by padding (or deleted) in the input                  | section 3.1  |
| supervised | elements on which the loss is taken: all that are not hidden         | Eq. (loss-t) |
| level      | height of a step in the tree or graph of its dependencies, h[m]      | section 2.1  |
| target     | a stage of a curriculum among those between which it is subdivided   |              |

For parity the chain is the k − 1 internal nodes, bottom to top, and the answer is the root.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from internalize.errors import InputError, check_choices

Method = Literal["none", "cot", "icot", "log-icot"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)
Side = Literal["left", "right"]


@dataclass(frozen=True)
class Stage:
    """What one stage hides and supervises, as sorted element numbers of a chain of ``length`` elements."""

    length: int
    hidden: tuple[int, ...]

    @property
    def supervised(self) -> tuple[int, ...]:
        """The elements that carry loss: every one that is not hidden, the answer always among them."""
        hidden = frozenset(self.hidden)
        return tuple(element for element in range(self.length) if element not in hidden)


@dataclass(frozen=True)
class Curriculum:
    """A way to take the chain of thought away.

    - ``none``: no chain at all. One stage, everything hidden but the answer.
    - ``cot``: the whole chain. One stage, nothing hidden.
    - ``icot``: from the front (or, with ``side="right"``, from the end), ``chunk`` steps at a time (1 is the standard
      curriculum, one stage for each element of the chain), or at the given ``boundaries``: numbers of hidden steps after
      the first stage, which hides none. Boundaries beyond a short chain's end fall on its end. Where ``cutoff`` steps or
      more would be hidden, all are.
    - ``log-icot``: whole levels from the bottom where levels are known; else half of what remains, rounded up.

    Every method but ``cot`` ends with all steps hidden, and hidden sets only grow.
    """

    method: Method = "log-icot"
    chunk: int = 1
    boundaries: tuple[int, ...] = ()
    side: Side = "left"
    cutoff: int | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        if self.chunk < 1:
            raise InputError(f"chunk={self.chunk} must be at least 1 (a stage of icot removes something)")
        if self.method != "icot" and (self.chunk, self.boundaries, self.side, self.cutoff) != (1, (), "left", None):
            raise InputError(f"chunk, boundaries, side and cutoff belong to icot; {self.method} has its own removal")
        if self.cutoff is not None and self.cutoff < 1:
            raise InputError(f"cutoff={self.cutoff} must be at least 1 (the first stage hides nothing)")
        if self.chunk != 1 and self.boundaries:
            raise InputError(f"give chunk={self.chunk} or boundaries={self.boundaries}, not both")
        if any(b <= a for a, b in zip((0, *self.boundaries), self.boundaries, strict=False)):
            raise InputError(f"boundaries={self.boundaries} must be positive and strictly increasing")

    def stages(self, length: int, levels: Sequence[int] | None = None) -> tuple[Stage, ...]:
        """The stages for a chain of ``length`` elements whose steps have ``levels``, if levels are known.

        Args:
            length: the number of elements, the answer included.
            levels: one number for each step (not for the answer); only ``log-icot`` looks at them.
        """
        if length < 1:
            raise InputError(f"a chain of {length} elements has no answer; it needs at least 1")
        if levels is not None and len(levels) != length - 1:
            raise InputError(
                f"{len(levels)} levels for a chain of {length} elements; it has {length - 1} steps, "
                "and the answer takes no level"
            )
        steps = length - 1
        hidden: Iterable[Sequence[int]]
        match self.method:
            case "none":
                hidden = [range(steps)]
            case "cot":
                hidden = [range(0)]
            case "icot":
                counts = self.boundaries or range(self.chunk, steps, self.chunk)
                hidden = _prefixes((c for c in counts if self.cutoff is None or c < self.cutoff), steps)
                if self.side == "right":
                    hidden = (range(steps - len(h), steps) for h in hidden)
            case "log-icot":
                hidden = _prefixes(_halvings(length), steps) if levels is None else _whole_levels(levels)
        return tuple(Stage(length, tuple(h)) for h in hidden)


def doubling() -> Curriculum:
    """Twice as many steps each time, 1, 2, 4, …: 1, 3, 7, … are hidden. The small removals come first, Log-ICoT has them last."""
    return Curriculum("icot", boundaries=tuple(2**removals - 1 for removals in range(1, 64)))


def _prefixes(boundaries: Iterable[int], steps: int) -> Iterator[range]:
    """Nothing, then the first b steps for every boundary b inside the chain, then all steps."""
    for boundary in sorted({0, *(b for b in boundaries if b < steps), steps}):
        yield range(boundary)


def _halvings(remaining: int) -> Iterator[int]:
    """How many are hidden when ⌈r/2⌉ of the r elements that remain go at a time: 15 → 8, 12, 14."""
    hidden = 0
    while remaining > 1:
        hidden += (remaining + 1) // 2
        remaining //= 2
        yield hidden


def _whole_levels(levels: Sequence[int]) -> Iterator[Sequence[int]]:
    """Nothing, then every step up to the lowest level, the two lowest, …, all."""
    yield range(0)
    for top in sorted(set(levels)):
        yield [step for step, level in enumerate(levels) if level <= top]


# A curriculum whose stages may be subdivided. Of one chain of 15 elements Log-ICoT's stages hide 0, 8, 12 and 14 steps; one step at
# a time there are 15 stages, and those four are the targets 0, 8, 12, 14 among them.


def subdivide(hidden: Collection[Sequence[int]]) -> tuple[int, ...]:
    """The targets: where the stages of a curriculum stand if it can be gone through one step of every chain at a time.

    Args:
        hidden: of each kind of chain, how many steps the stages hide. One with fewer stages stays at its last.
    """
    targets = [0]
    for stage in range(1, max(map(len, hidden))):
        targets.append(targets[-1] + max(at_or_last(steps, stage) - at_or_last(steps, stage - 1) for steps in hidden))
    return tuple(targets)


def hidden_at(stage: int, hidden: Sequence[int], targets: Sequence[int]) -> int:
    """How many steps of a chain a stage hides: at a target what the curriculum's own stage does; between two, a step
    more at every stage until the chain has lost what it is to lose at the higher one.
    """
    above = bisect_left(targets, stage)
    most = at_or_last(hidden, above)
    return most if targets[above] == stage else min(at_or_last(hidden, above - 1) + stage - targets[above - 1], most)


def largest_removal(good: int, targets: Sequence[int]) -> int:
    """The stage to try after one that went well: after the whole chain everything at once, later the curriculum's next."""
    return targets[-1] if good == 0 else _next_target(good, targets)


def smaller_removal(good: int, failed: int, targets: Sequence[int]) -> int:
    """The stage to try after one that failed: the curriculum's next, if that was less; else half as far from the last good
    one, rounded up. One step stays one step.
    """
    own = _next_target(good, targets)
    return own if own < failed else good + (failed - good + 1) // 2


def _next_target(good: int, targets: Sequence[int]) -> int:
    return targets[bisect_right(targets, good)]


def at_or_last(values: Sequence[int], index: int) -> int:
    """What is there, or the last if there are fewer."""
    return values[min(index, len(values) - 1)]
