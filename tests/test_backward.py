"""backward.py: gradients by hand are those of autograd and of the model as printed."""

import pytest
import torch

from internalize import Curriculum
from internalize.curriculum import Method
from internalize.parity import (
    LevelTransformer,
    LiteralTransformer,
    ParityTree,
    get_link,
    level_loss,
    parity_stages,
    stage_input,
    stage_loss,
)
from internalize.parity.model.backward import LevelGradients
from internalize.parity.model.weights import full_weights
from internalize.parity.task.data import draw_sequences


def models(n: int, k: int, runs: int, link: str) -> LevelTransformer:
    """A model with random weights."""
    model = LevelTransformer(n, k, get_link(link), (runs,), torch.float64)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for w in model.parameters():
            w.normal_(generator=generator)
    return model


@pytest.mark.parametrize("link", ["cosine", "quartic"])
@pytest.mark.parametrize("method", ["log-icot", "icot", "none"])
def test_by_hand_as_by_autograd(method: Method, link: str):
    """Every stage, also those that supervise a part of a level; other batches in between leave nothing behind."""
    trees = [ParityTree.draw(10, 8, seed) for seed in range(3)]
    model = models(10, 8, 3, link)
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


def test_by_hand_as_printed():
    """Against Definition 3's own matrices: the gradient of the printed loss in the block of W that a layer reads."""
    tree = ParityTree.draw(6, 4, 0)
    model = models(6, 4, 1, "cosine")
    by_hand, literal = LevelGradients(model), LiteralTransformer(tree.levels)
    signs = draw_sequences(tree, 2, 0, 12).unsqueeze(0)
    sequence = signs[0].T.double()
    for stage in parity_stages(tree.levels, Curriculum("log-icot")):
        losses = by_hand(signs, stage)
        W = [w.detach()[0].requires_grad_() for w in full_weights(model.parameters(), tree.levels)]
        loss = stage_loss(literal(W, stage_input(sequence, stage), stage.layers), sequence, stage)
        gradients = torch.autograd.grad(loss, W)
        assert float(losses) == pytest.approx(float(loss.detach()), abs=1e-14)
        for layer, w in enumerate(list(model.parameters())[: stage.layers]):
            nodes = tree.levels.nodes(layer + 1)
            block = gradients[layer][: nodes.start, nodes.start : nodes.stop]
            assert w.grad is not None
            torch.testing.assert_close(w.grad[0], block, rtol=0, atol=1e-13)
