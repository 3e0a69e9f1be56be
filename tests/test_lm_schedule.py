"""lm/stages/schedule.py: when stages begin, and the published schedule as golden numbers."""

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from internalize import InputError
from internalize.lm.options import ScheduleOptions
from internalize.lm.stages.schedule import Schedule

BATCHES = 25_250  # an epoch of 808 000 examples in batches of 32
TOKENS = 46  # of the chain of a 4 × 4 digit multiplication


@pytest.mark.parametrize(("epochs", "shift"), [(0, 0), (1, BATCHES), (3, 3 * BATCHES), (0.5, BATCHES // 2)])
def test_published_schedule(epochs: float, shift: int):
    """Eight tokens per epoch (Deng et al.): one more every round(25 250 / 8) = 3 156 batches.

    The first is at batch 3 156, counted from 0 or from the end of pretraining. Until then nothing is smoothed.
    """
    options = ScheduleOptions(advance="epochs", stages_per_epoch=8, first_epochs=epochs)
    schedule = Schedule(options, TOKENS + 1, BATCHES)
    assert schedule.begins == [0, *(shift + 3156 * tokens for tokens in range(1, TOKENS + 1))]
    updates = {0: 0, 3155: 0, 3156: 1, 6311: 1, 6312: 2, 46 * 3156 - 1: 45, 46 * 3156: 46, 200 * BATCHES: 46}
    assert {update: schedule.stage(shift + update) for update in updates} == updates
    assert schedule.unsmoothed == shift


@pytest.mark.parametrize(
    ("options", "begins"),
    [
        ({"advance": "epochs", "stages_per_epoch": 4}, [0, 2, 4, 6]),  # 2.5, rounded as Python does and as published
        ({"advance": "epochs", "stages_per_epoch": 8}, [0, 1, 2, 3]),
        (
            {"advance": "epochs", "stages_per_epoch": 100},
            [0, 0, 1, 2],
        ),  # more stages than updates: one each, from the first
        ({"advance": "epochs", "stages_per_epoch": 100, "first_epochs": 0.2}, [0, 2, 2, 2]),  # they are made up for
        ({"advance": "epochs", "stages_per_epoch": 0.5}, [0, 20, 40, 60]),
        ({"advance": "steps", "stage_steps": 10}, [0, 10, 20, 30]),
        ({"advance": "steps", "stage_steps": 10, "first_steps": 25}, [0, 25, 35, 45]),
    ],
)
def test_fixed_schedules(options: dict[str, Any], begins: list[int]):
    """Of four stages and ten updates per epoch. Accuracy does not change them."""
    schedule = Schedule(ScheduleOptions(**options), 4, 10)
    assert not schedule.advance(1000, 1.0)
    assert schedule.begins == begins


def test_epochs_need_an_end():
    with pytest.raises(InputError, match="a generated task has none"):
        Schedule(ScheduleOptions(advance="epochs"), 4, None)


def test_by_accuracy():
    """The threshold itself is enough. A stage begins after the next update, whose batch may be prepared already."""
    schedule = Schedule(ScheduleOptions(advance="accuracy", threshold=0.9), 3, None)
    assert not schedule.advance(25, 0.89)
    assert schedule.advance(50, 0.9)
    assert schedule.begins == [0, 51]
    assert [schedule.stage(update) for update in (50, 51)] == [0, 1]
    assert not schedule.advance(50, 1.0), "the stage has not begun"
    assert schedule.advance(75, 1.0)
    assert schedule.begins == [0, 51, 76]
    assert not schedule.advance(100, 1.0), "there is no further stage"
    assert schedule.stage(10**9) == 2


def test_no_stage_takes_longer_than_it_may():
    """Evaluated after every update, a stage that never passes uses exactly the updates that it may."""
    schedule = Schedule(ScheduleOptions(advance="accuracy", steps=200, stage_steps=30, first_steps=50), 4, None)
    for done in range(1, 200):
        schedule.advance(done, 0.0)
    assert schedule.begins == [0, 50, 80, 110]
    assert [schedule.longest(stage) for stage in range(4)] == [50, 30, 30, math.inf]
    half = Schedule(ScheduleOptions(advance="accuracy", steps=200, stage_steps=30), 2, None)
    assert [done for done in range(1, 200) if half.advance(done, 0.5)] == [99], "the first stage may take half of all"
    assert half.begins == [0, 100]


@given(
    st.sampled_from(("steps", "epochs", "accuracy")),
    st.integers(1, 8),
    st.integers(1, 40),
    st.integers(1, 40),
    st.floats(0.1, 9),
    st.floats(0, 2),
    st.lists(st.floats(0, 1), max_size=60),
)
def test_any_schedule(
    advance, stages: int, stage_steps: int, updates: int, per_epoch: float, first_epochs: float, accuracies: list[float]
):
    """Stages come in order, none is skipped or beyond the last, and the stage of an update never changes."""
    options = ScheduleOptions(
        advance=advance, stage_steps=stage_steps, stages_per_epoch=per_epoch, first_epochs=first_epochs
    )
    schedule = Schedule(options, stages, updates)
    before: list[int] = []
    for done, accuracy in enumerate(accuracies, start=1):
        before.append(schedule.stage(done - 1))
        began = schedule.advance(done, accuracy)
        assert began == (schedule.stage(done + 1) > schedule.stage(done)) or advance != "accuracy"
    assert before == [schedule.stage(update) for update in range(len(before))]
    assert schedule.begins[0] == 0
    assert len(schedule.begins) <= stages
    assert all(a < b for a, b in pairwise(schedule.begins))
    of_updates = [schedule.stage(update) for update in range(600)]
    assert of_updates[0] == 0
    assert all(b - a in (0, 1) for a, b in pairwise(of_updates))
    assert all(schedule.stage(first) == stage for stage, first in enumerate(schedule.begins))
