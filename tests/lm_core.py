"""Chains of plain numbers and hypothesis strategies, for tests of the lm wing's core."""

from itertools import accumulate
from typing import Any

from hypothesis import strategies as st

from internalize.lm.options import LM_METHODS, CurriculumOptions
from internalize.lm.stages.chains import Chain
from internalize.lm.stages.removal import TextStages

PROMPT, ANSWER, SLOT = (1, 2, 3), (4, 5, 6), 0  # the last of the prompt and the first of the answer are separators
FIRST = 100  # the first token of a chain's steps


def chain(*lengths: int, levels: tuple[int, ...] | None = None, first: int = FIRST) -> Chain:
    """Return a chain whose steps have these lengths in tokens; all tokens differ: 100, 101, …"""
    ends = list(accumulate(lengths, initial=first))
    units = tuple(tuple(range(end - length, end)) for end, length in zip(ends[1:], lengths, strict=True))
    return Chain(PROMPT, units, levels, ANSWER)


@st.composite
def chains(draw: st.DrawFn, with_levels: bool) -> Chain:
    """Draw a chain of up to eight steps of up to three tokens."""
    lengths = draw(st.lists(st.integers(1, 3), max_size=8))
    levels = None
    if with_levels:
        levels = tuple(sorted(draw(st.lists(st.integers(1, 4), min_size=len(lengths), max_size=len(lengths)))))
    return chain(*lengths, levels=levels)


@st.composite
def data_sets(draw: st.DrawFn) -> list[Chain]:
    """Draw the chains of one data set: all have levels, or none has."""
    return draw(st.lists(chains(draw(st.booleans())), min_size=1, max_size=6))


slot_rules = st.sampled_from((None, "p50", "p90", "p1", 0.3, 1.0)) | st.integers(0, 12)
"""Values of ``slots``."""


@st.composite
def curricula(draw: st.DrawFn) -> CurriculumOptions:
    """Draw any method with any of its options."""
    method = draw(st.sampled_from(LM_METHODS))
    padded = draw(st.booleans())
    linear = method in ("icot", "icot-steps")
    return CurriculumOptions(
        method=method,
        removal="pad" if padded else "delete",
        slots=draw(slot_rules) if padded else None,
        keep_positions=not padded and method != "thin" and draw(st.booleans()),
        side=draw(st.sampled_from(("left", "right"))) if linear and not padded else "left",
        cutoff=draw(st.none() | st.integers(1, 9)) if linear else None,
        smoothing=draw(st.sampled_from((0.5, 4.0, float("inf")))) if method != "cot" else float("inf"),
        replay=draw(st.sampled_from((0.0, 0.5, 1.0))),
        replay_of=draw(st.sampled_from(("stages", "counts", "scattered"))),
        hidden_loss=draw(st.sampled_from((0.0, 0.5, 1.0))) if padded else 0.0,
    )


chances = st.lists(st.floats(0, 1, exclude_max=True), min_size=12, max_size=12)
"""Random numbers of one example: four, and one per step for scattered replay."""

PLAIN = (0.99, 0.0, 0.0, 0.99)
"""The random numbers of an example without replay, smoothing and loss on slots."""


def stages_of(*chains: Chain, replay: float = 0.0, **options: Any) -> TextStages:
    return TextStages.measure(CurriculumOptions(replay=replay, **options), chains, SLOT)


def tokens(first: int, last: int) -> list[int]:
    """Return tokens of a chain, by number."""
    return list(range(FIRST + first, FIRST + last))
