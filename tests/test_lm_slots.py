"""lm/stages/removal.py: the number of slots at a stage, and the tokens that they stand for."""

import math
from typing import Any

import pytest

from internalize import InputError
from internalize.lm.options import CurriculumOptions
from internalize.lm.stages.removal import IGNORED, TextStages
from tests.lm_core import ANSWER, FIRST, PLAIN, PROMPT, SLOT, chain, stages_of, tokens


def test_at_most_so_many_slots():
    """The limit holds for stages, replayed counts and supervised slots, which stand for equal parts of the chain."""
    c = chain(2, 2, 2)
    stages = stages_of(c, method="icot-steps", slots=3, hidden_loss=1.0)
    assert (stages.stage_slots, stages.count_slots) == ((0, 2, 3, 3), (0, 2, 3, 3))
    row = stages.training(c, 3, PLAIN)
    assert row.tokens == [*PROMPT, *[SLOT] * 3, *ANSWER]
    assert row.labels == [*[IGNORED] * 3, FIRST + 1, FIRST + 3, FIRST + 5, *ANSWER]
    none = stages_of(c, method="icot-steps", slots=0, hidden_loss=1.0)
    assert none.training(c, 3, PLAIN).labels == [*[IGNORED] * 3, *ANSWER]


def test_slots_by_default():
    """Half of the chains have a slot for every hidden token. Longer ones have fewer slots, in all kinds of rows."""
    short, middle, long = chain(2), chain(2, 2), chain(*[2] * 50)
    stages = stages_of(*[short] * 2, *[middle] * 4, *[long] * 2, method="icot-steps", hidden_loss=1.0, replay=0.5)
    assert stages.stage_slots == (0, 2, *[4] * 49)
    assert stages.count_slots == stages.stage_slots
    assert {stages.prompt(c, stages.last).tokens.count(SLOT) for c in (short, middle, long)} == {4}
    row = stages.training(long, stages.last, PLAIN)
    assert row.tokens == [*PROMPT, *[SLOT] * 4, *ANSWER]
    assert row.labels[3:7] == [FIRST + 24, FIRST + 49, FIRST + 74, FIRST + 99]
    assert stages.training(short, stages.last, PLAIN).labels[3:7] == [IGNORED, IGNORED, *tokens(0, 2)]
    scattered = stages.training(long, 1, (0.0, 1.0, 0.0, 0.0, 0.5))
    assert scattered.tokens == [*PROMPT, *[SLOT] * 100, *ANSWER], "in place of each token"
    counts = stages_of(*[middle] * 4, long, method="icot-steps", replay=1.0, replay_of="counts")
    assert counts.training(long, 50, (0.0, 0.5, 0.0, 0.9)).tokens.count(SLOT) == 4


def test_one_length_has_a_slot_for_every_token():
    """Then the default gives the stages of the longest chain, and so do all percentiles."""
    alike = [chain(2, 1, 3, first=first) for first in range(100, 200, 10)]
    for method in ("adaptive", "icot", "pause", "doubling"):
        found = [stages_of(*alike, method=method, slots=slots) for slots in ("p50", "longest", None, "p1", 1.0, 6)]
        assert len({(each.stage_slots, each.count_slots, each.hidden, each.targets) for each in found}) == 1
        assert found[0].stage_slots[-1] == 6


def test_a_share_of_the_median_chain():
    """Each hidden token has a slot until there are half as many slots as the median chain has tokens."""
    stages = stages_of(chain(1), chain(*[1] * 6), chain(*[1] * 90), method="icot-steps", slots=0.5)
    assert stages.stage_slots == (0, 1, 2, 3, *[3] * 87)


def test_long_chains_of_a_large_file_do_not_count_twice():
    """They are measured for positions and stages, and not for percentiles."""
    long, short = chain(*[1] * 9), chain(1, 1)
    options = CurriculumOptions("icot-steps")
    stages = TextStages.measure(options, [short, short, long], SLOT, also=[long] * 5)
    assert stages == TextStages.measure(options, [short, short, long], SLOT)
    with_more = TextStages.measure(options, [short, short], SLOT, also=[long])
    assert (with_more.stage_slots[-1], with_more.count) == (2, 10)


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        (-1, "slots=-1 must be at least 0"),
        *((wrong, "neither a number") for wrong in ("p0", "p101", "90", "p5.5", "half", "", 0.0, 1.5, math.nan)),
    ],
)
def test_slots_that_are_refused(slots: Any, message: str):
    with pytest.raises(InputError, match=message):
        CurriculumOptions(slots=slots)
    with pytest.raises(InputError, match=message):
        CurriculumOptions("none", slots=slots)


def test_slots_in_a_config():
    """A config without a value is of an earlier version, or has no slots: the longest chain counts."""
    written = [CurriculumOptions(slots=slots).as_json()["slots"] for slots in ("p50", "longest", None, 3, 0.5)]
    assert written == ["p50", None, None, 3, 0.5]
    assert CurriculumOptions(removal="delete").as_json()["slots"] is None
    with pytest.raises(InputError, match="deletion leaves no slots"):
        CurriculumOptions(removal="delete", slots="p90")
