"""Intervals over seeds: Student's, whatever their number."""

import math

import numpy as np
import pytest

from internalize.intervals import mean_interval


@pytest.mark.parametrize(
    ("count", "two_sided", "one_sided"),
    [
        (2, 12.7062, 6.3138),
        (11, 2.2281, 1.8125),
        (12, 2.2010, 1.7959),
        (20, 2.0930, 1.7291),
        (30, 2.0452, 1.6991),
        (61, 2.0003, 1.6706),
    ],
)
def test_students_interval(count: int, two_sided: float, one_sided: float):
    values = np.random.default_rng(count).normal(size=count)
    error = values.std(ddof=1) / math.sqrt(count)
    intervals = mean_interval(values.tolist()), mean_interval(values.tolist(), sides=1)
    for t, (mean, low, high) in zip((two_sided, one_sided), intervals, strict=True):
        assert mean == pytest.approx(values.mean())
        assert ((mean - low) / error, (high - mean) / error) == pytest.approx((t, t), rel=1e-3)
