"""The paper's idea in one file: which steps of a chain of thought each stage hides, and which it supervises.

Integers in, integers out, both for parity and for text. Nothing else in the package decides which steps are removed.

| name       | meaning                                                              | where        |
| ---------- | -------------------------------------------------------------------- | ------------ |
| chain      | the steps and, last, the answer: ``length`` elements, 0 … length − 1 | section 3.1  |
| step       | an element of the chain that is not the answer                       |              |
| hidden     | steps replaced by padding (or deleted) in the input                  | section 3.1  |
| supervised | elements on which the loss is taken: all that are not hidden         | Eq. (loss-t) |
| level      | height of a step in the tree or graph of its dependencies, h[m]      | section 2.1  |
| target     | after `subdivide`: the number of a stage that the curriculum itself has |           |

For parity, the chain is the k − 1 internal nodes from bottom to top, and the answer is the root.
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
        """The elements that carry loss: all that are not hidden, so always the answer."""
        hidden = frozenset(self.hidden)
        return tuple(element for element in range(self.length) if element not in hidden)


@dataclass(frozen=True)
class Curriculum:
    """A schedule that removes the chain of thought.

    - ``none``: no chain. One stage, with everything but the answer hidden.
    - ``cot``: the whole chain. One stage, with nothing hidden.
    - ``icot``: hides ``chunk`` more steps per stage, from the front or, with ``side="right"``, from the end. A chunk of
      1 is the standard curriculum, with one stage per element of the chain. ``boundaries`` instead lists the numbers of
      hidden steps after the first stage, which hides none; boundaries beyond the end of a short chain fall on its end.
      A stage that would hide ``cutoff`` steps or more hides all.
    - ``log-icot``: hides one more level per stage, from the bottom, if levels are known. Otherwise it hides half of the
      elements that remain, rounded up. ``skip`` names levels that get no stage of their own: such a level is hidden
      together with the level below it, and never supervised once that one is hidden (the lowest level: never at all).

    Every method but ``cot`` ends with all steps hidden. No stage shows a step that an earlier stage hid.
    """

    method: Method = "log-icot"
    chunk: int = 1
    boundaries: tuple[int, ...] = ()
    side: Side = "left"
    cutoff: int | None = None
    skip: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_choices(self)
        if self.chunk < 1:
            raise InputError(f"chunk={self.chunk} must be at least 1 (a stage of icot removes something)")
        if self.method != "icot" and (self.chunk, self.boundaries, self.side, self.cutoff) != (1, (), "left", None):
            raise InputError(f"chunk, boundaries, side and cutoff belong to icot; {self.method} has its own removal")
        if self.skip and self.method != "log-icot":
            raise InputError(f"skip={self.skip} belongs to log-icot, whose stages are levels; {self.method} has others")
        if self.cutoff is not None and self.cutoff < 1:
            raise InputError(f"cutoff={self.cutoff} must be at least 1 (the first stage hides nothing)")
        if self.chunk != 1 and self.boundaries:
            raise InputError(f"give chunk={self.chunk} or boundaries={self.boundaries}, not both")
        if any(b <= a for a, b in zip((0, *self.boundaries), self.boundaries, strict=False)):
            raise InputError(f"boundaries={self.boundaries} must be positive and strictly increasing")

    def stages(self, length: int, levels: Sequence[int] | None = None) -> tuple[Stage, ...]:
        """Return the stages for a chain of ``length`` elements whose steps have ``levels``, if levels are known.

        Args:
            length: the number of elements, including the answer.
            levels: one number per step, none for the answer. Only ``log-icot`` uses them.
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
                if levels is None and self.skip:
                    raise InputError(f"skip={self.skip} names levels, but the levels of this chain are not known")
                hidden = _prefixes(_halvings(length), steps) if levels is None else _whole_levels(levels, self.skip)
        return tuple(Stage(length, tuple(h)) for h in hidden)


def doubling() -> Curriculum:
    """Return the curriculum that removes 1, 2, 4, … steps, so that 1, 3, 7, … are hidden.

    The small removals come first; in Log-ICoT they come last.
    """
    return Curriculum("icot", boundaries=tuple(2**removals - 1 for removals in range(1, 64)))


def thinning_levels(steps: int) -> tuple[int, ...]:
    """Return levels with which log-icot thins a sequence: it keeps every 2nd step, then every 4th, every 8th, ….

    The level of step i, counted from 1, is one more than the number of times that 2 divides i. A shown step then stands
    for as many of the chain's own steps as two did at the stage before, as in a binary tree over the chain.
    """
    return tuple((step & -step).bit_length() for step in range(1, steps + 1))


def _prefixes(boundaries: Iterable[int], steps: int) -> Iterator[range]:
    """Yield no steps, then the first b steps for every boundary b inside the chain, then all steps."""
    for boundary in sorted({0, *(b for b in boundaries if b < steps), steps}):
        yield range(boundary)


def _halvings(remaining: int) -> Iterator[int]:
    """Yield the number of hidden elements after each removal of ⌈r/2⌉ of the r that remain: 15 → 8, 12, 14."""
    hidden = 0
    while remaining > 1:
        hidden += (remaining + 1) // 2
        remaining //= 2
        yield hidden


def _whole_levels(levels: Sequence[int], skip: Collection[int]) -> Iterator[Sequence[int]]:
    """Yield no steps, then the steps of the lowest level, of the two lowest levels, …, all steps.

    The stage of a level hides those below it; the stages of the levels in ``skip`` are left out.
    """
    present = sorted(set(levels))
    for level in skip:
        if level not in present:
            raise InputError(f"skip={skip} names level {level}; the steps have levels {present}, the answer stays")
    for level in present:
        if level not in skip:
            yield [step for step, own in enumerate(levels) if own < level]
    yield range(len(levels))


# Subdivided curricula. On a chain of 15 elements, the stages of Log-ICoT hide 0, 8, 12 and 14 steps. Subdivided, there
# are 15 stages, each hiding one step more than the one before; the targets 0, 8, 12, 14 are the stages that Log-ICoT
# itself has.


def subdivide(hidden: Collection[Sequence[int]]) -> tuple[int, ...]:
    """Subdivide a curriculum into stages that hide one more step of every chain, and return the targets: the numbers
    that its own stages then have.

    Args:
        hidden: for each kind of chain, the number of steps that each stage hides. A kind with fewer stages stays at its
            last.
    """
    targets = [0]
    for stage in range(1, max(map(len, hidden))):
        targets.append(targets[-1] + max(at_or_last(steps, stage) - at_or_last(steps, stage - 1) for steps in hidden))
    return tuple(targets)


def hidden_at(stage: int, hidden: Sequence[int], targets: Sequence[int]) -> int:
    """Return how many steps of a chain a subdivided stage hides.

    At a target, it hides what the curriculum's own stage does. Between two targets, every stage hides one step more,
    until the chain has lost what the higher target hides.
    """
    above = bisect_left(targets, stage)
    most = at_or_last(hidden, above)
    return most if targets[above] == stage else min(at_or_last(hidden, above - 1) + stage - targets[above - 1], most)


def largest_removal(good: int, targets: Sequence[int]) -> int:
    """Return the stage to try after ``good`` passed: the last target after the explicit stage, later the next one."""
    return targets[-1] if good == 0 else _next_target(good, targets)


def smaller_removal(good: int, failed: int, targets: Sequence[int]) -> int:
    """Return the stage to try after ``failed`` stalled: the next target if it is smaller, otherwise half as far from
    the last good stage, rounded up. One step stays one step.
    """
    own = _next_target(good, targets)
    return own if own < failed else good + (failed - good + 1) // 2


def _next_target(good: int, targets: Sequence[int]) -> int:
    return targets[bisect_right(targets, good)]


def at_or_last(values: Sequence[int], index: int) -> int:
    """Return the value at an index, or the last value if there are fewer."""
    return values[min(index, len(values) - 1)]
