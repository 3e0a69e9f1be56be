"""lm/stages/removal.py: what a stage leaves of a chain, that it leaks nothing, and replayed examples."""

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from internalize import InputError
from internalize.lm.options import CurriculumOptions, LmMethod, LmTrainOptions, with_method
from internalize.lm.stages.chains import Chain
from internalize.lm.stages.removal import IGNORED, MAX_OFFSET, Row, TextStages, hidden_units, smoothing_offset, unit_of
from tests.lm_core import (
    ANSWER,
    FIRST,
    PLAIN,
    PROMPT,
    SLOT,
    chain,
    chances,
    curricula,
    data_sets,
    stages_of,
    tokens,
)

TOKENS = 46
TOKEN_CHAIN = chain(*[1] * TOKENS)
"""As long as the chain of a 4 × 4 digit multiplication, one token per unit."""


def row_of(stages: TextStages, chain: Chain, stage: int) -> Row:
    return stages.training(chain, stage, PLAIN)


@pytest.mark.parametrize("side", ["left", "right"])
def test_cutoff(side: str):
    """With cutoff 39, stage 38 removes 38 tokens and stage 39 all. Smoothing alone does not reach the cutoff."""
    stages = stages_of(TOKEN_CHAIN, method="icot", removal="delete", side=side, cutoff=39, smoothing=4.0)
    assert stages.hidden == (*range(39), TOKENS)
    assert stages.last == 39
    left = [len(row_of(stages, TOKEN_CHAIN, stage).tokens) - len(PROMPT + ANSWER) for stage in (38, 39)]
    assert left == [TOKENS - 38, 0]
    smoothed = stages.training(TOKEN_CHAIN, 38, (0.99, 0.0, 0.99, 0.99))
    assert len(smoothed.tokens) - len(PROMPT + ANSWER) == TOKENS - 39
    short = chain(*[1] * 10)  # hidden when its own tokens are
    assert [stages.hidden_units(short, stage) for stage in (9, 10, 38, 39)] == [9, 10, 10, 10]


@given(st.floats(0.01, 20), st.integers(0, MAX_OFFSET - 1))
def test_smoothing_is_exact(smoothing: float, offset: int):
    """P(o ≤ j) = 1 − e^(−λ(j+1)): the offset changes there and nowhere else."""
    tail = math.exp(-smoothing * (offset + 1))
    if tail > 1e-9:  # otherwise 1 − tail rounds the step away
        assert smoothing_offset(smoothing, 1 - tail * (1 + 1e-6)) <= offset
        assert smoothing_offset(smoothing, 1 - tail * (1 - 1e-6)) == offset + 1


def test_smoothing_ends():
    """λ = ∞ never hides more. The last of 100 offsets takes the tail."""
    assert [smoothing_offset(math.inf, number) for number in (0.0, 0.5, 1 - 2**-53)] == [0, 0, 0]
    assert [smoothing_offset(0.001, 1 - math.exp(-0.001 * o)) for o in (98.5, 99.5, 200, 9000)] == [98, 99, 99, 99]
    assert [smoothing_offset(5e-324, number) for number in (0.0, 0.5)] == [0, MAX_OFFSET]


def test_smoothing_in_a_row():
    """Smoothing hides more, but never more than there is, and only with smooth=True."""
    stages = stages_of(TOKEN_CHAIN, method="icot", removal="delete", smoothing=0.05)
    chance = (0.99, 0.0, 1 - math.exp(-0.05 * 7.5), 0.99)
    shown = [len(stages.training(TOKEN_CHAIN, stage, chance).tokens) - 6 for stage in (0, 10, 39, 40, 46)]
    assert shown == [39, 29, 0, 0, 0]
    assert stages.training(TOKEN_CHAIN, 10, chance, smooth=False) == row_of(stages, TOKEN_CHAIN, 10)
    padded = stages_of(TOKEN_CHAIN, method="icot", smoothing=0.05).training(TOKEN_CHAIN, 10, chance)
    assert padded.tokens == [*PROMPT, *[SLOT] * 17, *tokens(17, TOKENS), *ANSWER]


@pytest.mark.parametrize(
    ("elements", "hidden"), [(15, (0, 8, 12, 14)), (47, (0, 24, 36, 42, 45, 46)), (2, (0, 1)), (1, (0,))]
)
def test_log_icot_by_halving(elements: int, hidden: tuple[int, ...]):
    """The contract's numbers hold for steps of several tokens and for tokens."""
    by_tokens = stages_of(chain(*[1] * (elements - 1)), method="log-icot")
    by_steps = stages_of(chain(*[3] * (elements - 1)), method="log-icot")
    assert by_tokens.hidden == by_steps.hidden == by_tokens.stage_slots == hidden
    assert by_steps.stage_slots == tuple(3 * count for count in hidden)


def test_chains_of_different_lengths():
    """Each chain has the stages of its own length and stays at its last one. The slots may be those of the longest."""
    long, middle, short, none = chain(*[2] * 14), chain(*[3] * 6), chain(1), chain()
    stages = stages_of(long, middle, short, none, method="log-icot", slots="longest")
    hidden = [[stages.hidden_units(c, stage) for stage in range(stages.count)] for c in (long, middle, short, none)]
    assert hidden == [[0, 8, 12, 14], [0, 4, 6, 6], [0, 1, 1, 1], [0, 0, 0, 0]]
    assert stages.stage_slots == (0, 16, 24, 28)
    assert stages.count_slots == (0, 3, 6, 9, 12, 15, 18, 18, 18, 18, 20, 22, 24, 26, 28)
    assert row_of(stages, short, 1).tokens == [*PROMPT, *[SLOT] * 16, *ANSWER]


def test_one_stage_methods():
    """none and pause never show a chain, only pause has slots, and cot always shows the whole chain."""
    steps = chain(2, 3)
    rows = {m: row_of(stages_of(steps, method=m), steps, 0).tokens for m in ("none", "pause", "cot")}
    assert rows["none"] == [*PROMPT, *ANSWER]
    assert rows["pause"] == [*PROMPT, *[SLOT] * 5, *ANSWER]
    assert rows["cot"] == [*PROMPT, *tokens(0, 5), *ANSWER]
    assert [stages_of(steps, method=m).count for m in rows] == [1, 1, 1]


def test_a_chain_longer_than_any_measured():
    """Stages may be measured on a sample. The last stage shows nothing of any chain, however long."""
    for method, removal in (("icot", "delete"), ("icot-steps", "pad"), ("log-icot", "pad")):
        stages = stages_of(chain(1, 1), method=method, removal=removal)
        longer = chain(*[2] * 9)
        last = row_of(stages, longer, stages.last).tokens
        assert last == [*PROMPT, *[SLOT] * (2 if removal == "pad" else 0), *ANSWER]
        assert stages.prompt(longer, stages.last) == stages.prompt(chain(1, 1), stages.last)


def test_unit_of():
    """Only icot, doubling and the halving of tokens remove single tokens."""
    sources = ("given", "steps", "tokens")
    methods: tuple[LmMethod, ...] = ("cot", "icot", "icot-steps", "doubling", "log-icot")
    by_token = {(m, s) for m in methods for s in sources if unit_of(CurriculumOptions(method=m), s) == "token"}
    assert by_token == {(m, s) for m in ("icot", "doubling") for s in sources} | {("log-icot", "tokens")}


def test_doubling():
    """Doubling hides 0, 1, 3, 7, … units and takes neither side nor cutoff."""
    stages = stages_of(chain(*[2] * 5), method="doubling")
    assert stages.hidden == (0, 1, 3, 5)  # of five units
    with pytest.raises(InputError, match="doubling has its own removal"):
        CurriculumOptions("doubling", cutoff=3)


def test_levels_out_of_order():
    with pytest.raises(InputError, match=r"levels=\(2, 1\) decrease along the chain"):
        stages_of(chain(1, 1, levels=(2, 1)), method="log-icot")
    assert hidden_units(CurriculumOptions(method="icot-steps"), 2, (2, 1)) == (0, 1, 2)


@given(curricula(), data_sets())
def test_stages_of_any_curriculum(options: CurriculumOptions, chains: list[Chain]):
    """Hidden units and slots grow with the stages, and the last stage shows nothing, except of cot."""
    stages = TextStages.measure(options, chains, SLOT)
    assert stages.count == len(stages.hidden) == len(stages.stage_slots) == stages.last + 1
    for table in (stages.hidden, stages.stage_slots, stages.count_slots):
        assert all(a <= b for a, b in pairwise(table))
    for c in chains:
        hidden = [stages.hidden_units(c, stage) for stage in range(stages.count)]
        assert all(a <= b for a, b in pairwise(hidden))
        assert hidden[-1] == (0 if options.method == "cot" else len(c.units))
        assert options.method in ("none", "pause") or hidden[0] == 0
    by_stage = zip(*([stages.hidden_units(c, s) for s in range(stages.count)] for c in chains), strict=True)
    assert stages.hidden == tuple(map(max, by_stage))
    if options.thins:
        return
    for counts, slots in (
        *(([stages.hidden_units(c, s) for c in chains], stages.stage_slots[s]) for s in range(stages.count)),
        *(([min(n, len(c.units)) for c in chains], stages.count_slots[n]) for n in range(len(stages.count_slots))),
    ):
        hidden_parts = [
            sum(map(len, c.units[len(c.units) - count :] if options.side == "right" else c.units[:count]))
            for c, count in zip(chains, counts, strict=True)
        ]
        assert slots == slots_by_hand(options, hidden_parts, [sum(map(len, c.units)) for c in chains])


def slots_by_hand(options: CurriculumOptions, hidden_parts: list[int], whole: list[int]) -> int:
    """Return the number of slots for these numbers of hidden tokens, in chains of these numbers of tokens."""

    def percentile(values: list[int], percent: int) -> int:
        return min(v for v in values if 100 * sum(other <= v for other in values) >= percent * len(values))

    match options.slots:
        case int(most):
            return min(most, max(hidden_parts))
        case str(text) if options.padded:
            return percentile(hidden_parts, int(text.removeprefix("p")))
        case float(share) if options.padded:
            return min(math.ceil(share * percentile(whole, 50)), percentile(hidden_parts, 50))
        case _:
            return max(hidden_parts)


@given(curricula(), data_sets())
def test_prompts(options: CurriculumOptions, chains: list[Chain]):
    """At every stage all examples of one question have one prompt, whatever their steps and answers.

    A model is asked as it was trained: with the same tokens, and the next token at the same position.
    """
    stages = TextStages.measure(options, chains, SLOT)
    for stage in range(stages.count):
        prompt = stages.prompt(chains[0], stage)
        given_tokens = len(prompt.tokens)
        assert prompt.tokens[: len(PROMPT)] == list(PROMPT)
        assert set(prompt.tokens[len(PROMPT) :]) <= {SLOT}
        other = stages.prompt(Chain((7,), chains[0].units, chains[0].levels, (8, 9)), stage)
        assert other.tokens == [7, *prompt.tokens[len(PROMPT) :]], "as many slots for every question"
        for c in chains:
            assert stages.prompt(c, stage) == prompt
            row = stages.at_stage(c, stage)
            assert row.tokens[:given_tokens] == prompt.tokens
            assert row.labels[:given_tokens] == [IGNORED] * given_tokens
            if not options.thins:
                assert row.labels[given_tokens:] == row.tokens[given_tokens:]
            if options.side == "left" or stage == stages.last:
                assert row.positions[: given_tokens + 1] == prompt.positions


@given(curricula(), data_sets(), st.data())
def test_rows(options: CurriculumOptions, chains: list[Chain], data: st.DataObject):
    """A row is prompt, slots, shown units and answer, with loss on the last two and optionally on slots."""
    assume(not options.thins)
    stages = TextStages.measure(options, chains, SLOT)
    c = data.draw(st.sampled_from(chains))
    hidden, slots = data.draw(st.integers(0, len(c.units))), data.draw(st.integers(0, 30))
    supervise = data.draw(st.booleans()) and options.padded
    row = stages.sequence(c, hidden, (slots, 0), supervise_hidden=supervise)
    kept = len(c.units) - hidden
    gone, shown = (c.units[kept:], c.units[:kept]) if options.side == "right" else (c.units[:hidden], c.units[hidden:])
    places = slots if options.padded else 0
    written = [*(token for unit in shown for token in unit), *ANSWER]
    assert row.tokens == [*PROMPT, *[SLOT] * places, *written]
    assert len(row.labels) == len(row.positions) == len(row.tokens)
    assert row.labels[: len(PROMPT)] == [IGNORED] * len(PROMPT)
    assert row.labels[len(PROMPT) + places :] == written
    of_slots = row.labels[len(PROMPT) : len(PROMPT) + places]
    if supervise:
        flat = [token for unit in gone for token in unit]
        if len(flat) <= places:
            assert of_slots == ([IGNORED] * places + flat)[len(flat) :], "aligned to the right, next to what follows"
        elif places:
            ends = [flat.index(token) for token in of_slots]
            runs = [b - a for a, b in pairwise([-1, *ends])]
            assert ends[-1] == len(flat) - 1, "the last slot has the last token"
            assert max(runs) - min(runs) <= 1, "all slots stand for equally many tokens"
    else:
        assert of_slots == [IGNORED] * places
    assert row.positions[: len(PROMPT)] == list(range(len(PROMPT)))
    jumps = [b - a for a, b in pairwise(row.positions)]
    assert sorted(jumps)[:-1] == [1] * (len(jumps) - 1)
    assert max(jumps) == 1 + (slots if options.keep_positions and not options.padded else 0)


@pytest.mark.parametrize("method", ["icot-steps", "log-icot"])
def test_padding_is_in_place(method: str):
    """In chains of one shape every shown token stands where it stands in the full chain."""
    alike = [chain(2, 1, 3, 1, 2, first=first) for first in (FIRST, 200)]
    stages = stages_of(*alike, method=method)
    for c in alike:
        full = row_of(stages, c, 0).tokens
        for stage in range(stages.count):
            row = row_of(stages, c, stage).tokens
            assert len(row) == len(full)
            assert all(here in (there, SLOT) for here, there in zip(row, full, strict=True))
            assert row.count(SLOT) == stages.stage_slots[stage]


@pytest.mark.parametrize("side", ["left", "right"])
def test_kept_positions(side: str):
    """Every token that is left has its position of the full chain."""
    c = chain(2, 1, 3, 1)
    stages = stages_of(c, method="icot-steps", removal="delete", keep_positions=True, side=side)
    full = row_of(stages, c, 0)
    where = dict(zip(full.tokens, full.positions, strict=True))
    for stage in range(stages.count):
        row = row_of(stages, c, stage)
        assert row.positions == [where[token] for token in row.tokens]
    assert stages.prompt(c, stages.last).positions == [0, 1, 2, 10]
    assert stages.prompt(c, 1).positions == [0, 1, 2, 5 if side == "left" else 3], "on the right the steps come first"


def test_kept_positions_of_pause():
    """Slots fill the places, so there is no gap."""
    c = chain(2, 1)
    stages = stages_of(c, method="pause", removal="delete", keep_positions=True)
    assert stages.prompt(c, 0).positions == row_of(stages, c, 0).positions[:7] == list(range(7))


def test_hidden_loss():
    """The hidden tokens are the labels of the last slots. One random number decides this per example."""
    long, short = chain(1, 2, 1), chain(1, 1)
    stages = stages_of(long, short, method="icot-steps", hidden_loss=0.25, slots="longest")
    with_loss, without = (0.99, 0.0, 0.0, 0.2499), (0.99, 0.0, 0.0, 0.25)
    assert stages.training(long, 2, with_loss).labels == [*[IGNORED] * 3, *tokens(0, 3), *tokens(3, 4), *ANSWER]
    assert stages.training(short, 2, with_loss).labels == [*[IGNORED] * 4, *tokens(0, 2), *ANSWER]
    assert stages.training(long, 2, without) == row_of(stages, long, 2)
    assert stages.training(long, 2, with_loss).tokens == row_of(stages, long, 2).tokens


@given(curricula(), data_sets(), chances, st.data())
def test_any_training_row(options: CurriculumOptions, chains: list[Chain], chance: list[float], data: st.DataObject):
    """The slots of a row are those of its stage or of its count, and replay hides no more than the stage.

    Scattered replay hides any units and has a slot for each of their tokens.
    """
    stages = TextStages.measure(options, chains, SLOT)
    c, stage = data.draw(st.sampled_from(chains)), data.draw(st.integers(0, stages.last))
    row = stages.training(c, stage, chance, smooth=False)
    if options.replayed == "scattered" and chance[0] < options.replay and stage:
        rest = [unit for unit in c.units if unit[0] in row.tokens]
        assert [token for token in row.tokens if token != SLOT] == [*PROMPT, *sum(rest, ()), *ANSWER]
        assert len(row.tokens) == (len(c) if options.padded else len(PROMPT + ANSWER) + sum(map(len, rest)))
        return
    shown = len(row.tokens) - row.tokens.count(SLOT) - len(PROMPT + ANSWER)
    at_stage = stages.hidden_units(c, stage)
    units = reversed(c.units) if options.side == "left" else iter(c.units)
    kept = 0
    while shown > 0:
        shown -= len(next(units))
        kept += 1
    assert shown == 0, "whole units are shown"
    hidden = len(c.units) - kept
    assert hidden <= at_stage
    if chance[0] >= options.replay or stage == 0:
        assert hidden == at_stage
    allowed = {stages.stage_slots[s] for s in range(stage + 1)} | {stages.count_slots[hidden]}
    assert row.tokens.count(SLOT) in (allowed if options.padded else {0})


# Replay


def hidden_in(row: Row, c: Chain) -> int:
    """Count the one-token units that a row hides."""
    return len(c) - (len(row.tokens) - row.tokens.count(SLOT))


@pytest.mark.parametrize("replay_of", ["stages", "counts"])
def test_replay_of(replay_of: str):
    """Replay is uniform over the stages, or over the counts, up to the current one. The first stage has none."""
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
    """Any units are hidden in their places, with or without loss. With deletion the others may keep their positions."""
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
    """A unit is hidden if its number is below the example's, but never at the first stage or without replay."""
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
        ({"removal": "delete"}, "counts", 0.0),  # with scattered gaps the next step would be ambiguous
        ({"removal": "delete", "replay_of": "scattered"}, "scattered", 0.0),
        ({"replay": 0.0}, "scattered", 0.0),  # nothing is replayed
        ({"slots": 3}, "counts", 0.0),  # scattered replay may need more slots
        ({"slots": "p90"}, "scattered", 1.0),
        ({"slots": 0.5}, "scattered", 1.0),
        ({"method": "cot"}, "scattered", 0.0),
        ({"method": "pause"}, "scattered", 0.0),  # its slots stand for no tokens
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
