"""population.py: exact moments against all 2^n inputs, against a second derivation, and against drawn samples."""

import itertools
import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.polynomial import Polynomial
from torch import Tensor

from internalize import Curriculum
from internalize.parity import (
    COSINE,
    QUARTIC,
    Levels,
    LevelTransformer,
    Link,
    ParityTree,
    add_trace,
    draw_bits,
    parity_stages,
    stage_input,
    stage_loss,
)
from internalize.parity.algorithm1.recovery import recovered_weights
from internalize.parity.model.transformer import set_weights
from internalize.parity.theory.population import (
    KeyClass,
    _characteristic,
    _laws,
    key_classes,
    population,
    stage_gradient,
)

LINKS = [COSINE, QUARTIC]
SMALL = [(n, k) for n in range(2, 13) for k in (2, 4, 8) if k <= n]


def class_of(tree: ParityTree, j: int, m: int) -> tuple[str, int]:
    """Kind and level of key j for node m, by walking up the tree from j."""
    level, above = tree.levels.level_of(j), tree.parent(j)
    if j < tree.n and j not in tree.secret:
        return "irrelevant", 0
    if above == m:
        return "child", level
    while above is not None:
        if above == m:
            return "inside", level
        above = tree.parent(above)
    return "outside", level


def members(tree: ParityTree, stage: int, key: KeyClass, columns: int | None = None) -> list[tuple[int, int]]:
    """Entries (j, column) of a class in the stage's layer, in its first columns or in all."""
    nodes = tree.levels.nodes(stage + 1)[:columns]
    keys = range(tree.levels.level_end[stage])
    return [
        (j, column) for column, m in enumerate(nodes) for j in keys if class_of(tree, j, m) == (key.kind, key.level)
    ]


def one_sample_gradients(tree: ParityTree, stage: int, link: Link, bits: Tensor) -> Tensor:
    """Gradient of the stage's loss in its own layer, for each sample alone, by autograd through the model.

    The layers below attend to their children alone (a logit of 1000 leaves exactly nothing to the rest), so the hidden
    states are the true values; each sample is a run of its own.
    """
    model = LevelTransformer(tree.n, tree.k, link, runs=(len(bits),), dtype=torch.float64)
    recovered = recovered_weights(tree, "level", 1000.0)
    set_weights(model, [w if layer < stage else 0 * w for layer, w in enumerate(recovered)])
    sequence = add_trace(tree, bits).unsqueeze(1)
    what = parity_stages(tree.levels, Curriculum("log-icot"))[stage]
    output = model(stage_input(sequence, what), layers=what.layers)
    (gradient,) = torch.autograd.grad(stage_loss(output, sequence, what).sum(), [model.W[stage]])
    return gradient


def all_inputs(n: int) -> Tensor:
    return torch.tensor(list(itertools.product([1.0, -1.0], repeat=n)), dtype=torch.float64)


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
@pytest.mark.parametrize(("n", "k"), SMALL)
def test_every_input_of_a_small_problem(n: int, k: int, link: Link):
    tree = ParityTree.draw(n, k, seed=n)
    bits = all_inputs(n)
    for stage, exact in enumerate(population(tree.levels, link)):
        gradients = one_sample_gradients(tree, stage, link, bits)
        mean = gradients.mean(0)
        moments = torch.stack([mean, gradients.var(0, correction=0), (gradients - mean).pow(3).mean(0)])
        found = 0
        for key, *wanted in zip(exact.classes, exact.mean, exact.variance, exact.third, strict=True):
            entries = members(tree, stage, key)
            assert len(entries) == key.count * exact.nodes
            found += len(entries)
            for j, column in entries:
                np.testing.assert_allclose(moments[:, j, column], wanted, rtol=0, atol=1e-12)
        assert found == mean.numel()
        left, right = tree.layer_children(stage)[0]
        a, b = gradients[:, left, 0], gradients[:, right, 0]
        assert abs(float((a * b).mean() - a.mean() * b.mean()) - exact.sibling) < 1e-12


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_shared_part_is_the_mean_over_both_labels(link: Link):
    """Half of the gradients for labels b_m and −b_m is the part without the label: its variance, by enumeration."""
    tree = ParityTree(9, (0, 2, 3, 4, 5, 6, 7, 8))
    sequence = add_trace(tree, all_inputs(9))
    for stage, exact in enumerate(population(tree.levels, link)):
        M = exact.keys
        states = sequence[:, :M]
        z = states.mean(dim=1, keepdim=True)
        part = link.phi(z) * link.slope(z) * (states - z) / M
        for key, shared in zip(exact.classes, exact.shared, strict=True):
            j = members(tree, stage, key)[0][0]
            assert abs(float(part[:, j].var(correction=0)) - shared) < 1e-12


@pytest.mark.parametrize(("n", "k"), [*SMALL, (30, 16), (64, 64), (100, 2), (129, 64), (1024, 256)])
def test_laws_by_polynomials(n: int, k: int):
    """A second derivation, without Fourier sums: a bit's law is (x + 1)/2, x counting the +1, and (x − 1)/2 times its value."""
    levels, even, odd = Levels(n, k), Polynomial([0.5, 0.5]), Polynomial([-0.5, 0.5])
    for stage in range(levels.L):
        one, m, by_class = _characteristic(levels, stage, cast(Any, even), cast(Any, odd))
        laws = [cast(Any, law).coef for law in (one, m, *itertools.chain(*by_class))]
        wanted = [np.pad(law, (0, levels.level_end[stage] + 1 - len(law))) for law in laws]
        one, m, by_class = _laws(levels, stage)
        np.testing.assert_allclose([one, m, *itertools.chain(*by_class)], wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
@pytest.mark.parametrize(("n", "k"), [(30, 16), (128, 64)])
def test_drawn_samples(n: int, k: int, link: Link):
    """Sample mean and sample variance of one entry of each class, each within 4.5 of its own standard errors.

    There are about 120 comparisons, so a sound implementation fails once in about 1 200 choices of the seed.
    """
    tree, B = ParityTree.draw(n, k, seed=1), 40_000
    sequence = add_trace(tree, draw_bits(n, 11, 0, B, dtype=torch.float64))
    for stage, exact in enumerate(population(tree.levels, link)):
        states = sequence[:, : exact.keys]
        z = states.mean(dim=1)
        phi, slope = link.phi(z), link.slope(z)
        for key, mean, variance in zip(exact.classes, exact.mean, exact.variance, strict=True):
            j, column = members(tree, stage, key, columns=1)[-1]
            b_m = sequence[:, tree.levels.nodes(stage + 1)[column]]
            sample = (phi - b_m) * slope * (states[:, j] - z) / exact.keys
            assert abs(float(sample.mean()) - mean) < 4.5 * math.sqrt(variance / B)
            squares = (sample - mean).square()
            assert abs(float(squares.mean()) - variance) < 4.5 * float(squares.std()) / math.sqrt(B)


def test_stage_one_by_hand():
    """The first stage of the cosine link from binomial sums alone, as derived on paper."""
    for n in (3, 8, 30, 1024):
        sigma, gamma = math.sin(math.pi / n), math.cos(math.pi / n)
        child, others = sigma * gamma ** (n - 1), (n - 2) * sigma**3 * gamma ** (n - 3)
        signal = n / math.pi * (child - (2 * child - others) / n)
        assert stage_gradient(Levels(n, 2), 0).signal == pytest.approx(signal, abs=1e-10)


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_a_column_of_the_gradient_sums_to_zero(link: Link):
    """Softmax ignores a shift, so what the children gain the others lose; exactly in expectation."""
    for n, k in [(7, 4), (30, 16), (200, 128)]:
        for exact in population(Levels(n, k), link):
            counts = np.array([key.count for key in exact.classes])
            assert counts.sum() == exact.keys
            assert abs(counts @ exact.mean) < 1e-13


def test_signal_and_noise_tend_to_their_limits():
    """Signal to 1 and variance at the paper's rate to 2M, from one side, at the rate 1/n."""
    gaps = [1 - stage_gradient(Levels(n, n // 2), 1).signal for n in (64, 256, 1024)]
    assert all(0 < b < 0.3 * a for a, b in itertools.pairwise(gaps))
    last = stage_gradient(Levels(4096, 2048), 3)
    assert last.noise**2 / (2 * last.keys) == pytest.approx(1, abs=0.01)


def test_two_bits_have_no_signal():
    """At n = k = 2 uniform attention is right already: every sample's gradient is 0, not only the mean."""
    for link in LINKS:
        exact = stage_gradient(Levels(2, 2), 0, link)
        assert abs(exact.signal) < 1e-15
        assert float(exact.variance[0]) < 1e-30
        assert [key.kind for key in exact.classes] == ["child"]


def test_classes_cover_the_keys():
    levels = Levels(11, 8)
    assert [(key.kind, key.level, key.count) for key in key_classes(levels, 1)] == [
        ("child", 1, 2),
        ("inside", 0, 4),
        ("outside", 0, 4),
        ("outside", 1, 2),
        ("irrelevant", 0, 3),
    ]
