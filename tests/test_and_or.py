"""Trees of AND and OR: exact steps against all inputs, the claim about grandchildren, and what fails because of it."""

import itertools
import math
from typing import Literal

import numpy as np
import pytest

from internalize import InputError
from internalize.parity import Levels
from internalize.parity.theory.and_or import (
    Operation,
    expected_steps,
    grandchild_share,
    link_of,
    operation_at,
    samples_between,
    truth,
)

OPERATIONS: list[Operation] = ["and", "or", "alternating"]


def values(n: int, k: int, operation: Operation) -> np.ndarray:
    """Return all inputs and the values of their nodes; the secret set is the first k bits."""
    found = [np.array(list(itertools.product([-1.0, 1.0], repeat=n)))]
    level = found[0][:, :k]
    for number in range(1, Levels(n, k).L + 1):
        join = np.minimum if operation_at(operation, number) == "and" else np.maximum
        level = join(level[:, 0::2], level[:, 1::2])
        found.append(level)
    return np.concatenate(found, axis=1)


@pytest.mark.parametrize("operation", ["and", "or"])
def test_the_link(operation: Literal["and", "or"]):
    at, slopes = link_of(operation, np.array([-1.0, 0.0, 1.0]))
    np.testing.assert_allclose(at, [-1, -1, 1] if operation == "and" else [-1, 1, 1], atol=1e-12)
    np.testing.assert_allclose(slopes, 0, atol=1e-12)
    t = np.linspace(-1, 1, 20_001)
    value, slope = link_of(operation, t)
    np.testing.assert_allclose(np.gradient(value, t)[1:-1], slope[1:-1], atol=1e-6)
    assert np.abs(value).max() <= 1 + 1e-12


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("centered", "bias"), [(False, 0.0), (True, 0.0), (True, 0.5)])
@pytest.mark.parametrize(("n", "k"), [(5, 2), (7, 4), (4, 4), (10, 8)])
def test_steps_of_every_input(n: int, k: int, operation: Operation, centered: bool, bias: float):
    levels, sequence = Levels(n, k), values(n, k, operation)
    for stage in range(levels.L):
        M, m = levels.level_end[stage], levels.level_end[stage]
        keys = sequence[:, :M] - (sequence[:, :M].mean(0) if centered else 0)
        z = keys.mean(1, keepdims=True)
        phi, slope = link_of(operation_at(operation, stage + 1), z + bias)
        steps = -(phi - sequence[:, [m]]) * slope * (keys - z) / M
        child = levels.nodes(stage)[0]
        first = {"child": lambda level: levels.nodes(level)[0], "inside": lambda level: levels.nodes(level)[0],
                 "outside": lambda level: levels.nodes(level)[-1] if level else k - 1,
                 "irrelevant": lambda level: n - 1}  # fmt: skip
        found = expected_steps(levels, stage, operation, centered=centered, bias=bias)
        assert (found[0].kind, found[0].level) == ("child", stage)
        assert child == first["child"](stage)
        for own in found:
            j = first[own.kind](own.level)
            assert own.mean == pytest.approx(steps[:, j].mean(), abs=1e-12)
            assert own.variance == pytest.approx(steps[:, j].var(), abs=1e-12)


def test_probabilities_and_shares():
    levels = Levels(16, 16)
    assert truth("and", levels) == (1 / 2, 1 / 4, 1 / 16, 1 / 256, 1 / 65536)
    assert truth("alternating", levels)[:3] == (1 / 2, 1 / 4, 7 / 16)
    assert grandchild_share("and", levels, 2) == grandchild_share("or", levels, 2) == 2 / 3
    for operation in OPERATIONS:
        sequence = values(8, 8, operation)
        for level in (2, 3):
            m, c, g = (Levels(8, 8).nodes(level - below)[0] for below in (0, 1, 2))
            cov = np.cov(sequence[:, [m, c, g]].T)
            share = grandchild_share(operation, Levels(8, 8), level)
            assert cov[0, 2] / cov[0, 1] == pytest.approx(share, abs=1e-12)
            assert share > 1 / 2


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_claim_in_the_limit(operation: Operation):
    """With centered keys and a bias where the link is steep, grandchildren tend to ρ of the children's step."""
    bias = 0.5 if operation_at(operation, 2) == "and" else -0.5
    errors: list[float] = []
    for n in (256, 1024, 4096):
        steps = expected_steps(Levels(n, 16), 1, operation, centered=True, bias=bias)
        leaf = next(step for step in steps if step.kind == "inside")
        errors.append(abs(leaf.mean / steps[0].mean - grandchild_share(operation, Levels(n, 16), 2)))
    assert errors[1] < 0.4 * errors[0]
    assert errors[2] < 0.4 * errors[1]


def test_biased_nodes_push_the_children_down():
    """Without centering or a bias, z₀ lies where the link falls: children of level 2 lose weight at n = 256, k = 128."""
    steps = expected_steps(Levels(256, 128), 1, "and")
    assert steps[0].mean < 0
    assert samples_between(steps, 1000) is None


def test_a_rate_in_between_separates_at_a_price():
    """With the threshold half-way between children and grandchildren, the price is (1 − ρ)^−2 = 9 above fair leaves."""
    levels = Levels(1024, 16)
    steps = expected_steps(levels, 1, "and", centered=True, bias=0.5)
    entries = levels.level_end[1] * levels.width(2)
    enough = samples_between(steps, entries) or math.inf
    alone = 2 * math.log(entries) * max(step.variance for step in steps) / (steps[0].mean / 2) ** 2
    assert enough / alone == pytest.approx(9, rel=0.1)


def test_only_complete_binary_trees():
    with pytest.raises(InputError, match="k=6: trees of AND and OR are complete"):
        expected_steps(Levels(8, 6), 0, "and")
