"""Thinning: every 2nd step is kept, then every 4th, …, with slots in place between the shown steps."""

from typing import Any

import pytest
from hypothesis import given

from internalize import InputError
from internalize.lm.options import CurriculumOptions
from internalize.lm.stages.chains import Chain
from internalize.lm.stages.removal import IGNORED, Row, TextStages
from internalize.lm.stages.step_end import StepEnd
from tests.lm_core import ANSWER, FIRST, PLAIN, PROMPT, SLOT, chain, data_sets, slot_rules, stages_of, tokens


def row_of(stages: TextStages, chain: Chain, stage: int) -> Row:
    return stages.training(chain, stage, PLAIN)


def test_thinning_keeps_every_second_step():
    """Of 15 steps 8, 12, 14 and then all are hidden, as by Log-ICoT on a tree. Slots stand in place."""
    c = chain(*[1] * 15)
    stages = stages_of(c, method="thin")
    assert stages.hidden == (0, 8, 12, 14, 15)
    assert stages.gaps == ((0,), (1,), (3,), (7,), (15,))
    assert stages.stage_slots == (0, 1, 3, 7, 15)
    for stage, every in enumerate((1, 2, 4, 8, 16)):
        row = row_of(stages, c, stage)
        written = [FIRST + i if (i + 1) % every == 0 else SLOT for i in range(15)]
        assert row.tokens == [*PROMPT, *written, *ANSWER]
        assert row.labels == [*[IGNORED] * 3, *(t if t != SLOT else IGNORED for t in written), *ANSWER]
        supervised = stages.at_stage(c, stage, supervise_hidden=True)
        assert supervised.tokens == row.tokens
        assert supervised.labels == [*[IGNORED] * 3, *tokens(0, 15), *ANSWER]
    same = stages_of(c, method="log-icot", levels="thin")
    assert [row_of(same, c, s) for s in range(5)] == [row_of(stages, c, s) for s in range(5)]


def test_thinning_tells_nothing_about_the_length_of_a_chain():
    """The same slots stand before each shown step, and before the answer, whatever the rest of the chain is."""
    long, short = chain(*[2] * 7), chain(*[2] * 4, first=200)
    stages = stages_of(long, short, method="thin", slots="longest")
    assert stages.gaps == ((0,), (2,), (6,), (14,))
    slots = [SLOT, SLOT]
    assert row_of(stages, long, 1).tokens == [
        *PROMPT, *slots, *tokens(2, 4), *slots, *tokens(6, 8), *slots, *tokens(10, 12), *slots, *ANSWER
    ]  # fmt: skip
    first, second = [202, 203], [206, 207]
    assert row_of(stages, short, 1).tokens == [*PROMPT, *slots, *first, *slots, *second, *slots, *ANSWER]
    assert stages.at_stage(short, 1, supervise_hidden=True).labels[-5:] == [IGNORED, IGNORED, *ANSWER]


@given(data_sets(), slot_rules, st.booleans())
def test_any_thinning(chains: list[Chain], slots: Any, padded: bool):
    """Each part has its stage's slots, lengths are those of the rows, and the last stage shows no step."""
    options = CurriculumOptions(method="thin", removal="pad" if padded else "delete", slots=slots if padded else None)
    stages = TextStages.measure(options, chains, SLOT)
    for c in chains:
        by_count, by_stage = stages.lengths(c)
        rows = [stages.at_stage(c, stage, supervise_hidden=padded) for stage in range(stages.count)]
        assert [len(row.tokens) for row in rows] == by_stage.tolist()
        counted = [len(stages.sequence(c, hidden, None).tokens) for hidden in range(len(c.units) + 1)]
        assert counted == by_count.tolist()
        assert stages.longest(c) == (max(*counted, *by_stage) if padded else len(c))
        for stage, row in enumerate(rows):
            assert len(row.labels) == len(row.tokens)
            parts = list(stages.parts(c, stages.hidden_units(c, stage), stages.stage_gaps(stage)))
            given_slots = [part.slots for part in parts if part.slots is not None]
            gaps = stages.stage_gaps(stage)
            assert given_slots == [gaps[min(j, len(gaps) - 1)] * padded for j in range(len(given_slots))]
            assert [token for part in parts for token in part.tokens] == [*sum(c.units, ()), *ANSWER]
            shown = [part.tokens for part in parts if part.slots is None]
            assert shown[-1] == ANSWER
            every = 2**stage
            assert stage == stages.last or shown[:-1] == list(c.units[every - 1 :: every])
        assert [part.tokens for part in stages.parts(c, len(c.units), (5,)) if part.slots is None] == [ANSWER]


def test_the_slots_of_a_part_are_a_percentile():
    """At stage 2, one of the three chains has six tokens before its first shown step, two have three."""
    three = (chain(1, 1, 1), chain(1, 1, 1, first=200), chain(2, 2, 2, first=300))
    assert stages_of(*three, method="thin").gaps == ((0,), (1,), (3,))
    assert stages_of(*three, method="thin", slots="p90").gaps == ((0,), (2,), (6,))
    assert stages_of(*three, method="thin", slots=2).gaps == ((0,), (2,), (2,))


def test_replay_of_thinned_chains():
    """Replay of counts hides the steps in the order of thinning, with a slot for each hidden token."""
    c = chain(*[1] * 7)
    stages = stages_of(c, method="thin", replay=1.0, replay_of="counts")
    rows = [stages.training(c, 3, (0.0, (count + 0.5) / 8, 0.0, 0.99)).tokens[3:10] for count in range(8)]
    hidden = [{i for i, token in enumerate(row) if token == SLOT} for row in rows]
    assert hidden == [set(), {0}, {0, 2}, {0, 2, 4}, {0, 2, 4, 6}, {0, 1, 2, 4, 6}, {0, 1, 2, 4, 5, 6}, set(range(7))]


def test_subdivided_thinning():
    """Between two stages, adaptive hides one step more at a time."""
    c = chain(*[1] * 7)
    stages = stages_of(c, method="adaptive", levels="thin")
    assert stages.targets == (0, 4, 6, 7)
    assert stages.hidden == tuple(range(8))
    assert stages.gaps[2] == (1, 1, 0)
    assert row_of(stages, c, 2).tokens == [*PROMPT, SLOT, *tokens(1, 2), SLOT, *tokens(3, 7), *ANSWER]


def test_the_end_of_a_written_step():
    assert StepEnd.of([(1, 2), (3, 4)]) == StepEnd(length=2)
    assert StepEnd.of([(1, 2, 9), (4, 9), (9,)]) == StepEnd(token=9)
    assert StepEnd.of([(1, 2), (3,)]) is None
    assert StepEnd.of([(9, 9), (3, 9, 9)]) is None, "the mark also stands inside"
    assert StepEnd.of([]) == StepEnd(length=1)
    assert [StepEnd(length=2).reached(count, 5) for count in (1, 2)] == [False, True]
    assert [StepEnd(token=9).reached(1, token) for token in (5, 9)] == [False, True]


def test_what_thinning_cannot_do():
    with pytest.raises(InputError, match="levels=given belongs to log-icot and adaptive"):
        CurriculumOptions(method="thin", levels="given")
    with pytest.raises(InputError, match="keep_positions does not work with thinning"):
        CurriculumOptions(method="thin", removal="delete", keep_positions=True)
