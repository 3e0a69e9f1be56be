r"""Matrices of bits, 64 to a word. A bit 1 stands for −1, so a product of signs is an exclusive or.

| name        | paper | meaning                                                 | where       |
| ----------- | ----- | ------------------------------------------------------- | ----------- |
| Words       | –     | rows of 64-bit words; bit q of word w is column 64w + q | –           |
| transposed  | –     | samples × positions to positions × samples, or back     | –           |
| write_nodes | b_m   | true values of levels 1 and above, one row per node     | section 2.1 |
| differing   | –     | weighted numbers of bits in which rows differ           | –           |

The slow operations exist in C (``native.py``) and in numpy. numpy serves machines without a compiler, and sizes
that do not repay the time of compiling. Both give the same bits; sums may be rounded in another order. The choice
depends only on the size, so a resumed run computes what an uninterrupted run would have.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from internalize.parity.task.native import call, in_threads, library
from internalize.parity.task.tree import ParityTree

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]
Reals = NDArray[np.float64]

LONG: Final = 64
_MASKS: Final = {half: sum(1 << q for q in range(LONG) if not q & half) for half in (32, 16, 8, 4, 2, 1)}
_BLOCK: Final = 2**15
"""Words that numpy compares at a time, so that they and the results stay in the caches."""
_NATIVE_FROM: Final = 2**24
"""Number of pairs of words from which on compiling pays."""


def use_native(pairs: int) -> bool:
    """Return whether to compare ``pairs`` pairs of words in C."""
    return pairs >= _NATIVE_FROM and library() is not None


def transposed(rows: Words, order: Integers, *, room: int = 0, native: bool) -> Words:
    """Return the transpose of ``rows[order]``; −1 in ``order`` stands for a row of zeros.

    ``order`` has a multiple of 64 entries. The result has at least ``room`` rows, uninitialized beyond the transpose.
    """
    width, height = rows.shape[1], len(order) // LONG
    found = np.empty((max(width * LONG, room), height), dtype=np.uint64)
    compiled = library() if native else None
    if compiled is not None:
        function = compiled.transpose
        in_threads(height, lambda first, end: call(function, rows, width, order, height, first, end, found))
        return found
    selected = np.where(order[:, None] < 0, np.uint64(0), rows[order])
    blocks = np.ascontiguousarray(selected.reshape(height, LONG, width).transpose(2, 1, 0))
    for half, mask in _MASKS.items():
        pairs = blocks.reshape(width, LONG // (2 * half), 2, half, height)
        upper, lower = pairs[:, :, 0], pairs[:, :, 1]
        changed = ((upper >> np.uint64(half)) ^ lower) & np.uint64(mask)
        lower ^= changed
        upper ^= changed << np.uint64(half)
    found[: width * LONG] = blocks.reshape(width * LONG, height)
    return found


def filled(start: int, stop: int) -> Integers:
    """Return range(start, stop), followed by −1 up to a multiple of 64: an ``order`` for ``transposed``."""
    return np.pad(np.arange(start, stop), (0, (start - stop) % LONG), constant_values=-1)


def write_nodes(tree: ParityTree, states: Words, level: int) -> None:
    """Compute the nodes of levels 1 … ``level`` from the bits in ``states``, and write them to their positions."""
    for layer in range(level):
        for m, (left, right, *more) in zip(tree.levels.nodes(layer + 1), tree.layer_children(layer), strict=True):
            np.bitwise_xor(states[left], states[right], out=states[m])
            for child in more:
                np.bitwise_xor(states[m], states[child], out=states[m])


def ones(rows: Words) -> Integers:
    """Count the bits of each row that are 1."""
    return np.bitwise_count(rows).sum(axis=1, dtype=np.int64)


def differing(keys: Words, targets: Words, ends: Integers, weights: Reals, *, total: Reals, native: bool) -> None:
    """Add to ``total`` (keys × targets) the weighted number of bits in which each key differs from each target.

    Segment s of words ends before word ``ends[s]`` and has weight ``weights[s]``; the first segment begins with word 0.
    """
    compiled: Any = library() if native else None
    if compiled is not None:
        shape = (len(targets), keys.shape[1])
        function = compiled.differing
        in_threads(
            len(keys),
            lambda first, end: call(function, keys, first, end, targets, *shape, ends, weights, len(ends), total),
        )
        return
    word_weights = np.repeat(weights, np.diff(ends, prepend=0))
    step = max(_BLOCK // keys.shape[1], 1)
    for first in range(0, len(keys), step):
        block = keys[first : first + step]
        for column, target in enumerate(targets):
            total[first : first + step, column] += np.bitwise_count(block ^ target).astype(np.float64) @ word_weights
