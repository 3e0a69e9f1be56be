"""backward.py: gradients by hand are those of autograd, which test_transformer.py compares with the model as printed."""

import pytest
import torch

from internalize import Curriculum
from internalize.curriculum import Method
from internalize.parity import LevelTransformer, ParityTree, get_link, level_loss, parity_stages
from internalize.parity.model.backward import LevelGradients
from internalize.parity.task.data import draw_sequences
from tests.strategies import randomised


@pytest.mark.parametrize("link", ["cosine", "quartic"])
@pytest.mark.parametrize("method", ["log-icot", "icot", "none"])
def test_by_hand_as_by_autograd(method: Method, link: str):
    """Every stage, also those that supervise a part of a level; other batches in between leave nothing behind."""
    trees = [ParityTree.draw(10, 8, seed) for seed in range(3)]
    model = randomised(LevelTransformer(10, 8, get_link(link), (3,), torch.float64))
    by_hand = LevelGradients(model)
    for number, stage in enumerate(parity_stages(trees[0].levels, Curriculum(method))):
        B = 40 + 7 * (number % 2)
        signs = torch.stack([draw_sequences(tree, 5, 0, B) for tree in trees])
        losses = by_hand(signs, stage)
        found = [w.grad for w in model.parameters()]
        model.zero_grad()
        expected = level_loss(model, signs.double().mT, stage)
        expected.sum().backward()
        torch.testing.assert_close(losses, expected.detach(), rtol=0, atol=1e-14)
        for layer, w in enumerate(model.parameters()):
            if layer >= stage.layers:
                assert found[layer] is None  # None, not zero: AdamW skips the layer
                assert w.grad is None
            else:
                torch.testing.assert_close(found[layer], w.grad, rtol=0, atol=1e-14)
