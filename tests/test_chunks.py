"""The signal and the noise of a stage of several levels at W = 0: exact against all inputs, and the leading order."""

import math

import pytest
import torch

from internalize import InputError
from internalize.parity.model.link import get_link
from internalize.parity.model.transformer import LevelTransformer
from internalize.parity.task.data import add_trace
from internalize.parity.task.tree import Levels, ParityTree
from internalize.parity.theory.chunks import ChunkSignal, chunk_signal, leading_signal
from internalize.parity.theory.population import population


@pytest.mark.parametrize("link", ["cosine", "quartic"])
@pytest.mark.parametrize(("n", "k"), [(5, 4), (8, 4), (9, 8), (11, 4)])
def test_signals_are_those_of_all_inputs(n: int, k: int, link: str):
    tree, model = ParityTree.draw(n, k, 3), LevelTransformer(n, k, get_link(link), dtype=torch.float64)
    bits = 1.0 - 2.0 * ((torch.arange(2**n).unsqueeze(1) >> torch.arange(n)) & 1).double()
    truth = add_trace(tree, bits)[:, tree.levels.span(2)]
    ((model.by_level(bits, layers=2)[-1] - truth).square().sum(1).mean() / 2).backward()
    lower, upper = (w.grad for w in list(model.W)[:2])
    assert lower is not None
    assert upper is not None
    below = [j for child in tree.children(tree.levels.nodes(2)[0]) for j in tree.children(child)]
    stranger = next(j for j in range(n) if j not in tree.secret)
    found = chunk_signal(tree.levels, get_link(link))
    for leaf in below:
        assert abs(float(upper[stranger, 0] - upper[leaf, 0]) - found.signal[1]) < 1e-12
        # All columns of layer 1 are equal. A node of level 2 reads k/2 of them, so the stage's gradient has this share.
        assert abs(float(lower[stranger, 0] - lower[leaf, 0]) - found.signal[0]) < 1e-12


@pytest.mark.parametrize("link", ["cosine", "quartic"])
@pytest.mark.parametrize(("n", "k", "count"), [(6, 4, 1), (7, 4, 2), (9, 8, 2), (10, 8, 3), (11, 8, 3)])
def test_signals_and_noises_are_those_of_every_sample(n: int, k: int, count: int, link: str):
    """Each input is a run of its own, so autograd gives its gradient alone: their moments over all 2^n inputs."""
    tree, model = ParityTree.draw(n, k, 5), LevelTransformer(n, k, get_link(link), (2**n,), torch.float64)
    bits = 1.0 - 2.0 * ((torch.arange(2**n).unsqueeze(1) >> torch.arange(n)) & 1).double()
    truth = add_trace(tree, bits)[:, tree.levels.span(count)].unsqueeze(1)
    ((model.by_level(bits.unsqueeze(1), layers=count)[-1] - truth).square().sum() / 2).backward()
    found = chunk_signal(tree.levels, get_link(link), count)
    stranger = next(j for j in range(n) if j not in tree.secret)
    below = [tree.levels.nodes(count)[0]]
    for _ in range(count):
        below = [j for m in below for j in tree.children(m)]
    for layer, w in enumerate(list(model.W)[:count]):
        assert w.grad is not None
        own = w.grad[:, stranger, 0]
        assert abs(float(own.std(correction=0)) - found.noise[layer]) < 1e-12
        assert abs(float((own - w.grad[:, below[-1], 0]).mean()) - found.signal[layer]) < 1e-12


def test_one_level_is_the_stage_of_the_paper():
    exact, found = population(Levels(30, 16))[0], chunk_signal(Levels(30, 16), count=1)
    child, outside = float(exact.mean[0]), float(exact.mean[1])
    assert found.signal[0] == pytest.approx(outside - child)
    assert found.noise[0] ** 2 == pytest.approx(float(exact.variance[-1]))


def test_pace():
    """Twice the rate or four times the batch halve the updates; a negative signal never arrives."""
    found = chunk_signal(Levels(24, 8))
    assert found.updates(500, 0.1) == pytest.approx(found.noise[0] / found.signal[0] / 0.1 / 500**0.5)
    assert found.updates(2000, 0.1) == pytest.approx(found.updates(500, 0.2))
    assert ChunkSignal((-1.0,), (1.0,)).updates(500, 0.1) == math.inf


def test_leading_order():
    """The exact signals approach F‴/(M n³) and H‴/(M n⁴), and both signs of F‴ occur."""
    for k_share, sign in ((2, 1), (16, -1)):
        errors = []
        for n in (256, 1024):
            levels = Levels(n, n // k_share)
            exact, leading = chunk_signal(levels), leading_signal(levels)
            assert exact.signal[1] * sign > 0
            errors.append(tuple(abs(own / order - 1) for own, order in zip(exact.signal, leading, strict=True)))
        assert all(late < 0.35 * early for early, late in zip(*errors, strict=True))
        assert max(errors[-1]) < 0.1
    with pytest.raises(InputError, match="need k ≥ 4"):
        chunk_signal(Levels(8, 2))
    with pytest.raises(InputError, match="needs n > k"):
        chunk_signal(Levels(8, 8))
