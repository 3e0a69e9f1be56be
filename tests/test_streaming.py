"""streaming.py: what Algorithm 1 computes in chunks is the gradient of the paper's loss on the curriculum's inputs."""

import pytest
import torch

from internalize import Curriculum
from internalize.curriculum import Method
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
from tests.strategies import randomised

TREES = [ParityTree.draw(10, 8, 1), ParityTree(9, (0, 1, 2, 3, 4, 5, 7, 8), (8, 0, 5, 2, 1, 7, 3, 4))]


@pytest.mark.parametrize("method", ["log-icot", "icot"])
@pytest.mark.parametrize("tree", TREES, ids=["drawn", "paired"])
@pytest.mark.parametrize("name", ["cosine", "quartic"])
def test_a_stage_is_the_curriculums(name: str, tree: ParityTree, method: Method):
    """Both ways to the gradient equal autograd of the printed loss on the padded input, at any weights and at W = 0."""
    link = get_link(name)
    samples = Samples(tree, 3, 1000, 300, dtype=torch.float64, chunk=77)
    sequence = add_trace(tree, draw_bits(tree.n, 3, 1000, 300, dtype=torch.float64))
    for stage in parity_stages(tree.levels, Curriculum(method)):
        top, hidden = stage.layers - 1, stage.supervised[0] - tree.levels.nodes(stage.layers).start
        model = randomised(LevelTransformer(tree.n, tree.k, link, dtype=torch.float64))
        wanted: list[torch.Tensor] = []
        for scale in (1.0, 0.0):
            model.W[top].data *= scale
            loss = stage_loss(model(stage_input(sequence, stage), stage.layers), sequence, stage)
            wanted = list(torch.autograd.grad(loss, list(model.W)[: stage.layers]))
            found = all_gradients(samples, list(model.W), link, top, hidden)
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
        # With W = 0 in the layer that is read. Columns of hidden nodes are for the caller to drop.
        everything, last = range(tree.levels.width(top + 1)), [tree.levels.width(top + 1) - 1]
        for columns, of in ((None, everything[hidden:]), (last, last)):
            found = gradient_at_zero(samples, list(model.W)[:top], link, columns)[:, -len(of) :]
            torch.testing.assert_close(found, wanted[top][:, list(of)], rtol=0, atol=1e-12)
