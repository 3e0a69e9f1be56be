"""The sequences of a stage: which units are hidden, the slots in their place, and the supervised tokens.

`curriculum.py` decides which units are hidden: the front of the chain, its end (``side="right"``), or with thinning all
but every 2nd, 4th, … unit. A model is given the slots of the front and writes the first shown unit; then it is given
the slots up to the next shown unit, and so on.

At inference no chain is known, so the slots must not tell anything about the chain that they replace. At each stage all
examples therefore have the same number of slots. With thinning they have the same number before the first shown unit,
before the second, and so on; the last of these numbers also stands before the answer. By default the number is the
median number of tokens in the hidden parts, so that slots do not cost more than writing the chain. If all chains have
the same length, as for parity, each slot is exactly in the place of its token.

Hidden parts of other lengths are aligned with the slots by `slotted`. A shorter one has the last slots, next to what
follows. A longer one is cut into runs of equal length, and each slot stands for the last token of a run. So the loss on
slots asks for intermediate results from all parts of the chain, in their order, and the last slot still has the last
hidden token. With the last tokens alone, nothing would make the model compute the first steps, which it needs first.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, cycle, islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from internalize.curriculum import at_or_last, hidden_at, subdivide, thinning_levels
from internalize.errors import InputError
from internalize.lm.options import HALF, CurriculumOptions
from internalize.lm.stages.chains import Chain, Unit
from internalize.lm.stages.step_end import StepEnd

IGNORED: Final = -100
"""The label of a token without loss, in torch and in transformers."""
MAX_OFFSET: Final = 99
"""Largest offset of smoothing. As published, there are 100 offsets; the last has the tail of the distribution."""


def unit_of(options: CurriculumOptions, levels: str) -> Unit:
    """Return the unit of removal, step or token. ``levels`` is the resolved source of levels."""
    halved = options.curriculum().method == "log-icot" and levels == "tokens"
    return "token" if options.method in ("icot", "doubling") or halved else "step"


@dataclass(frozen=True)
class Row:
    """A sequence: tokens, labels (`IGNORED` where there is no loss) and position numbers."""

    tokens: list[int]
    labels: list[int]
    positions: list[int]


class ChainPart(NamedTuple):
    """A part of a sequence after its prompt: shown tokens, or hidden ones with the number of slots in their place."""

    tokens: Sequence[int]
    slots: int | None
    """None if the tokens are shown."""


@dataclass(frozen=True)
class TextStages:
    """The stages of a curriculum on a dataset: their number, and the sequence that each makes of a chain."""

    options: CurriculumOptions
    slot: int
    """The token that fills a slot."""
    hidden: tuple[int, ...]
    """Number of hidden units of the longest chain, by stage."""
    stage_slots: tuple[int, ...]
    """Number of slots of an example, by stage; with thinning, before the first shown unit."""
    count_slots: tuple[int, ...]
    """Number of slots by number of hidden units, for replayed and smoothed examples."""
    targets: tuple[int, ...]
    """The stages of the curriculum itself: all of them, unless `adaptive` subdivides them."""
    gaps: tuple[tuple[int, ...], ...] = ()
    """With thinning: by stage, the number of slots before each shown unit. The last also stands before the answer."""
    step_end: StepEnd | None = None
    """With thinning: how to tell that a model has written a shown unit to its end; None if the data have no rule."""

    @classmethod
    def measure(
        cls, options: CurriculumOptions, chains: Iterable[Chain], slot: int, also: Iterable[Chain] = ()
    ) -> "TextStages":
        """Return the stages of a curriculum on these chains. Percentiles do not count those in ``also``."""
        chains = list(chains)  # they are read twice
        counted, more = (
            Counter((chain.levels, tuple(_prefix_lengths(chain, options.side == "right"))) for chain in some)
            for some in (chains, also)
        )
        kinds = [*counted, *(kind for kind in more if kind not in counted)]
        own = [hidden_units(options, len(lengths) - 1, levels) for levels, lengths in kinds]
        targets = subdivide(own) if options.subdivides else tuple(range(max(map(len, own))))
        stages = range(targets[-1] + 1)
        hidden = np.array([[hidden_at(stage, units, targets) for stage in stages] for units in own])
        # Numbers of tokens in the hidden parts: a row per kind of chain, a column per number of hidden units.
        tokens = np.zeros((len(kinds), max(len(lengths) for _, lengths in kinds)), dtype=np.int32)
        for row, (_, lengths) in zip(tokens, kinds, strict=True):
            row[: len(lengths)], row[len(lengths) :] = lengths, lengths[-1]
        numbers = np.array(list(counted.values()))

        def slots(hidden_tokens: NDArray[Any]) -> tuple[int, ...]:
            return _slot_counts(options, hidden_tokens[: len(numbers)], numbers, tokens[: len(numbers), -1])

        first = slots(np.take_along_axis(tokens, hidden, 1))
        gaps: list[tuple[int, ...]] = []
        if options.thins:
            lengths = [np.diff(lengths) for _, lengths in kinds[: len(numbers)]]
            gaps = [_gaps(options, lengths, counts, numbers) for counts in hidden[: len(numbers)].T]
            first = tuple(each[0] for each in gaps)
        return cls(
            options,
            slot,
            tuple(hidden.max(0).tolist()),
            first,
            slots(tokens),
            targets,
            tuple(gaps),
            StepEnd.of(unit for chain in chains for unit in chain.units) if options.thins else None,
        )

    @property
    def count(self) -> int:
        """The number of stages."""
        return len(self.stage_slots)

    @property
    def planned(self) -> tuple[int, ...]:
        """The stages of a training in which no stage stalls: all, or for `adaptive` only the first and the last."""
        return tuple(sorted({0, self.last})) if self.options.subdivides else self.targets

    @property
    def last(self) -> int:
        """The last stage. It hides everything, except with `cot`."""
        return self.count - 1

    def longest(self, chain: Chain) -> int:
        """Return how many positions a chain's longest sequence needs over all stages, with replay and smoothing."""
        if not (self.options.padded or self.options.keep_positions):
            return len(chain)
        by_count, by_stage = self.lengths(chain)
        if self.options.keep_positions and not self.options.padded:  # gaps take positions as slots would
            by_count = by_count + self._slots_by_count(len(chain.units))
            by_stage = by_stage + np.array(self.stage_slots)
        return int(max(by_count.max(), by_stage.max()))

    def lengths(self, chain: Chain) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths of a chain's sequences by number of hidden units, as in replay, and by stage."""
        sizes = tuple(map(len, chain.units))
        hidden = [self.hidden_units(chain, stage) for stage in range(self.count)]
        if self.options.thins:
            around = len(chain) - sum(sizes)
            gone = np.cumsum([0, *(sizes[unit] for unit in _thinning_order(len(sizes)))])
            by_count = len(chain) - gone * (not self.options.padded)
            by_stage = np.array([around + _thinned_length(sizes, h, self.stage_gaps(s)) for s, h in enumerate(hidden)])
            return by_count, by_stage if self.options.padded else by_count[hidden]
        shown = len(chain) - np.array(_prefix_lengths(chain, self.options.side == "right"))
        if not self.options.padded:
            return shown, shown[hidden]
        return shown + self._slots_by_count(len(sizes)), shown[hidden] + np.array(self.stage_slots)

    def _slots_by_count(self, units: int) -> NDArray[np.int64]:
        """Return the number of slots for 0, 1, … hidden units."""
        return np.array([at_or_last(self.count_slots, count) for count in range(units + 1)])

    def stage_gaps(self, stage: int) -> tuple[int, ...]:
        """Return the number of slots at a stage before each shown unit. The last also stands before the answer."""
        return self.gaps[stage] if self.options.thins else (self.stage_slots[stage], 0)

    def hidden_units(self, chain: Chain, stage: int) -> int:
        """Return how many units of a chain a stage hides.

        A chain with fewer stages stays at its last one. A chain with more stages, which was not among the measured
        ones, loses all its remaining units in the last stage.
        """
        if stage == self.last and self.options.method != "cot":
            return len(chain.units)
        return hidden_at(stage, hidden_units(self.options, len(chain.units), chain.levels), self.targets)

    def training(self, chain: Chain, stage: int, chance: Sequence[float], *, smooth: bool = True) -> Row:
        """Return the sequence of a training example.

        All that is random depends on ``chance``, numbers in [0, 1): four and, for scattered replay, one more per unit.
        """
        options = self.options
        supervise_hidden = chance[3] < options.slot_loss
        hidden, gaps = self.hidden_units(chain, stage), self.stage_gaps(stage)
        if stage > 0 and chance[0] < options.replay:
            if options.replayed == "scattered":
                gone = [one < chance[1] for one in islice(cycle(chance[4:]), len(chain.units))]
                return self.scattered(chain, gone, supervise_hidden=supervise_hidden)
            if options.replayed == "stages":
                earlier = int(chance[1] * (stage + 1))
                hidden, gaps = self.hidden_units(chain, earlier), self.stage_gaps(earlier)
            else:
                count = int(chance[1] * (hidden + 1))
                hidden, gaps = count, gaps if count == hidden else self.count_gaps(count)
        if smooth and (offset := smoothing_offset(options.smoothing, chance[2])) and hidden < len(chain.units):
            hidden = min(hidden + offset, len(chain.units))
            gaps = self.count_gaps(hidden)
        return self.sequence(chain, hidden, gaps, supervise_hidden=supervise_hidden)

    def count_gaps(self, count: int) -> tuple[int, ...] | None:
        """Return the numbers of slots for ``count`` hidden units, at no stage. None: one slot per hidden token."""
        return None if self.options.thins else (at_or_last(self.count_slots, count), 0)

    def at_stage(self, chain: Chain, stage: int, *, supervise_hidden: bool = False) -> Row:
        """Return the sequence of a chain at a stage, without replay and smoothing."""
        hidden, gaps = self.hidden_units(chain, stage), self.stage_gaps(stage)
        return self.sequence(chain, hidden, gaps, supervise_hidden=supervise_hidden)

    def parts(self, chain: Chain, hidden: int, gaps: Sequence[int] | None) -> Iterator[ChainPart]:
        """Yield the parts of a sequence after its prompt: by turns hidden tokens, perhaps none, and shown ones.

        Args:
            chain: the chain.
            hidden: the number of hidden units.
            gaps: the number of slots before each shown part, of which the last also holds for all further parts. None:
                one slot per hidden token.
        """
        gone, run, shown = self._gone(len(chain.units), hidden), list[int](), 0
        for number, unit in enumerate((*chain.units, chain.answer)):
            if number in gone:
                run += unit
                continue
            slots = len(run) if gaps is None else at_or_last(gaps, shown)
            yield ChainPart(run, slots if self.options.padded else 0)
            yield ChainPart(unit, None)
            run, shown = [], shown + 1

    def _gone(self, units: int, hidden: int) -> Collection[int]:
        """Return which units of a chain are hidden."""
        if self.options.thins:
            return frozenset(_thinning_order(units)[:hidden])
        return range(units - hidden, units) if self.options.side == "right" else range(hidden)

    def sequence(self, chain: Chain, hidden: int, gaps: Sequence[int] | None, *, supervise_hidden: bool = False) -> Row:
        """Return the sequence with ``hidden`` units hidden and slots in their place, as `parts` has them."""
        tokens, labels = list(chain.prompt), [IGNORED] * len(chain.prompt)
        jump = len(tokens)
        for part in self.parts(chain, hidden, gaps):
            if part.slots is None:
                tokens += part.tokens
                labels += part.tokens
                continue
            own = slotted(len(part.tokens), part.slots) if supervise_hidden else {}
            jump = len(tokens) if part.tokens or self.options.side == "right" else jump
            tokens += [self.slot] * part.slots
            labels += [part.tokens[own[slot]] if slot in own else IGNORED for slot in range(part.slots)]
        positions = list(range(len(tokens)))
        if gaps and self.options.keep_positions and not self.options.padded:
            positions[jump:] = range(jump + gaps[0], len(tokens) + gaps[0])
        return Row(tokens, labels, positions)

    def scattered(self, chain: Chain, gone: Sequence[bool], *, supervise_hidden: bool = False) -> Row:
        """Return the sequence with the units in ``gone`` hidden. Each of their tokens leaves a slot or nothing."""
        tokens, labels, positions = list(chain.prompt), [IGNORED] * len(chain.prompt), list(range(len(chain.prompt)))
        at = len(tokens)
        for unit, hidden in [*zip(chain.units, gone, strict=True), (chain.answer, False)]:
            if not hidden or self.options.padded:
                tokens += [self.slot] * len(unit) if hidden else unit
                labels += [IGNORED] * len(unit) if hidden and not supervise_hidden else unit
                positions += range(at, at + len(unit))
            at += len(unit)
        return Row(tokens, labels, positions if self.options.keep_positions else list(range(len(tokens))))

    def prompt(self, chain: Chain, stage: int) -> Row:
        """Return the input of a model that is to answer at a stage: the question and, with padding, the stage's slots.

        The chain is not in it. The model continues with the steps that the stage shows, and then the answer.
        ``positions`` has one number more than there are tokens: the position of the first generated token. With
        ``side="right"`` and ``keep_positions`` the gap comes after steps that the model writes, in an unknown place, so
        it is in ``positions`` only at the last stage, which shows no steps.
        """
        tokens = [*chain.prompt, *[self.slot] * (self.stage_slots[stage] if self.options.padded else 0)]
        gap = self.options.keep_positions and not self.options.padded
        skipped = self.stage_slots[stage] if gap and (self.options.side == "left" or stage == self.last) else 0
        return Row(tokens, [], [*range(len(tokens)), len(tokens) + skipped])


@lru_cache(maxsize=4096)
def hidden_units(options: CurriculumOptions, units: int, levels: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return how many of a chain's units each stage hides. They are the front of the chain, or its end."""
    if options.thins:
        return tuple(len(stage.hidden) for stage in options.curriculum().stages(units + 1, thinning_levels(units)))
    stages = options.curriculum().stages(units + 1, levels)
    for stage in stages:
        first = units - len(stage.hidden) if options.side == "right" else 0
        if stage.hidden != tuple(range(first, first + len(stage.hidden))):
            raise InputError(
                f"levels={levels} decrease along the chain; its steps must be in the order of their levels, "
                "so that each stage hides the front of the chain"
            )
    return tuple(len(stage.hidden) for stage in stages)


@lru_cache(maxsize=4096)
def _thinning_order(units: int) -> tuple[int, ...]:
    """Return the order in which thinning hides the units of a chain."""
    levels = thinning_levels(units)
    return tuple(sorted(range(units), key=lambda unit: levels[unit]))


def _hidden_runs(sizes: Sequence[int], hidden: int) -> list[int]:
    """Return the numbers of hidden tokens before each shown unit and before the answer, with thinning.

    ``sizes`` are the numbers of tokens of the units.
    """
    gone, runs = set(_thinning_order(len(sizes))[:hidden]), [0]
    for unit, size in enumerate(sizes):
        if unit in gone:
            runs[-1] += size
        else:
            runs.append(0)
    return runs


@lru_cache(maxsize=65536)
def _thinned_length(sizes: tuple[int, ...], hidden: int, gaps: tuple[int, ...]) -> int:
    """Return the number of shown tokens and slots of a thinned chain whose units have these numbers of tokens."""
    runs = _hidden_runs(sizes, hidden)
    return sum(sizes) - sum(runs) + sum(at_or_last(gaps, number) for number in range(len(runs)))


def _gaps(
    options: CurriculumOptions, lengths: Sequence[NDArray[Any]], hidden: NDArray[Any], numbers: NDArray[Any]
) -> tuple[int, ...]:
    """Return the slots before each shown unit, and last before the answer, when ``hidden`` units of each kind of chain
    are hidden.

    ``lengths`` are the numbers of tokens of the units, and there are ``numbers`` chains of each kind.
    """
    runs = [_hidden_runs(own.tolist(), count) for own, count in zip(lengths, hidden.tolist(), strict=True)]
    whole = np.array([own.sum() for own in lengths])
    gaps: list[int] = []
    for number in range(max(map(len, runs))):
        having = [kind for kind, own in enumerate(runs) if len(own) > number]
        column = np.array([[runs[kind][number]] for kind in having])
        gaps += _slot_counts(options, column, numbers[having], whole[having])
    while len(gaps) > 1 and gaps[-1] == gaps[-2]:
        gaps.pop()
    return tuple(gaps)


def slotted(tokens: int, slots: int) -> dict[int, int]:
    """Return the token that each slot stands for, if it stands for one. Both are counted from 0."""
    if tokens <= slots:
        return {slots - tokens + token: token for token in range(tokens)}
    return {slot: (slot + 1) * tokens // slots - 1 for slot in range(slots)}


def smoothing_offset(smoothing: float, chance: float) -> int:
    """Return the offset o ≤ `MAX_OFFSET` for a uniform number in [0, 1). P(o) is proportional to e^(−λ·o)."""
    return 0 if math.isinf(smoothing) else int(min(-math.log1p(-chance) / smoothing, MAX_OFFSET))


def _prefix_lengths(chain: Chain, right: bool) -> list[int]:
    """Return the numbers of tokens in the first (or last) 0, 1, … units."""
    units = reversed(chain.units) if right else chain.units
    return list(accumulate(map(len, units), initial=0))


def _slot_counts(
    options: CurriculumOptions, tokens: NDArray[Any], numbers: NDArray[Any], whole: NDArray[Any]
) -> tuple[int, ...]:
    """Return the number of slots for each column of ``tokens``, which has a row per kind of chain.

    There are ``numbers`` chains of each kind, and ``whole`` tokens in each of them.
    """
    limit = options.slot_limit
    most = math.inf if limit.most is None else limit.most
    if limit.share is not None:
        most = math.ceil(limit.share * _percentiles(whole[:, None], numbers, HALF)[0])
    return tuple(int(min(most, count)) for count in _percentiles(tokens, numbers, limit.percentile))


def _percentiles(values: NDArray[Any], numbers: NDArray[Any], percentile: int) -> list[int]:
    """Return for each column its smallest value that is not exceeded in this percentage of the rows."""
    rank = -(-percentile * int(numbers.sum()) // 100)
    found: list[int] = []
    for column in values.T:
        order = np.argsort(column, kind="stable")
        found.append(int(column[order[np.searchsorted(np.cumsum(numbers[order]), rank)]]))
    return found
