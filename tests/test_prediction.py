"""prediction.py and freezing.py: the model's limits and shape, what it refuses, and the proof's constants.

Whether its probabilities are right is measured in test_algorithm.py, on the algorithm itself.
"""

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from internalize import InputError
from internalize.parity import COSINE, QUARTIC, Levels
from internalize.parity.options import Grid
from internalize.parity.theory.freezing import curvature, drifts, frozen_gradient_bounds, off_child_mass, steepness
from internalize.parity.theory.prediction import (
    Setting,
    _log_tie,
    impossible,
    limit_factor,
    predict,
    theorem_log10_n,
    unit_rate,
)

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
    """P(both in an interval) for correlated pairs: 4 × 10^6 draws, within 4.5 standard errors; and the two extremes."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 4_000_000, generator=generator, dtype=torch.float64)
    for correlation, low, high in [(0.0, -1, 2), (0.87, -2, 2), (0.87, -0.5, 0.2), (0.999, 1, 3), (-0.6, -1, 1)]:
        second = correlation * a + math.sqrt(1 - correlation**2) * b
        share = float(((a > low) & (a < high) & (second > low) & (second < high)).double().mean())
        modelled = math.exp(_log_tie(correlation, low, high))
        assert abs(share - modelled) < 4.5 * math.sqrt(modelled * (1 - modelled) / len(a))
    both = math.erf(2 / math.sqrt(2))
    assert math.exp(_log_tie(0.0, -2.0, 2.0)) == pytest.approx(both**2, rel=1e-12)
    assert math.exp(_log_tie(1 - 1e-13, -2.0, 2.0)) == pytest.approx(both, rel=1e-4)


def test_independent_limit_by_hand():
    """With all covariances off and one column, the stage's success is a product of normal probabilities."""
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
    # Siblings are between independent and equal, skewness is a small correction: the truth is close to both.
    assert one_child**2 * others < math.exp(setting.log_success(B)) + 0.01
    assert math.exp(setting.log_success(B)) < one_child * others + 0.01


def test_the_law_of_samples():
    """B*(n)/(n ln n) grows to 32(1 + k/n) and no further: logarithmically slow, so the check is of the trend."""
    sizes = (64, 256, 1024, 4096, 16384)
    ratios = [(Setting(n, n // 2).samples_for(0.5) or math.inf) / (n * math.log(n)) for n in sizes]
    assert all(a < b < limit_factor(0.5) == 48 for a, b in itertools.pairwise(ratios))
    steps = [b - a for a, b in itertools.pairwise(ratios)]
    assert all(b < a for a, b in itertools.pairwise(steps))


def test_the_dominant_stage_has_the_limits_threshold():
    """At B = 8 M u² a non-child's threshold is u standard deviations away, to O(1/n): the derivation's one ingredient."""
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


def test_small_amplitudes_are_told_what_the_prediction_leaves_out():
    found = predict(Setting(30, 16, K=4.0), samples=8038).to_json()
    assert found["success_probability"] > 0.99
    assert "K=4 is below the default" in found["note"]
    for setting in (
        Setting(30, 16),
        Setting(30, 16, K=20.0),
        Setting(8, 2, K=1.0),
    ):  # of one level nothing is trained on
        assert "note" not in predict(setting).to_json()


def test_two_bits_and_an_oracle():
    """n = k = 2: there is nothing to learn, and an error must not tell the two apart."""
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
    """At infinite B the largest tolerated adversarial error is c·s/M² of the worst stage: half of K at the calibrated rate."""
    base = Setting(32, 16)
    largest = min(0.5 / rate for rate in base.unit_rates)
    for factor, tolerated in [(0.99, True), (1.01, False)]:
        setting = replace(base, oracle="adversarial", oracle_error=factor * largest)
        assert (setting.log_success(1e15) > math.log(0.99)) is tolerated


def test_theorems_constants():
    """By brute force over n = 10^x: the ceiling exceeds ln n everywhere beyond the stated n, and not just before it."""
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
    """One less breaks one of the two conditions, at several sizes and on both grids."""
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
