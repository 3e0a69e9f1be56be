"""The expected lengths of the sequences that a stage makes of the data, which the cost of training follows from."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from internalize.lm.stages.chains import Chain
from internalize.lm.stages.removal import MAX_OFFSET, TextStages

_Floats = NDArray[np.float64]


def expected_lengths(stages: TextStages, chains: Sequence[Chain], *, smooth: bool = True) -> _Floats:
    """Return the expected length (row 0) and squared length (row 1) of a training sequence, by stage.

    The expectation over the chains and over the random choices of `TextStages.training` is exact: a chain's length is
    known for every number of hidden units, and replay and smoothing are averages over these numbers.
    """
    # Chains with the same lengths are computed once: generated tasks have few kinds.
    kinds = [(len(chain.prompt), len(chain.answer), tuple(map(len, chain.units)), chain.levels) for chain in chains]
    of_kind, total = dict(zip(kinds, chains, strict=True)), np.zeros((2, stages.count))
    smooth = smooth and math.isfinite(stages.options.smoothing)
    for kind, times in Counter(kinds).items():
        total += times * _chain_lengths(stages, of_kind[kind], smooth=smooth)
    return total / len(kinds)


def _chain_lengths(stages: TextStages, chain: Chain, *, smooth: bool) -> _Floats:
    """Return the expected lengths and squared lengths for one chain, by stage."""
    options, units = stages.options, len(chain.units)
    sizes = [len(unit) for unit in chain.units]
    hidden = np.array([stages.hidden_units(chain, stage) for stage in range(stages.count)])
    by_count, by_stage = map(_first_two_powers, stages.lengths(chain))
    if smooth:
        offsets = np.arange(MAX_OFFSET + 1)
        chances = np.exp(-options.smoothing * offsets)  # of this offset or more
        chances[:-1] -= chances[1:]
        reached = np.minimum(np.arange(units + 1)[:, None] + offsets[1:], units)
        more = by_count[:, reached] @ chances[1:]
        by_stage = np.where(hidden < units, chances[0] * by_stage + more[:, hidden], by_stage)
        by_count[:, :units] = (chances[0] * by_count + more)[:, :units]
    if options.replayed == "scattered":
        replayed = _scattered(len(chain), np.zeros(0) if options.padded else np.array(sizes))[:, None]
    elif options.replayed == "stages":
        replayed = np.cumsum(by_stage, axis=1) / np.arange(1, stages.count + 1)
    else:
        fewer = np.cumsum(by_count, axis=1) - by_count  # over all smaller counts
        replayed = (fewer[:, hidden] + by_stage) / (hidden + 1)
    share = np.where(np.arange(stages.count) > 0, options.replay, 0.0)
    return (1 - share) * by_stage + share * replayed


def _scattered(length: int, sizes: NDArray[Any]) -> _Floats:
    """Return the expected length and squared length if each unit of these sizes is removed with the same random
    probability.

    The probability is uniform on [0, 1].
    """
    gone, gone_squared = sizes.sum() / 2, (sizes.sum() ** 2 - (sizes**2).sum()) / 3 + (sizes**2).sum() / 2
    return np.array([length - gone, length**2 - 2 * length * gone + gone_squared], dtype=np.float64)


def _first_two_powers(lengths: NDArray[Any]) -> _Floats:
    return np.stack([lengths, lengths**2]).astype(np.float64)
