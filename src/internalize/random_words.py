"""Random words by counter: word i of a stream does not depend on which words are drawn before or with it.

Philox-4x64 maps (key, counter) to four words. The key is (seed, stream), so the streams of a seed are independent, and
so are different seeds. The counter is the word's number divided by 4. NumPy keeps this generator fixed across versions.
"""

from typing import TYPE_CHECKING, Final, Literal, get_args

from internalize.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Stream = Literal[
    "secret", "train", "validation", "test", "oracle", "order", "replay", "init", "scattered", "patch", "noise"
]  # fmt: skip

# The position of a stream in this list is part of the generator's key, so stored results depend on it: append, never
# reorder.
_STREAMS: Final[tuple[Stream, ...]] = get_args(Stream)
_WORDS_PER_COUNTER: Final = 4
MAX_SEED: Final = 2**63 - 1


def check_seed(seed: int) -> int:
    """Return ``seed`` if it fits the generator; otherwise raise an error."""
    if not 0 <= seed <= MAX_SEED:
        raise InputError(f"seed={seed} is outside 0 … 2^63 − 1 (it is one word of the generator's key)")
    return seed


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that a command line names: ``3``, ``0:20`` (0 … 19) or ``0,5,7:9``."""
    seeds: list[int] = []
    for part in text.split(","):
        first, colon, end = part.partition(":")
        try:
            some = range(int(first), int(end)) if colon else range(int(first), int(first) + 1)
        except ValueError:
            raise InputError(f"seeds={text!r}: {part!r} is neither a number nor a range like 0:20") from None
        if len(seeds) + some.stop - some.start > 100_000:
            raise InputError(f"seeds={text!r} are more than 100000 runs")
        seeds += some
    if not seeds or len(set(seeds)) != len(seeds):
        raise InputError(f"seeds={text!r} must name at least one seed, and none twice")
    return tuple(check_seed(seed) for seed in seeds)


def words(seed: int, stream: Stream, start: int, count: int) -> "NDArray[np.uint64]":
    """Return words ``start`` … ``start + count − 1`` of a stream of ``seed``."""
    import numpy as np  # here, so that the command line can check a seed without importing NumPy

    key = np.array([check_seed(seed), _STREAMS.index(stream)], dtype=np.uint64)
    block, skip = divmod(start, _WORDS_PER_COUNTER)
    return np.random.Philox(key=key, counter=block).random_raw(skip + count)[skip:]


def normals(seed: int, stream: Stream, number: int, count: int) -> "NDArray[np.float64]":
    """Return ``count`` standard normal numbers, the same for each ``number`` of a stream of ``seed``."""
    import numpy as np

    pairs = -(-count // 2)
    uniform = (words(seed, stream, number * 2 * pairs, 2 * pairs) >> np.uint64(11)) * 2.0**-53
    # Box–Muller: two uniform numbers give two normal ones; 1 − u is never 0.
    radius, angle = np.sqrt(-2 * np.log1p(-uniform[:pairs])), 2 * np.pi * uniform[pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
