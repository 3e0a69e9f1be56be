"""95 % intervals for a share and for a mean over seeds."""

import math
from collections.abc import Sequence
from typing import Final, Literal

_Z: Final = 1.959963984540054
# By the number of sides: Student's t for 1 to 10 degrees of freedom, at 95 % (one side) or 97.5 % (two), and the normal
# quantile. Beyond the table, that quantile with its first two corrections is within 0.1 %.
_T: Final = {
    1: ((6.3138, 2.9200, 2.3534, 2.1318, 2.0150, 1.9432, 1.8946, 1.8595, 1.8331, 1.8125), 1.6448536269514722),
    2: ((12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281), _Z),
}


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's interval for a probability after `successes` in `trials`."""
    share, spread = successes / trials, _Z**2 / trials
    middle = share + spread / 2
    half = _Z * math.sqrt((share * (1 - share) + spread / 4) / trials)
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))


def mean_interval(values: Sequence[float], sides: Literal[1, 2] = 2) -> tuple[float, float, float]:
    """Return the mean with the ends of Student's interval. For a single value, both ends are the value itself.

    With ``sides=1`` each end is a one-sided bound: the mean is above the lower one with 95 % confidence.
    """
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, mean, mean
    freedom = len(values) - 1
    table, z = _T[sides]
    t = table[freedom - 1] if freedom <= len(table) else _beyond(z, freedom)
    half = t * math.sqrt(sum((value - mean) ** 2 for value in values) / freedom / len(values))
    return mean, mean - half, mean + half


def _beyond(z: float, freedom: int) -> float:
    """Return Student's t from the normal quantile, in powers of 1/freedom (Cornish and Fisher)."""
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
