"""The lower bound on stages: what a node above a skipped level can compute, by proof, by search and by construction."""

import itertools

import pytest
import torch
from torch import Tensor

from internalize.parity.certificates.skipped import capacity, convex_drop, fixed_point, is_strict, skippable
from internalize.parity.model.link import COSINE, QUARTIC, Link
from internalize.parity.task.tree import ParityTree

LINKS = [COSINE, QUARTIC]


def all_inputs(n: int) -> Tensor:
    return torch.tensor(list(itertools.product((1.0, -1.0), repeat=n)), dtype=torch.float64)


@pytest.mark.parametrize(("link", "least"), [(COSINE, 0.598), (QUARTIC, 0.586)], ids=["cosine", "quartic"])
def test_no_search_passes_a_stage_above_a_skipped_level(link: Link, least: float):
    """The least loss at n = k = 8 with level 1 collapsed: a column for it, one for each of two nodes, all 256 inputs.

    A search from 24 random starts for 400 steps found .5987 (cosine) and .5868 (quartic). A solved stage has 0.
    """
    bits = all_inputs(8)
    truth = torch.stack([bits[:, :4].prod(1), bits[:, 4:].prod(1)])
    generator = torch.Generator().manual_seed(0)
    below = torch.randn(24, 1, 8, generator=generator, dtype=torch.float64).requires_grad_()
    above = torch.randn(24, 2, 9, generator=generator, dtype=torch.float64).requires_grad_()
    optimizer, found = torch.optim.Adam([below, above], lr=0.1), torch.inf
    for _ in range(300):
        keys = torch.cat([bits.T.expand(24, -1, -1), link(below.softmax(-1) @ bits.T)], dim=1)
        losses = (link(above.softmax(-1) @ keys) - truth).square().mean(-1).sum(-1) / 2
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
        found = min(found, float(losses.detach().min()))
    assert least < found < 1


def test_one_node_above_a_skipped_level_can_be_exact():
    """φ(φ(mean of four)) is the parity of the four with the cosine, and with the quartic it is not."""
    bits = all_inputs(4)
    for link in LINKS:
        error = (link(link(bits.mean(1))) - bits.prod(1)).abs().max()
        assert (float(error) < 1e-12) is skippable(link)
    assert skippable(COSINE)
    assert not skippable(QUARTIC)


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_the_convex_bound_is_convex_and_above(link: Link):
    delta, bound = convex_drop(link)
    drop = 1 - link(torch.from_numpy(1 - delta)).numpy()
    assert (bound - drop).min() >= 0
    assert (bound[1:] >= bound[:-1]).all()
    assert (bound[2:] - 2 * bound[1:-1] + bound[:-2]).min() > -1e-12


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_capacities_are_below_what_a_node_needs(link: Link):
    """Coarser boxes give a larger bound; the bounds of the docs are those of the default boxes."""
    assert capacity(link, 2) <= capacity(link, 2, 10) < 9
    assert capacity(link, 2) < 8
    assert capacity(link, 3) < 16
    assert 2 / fixed_point(link) < 16


def test_capacity_bounds_what_chains_do():
    """Count the single flips after which a random chain of two skipped levels has the right node: below the capacity."""
    generator = torch.Generator().manual_seed(3)
    most = 0
    for _ in range(300):
        sharp = 10 ** float(torch.rand((), generator=generator) * 2 - 1)
        columns = [torch.randn(9 + units, generator=generator, dtype=torch.float64) * sharp for units in range(3)]
        flips = torch.cat([torch.ones(8, 8) - 2 * torch.eye(8), torch.ones(8, 1)], dim=1).double().T
        for column in columns[:2]:
            flips = torch.cat([flips, COSINE(column.softmax(0) @ flips).unsqueeze(0)])
        most = max(most, int(((columns[2].softmax(0) @ flips) <= 0).sum()))
    assert most <= capacity(COSINE, 2)


def test_links_that_are_not_strict():
    flat = Link("flat", lambda t: COSINE.phi((2 * t).clamp(-1, 1)), COSINE.slope, COSINE.c)
    assert not is_strict(flat)
    assert all(is_strict(link) for link in LINKS)


def test_keys_below_a_skipped_level_have_too_few_leaves():
    """The count that Theorem 1 uses: three keys below level ℓ have fewer leaves than a node of level ℓ + 1."""
    tree = ParityTree.draw(16, 16, 0)
    for level in range(1, tree.L):
        assert 3 * 2 ** (level - 1) < 2 ** (level + 1)
