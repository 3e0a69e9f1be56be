"""streaming.py: what Algorithm 1 computes in chunks is the gradient of the paper's loss on the curriculum's inputs."""

import pytest
import torch

from internalize import Curriculum
from internalize.parity import (
    LevelTransformer,
    ParityTree,
    add_trace,
    draw_bits,
    get_link,
    parity_stages,
    stage_input,
    stage_loss,
)
from internalize.parity.algorithm1.streaming import Samples, all_gradients, gradient_at_zero


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_stage_is_the_curriculums(stage: int):
    """Both ways to the gradient equal autograd of the printed loss on the padded input of Log-ICoT's stage."""
    tree, link = ParityTree.draw(10, 8, 1), get_link("cosine")
    now = parity_stages(tree.levels, Curriculum("log-icot"))[stage]
    generator = torch.Generator().manual_seed(0)
    model = LevelTransformer(10, 8, dtype=torch.float64)
    with torch.no_grad():
        for W in list(model.W)[:stage]:
            W.normal_(std=2.0, generator=generator)
    samples = Samples(tree, 3, 0, 300, dtype=torch.float64, chunk=70)
    sequence = add_trace(tree, draw_bits(10, 3, 0, 300, dtype=torch.float64))
    stage_loss(model(stage_input(sequence, now), now.layers), sequence, now).backward()
    W = [w.detach() for w in model.W]
    torch.testing.assert_close(gradient_at_zero(samples, W[:stage], link), model.W[stage].grad, rtol=0, atol=1e-12)
    last = [tree.levels.width(stage + 1) - 1]
    some = gradient_at_zero(samples, W[:stage], link, columns=last)
    torch.testing.assert_close(some, model.W[stage].grad[:, last], rtol=0, atol=1e-12)
    for layer, found in enumerate(all_gradients(samples, W, link, stage)):
        torch.testing.assert_close(found, model.W[layer].grad, rtol=0, atol=1e-12)
