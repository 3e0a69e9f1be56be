"""parity/theory: exact moments against all 2^n inputs, a second derivation and drawn samples; the model of success.

test_algorithm.py measures on the algorithm itself whether the probabilities are right.
"""

import itertools
import json
import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.polynomial import Polynomial
from torch import Tensor

from internalize import Curriculum, InputError
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
from internalize.parity.options import Grid
from internalize.parity.theory.chunks import chunk_signal
from internalize.parity.theory.freezing import curvature, drifts, frozen_gradient_bounds, off_child_mass, steepness
from internalize.parity.theory.population import Characteristics, Forest, KeyClass, Laws, population, stage_gradient
from internalize.parity.theory.prediction import (
    Setting,
    _log_tie,
    impossible,
    limit_factor,
    predict,
    theorem_log10_n,
    unit_rate,
)

LINKS = [COSINE, QUARTIC]
SMALL = [(n, k) for n in range(2, 13) for k in (2, 4, 8) if k <= n]


def class_of(tree: ParityTree, j: int, m: int) -> tuple[str, int]:
    """Return kind and level of key j for node m, by walking up the tree from j."""
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
    """Return the entries (j, column) of a class in the stage's layer, in its first columns or in all."""
    nodes = tree.levels.nodes(stage + 1)[:columns]
    keys = range(tree.levels.level_end[stage])
    return [
        (j, column) for column, m in enumerate(nodes) for j in keys if class_of(tree, j, m) == (key.kind, key.level)
    ]


def one_sample_gradients(tree: ParityTree, stage: int, link: Link, bits: Tensor) -> Tensor:
    """Return the gradient of the stage's loss in its own layer for each sample alone, by autograd through the
    model.

    The layers below attend to their children alone (a logit of 1000 leaves exactly 0 for the rest), so the hidden
    states are the true values. Each sample is a run of its own.
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
        assert abs(float((a * b).mean() - a.mean() * b.mean()) - exact.sibling[0]) < 1e-12


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_shared_part_is_the_mean_over_both_labels(link: Link):
    """The mean of the gradients for labels b_m and −b_m is the part without the label. Its variance is enumerated."""
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
    """Without Fourier sums: a bit's law is (x + 1)/2, where x counts the +1, and (x − 1)/2 times its value."""
    levels, even, odd = Levels(n, k), Polynomial([0.5, 0.5]), Polynomial([-0.5, 0.5])
    for stage in range(levels.L):
        forest, laws = Forest.of(levels, stage), Laws(levels, stage)
        by_polynomials = Characteristics(forest, cast(Any, (even, odd)))
        (node,) = forest.columns
        for key in forest.classes():
            weights = [(None, 0, 0), (None, 1, 0), (key, 0, 1), (key, 1, 1)]
            found = [cast(Any, by_polynomials.of(node, *weight)).coef for weight in weights]
            wanted = [np.pad(law, (0, levels.level_end[stage] + 1 - len(law))) for law in found]
            np.testing.assert_allclose(laws.of_key(key), wanted, rtol=0, atol=1e-14)


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
    """Softmax ignores a shift, so in expectation the others lose exactly what the children gain."""
    for n, k in [(7, 4), (30, 16), (200, 128)]:
        for exact in population(Levels(n, k), link):
            counts = np.array([key.count for key in exact.classes])
            assert counts.sum() == exact.keys
            assert abs(counts @ exact.mean) < 1e-13


def test_signal_and_noise_tend_to_their_limits():
    """The signal tends to 1 from one side, and the variance at the paper's rate to 2M, both at the rate 1/n."""
    gaps = [1 - stage_gradient(Levels(n, n // 2), 1).signal for n in (64, 256, 1024)]
    assert all(0 < b < 0.3 * a for a, b in itertools.pairwise(gaps))
    last = stage_gradient(Levels(4096, 2048), 3)
    assert last.noise**2 / (2 * last.keys) == pytest.approx(1, abs=0.01)


# ---------------------------------------------------------------- the model of success

SETTINGS = [
    Setting(16, 8),
    Setting(30, 16, grid="1"),
    Setting(30, 16, rate="paper"),
    Setting(30, 16, link="quartic"),
    Setting(30, 16, oracle="random", oracle_error=1e-3),
    Setting(30, 16, oracle="adversarial", oracle_error=5e-4),
    Setting(64, 64),
    Setting(100, 2),
    Setting(3, 2),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_success_grows_with_samples_and_samples_for_inverts_it(setting: Setting):
    for failure in (0.5, 0.01, 1e-6):
        B = setting.samples_for(failure)
        assert B is not None
        assert -math.expm1(setting.log_success(B)) <= failure * (1 + 1e-6)
        assert -math.expm1(setting.log_success(B * 0.98 - 1)) > failure
    B50 = setting.samples_for(0.5) or 0
    curve = [setting.log_success(B50 * factor) for factor in np.geomspace(0.5, 30, 40)]
    assert all(a < b or b > -1e-12 for a, b in itertools.pairwise(curve))


def test_tied_children_against_simulation():
    """P(both in an interval) of correlated pairs agrees with 4 × 10^6 draws and with the two extremes."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 4_000_000, generator=generator, dtype=torch.float64)
    for correlation, low, high in [(0.0, -1, 2), (0.87, -2, 2), (0.87, -0.5, 0.2), (0.999, 1, 3), (-0.6, -1, 1)]:
        second = correlation * a + math.sqrt(1 - correlation**2) * b
        share = float(((a > low) & (a < high) & (second > low) & (second < high)).double().mean())
        modelled = math.exp(_log_tie(correlation, (low, high), (low, high)))
        assert abs(share - modelled) < 4.5 * math.sqrt(modelled * (1 - modelled) / len(a))
    both = math.erf(2 / math.sqrt(2))
    assert math.exp(_log_tie(0.0, (-2.0, 2.0), (-2.0, 2.0))) == pytest.approx(both**2, rel=1e-12)
    assert math.exp(_log_tie(1 - 1e-13, (-2.0, 2.0), (-2.0, 2.0))) == pytest.approx(both, rel=1e-4)


def test_independent_limit_by_hand():
    """Without covariances and with one column, the success of the stage is a product of normal probabilities."""
    setting = Setting(20, 2)
    gradient = setting.gradients[0]
    B = 3000
    scale = unit_rate(gradient, "calibrated")
    deviation = scale * np.sqrt(gradient.variance / B)
    assert [key.kind for key in gradient.classes] == ["child", "irrelevant"]

    def below(u: float) -> float:
        return math.erfc(-u / math.sqrt(2)) / 2

    others = below((0.5 + scale * gradient.mean[1]) / deviation[1]) ** 18
    one_child = 1 - 2 * below(-0.5 / deviation[0])
    # Siblings are between independent and equal, and skewness is a small correction, so both bounds are close.
    assert one_child**2 * others < math.exp(setting.log_success(B)) + 0.01
    assert math.exp(setting.log_success(B)) < one_child * others + 0.01


def test_strict_recovery_by_hand():
    """With one column, strict recovery is a product of probabilities of intervals around K and 0."""
    setting = Setting(20, 2)
    gradient, B = setting.gradients[0], 1000
    scale = unit_rate(gradient, "calibrated")
    deviation, mean = scale * np.sqrt(gradient.variance / B), -scale * gradient.mean
    one_child = math.erf(0.5 / deviation[0] / math.sqrt(2))
    low, high = (math.erf((side * 0.5 - mean[1]) / deviation[1] / math.sqrt(2)) for side in (-1, 1))
    others = ((high - low) / 2) ** 18
    strict = math.exp(setting.log_success(B, strict=True))
    assert one_child**2 * others - 0.01 < strict < one_child * others + 0.01
    assert strict < math.exp(setting.log_success(B)) - 0.05  # falling non-children are what differs


@pytest.mark.parametrize(("n", "k"), [(16, 8), (30, 16), (64, 4)])
def test_strict_recovery_takes_more_samples(n: int, k: int):
    setting = Setting(n, k)
    for failure in (0.5, 1e-6):
        usual, strict = setting.samples_for(failure), setting.samples_for(failure, strict=True)
        assert usual is not None
        assert strict is not None
        assert strict > 1.05 * usual
        assert -math.expm1(setting.log_success(strict, strict=True)) <= failure * (1 + 1e-6)
    ratios = [
        (Setting(m, m // 2).samples_for(0.5, True) or 0) / (Setting(m, m // 2).samples_for(0.5) or 1) for m in SIZES
    ]
    assert all(1 < b < a for a, b in itertools.pairwise(ratios))


SIZES = (16, 64, 256)


def test_strict_recovery_is_impossible_where_non_children_lie_on_the_boundary():
    assert Setting(6, 4).samples_for(0.5, strict=True) is None
    assert Setting(2, 2).samples_for(0.5, strict=True) is None  # all weights stay 0
    assert Setting(2, 2).samples_for(0.5) == 1


def test_a_random_oracle_may_not_move_the_other_layers_down_either():
    setting = Setting(16, 8, oracle="random", oracle_error=0.05)
    deviation = 0.2
    usual, strict = (setting._log_kept(0, 0.5, deviation, strict) for strict in (False, True))
    others = sum(stage.keys * stage.nodes - 2 * stage.nodes for stage in setting.gradients[1:])
    tail = math.erfc(0.5 / deviation / math.sqrt(2))
    assert strict - usual == pytest.approx(others * (math.log1p(-tail) - math.log1p(-tail / 2)))


def test_the_law_of_samples():
    """B*(n)/(n ln n) grows to 32(1 + k/n), but logarithmically slowly, so only the trend is checked."""
    sizes = (64, 256, 1024, 4096, 16384)
    ratios = [(Setting(n, n // 2).samples_for(0.5) or math.inf) / (n * math.log(n)) for n in sizes]
    assert all(a < b < limit_factor(0.5) == 48 for a, b in itertools.pairwise(ratios))
    steps = [b - a for a, b in itertools.pairwise(ratios)]
    assert all(b < a for a, b in itertools.pairwise(steps))


def test_the_dominant_stage_has_the_limits_threshold():
    """At B = 8 M u² a non-child's threshold is u standard deviations away, up to O(1/n)."""
    for gradient in Setting(4096, 2048).gradients:
        B = 8 * gradient.keys * 5.0**2
        deviation = gradient.paper_rate * np.sqrt(gradient.variance[1:] / B)
        np.testing.assert_allclose(0.5 / deviation, 5.0, rtol=5e-3)


def test_predict_has_the_contracts_keys():
    found = predict(Setting(30, 16), samples=5000).to_json()
    json.dumps(found, allow_nan=False)
    assert set(found) >= {"signal", "noise", "samples_50", "samples_99", "samples_default", "K_default"}
    assert found["signal"] == pytest.approx([0.8032, 0.8415, 0.8277, 0.8411], abs=1e-4)
    assert len(found["noise"]) == 4
    assert found["samples_50"] < 5000 < found["samples_default"]
    assert 0.99 < found["success_probability"] < 1
    assert math.prod(found["stage_success_probability"]) == pytest.approx(found["success_probability"])
    assert "success_probability" not in predict(Setting(30, 16)).to_json()


def test_what_no_number_of_samples_can_do():
    hopeless = Setting(30, 16, grid="1", rate="paper")
    found = predict(hopeless).to_json()
    assert found["samples_50"] is found["samples_default"] is None
    assert "the expected step on a child is 11.24, not K=14" in found["reason"]
    assert "signal 0.492" in (impossible(Setting(8, 4, rate="paper")) or "")
    assert "adversarial oracle error" in (impossible(Setting(30, 16, oracle="adversarial", oracle_error=0.1)) or "")
    assert impossible(Setting(30, 16)) is None


def test_the_prediction_notes_what_it_leaves_out():
    found = predict(Setting(30, 16, K=4.0), samples=8038).to_json()
    assert found["success_probability"] > 0.99
    assert "K=4 is below the default" in found["note"]
    for setting in (Setting(30, 16), Setting(30, 16, K=20.0), Setting(8, 2, K=1.0)):  # k = 2 has a single layer
        assert "note" not in predict(setting).to_json()


def test_two_bits_and_an_oracle():
    """At n = k = 2 there is nothing to learn, and an error must not separate the two bits."""
    assert predict(Setting(2, 2), samples=1).success_probability == 1.0
    for error, chance in ((0.01, 1.0), (10.0, 0.0)):
        aimed = Setting(2, 2, oracle="adversarial", oracle_error=error)
        assert predict(aimed, samples=100).success_probability == chance
    setting = Setting(2, 2, oracle="random", oracle_error=3.0)
    (rate,), K = setting.unit_rates, setting.amplitude
    drawn = np.random.default_rng(0).normal(size=(2, 200_000)) * K * rate * 3.0 / math.sqrt(setting.parameters)
    same = float((np.round(drawn[0] / K) == np.round(drawn[1] / K)).mean())
    assert predict(setting, samples=100).success_probability == pytest.approx(same, abs=0.01)
    far, further = (
        predict(Setting(2, 2, oracle="random", oracle_error=error), samples=9).success_probability or 0.0
        for error in (99.0, 1e6)
    )
    assert 0 < further < far < same


@pytest.mark.parametrize("wrong", [{"oracle": "worst"}, {"rate": "worst"}, {"grid": "worst"}])
def test_choices_are_checked_in_python_as_well(wrong: Any):
    with pytest.raises(InputError, match="='worst' is not one of"):
        Setting(30, 16, **wrong)


def test_adversarial_error_costs_its_size_in_margin():
    """At infinite B the largest tolerated error is c·s/M² of the worst stage: half of K at the calibrated rate."""
    base = Setting(32, 16)
    largest = min(0.5 / rate for rate in base.unit_rates)
    for factor, tolerated in [(0.99, True), (1.01, False)]:
        setting = replace(base, oracle="adversarial", oracle_error=factor * largest)
        assert (setting.log_success(1e15) > math.log(0.99)) is tolerated


def test_theorems_constants():
    """By brute force over n = 10^x the ceiling exceeds ln n everywhere beyond the stated n, and not just before it."""
    for epsilon in (0.5, 1.0, 2.0, 5.0):
        end = theorem_log10_n(epsilon)
        assert math.ceil(math.exp(epsilon / 16 * (end - 1e-9) * math.log(10))) <= (end - 1e-9) * math.log(10)
        for x in np.linspace(end + 1e-9, 3 * end, 20_000):
            assert math.ceil(math.exp(epsilon / 16 * x * math.log(10))) > x * math.log(10)
    assert theorem_log10_n(1.0) == pytest.approx(16 * math.log10(67))
    assert theorem_log10_n(6.0) == 0.0
    with pytest.raises(InputError, match="epsilon=0 is outside"):
        theorem_log10_n(0)


def test_constants_of_the_links():
    assert math.pi <= steepness(COSINE) < 1.002 * math.pi
    assert math.pi**2 <= curvature(COSINE) < 1.002 * math.pi**2
    assert 16 <= curvature(QUARTIC) < 16.1
    assert 16 / (3 * math.sqrt(3)) <= steepness(QUARTIC) < 3.09


@pytest.mark.parametrize("grid", ["1", "K"])
@pytest.mark.parametrize(("n", "k"), [(16, 8), (30, 16), (256, 128)])
def test_default_amplitude_is_the_least(n: int, k: int, grid: Grid):
    """One less violates one of the two conditions, at several sizes and on both grids."""
    setting, levels = Setting(n, k, grid=grid), Levels(n, k)

    def holds(K: float) -> bool:
        masses = [off_child_mass(end, K) for end in levels.level_end[:-1]]
        frozen = all(
            K * setting.unit_rates[stage] * bound < (0.5 if grid == "1" else K / 2)
            for stage in range(1, levels.L)
            for bound in frozen_gradient_bounds(levels, COSINE, masses[:stage])
        )
        return frozen and drifts(COSINE, masses)[1] <= 1e-6

    assert holds(setting.default_amplitude)
    assert not holds(setting.default_amplitude - 1)


def test_a_curriculum_changes_the_number_of_steps_or_has_a_reason():
    """ICoT repeats idle stages, explicit CoT takes one step for all levels; the rest have no prediction, and say why."""
    setting = Setting(30, 16)
    plain = predict(setting, 2000)
    assert plain.steps == 4
    assert plain.samples_default == setting.samples_for(1e-6)
    assert plain.samples_total == 32152
    icot, cot = (predict(setting, 2000, curriculum=Curriculum(method)) for method in ("icot", "cot"))
    assert (icot.steps, cot.steps) == (15, 1)
    assert cot.samples_total == plain.samples_default
    assert icot.success_probability == cot.success_probability == plain.success_probability
    hidden = predict(setting, 2000, curriculum=Curriculum("none"), hidden_loss=True)
    assert (hidden.steps, hidden.samples_99) == (4, plain.samples_99)
    assert "neglected" in (hidden.note or "")
    for unpredicted, words in (
        (predict(setting, 2000, curriculum=Curriculum("none")), "Proposition 1"),
        (predict(setting, 2000, curriculum=Curriculum(skip=(1,))), "skip=(1,)"),
    ):
        assert words in (unpredicted.reason or "")
        assert unpredicted.samples_50 is unpredicted.samples_total is unpredicted.success_probability is None
        assert unpredicted.signal == plain.signal
    assert predict(Setting(8, 2), curriculum=Curriculum("none")).samples_50 == Setting(8, 2).samples_for(0.5)


def test_the_pace_of_a_skipped_first_level_is_shown():
    """Noise over signal of layer 1 where the first stage reads level 2; nothing where it reads level 1."""
    found = [
        predict(Setting(30, 16), curriculum=Curriculum(skip=skip)).chunk_noise_over_signal for skip in ((1,), (2,))
    ]
    exact = chunk_signal(Levels(30, 16))
    assert found == [pytest.approx(exact.noise[0] / exact.signal[0]), None]
