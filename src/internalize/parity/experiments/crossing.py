r"""The number of samples at which a success probability crosses one half, from successes at several numbers of samples.

In \(x = \ln B\) the probability is modeled as logistic, \(1/(1 + e^{-b(x - m)})\), which is ½ at m. Nothing of
`predict` enters. If `predict` were exact, this m would be at most 1.5 % too large at k = n/2, n from 16 to 256 and
B within a factor of 2 of the crossing, because the predicted curve is slightly steeper below than above. The
interval is that of the likelihood ratio, over a lattice of m and b. It is also valid if all runs fail below some B
and all succeed above.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]

_CHI2: Final = 3.841458820694124
"""The 95 % point of χ² with one degree of freedom."""
_BEYOND: Final = math.log(100)
"""How far an interval may extend beyond the numbers of samples that were tried, in ln B."""


@dataclass(frozen=True)
class Crossing:
    """The number of samples at which half of all runs succeed, with its 95 % interval.

    The interval is cut at a hundredth of the fewest and a hundredfold of the most samples tried.
    """

    at: float
    low: float
    high: float


def half_crossing(samples: Sequence[float], successes: Sequence[int], trials: Sequence[int]) -> Crossing | None:
    """Return the crossing; None if it is outside the range of ``samples``.

    Args:
        samples: numbers of samples per stage, in any order.
        successes: number of successful runs with each of them.
        trials: number of runs with each of them.
    """
    x: Reals = np.log(np.array(samples, dtype=float))
    won, lost = np.array(successes), np.array(trials) - np.array(successes)
    if len(set(samples)) < 2 or not won.any() or not lost.any():
        return None
    low, high = float(x.min()), float(x.max())
    step = (high - low) / 1000
    beyond = math.ceil(min(_BEYOND / step, 20_000))  # lattice steps on either side of the range
    middles: Reals = low + step * np.arange(-beyond, 1001 + beyond, dtype=np.float64)
    best: Reals = np.full(len(middles), -math.inf)
    for slope in np.geomspace(0.5, 200, 60):
        logit: Reals = slope * (x - middles[:, None])
        np.maximum(best, -np.logaddexp(0, -logit) @ won - np.logaddexp(0, logit) @ lost, out=best)
    top = int(best.argmax())
    if not beyond < top < beyond + 1000:
        return None
    inside: Reals = middles[2 * (best[top] - best) <= _CHI2]
    return Crossing(*(math.exp(float(value)) for value in (middles[top], inside.min(), inside.max())))
