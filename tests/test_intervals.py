"""Intervals over seeds: Student's, whatever their number."""

import math

import numpy as np
import pytest

from internalize.intervals import mean_interval


@pytest.mark.parametrize(
    ("count", "sides", "t"),
    [
        *(
            (count, 2, t)
            for count, t in ((2, 12.7062), (11, 2.2281), (12, 2.2010), (20, 2.0930), (30, 2.0452), (61, 2.0003))
        ),
        *(
            (count, 1, t)
            for count, t in ((2, 6.3138), (11, 1.8125), (12, 1.7959), (20, 1.7291), (30, 1.6991), (61, 1.6706))
        ),
    ],
)
def test_students_interval(count: int, sides: int, t: float):
    values = np.random.default_rng(count).normal(size=count)
    mean, low, high = mean_interval(values.tolist(), sides=2 if sides == 2 else 1)
    error = values.std(ddof=1) / math.sqrt(count)
    assert mean == pytest.approx(values.mean())
    assert ((mean - low) / error, (high - mean) / error) == pytest.approx((t, t), rel=1e-3)
