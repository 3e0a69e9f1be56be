"""The signal of a stage of two levels at W = 0: exact against all inputs through autograd, and its leading order."""

import pytest
import torch

from internalize import InputError
from internalize.parity.model.link import get_link
from internalize.parity.model.transformer import LevelTransformer
from internalize.parity.task.data import add_trace
from internalize.parity.task.tree import Levels, ParityTree
from internalize.parity.theory.chunks import chunk_signal, leading_signal


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
        assert abs(float(upper[stranger, 0] - upper[leaf, 0]) - found.upper) < 1e-12
        # All columns of layer 1 are equal. A node of level 2 reads k/2 of them, so the stage's gradient has this share.
        assert abs(float(lower[stranger, 0] - lower[leaf, 0]) - found.lower) < 1e-12


def test_leading_order():
    """The exact signals approach F‴/(M n³) and H‴/(M n⁴), and both signs of F‴ occur."""
    for k_share, sign in ((2, 1), (16, -1)):
        errors = []
        for n in (256, 1024):
            levels = Levels(n, n // k_share)
            exact, leading = chunk_signal(levels), leading_signal(levels)
            assert exact.upper * sign > 0
            errors.append((abs(exact.upper / leading.upper - 1), abs(exact.lower / leading.lower - 1)))
        assert all(late < 0.35 * early for early, late in zip(*errors, strict=True))
        assert max(errors[-1]) < 0.1
    with pytest.raises(InputError, match="need k ≥ 4"):
        chunk_signal(Levels(8, 2))
