r"""Where a probability crosses one half, from successes at several numbers of samples.

In \(x = \ln B\) the probability is taken to be logistic, \(1/(1 + e^{-b(x - m)})\), which is ½ at m; nothing of `predict` is in it.
Were the truth as predicted, at k = n/2, n from 16 to 256 and B within a factor of 2 of the crossing, this m would be at most 1.5 %
too large, for the true curve is a little steeper below than above. The interval is that of the likelihood ratio, over a
lattice of m and b: it holds where all fail below and all succeed above, too.
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
"""How far beyond the numbers that were tried an interval is followed."""


@dataclass(frozen=True)
class Crossing:
    """The number of samples at which half of all runs succeed, with its 95 % interval, cut at a hundredfold of what was tried."""

    at: float
    low: float
    high: float


def half_crossing(samples: Sequence[float], successes: Sequence[int], trials: Sequence[int]) -> Crossing | None:
    """The crossing within the range that was tried; None if it is not in there.

    Args:
        samples: numbers of samples a stage, any order.
        successes: runs that succeeded with them.
        trials: runs that were made with them.
    """
    x: Reals = np.log(np.array(samples, dtype=float))
    won, lost = np.array(successes), np.array(trials) - np.array(successes)
    if len(set(samples)) < 2 or not won.any() or not lost.any():
        return None
    low, high = float(x.min()), float(x.max())
    step = (high - low) / 1000
    beyond = math.ceil(min(_BEYOND / step, 20_000))  # the interval may reach further than what was tried
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
