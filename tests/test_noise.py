"""Wrong labels: which are flipped, what they do to the signal, and how many samples they cost."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from internalize import InputError
from internalize.parity import (
    COSINE,
    Levels,
    ParityTree,
    Setting,
    SolveOptions,
    TrainOptions,
    add_trace,
    draw_bits,
    train,
)
from internalize.parity.algorithm1.counting import counted_gradient
from internalize.parity.algorithm1.recovery import recovered_weights
from internalize.parity.algorithm1.solve import setting_of, solve
from internalize.parity.algorithm1.streaming import Samples, gradient_at_zero
from internalize.parity.options import Noisy
from internalize.parity.task.data import draw_flips, draw_sequences
from internalize.parity.task.noise import LabelNoise
from internalize.parity.theory.population import population, stage_gradient

NOISY: list[Noisy] = ["nodes", "steps", "carried"]


@pytest.mark.parametrize("noisy", NOISY)
def test_which_labels_are_flipped(noisy: Noisy):
    tree, noise, B = ParityTree.draw(16, 8, 1), LabelNoise(0.1, noisy), 20_000
    bits = draw_bits(16, 5, 0, B)
    truth, labels = add_trace(tree, bits), draw_sequences(tree, 5, 0, B, noise=noise).T.float()
    flips = draw_flips(tree, noise, 5, 0, B)
    assert flips is not None
    assert torch.equal(truth[:, :16], labels[:, :16])
    assert torch.equal(truth[:, 16:] * flips, labels[:, 16:])
    agree = (truth * labels)[:, 16:].mean(0)
    for found, kept in zip(agree, noise.kept(tree.levels), strict=True):
        assert abs(float(found) - kept) < 4.5 * math.sqrt((1 - kept**2) / B) + 1e-6
    own = labels[:, tree.root] * math.prod(labels[:, child] for child in tree.children(tree.root))
    wrong = float((own < 0).float().mean())
    expected = {"nodes": (1 - 0.8**3) / 2, "steps": (1 - 0.8**2) / 2, "carried": 0.1}[noisy]
    assert abs(wrong - expected) < 4.5 * math.sqrt(expected * (1 - expected) / B)


def test_flips_do_not_depend_on_chunks():
    tree, noise = ParityTree.draw(70, 64, 1), LabelNoise(0.3)
    whole = noise.flips(tree, 3, 11, 20)
    parts = [noise.flips(tree, 3, 11, 7), noise.flips(tree, 3, 18, 13)]
    assert whole is not None
    assert np.array_equal(whole, np.concatenate([part for part in parts if part is not None]))
    assert LabelNoise().flips(tree, 3, 11, 20) is None


@pytest.mark.parametrize("noisy", NOISY)
@pytest.mark.parametrize(("n", "k"), [(6, 4), (9, 8), (12, 4)])
def test_moments_with_every_input_and_every_flip(n: int, k: int, noisy: Noisy):
    """A label is one of two values with known probabilities, so a mixture of two enumerations is exact."""
    tree, noise = ParityTree.draw(n, k, 2), LabelNoise(0.2, noisy)
    bits = torch.tensor(list(itertools.product([1.0, -1.0], repeat=n)), dtype=torch.float64)
    sequence = add_trace(tree, bits)
    kept = noise.kept(tree.levels)
    for stage, exact in enumerate(population(tree.levels, COSINE, kept)):
        M, m = exact.keys, tree.levels.nodes(stage + 1)[0]
        z, weight = sequence[:, :M].mean(1, keepdim=True), (1 + kept[m - n]) / 2
        both = [(COSINE(z) - sign * sequence[:, [m]]) * COSINE.slope(z) * (sequence[:, :M] - z) / M for sign in (1, -1)]
        moment = [weight * (both[0] ** q).mean(0) + (1 - weight) * (both[1] ** q).mean(0) for q in (1, 2, 3)]
        left, right = tree.children(m)
        mean, square, cube = (float(own[left]) for own in moment)
        assert abs(exact.mean[0] - mean) < 1e-12
        assert abs(exact.variance[0] - (square - mean**2)) < 1e-12
        assert abs(exact.third[0] - (cube - 3 * mean * square + 2 * mean**3)) < 1e-12
        product = weight * (both[0][:, left] * both[0][:, right]).mean()
        product = product + (1 - weight) * (both[1][:, left] * both[1][:, right]).mean()
        assert abs(exact.sibling[0] - (float(product) - mean**2)) < 1e-12


def test_the_signal_shrinks_by_what_labels_keep():
    """Exactly at stage 1, where all keys are bits; above, up to the small part of the gradient without the label."""
    for q in (0.05, 0.25, 0.45):
        for n, k in ((6, 4), (30, 16), (128, 64)):
            levels = Levels(n, k)
            kept = LabelNoise(q).kept(levels)
            first = stage_gradient(levels, 0, COSINE, kept).signal / stage_gradient(levels, 0, COSINE).signal
            assert first == pytest.approx(1 - 2 * q, abs=1e-12)
            for stage in range(1, levels.L):
                ratio = stage_gradient(levels, stage, COSINE, kept).signal
                ratio /= stage_gradient(levels, stage, COSINE).signal
                assert abs(ratio - (1 - 2 * q)) < 2 / n


@pytest.mark.parametrize("noisy", NOISY)
def test_counting_and_products_agree(noisy: Noisy):
    tree = ParityTree.draw(40, 16, 4)
    samples = Samples(tree, 0, 7, 3000, dtype=torch.float64, noise=LabelNoise(0.3, noisy))
    for stage in range(tree.L):
        below = recovered_weights(tree, "level", 100.0)[:stage]
        wanted = gradient_at_zero(samples, below, COSINE)
        torch.testing.assert_close(counted_gradient(samples, stage, COSINE), wanted, rtol=0, atol=1e-12)
        exact = gradient_at_zero(replace(samples, noise=LabelNoise()), below, COSINE)
        differs = float((wanted - exact).abs().max()) > 1e-6
        assert differs is (noisy != "steps" or stage + 1 < tree.L)


@pytest.mark.parametrize(
    "options",
    [
        SolveOptions(n=16, k=8, noise=0.1),
        SolveOptions(n=16, k=8, noise=0.1, seed=1, dtype="float64"),
        SolveOptions(n=16, k=8, noise=0.05, noisy="carried"),
        SolveOptions(n=16, k=8, noise=0.2, noisy="steps", curriculum="icot"),
        SolveOptions(n=16, k=8, noise=0.2, samples=700, curriculum="icot"),
    ],
)
def test_solve_learns_from_wrong_labels(options: SolveOptions):
    result = solve(options)
    everything = solve(replace(options, update="all"))
    torch.testing.assert_close(result.weights, everything.weights, rtol=0, atol=0)
    if options.samples is None:
        assert result.solved


def test_the_cost_of_noise():
    """B* grows by 1/(1 − 2q)² and a little more, because siblings no longer have the same noise."""
    base = Setting(256, 128).samples_for(0.5) or 0
    for q in (0.05, 0.1, 0.25):
        ratio = (Setting(256, 128, noise=q).samples_for(0.5) or 0) * (1 - 2 * q) ** 2 / base
        assert 1 <= ratio < 1.1
    carried = [Setting(64, 32, noise=0.02, noisy="carried"), Setting(64, 32, noise=0.02)]
    assert carried[0].samples_for(0.5) > 5 * carried[1].samples_for(0.5)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("options", "seeds"),
    [(SolveOptions(n=16, k=8, noise=0.1), 80), (SolveOptions(n=16, k=8, noise=0.05, noisy="carried"), 80)],
)
def test_half_of_the_runs_succeed_where_predicted(options: SolveOptions, seeds: int):
    """The share is 50 % within 3.5 binomial standard errors."""
    options = replace(options, samples=setting_of(options).samples_for(0.5), test_samples=1)
    runs = [solve(replace(options, seed=seed), stop_at_failure=True) for seed in range(seeds)]
    assert abs(sum(run.exact_recovery for run in runs) / seeds - 0.5) < 3.5 * 0.5 / math.sqrt(seeds)


def test_training_on_wrong_labels():
    """AdamW learns from noisy labels; its loss on held-out samples, whose labels are true, shrinks too."""
    options = TrainOptions(n=8, k=4, steps=150, noise=0.1, eval_every=50)
    (result,) = train(options, [0])
    assert result["accuracy"] == 1.0
    (exact,) = train(replace(options, noise=0.0), [0])
    assert exact["l2_error"] != result["l2_error"]


def test_noise_is_less_than_a_half():
    for wrong in (-0.1, 0.5, math.nan):
        for kind in (SolveOptions, TrainOptions, Setting):
            with pytest.raises(InputError, match=r"noise=.* is outside 0 … 0.5"):
                kind(n=16, k=8, noise=wrong)
