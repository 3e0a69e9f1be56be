"""95 % intervals: of a share, and of a mean over seeds."""

import math
from collections.abc import Sequence
from typing import Final

_Z: Final = 1.959963984540054
# Student's t at 97.5 %, by degrees of freedom; beyond, the normal's with its first correction is within 0.1 %.
_T: Final = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's interval for a probability after so many successes."""
    share, spread = successes / trials, _Z**2 / trials
    middle = share + spread / 2
    half = _Z * math.sqrt((share * (1 - share) + spread / 4) / trials)
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean with Student's interval; of a single value, no interval but the value itself."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, mean, mean
    freedom = len(values) - 1
    t = _T[freedom - 1] if freedom <= len(_T) else _Z + (_Z**3 + _Z) / (4 * freedom)
    half = t * math.sqrt(sum((value - mean) ** 2 for value in values) / freedom / len(values))
    return mean, mean - half, mean + half
