"""Sums modulo 3 and 5: the link, every form of the model, exact moments, the prediction, Algorithm 1 and AdamW."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from internalize import Curriculum, InputError
from internalize.parity import (
    Levels,
    LevelTransformer,
    LiteralTransformer,
    ParityTree,
    Setting,
    SolveOptions,
    TrainOptions,
    add_trace,
    get_link,
    parity_stages,
    stage_input,
    stage_loss,
    train,
)
from internalize.parity.algorithm1.recovery import recovered_weights
from internalize.parity.algorithm1.solve import setting_of, solve
from internalize.parity.algorithm1.streaming import Samples, all_gradients, gradient_at_zero
from internalize.parity.certificates import World
from internalize.parity.model.metrics import is_right
from internalize.parity.model.residue_link import residue_link
from internalize.parity.model.sparse import SparseModel
from internalize.parity.model.transformer import set_weights
from internalize.parity.model.weights import full_weights
from internalize.parity.task.data import as_roots, draw_inputs, draw_residues, draw_sequences, roots_of_unity
from internalize.parity.theory.freezing import (
    curvature,
    frozen_gradient_bounds,
    off_child_mass,
    steepness,
    trained_gradient_bounds,
)
from internalize.parity.theory.population import Forest, population, stage_gradient
from tests.test_worlds import named, relation, shape_of

MODULI = [3, 5]


def every_input(n: int, p: int) -> Tensor:
    values = torch.tensor(list(itertools.product(range(p), repeat=n)), dtype=torch.int8)
    return as_roots(values, p, torch.float64)


def disc(side: int = 61) -> Tensor:
    axis = torch.linspace(-1, 1, side, dtype=torch.float64)
    grid = torch.complex(*torch.meshgrid(axis, axis, indexing="xy")).reshape(-1)
    return grid[grid.abs() <= 1]


@pytest.mark.parametrize("p", [3, 5, 7])
def test_the_link_multiplies_roots_of_unity(p: int):
    link, root = residue_link(p), roots_of_unity(p)
    a, b = root.repeat(p), root.repeat_interleave(p)
    torch.testing.assert_close(link((a + b) / 2), a * b, rtol=0, atol=1e-12)
    assert link.slopes is not None
    assert all(float(slope.abs().max()) < 1e-9 for slope in link.slopes((a + b) / 2))
    z = disc()
    assert float(link(z).abs().max()) <= 1 + 1e-12
    torch.testing.assert_close(link(root[1] * z), root[2] * link(z), rtol=0, atol=1e-12)
    of_z, of_conjugate = link.slopes(z)
    for step in (1e-6, 1e-6j):
        difference = (link(z + step) - link(z - step)) / 2
        wanted = of_z * step + of_conjugate * complex(step).conjugate()
        assert float((difference - wanted).abs().max()) < 1e-12 * p**4
    small = 1e-4 * root  # c z², and no other term of degree 1 or 2
    assert float((link(small) / small**2 - link.c).abs().max()) < 1e-2
    assert link.c > 0


@pytest.mark.parametrize("p", MODULI)
def test_the_constants_of_the_link(p: int):
    """No pair of points of the disc has a larger difference of slopes than the constants allow."""
    link, generator = residue_link(p), torch.Generator().manual_seed(0)
    z = disc(101)[torch.randperm(len(disc(101)), generator=generator)[:4000]]
    y = z * 0.999 + 0.001 * z.roll(1)
    assert link.slopes is not None
    (a, b), (c, d) = link.slopes(z), link.slopes(y)
    assert float((a.abs() + b.abs()).max()) <= steepness(link)
    slope = ((a - c).abs() + (b - d).abs()) / (z - y).abs().clamp(min=1e-12)
    assert 0.5 * curvature(link) < float(slope.max()) <= curvature(link)


@pytest.mark.parametrize(("p", "k"), [(3, 4), (3, 6), (5, 4)])
def test_all_forms_are_the_literal_model(p: int, k: int):
    tree, link = ParityTree.draw(k + 1, k, 1, modulus=p), residue_link(p)
    generator = torch.Generator().manual_seed(k)
    level = LevelTransformer(tree.n, k, link, dtype=torch.float64)
    W = [torch.randn(w.shape, generator=generator, dtype=torch.float64) for w in level.W]
    set_weights(level, W)
    full = [w.requires_grad_() for w in full_weights(W, tree.levels)]
    literal = LiteralTransformer(tree.levels, link)
    bits = draw_inputs(tree.levels, 2, 0, 5, dtype=torch.float64)
    sequence = add_trace(tree, bits)
    for stage in parity_stages(tree.levels, Curriculum("log-icot")):
        D = stage_input(sequence, stage)
        printed, fast = literal(full, D, stage.layers), level(D, stage.layers)
        torch.testing.assert_close(fast, printed, rtol=0, atol=1e-12)
        of_level = torch.autograd.grad(stage_loss(fast, sequence, stage), list(level.parameters())[: stage.layers])
        of_full = torch.autograd.grad(stage_loss(printed, sequence, stage), full[: stage.layers])
        for layer, (a, b) in enumerate(zip(of_level, of_full, strict=True)):
            part = b[: tree.levels.level_end[layer], tree.levels.span(layer + 1)]
            torch.testing.assert_close(a, part, rtol=0, atol=1e-12)
    sparse = SparseModel(tree.levels, W, link, like=bits)
    torch.testing.assert_close(sparse(bits), level.states(bits)[:, -1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("p", MODULI)
def test_the_fast_gradient_is_that_of_the_loss(p: int):
    tree, link = ParityTree.draw(9, 6, 1, modulus=p), residue_link(p)
    samples = Samples(tree, 0, 5, 400, dtype=torch.float64)
    for stage in range(tree.L):
        W = [w if layer < stage else 0 * w for layer, w in enumerate(recovered_weights(tree, "level", 9.0))]
        fast = gradient_at_zero(samples, W[:stage], link)
        torch.testing.assert_close(fast, all_gradients(samples, W, link, stage)[stage], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("p", "k", "n"), [(3, 2, 4), (3, 3, 5), (3, 4, 7), (3, 6, 8), (3, 7, 7), (5, 2, 3), (5, 4, 5)])
def test_moments_of_every_input(p: int, k: int, n: int):
    tree, link = ParityTree.draw(n, k, n, modulus=p), residue_link(p)
    sequence = add_trace(tree, every_input(n, p))
    for stage, exact in enumerate(population(tree.levels, link)):
        forest, M = Forest.of(tree.levels, stage), exact.keys
        kinds = [named(forest, (shape,))[0] for shape in forest.columns]
        number = {(key.column, key.kind, named(forest, key.path)): place for place, key in enumerate(exact.classes)}
        z = sequence[:, :M].mean(1, keepdim=True)
        for m in tree.levels.nodes(stage + 1):
            column = kinds.index(shape_of(tree, m))
            gradients = (link.pulled(link(z) - sequence[:, [m]], z) * (sequence[:, :M] - z)).real / M
            mean = gradients.mean(0)
            found = torch.stack([mean, gradients.var(0, correction=0), (gradients - mean).pow(3).mean(0)])
            places = [number[column, *relation(tree, stage, j, m)] for j in range(M)]
            wanted = np.stack([exact.mean[places], exact.variance[places], exact.third[places]])
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
            shared = ((link.pulled(link(z), z) * (sequence[:, :M] - z)).real / M).var(0, correction=0)
            np.testing.assert_allclose(shared, exact.shared[places], rtol=0, atol=1e-12)
            a, b = tree.children(m)
            covariance = float((gradients[:, a] * gradients[:, b]).mean() - mean[a] * mean[b])
            assert abs(covariance - exact.sibling[column]) < 1e-12


def test_leading_orders():
    """Signal 1 at the paper's rate, and a noise of M/2, a quarter of parity's 2M; so B ≈ 4 M ln(MN)."""
    gaps: list[tuple[float, float]] = []
    for n in (40, 160, 640):
        exact = stage_gradient(Levels(n, 2, modulus=3), 0, residue_link(3))
        gaps.append((abs(exact.signal - 1), abs(exact.noise**2 / (n / 2) - 1)))
    for a, b in itertools.pairwise(gaps):
        assert b[0] < 0.4 * a[0]
        assert b[1] < 0.4 * a[1]


@pytest.mark.parametrize(("p", "K"), [(3, 9.0), (5, 12.0)])
def test_frozen_layers_stay_within_the_bounds(p: int, K: float):
    tree, link = ParityTree.draw(8, 6, 3, modulus=p), residue_link(p)
    samples = [Samples(tree, 0, index, 1, dtype=torch.float64) for index in range(40)]
    masses = [off_child_mass(end, K) for end in tree.levels.level_end]
    for trained in range(1, tree.L + 1):
        W = [w if layer < trained else 0 * w for layer, w in enumerate(recovered_weights(tree, "level", K))]
        for stage, of in [(trained, frozen_gradient_bounds), (trained - 1, trained_gradient_bounds)]:
            if stage == tree.L:
                continue
            alone = [all_gradients(sample, W, link, stage) for sample in samples]
            largest = [max(float(g.abs().max()) for g in layer) for layer in zip(*alone, strict=True)]
            for bound, found in zip(of(tree.levels, link, masses[:trained]), largest, strict=False):
                assert 0 < found <= bound


@pytest.mark.parametrize(
    "options",
    [
        SolveOptions(n=12, k=4, modulus=3),
        SolveOptions(n=14, k=6, modulus=3, seed=3, dtype="float64"),
        SolveOptions(n=10, k=4, modulus=5),
        SolveOptions(n=12, k=4, modulus=3, curriculum="icot"),
    ],
    ids=str,
)
def test_defaults_recover_every_layer(options: SolveOptions):
    result = solve(options)
    assert result.solved, result.reason
    assert result.max_error <= 1e-6 + 1e-5 * (options.dtype == "float32")
    everything = solve(replace(options, update="all"))
    torch.testing.assert_close(result.weights, everything.weights, rtol=0, atol=0)


@pytest.mark.parametrize("options", [SolveOptions(n=16, k=8, modulus=3), SolveOptions(n=12, k=4, modulus=5)], ids=str)
def test_half_of_the_runs_succeed_where_predicted(options: SolveOptions):
    """The share is 50 % within 3.5 binomial standard errors, on 80 seeds."""
    options = replace(options, samples=setting_of(options).samples_for(0.5), test_samples=1)
    runs = [solve(replace(options, seed=seed), stop_at_failure=True) for seed in range(80)]
    assert abs(sum(run.exact_recovery for run in runs) / 80 - 0.5) < 3.5 * 0.5 / math.sqrt(80)


@pytest.mark.parametrize("p", MODULI)
def test_samples(p: int):
    """Values are uniform, chunks make no difference, and sequences are the sums of the leaves."""
    tree = ParityTree.draw(9, 6, 1, modulus=p)
    values = draw_residues(tree.levels, 4, 7, 3000)
    assert torch.equal(
        values, torch.cat([draw_residues(tree.levels, 4, 7, 999), draw_residues(tree.levels, 4, 1006, 2001)])
    )
    counts = torch.bincount(values.flatten().long(), minlength=p) / values.numel()
    assert float((counts - 1 / p).abs().max()) < 5 / math.sqrt(values.numel() * p)
    sequence = draw_sequences(tree, 4, 7, 3000)
    assert torch.equal(sequence[-1], values[:, list(tree.secret)].sum(1) % p)
    roots = add_trace(tree, draw_inputs(tree.levels, 4, 7, 3000, dtype=torch.float64))
    torch.testing.assert_close(roots, as_roots(sequence.T, p, torch.float64), rtol=0, atol=1e-12)
    assert bool(is_right(roots, roots, p).all())
    assert not bool(is_right(roots * roots_of_unity(p)[1], roots, p).any())


@pytest.mark.parametrize("p", MODULI)
def test_adamw_learns_sums(p: int):
    (result,) = train(TrainOptions(n=8, k=4, modulus=p, steps=250, eval_every=50), [0])
    assert result["accuracy"] == 1.0


def test_what_sums_do_not_have():
    refused: list[tuple[dict[str, Any], str]] = [
        ({"n": 12, "k": 4, "modulus": 4}, "modulus=4 is not 2, 3 or 5"),
        ({"n": 12, "k": 9, "modulus": 3, "arity": 3}, "arity=3: sums modulo 3 are defined for nodes with 2 children"),
        ({"n": 12, "k": 4, "modulus": 3, "link": "quartic"}, "link='quartic' is for values ±1"),
        ({"n": 12, "k": 4, "modulus": 3, "noise": 0.1}, "noise=0.1: labels are flipped only with modulus 2"),
    ]
    for wrong, words in refused:
        with pytest.raises(InputError, match=words):
            Setting(**wrong)
    models: list[dict[str, Any]] = [{"mask": "causal"}, {"gates": "ones"}, {"curriculum": "cot"}]
    for model in models:
        for kind in (SolveOptions, TrainOptions):
            with pytest.raises(InputError, match="modulus=3 needs the paper's mask"):
                kind(n=12, k=4, modulus=3, **model)
    with pytest.raises(InputError, match="modulus=3: the statements are about values"):
        World.of_solve(SolveOptions(n=12, k=4, modulus=3))
    assert get_link("cosine", 2, 3) is residue_link(3)
