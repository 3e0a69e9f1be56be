"""Gradients of Algorithm 1: counted ones are within the bound, those in chunks are of the printed loss."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

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
from internalize.parity.algorithm1 import counting as engine
from internalize.parity.algorithm1.counting import counted_gradient, counting_bound, gradient_to_round
from internalize.parity.algorithm1.recovery import off_child_share, recovered_weights
from internalize.parity.algorithm1.streaming import Samples, all_gradients, gradient_at_zero
from internalize.parity.theory.freezing import off_child_mass
from tests.strategies import randomized

COSINE = get_link("cosine")


def masses(tree: ParityTree, W: list[Tensor]) -> list[float]:
    return [off_child_share(w, tree.layer_children(layer)) for layer, w in enumerate(W)]


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("link", ["cosine", "quartic"])
@pytest.mark.parametrize(("n", "k", "chunk"), [(2, 2, None), (6, 4, 100), (30, 16, None), (64, 64, 150), (130, 32, 64)])
def test_counting_is_the_gradient(
    n: int, k: int, chunk: int | None, link: str, native: bool, monkeypatch: pytest.MonkeyPatch
):
    """On true states counting is exact to rounding: at every stage, in chunks or not, in C or numpy."""
    monkeypatch.setattr(engine, "use_native", lambda pairs: native)  # pyright: ignore[reportUnknownLambdaType]
    tree, phi = ParityTree.draw(n, k, 2), get_link(link)
    samples = Samples(tree, 3, 17, 331, dtype=torch.float64, chunk=chunk)
    for stage in range(tree.L):
        W = recovered_weights(tree, "level", 60.0)[:stage]
        bound = counting_bound(samples, masses(tree, W), phi)
        exact = gradient_at_zero(samples, W, phi)
        assert bound < 1e-12
        torch.testing.assert_close(counted_gradient(samples, stage, phi), exact, rtol=0, atol=bound)


@pytest.mark.parametrize("K", [6.0, 9.0, 12.0])
def test_bound_holds_where_layers_are_soft(K: float):
    """With a small amplitude states are not bits. Counting then errs, but by less than the bound."""
    tree = ParityTree.draw(30, 16, 1)
    samples = Samples(tree, 1, 0, 400, dtype=torch.float64)
    W = recovered_weights(tree, "level", K)[:3]
    error = float((counted_gradient(samples, 3, COSINE) - gradient_at_zero(samples, W, COSINE)).abs().max())
    assert 1e-15 < error < counting_bound(samples, masses(tree, W), COSINE)


def test_doubtful_entry_is_computed_again():
    """Only an entry with a threshold between its counted and exact value becomes exact."""
    tree, K = ParityTree.draw(30, 16, 1), 13.0
    samples = Samples(tree, 1, 0, 400)
    W = recovered_weights(tree, "level", K)[:2]
    counted = counted_gradient(samples, 2, COSINE)
    exact = gradient_at_zero(replace(samples, dtype=torch.float64), W, COSINE)
    j, m = tree.layer_children(2)[1][0], 1
    assert counted[j, m] != exact[j, m]
    half = float((counted[j, m] + exact[j, m]).abs() / 2)
    assert counting_bound(samples, masses(tree, W), COSINE) < half / 16
    found = gradient_to_round(samples, W, masses(tree, W), COSINE, half)
    assert torch.equal((found / (2 * half)).round(), (exact / (2 * half)).round())
    assert not torch.equal((counted / (2 * half)).round(), (exact / (2 * half)).round())
    changed = found != counted
    assert bool(changed[j, m])
    assert int(changed.sum()) < 5
    torch.testing.assert_close(found[changed], exact[changed], rtol=0, atol=1e-16)


@pytest.mark.parametrize(
    ("dtype", "K", "half"), [(torch.float64, 60.0, 1.0), (torch.float32, 60.0, 0.0), (torch.float32, 2.0, 1e-3)]
)
def test_product_where_counting_does_not_apply(dtype: torch.dtype, K: float, half: float, forbid: Callable[..., None]):
    """In float64, without rounding and where layers are too soft, the gradient is a matrix product."""
    forbid(engine, "counted_gradient")
    tree = ParityTree.draw(30, 16, 1)
    samples = Samples(tree, 1, 0, 100, dtype=dtype)
    W = recovered_weights(tree, "level", K)[:1]
    found = gradient_to_round(samples, W, masses(tree, W), COSINE, half)
    assert torch.equal(found, gradient_at_zero(samples, W, COSINE))


def test_bound_has_the_stated_size():
    """At the default amplitude the bound is far below the half step c/M². It grows with the mass off the children."""
    tree = ParityTree.draw(1024, 512, 0)
    samples = Samples(tree, 0, 0, 534_848)
    ends = tree.levels.level_end
    bounds = [
        counting_bound(samples, [off_child_mass(ends[layer], K) for layer in range(8)], COSINE) for K in (22.0, 12.0)
    ]
    assert bounds[0] < 1e-6 * COSINE.c / ends[8] ** 2
    assert bounds[0] < 1e-3 * bounds[1]
    assert math.isfinite(bounds[1])


TREES = [ParityTree.draw(10, 8, 1), ParityTree(9, (0, 1, 2, 3, 4, 5, 7, 8), (8, 0, 5, 2, 1, 7, 3, 4))]


@pytest.mark.parametrize("method", ["log-icot", "icot"])
@pytest.mark.parametrize("tree", TREES, ids=["drawn", "paired"])
@pytest.mark.parametrize("name", ["cosine", "quartic"])
def test_gradients_of_every_stage(name: str, tree: ParityTree, method: Method):
    """Both ways to the gradient equal autograd of the printed loss on the padded input, at any weights and at W = 0."""
    link = get_link(name)
    samples = Samples(tree, 3, 1000, 300, dtype=torch.float64, chunk=77)
    sequence = add_trace(tree, draw_bits(tree.n, 3, 1000, 300, dtype=torch.float64))
    for stage in parity_stages(tree.levels, Curriculum(method)):
        top, hidden = stage.layers - 1, stage.supervised[0] - tree.levels.nodes(stage.layers).start
        model = randomized(LevelTransformer(tree.n, tree.k, link, dtype=torch.float64))
        wanted: list[torch.Tensor] = []
        for scale in (1.0, 0.0):
            model.W[top].data *= scale
            loss = stage_loss(model(stage_input(sequence, stage), stage.layers), sequence, stage)
            wanted = list(torch.autograd.grad(loss, list(model.W)[: stage.layers]))
            found = all_gradients(samples, list(model.W), link, top, hidden)
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
        # With W = 0 in the layer that is read. The caller drops columns of hidden nodes.
        everything, last = range(tree.levels.width(top + 1)), [tree.levels.width(top + 1) - 1]
        for columns, of in ((None, everything[hidden:]), (last, last)):
            found = gradient_at_zero(samples, list(model.W)[:top], link, columns)[:, -len(of) :]
            torch.testing.assert_close(found, wanted[top][:, list(of)], rtol=0, atol=1e-12)
