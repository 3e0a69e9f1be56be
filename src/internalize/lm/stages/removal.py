"""The sequences of a stage: which units are hidden, the slots in their place, and the supervised tokens.

`curriculum.py` decides which units are hidden. They are always the front of the chain (or its end, for
``side="right"``), so that a model can be given the slots of the hidden part and write the rest.

At inference no chain is known, so the slots must not tell anything about the chain that they replace. At each stage all
examples therefore have the same number of slots. By default it is the median number of tokens in the hidden parts, so
that slots do not cost more than writing the chain. If all chains have the same length, as for parity, each slot is
exactly in the place of its token.

Hidden parts of other lengths are aligned with the slots by `slotted`. A shorter one has the last slots, next to what
follows. A longer one is cut into runs of equal length, and each slot stands for the last token of a run. So the loss on
slots asks for intermediate results from all parts of the chain, in their order, and the last slot still has the last
hidden token. With the last tokens alone, nothing would make the model compute the first steps, which it needs first.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, cycle, islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from internalize.curriculum import at_or_last, hidden_at, subdivide
from internalize.errors import InputError
from internalize.lm.options import HALF, CurriculumOptions
from internalize.lm.stages.chains import Chain, Unit

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


@dataclass(frozen=True)
class TextStages:
    """The stages of a curriculum on a dataset: their number, and the sequence that each makes of a chain."""

    options: CurriculumOptions
    slot: int
    """The token that fills a slot."""
    hidden: tuple[int, ...]
    """Number of hidden units of the longest chain, by stage."""
    stage_slots: tuple[int, ...]
    """Number of slots of an example, by stage."""
    count_slots: tuple[int, ...]
    """Number of slots by number of hidden units, for replayed and smoothed examples."""
    targets: tuple[int, ...]
    """The stages of the curriculum itself: all of them, unless `adaptive` subdivides them."""

    @classmethod
    def measure(
        cls, options: CurriculumOptions, chains: Iterable[Chain], slot: int, also: Iterable[Chain] = ()
    ) -> "TextStages":
        """Return the stages of a curriculum on these chains. Percentiles do not count those in ``also``."""
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

        return cls(
            options,
            slot,
            tuple(hidden.max(0).tolist()),
            slots(np.take_along_axis(tokens, hidden, 1)),
            slots(tokens),
            targets,
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
        gone = _prefix_lengths(chain, self.options.side == "right")
        counts = [len(chain) - tokens + at_or_last(self.count_slots, units) for units, tokens in enumerate(gone)]
        stages = [len(chain) - gone[self.hidden_units(chain, s)] + slots for s, slots in enumerate(self.stage_slots)]
        return max(*counts, *stages)

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
        hidden, slots = self.hidden_units(chain, stage), self.stage_slots[stage]
        if stage > 0 and chance[0] < options.replay:
            if options.replayed == "scattered":
                gone = [one < chance[1] for one in islice(cycle(chance[4:]), len(chain.units))]
                return self.scattered(chain, gone, supervise_hidden=supervise_hidden)
            if options.replayed == "stages":
                earlier = int(chance[1] * (stage + 1))
                hidden, slots = self.hidden_units(chain, earlier), self.stage_slots[earlier]
            else:
                count = int(chance[1] * (hidden + 1))
                hidden, slots = count, slots if count == hidden else at_or_last(self.count_slots, count)
        if smooth and (offset := smoothing_offset(options.smoothing, chance[2])) and hidden < len(chain.units):
            hidden = min(hidden + offset, len(chain.units))
            slots = at_or_last(self.count_slots, hidden)
        return self.sequence(chain, hidden, slots, supervise_hidden=supervise_hidden)

    def sequence(self, chain: Chain, hidden: int, slots: int, *, supervise_hidden: bool = False) -> Row:
        """Return the sequence with ``hidden`` units hidden and ``slots`` slots in their place."""
        right = self.options.side == "right"
        kept = len(chain.units) - hidden
        shown = [token for unit in (chain.units[:kept] if right else chain.units[hidden:]) for token in unit]
        prompt, answer = list(chain.prompt), list(chain.answer)
        places = slots if self.options.padded else 0
        labels = [IGNORED] * (len(prompt) + places) + shown + answer
        if supervise_hidden:
            gone = [token for unit in chain.units[:hidden] for token in unit]
            for place, token in slotted(len(gone), places).items():
                labels[len(prompt) + place] = gone[token]
        tokens = prompt + [self.slot] * places + shown + answer
        positions = list(range(len(tokens)))
        if self.options.keep_positions and not self.options.padded:
            after = len(prompt) + (len(shown) if right else 0)
            positions[after:] = range(after + slots, len(tokens) + slots)
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
    stages = options.curriculum().stages(units + 1, levels)
    for stage in stages:
        first = units - len(stage.hidden) if options.side == "right" else 0
        if stage.hidden != tuple(range(first, first + len(stage.hidden))):
            raise InputError(
                f"levels={levels} decrease along the chain; its steps must be in the order of their levels, "
                "so that each stage hides the front of the chain"
            )
    return tuple(len(stage.hidden) for stage in stages)


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
