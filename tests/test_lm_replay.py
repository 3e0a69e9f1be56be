"""lm/stages/removal.py: replayed examples, of earlier stages, of smaller counts, and with steps scattered over the chain."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from internalize.lm.options import LmTrainOptions, with_method
from internalize.lm.stages.chains import Chain
from internalize.lm.stages.removal import IGNORED, Row
from tests.lm_core import ANSWER, PROMPT, SLOT, chain
from tests.test_lm_removal import stages_of, tokens


def hidden_in(row: Row, c: Chain) -> int:
    """How many one-token units a row hides."""
    return len(c) - (len(row.tokens) - row.tokens.count(SLOT))


@pytest.mark.parametrize("replay_of", ["stages", "counts"])
def test_replay_of(replay_of: str):
    """Evenly over the stages, or over the counts, up to the current one; none at the first stage."""
    c = chain(*[1] * 14)
    stages = stages_of(c, method="log-icot", replay=0.5, replay_of=replay_of)
    numbers = [(i + 0.5) / 1300 for i in range(1300)]
    drawn = [hidden_in(stages.training(c, 2, (0.4999, number, 0.0, 0.0)), c) for number in numbers]
    kinds = (0, 8, 12) if replay_of == "stages" else range(13)
    assert sorted(set(drawn)) == list(kinds)
    assert {drawn.count(kind) // (len(drawn) // len(kinds)) for kind in kinds} == {1}
    assert drawn == sorted(drawn)
    assert {hidden_in(stages.training(c, 2, (0.5, number, 0.0, 0.0)), c) for number in numbers} == {12}
    assert {hidden_in(stages.training(c, 0, (0.0, number, 0.0, 0.0)), c) for number in numbers} == {0}


def test_scattered():
    """Any units hidden, each in its place, with the loss on their tokens or without; deleted, the others keep their positions."""
    c = chain(2, 1, 3, 1)
    gone = (True, False, True, False)
    padding = stages_of(c, replay_of="scattered")
    deleting = stages_of(c, replay_of="scattered", removal="delete")
    keeping = stages_of(c, replay_of="scattered", removal="delete", keep_positions=True)
    row = padding.scattered(c, gone)
    assert row.tokens == [*PROMPT, SLOT, SLOT, *tokens(2, 3), *[SLOT] * 3, *tokens(6, 7), *ANSWER]
    assert row.labels == [*[IGNORED] * 5, *tokens(2, 3), *[IGNORED] * 3, *tokens(6, 7), *ANSWER]
    supervised = padding.scattered(c, gone, supervise_hidden=True)
    assert supervised.tokens == row.tokens
    assert supervised.labels == [*[IGNORED] * 3, *tokens(0, 7), *ANSWER]
    for stages, positions in ((deleting, range(8)), (keeping, [0, 1, 2, 5, 9, 10, 11, 12])):
        rest = stages.scattered(c, gone, supervise_hidden=True)
        assert rest.tokens == [*PROMPT, *tokens(2, 3), *tokens(6, 7), *ANSWER]
        assert rest.labels == [*[IGNORED] * 3, *rest.tokens[3:]]
        assert rest.positions == list(positions)


@given(st.lists(st.booleans(), min_size=4, max_size=4), st.floats(0.01, 0.99), st.floats(0, 1, exclude_max=True))
def test_scattered_replay(gone: list[bool], share: float, smoothing: float):
    """A unit goes if its number is below the example's; at the first stage and without replay none does by chance."""
    c = chain(2, 1, 3, 1)
    stages = stages_of(c, method="log-icot", replay=0.5, replay_of="scattered", hidden_loss=0.5, smoothing=0.5)
    units = [share / 2 if one else (1 + share) / 2 for one in gone]
    for loss in (0.4, 0.6):
        row = stages.training(c, 1, (0.4, share, smoothing, loss, *units))
        assert row == stages.scattered(c, gone, supervise_hidden=loss < 0.5)
    plain = (0.6, share, 0.0, 0.9)
    assert stages.training(c, 1, (*plain, *units)) == stages.training(c, 1, plain)
    assert stages.training(c, 0, (0.4, *plain[1:], *units)) == stages.training(c, 0, plain)


@pytest.mark.parametrize(
    ("asked", "replayed", "loss"),
    [
        ({}, "scattered", 1.0),
        ({"replay_of": "counts"}, "counts", 0.0),
        ({"hidden_loss": 0.25}, "scattered", 0.25),
        ({"replay_of": "stages", "hidden_loss": 1.0}, "stages", 1.0),
        ({"removal": "delete"}, "counts", 0.0),  # deleted here and there, nobody could tell which step comes next
        ({"removal": "delete", "replay_of": "scattered"}, "scattered", 0.0),
        ({"replay": 0.0}, "scattered", 0.0),  # nothing is replayed
        ({"slots": 3}, "counts", 0.0),  # fewer slots than it would leave
        ({"method": "cot"}, "scattered", 0.0),
        ({"method": "pause"}, "scattered", 0.0),  # its slots stand for nothing
        ({"method": "pause", "hidden_loss": 0.5}, "scattered", 0.5),
    ],
)
def test_what_is_replayed_by_default(asked: dict[str, Any], replayed: str, loss: float):
    options = LmTrainOptions(**asked)
    assert (options.replayed, options.slot_loss) == (replayed, loss)
    resolved = options.as_json()
    assert (resolved["replay_of"], resolved["hidden_loss"]) == (replayed, loss)


def test_a_comparison_has_pause_without_the_chain():
    options = LmTrainOptions(hidden_loss=1.0)
    assert with_method(options, "pause").slot_loss == 0
    assert with_method(options, "icot").slot_loss == 1
