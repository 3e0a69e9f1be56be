"""A hidden level that gets no stage of its own keeps equal columns: exactly, if every column is summed in one order."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from internalize.parity.adamw.ensemble import Training
from internalize.parity.algorithm1.recovery import quantize
from internalize.parity.certificates.symmetry import blocks, level_spread
from internalize.parity.model.link import COSINE, QUARTIC, Link
from internalize.parity.model.literal import LiteralTransformer
from internalize.parity.model.loss import stage_loss
from internalize.parity.model.transformer import LevelTransformer
from internalize.parity.model.weights import full_weights
from internalize.parity.options import TrainOptions
from internalize.parity.task.data import add_trace, draw_bits, stage_input
from internalize.parity.task.stages import ParityStage, parity_stages
from internalize.parity.task.tree import Levels, ParityTree


def column_by_column(W: list[nn.Parameter], bits: Tensor, layers: int, link: Link) -> Tensor:
    """Return the nodes of the last of these layers, samples × nodes. Every node and key is summed by the same loop."""
    X = bits.T.contiguous()
    new = X
    for w in W[:layers]:
        new = torch.stack([link((X * a.softmax(0)[:, None]).sum(0)) for a in w.unbind(1)])
        X = torch.cat([X, new])
    return new.T


def gradient_descent(W: list[nn.Parameter]) -> Callable[[], None]:
    return torch.optim.SGD(W, lr=30.0).step  # type: ignore[return-value]


def momentum(W: list[nn.Parameter]) -> Callable[[], None]:
    return torch.optim.SGD(W, lr=10.0, momentum=0.9).step  # type: ignore[return-value]


def adamw(W: list[nn.Parameter]) -> Callable[[], None]:
    return torch.optim.AdamW(W, lr=0.1).step  # type: ignore[return-value]


def rounded(W: list[nn.Parameter]) -> Callable[[], None]:
    """Return a step of Algorithm 1, with a grid that is fine enough for the weights to move."""

    def step() -> None:
        with torch.no_grad():
            for w in W:
                assert w.grad is not None
                w.copy_(quantize(w - 200 * w.grad, 0.25))

    return step


@pytest.mark.parametrize("link", [COSINE, QUARTIC], ids=lambda link: link.name)
@pytest.mark.parametrize("optimizer", [gradient_descent, momentum, adamw, rounded])
def test_the_reference_keeps_a_skipped_level_collapsed_exactly(optimizer, link: Link):
    """Skip level 1 of k = 8, then train level 2 and, as a later stage, the root: the spread is 0.0 at every step."""
    tree, batch = ParityTree.draw(13, 8, 0), 64
    W = list(LevelTransformer(13, 8, dtype=torch.float64).parameters())
    for layers in (2, 3):
        step = optimizer(W[:layers])
        for number in range(60):
            bits = draw_bits(13, layers, number * batch, batch, dtype=torch.float64)
            truth = add_trace(tree, bits)[:, tree.levels.span(layers)]
            for w in W:
                w.grad = None
            ((column_by_column(W, bits, layers, link) - truth).square().sum() / 2 / batch).backward()
            step()
            assert level_spread(W, tree.levels, 1) == 0.0
        assert all(bool(w.any()) for w in W[: layers - 1])


def test_the_literal_models_gradient_is_collapsed():
    """Definition 3 as printed, by autograd: at collapsed weights that are not 0 the gradient's spread is rounding."""
    tree, levels = ParityTree.draw(8, 8, 1), Levels(8, 8)
    stage = ParityStage(tuple(levels.nodes(1)), (*levels.nodes(2), *levels.nodes(3)), 2)
    generator = torch.Generator().manual_seed(0)
    W = [torch.randn(w.shape, generator=generator, dtype=torch.float64) for w in LevelTransformer(8, 8).W]
    W[0][:] = W[0][:, :1]
    for w in W[1:]:
        w[levels.span(1)] = w[levels.span(1)][:1]
    whole = [w.requires_grad_() for w in full_weights(W, levels)]
    sequence = add_trace(tree, draw_bits(8, 2, 0, 9, dtype=torch.float64))
    output = LiteralTransformer(levels)(whole, stage_input(sequence, stage), stage.layers)
    found = torch.autograd.grad(stage_loss(output, sequence, stage), whole, materialize_grads=True)
    gradients = [g[: levels.level_end[layer], levels.span(layer + 1)] for layer, g in enumerate(found)]
    assert float(gradients[0].abs().max()) > 1e-4
    assert level_spread(gradients, levels, 1) < 1e-15


def skipping(level: int, **changes) -> Training:
    """Return training from W = 0 whose curriculum has no stage for a level."""
    options: dict[str, Any] = {"n": 16, "k": 8, "batch": 257, "steps": 1000} | changes
    training = Training(TrainOptions(**options), (0,))
    training.stages = tuple(stage for stage in training.stages if stage.layers != level)
    return training


def spread_after(training: Training, updates: int) -> float:
    for _ in range(updates):
        training.update()
    return level_spread([w.detach() for w in training.model.W], training.levels, 1)  # type: ignore[union-attr]


def test_fast_training_differs_by_rounding_only():
    """Products of matrices sum some columns in another order; the spread begins with the last bit of a weight."""
    assert spread_after(skipping(1, dtype="float64"), 10) < 1e-14
    assert spread_after(skipping(1), 10) < 1e-5


def test_collapsed_weights_are_a_saddle():
    """A difference of 1e-9 between two columns grows, where exact equality would stay: rounding may break symmetry."""
    training = skipping(1, dtype="float64")
    with torch.no_grad():
        training.model.W[0][..., 0, 0] += 1e-9  # type: ignore[union-attr, index]
    assert spread_after(training, 20) < 1e-6
    assert spread_after(training, 600) > 0.1


def test_blocks_are_the_hidden_nodes_without_a_loss():
    """Log-ICoT hides whole levels; ICoT leaves the supervised nodes of a level out; nothing is a block of one node."""
    levels = Levels(30, 16)
    by_level = parity_stages(levels, TrainOptions(curriculum="log-icot").schedule())
    assert [len(blocks(levels, stage)) for stage in by_level] == [0, 1, 2, 3]
    assert blocks(levels, by_level[-1])[-1] == list(levels.nodes(3))
    some = parity_stages(levels, TrainOptions(curriculum="icot", chunk=10).schedule())
    assert [stage.layers for stage in some] == [1, 2, 4]
    assert blocks(levels, some[1]) == [list(levels.nodes(1))]
