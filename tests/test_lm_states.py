"""The parts of `lm probe`: the linear probe, where tokens stand, gradient signal over noise."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from internalize.lm.options import CurriculumOptions
from internalize.lm.probe.discriminant import chance, fit
from internalize.lm.probe.gradient_signal import _signal_and_noise
from internalize.lm.probe.states import Budget, Cells, cells_of, places
from internalize.lm.stages.chains import Chain
from internalize.lm.stages.removal import IGNORED, TextStages
from tests.lm_core import SLOT, chain, curricula, data_sets


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(5))
def test_random_tokens_are_read_at_chance(seed: int):
    states = drawn(2000, 40, seed=seed)
    tokens = (drawn(2000, seed=100 + seed) > 0).long()
    accuracy = fit(states[:1000], tokens[:1000]).accuracy(states[1000:], tokens[1000:])
    assert abs(accuracy - 0.5) < 3 * (0.25 / 1000) ** 0.5


def test_a_linear_direction_is_read():
    """A probe reads a direction of its own, however small beside the others, but not the parity of two directions."""
    states, tokens = drawn(1000, 30), (drawn(1000, seed=1) > 0).long() + 7
    states *= torch.logspace(-3, 3, 30)
    assert fit(states[:500], tokens[:500]).accuracy(states[500:], tokens[500:]) < 0.6
    states[:, 3] = 1e-3 * (tokens - 7.5)
    found = fit(states[:500], tokens[:500])
    assert found.accuracy(states[500:], tokens[500:]) == 1
    assert set(found.read(states).tolist()) == {7, 8}
    product = (states[:, 10] * states[:, 20] > 0).long()
    assert fit(states[:500], product[:500]).accuracy(states[500:], product[500:]) < 0.6


def test_tokens_in_the_middle_are_read_too():
    """Regression on indicators would never read the second of three tokens on a line."""
    tokens = torch.arange(900) % 3
    states = tokens[:, None].float() + 0.05 * drawn(900, 1)
    indicators = torch.nn.functional.one_hot(tokens).double()
    line = torch.cat([states.double(), torch.ones(900, 1)], 1)
    by_regression = (line @ torch.linalg.lstsq(line, indicators).solution).argmax(1)
    assert not bool((by_regression == 1)[tokens == 1].any())
    assert fit(states[:450], tokens[:450]).accuracy(states[450:], tokens[450:]) == 1


def test_a_token_that_was_never_seen_is_never_read():
    tokens = torch.tensor([3, 3, 3, 5, 5, 3])
    assert chance(tokens) == 4 / 6
    states = (tokens == 5).float()[:, None]
    assert fit(states[:3], tokens[:3]).read(states).tolist() == [3] * 6


@given(chains=data_sets(), options=curricula(), data=st.data())
def test_tokens_stand_where_the_loss_would_look_for_them(
    chains: list[Chain], options: CurriculumOptions, data: st.DataObject
):
    stages = TextStages.measure(options, chains, SLOT)
    stage = data.draw(st.integers(0, stages.last))
    hidden = data.draw(st.integers(0, len(stages.count_slots) - 1))
    for budget in (Budget(stages.hidden[stage], stage), Budget.of(stages, hidden), Budget(hidden, None)):
        for each in chains:
            row, found = places(stages, each, budget)
            count, slots = budget.of_chain(stages, each)
            labels = stages.sequence(each, count, slots, supervise_hidden=options.padded).labels
            assert [place.token for place in found] == [token for unit in (*each.units, each.answer) for token in unit]
            for token, own, predicted, shown in found:
                assert 0 <= predicted < len(labels)
                if shown:
                    assert row.tokens[own] == labels[own] == token
                    assert predicted == own - 1
                elif own != predicted:  # it has a slot
                    assert (row.tokens[own], labels[own]) == (SLOT, token)
                    assert predicted == own - 1
                elif row.tokens[own] == SLOT:  # the next hidden token has a slot
                    hidden_part = [place.token for place in found if not place.shown]
                    assert labels[own] in hidden_part[hidden_part.index(token) + 1 :]
                else:  # where the model is about to write what comes after the gap
                    assert labels[own] == IGNORED or options.side == "right" or options.thins
            gone = sum(
                map(len, each.units[len(each.units) - count :] if options.side == "right" else each.units[:count])
            )
            assert options.thins or [place.shown for place in found].count(False) == gone


def test_cells_of_chains_of_different_lengths():
    chains = [chain(1, 2), chain(1, first=200), chain(2, 2, first=300)]
    stages = TextStages.measure(CurriculumOptions(method="cot"), chains, SLOT)
    found = [places(stages, each, Budget(0, 0))[1] for each in chains]
    cells = cells_of(chains, found, lambda tokens: len(tokens.unique()) > 1)  # the answers are all the same
    assert cells.keys == [(0, 0), (1, 0), (1, 1)]  # (0, 1) is in one chain only
    assert cells.tokens.tolist() == [[100, 101, 102], [200, IGNORED, IGNORED], [300, 302, 303]]
    assert cells.having(1).tolist() == [True, False, True]
    assert cells.predicted[2].tolist() == [2, 4, 5]


def test_signal_and_noise():
    tokens = (torch.arange(600) % 3)[:, None]
    cells = Cells([(0, 0)], tokens, tokens, tokens, tokens > 5)
    noise = drawn(600, 200)
    signal, error = _signal_and_noise(cells, noise, 0)
    assert error == pytest.approx((3 * 200 / 600) ** 0.5, rel=0.02)  # 200 examples a value, 200 coordinates, 3 values
    assert signal / error == pytest.approx(1, abs=0.1)
    means = torch.zeros(3, 200)
    means[0, 0], means[1, 0], means[2, 1] = 4, -4, 4
    signal, error = _signal_and_noise(cells, noise + means[tokens[:, 0]], 0)
    assert signal == pytest.approx(4, rel=0.05)
    assert error == pytest.approx(1, rel=0.02)
