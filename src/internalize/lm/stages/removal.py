"""The sequences of a stage: which units are hidden, the slots in their place, and the supervised tokens.

`curriculum.py` decides which units are hidden. They are always the front of the chain (or its end, for
``side="right"``), so that a model can be given the slots of the hidden part and write the rest.

At inference no chain is known, so the slots must not tell anything about the chain that they replace. At each stage all
examples therefore have the same number of slots: the number of tokens in the longest hidden part of any example. If all
chains have the same length, as for parity, each slot is exactly in the place of its token.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, cycle, islice
from typing import Final

from internalize.curriculum import at_or_last, hidden_at, subdivide
from internalize.errors import InputError
from internalize.lm.options import CurriculumOptions
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
    def measure(cls, options: CurriculumOptions, chains: Iterable[Chain], slot: int) -> "TextStages":
        """Return the stages of a curriculum on these chains."""
        # By number of units and levels: the largest number of tokens in the first 0, 1, … units.
        longest: dict[tuple[int, tuple[int, ...] | None], list[int]] = {}
        for chain in chains:
            lengths = _prefix_lengths(chain, options.side == "right")
            kind = (len(chain.units), chain.levels)
            longest[kind] = [max(pair) for pair in zip(longest.get(kind, lengths), lengths, strict=True)]
        own = {kind: hidden_units(options, *kind) for kind in longest}
        targets = subdivide(own.values()) if options.subdivides else tuple(range(max(map(len, own.values()))))
        count = targets[-1] + 1
        stages = {kind: [hidden_at(stage, hidden, targets) for stage in range(count)] for kind, hidden in own.items()}
        most = math.inf if options.slots is None else options.slots
        return cls(
            options,
            slot,
            tuple(max(hidden[stage] for hidden in stages.values()) for stage in range(count)),
            tuple(
                int(min(most, max(longest[kind][hidden[stage]] for kind, hidden in stages.items())))
                for stage in range(count)
            ),
            tuple(
                int(min(most, max(at_or_last(lengths, units) for lengths in longest.values())))
                for units in range(max(map(len, longest.values())))
            ),
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
        gone = [token for unit in chain.units[:hidden] for token in unit] if supervise_hidden and places else []
        gone = gone[-places:]
        tokens = prompt + [self.slot] * places + shown + answer
        labels = [IGNORED] * (len(prompt) + places - len(gone)) + gone + shown + answer
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


def smoothing_offset(smoothing: float, chance: float) -> int:
    """Return the offset o ≤ `MAX_OFFSET` for a uniform number in [0, 1). P(o) is proportional to e^(−λ·o)."""
    return 0 if math.isinf(smoothing) else int(min(-math.log1p(-chance) / smoothing, MAX_OFFSET))


def _prefix_lengths(chain: Chain, right: bool) -> list[int]:
    """Return the numbers of tokens in the first (or last) 0, 1, … units."""
    units = reversed(chain.units) if right else chain.units
    return list(accumulate(map(len, units), initial=0))
