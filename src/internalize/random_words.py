"""Random words by counter: word i of a seed is the same whoever asks, in whatever portions.

Philox-4x64 maps (key, counter) to four words. The key is (seed, stream), so streams of one seed and seeds
of one stream are independent; the counter is the word's number. NumPy keeps this stream fixed across versions.
"""

from typing import TYPE_CHECKING, Final, Literal, get_args

from internalize.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Stream = Literal["secret", "train", "validation", "test", "oracle", "order", "replay", "init", "scattered"]

# A stream's number, its place above, is part of every result ever drawn from it: append, never reorder.
_STREAMS: Final[tuple[Stream, ...]] = get_args(Stream)
_WORDS_PER_COUNTER: Final = 4
MAX_SEED: Final = 2**63 - 1


def check_seed(seed: int) -> int:
    """Return ``seed`` if the generator can take it."""
    if not 0 <= seed <= MAX_SEED:
        raise InputError(f"seed={seed} is outside 0 … 2^63 − 1 (it is one word of the generator's key)")
    return seed


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds as the command line has them: ``3``, ``0:20`` (0 … 19) or ``0,5,7:9``."""
    seeds: list[int] = []
    for part in text.split(","):
        first, colon, end = part.partition(":")
        try:
            some = range(int(first), int(end)) if colon else range(int(first), int(first) + 1)
        except ValueError:
            raise InputError(f"seeds={text!r}: {part!r} is neither a number nor a range like 0:20") from None
        if len(seeds) + some.stop - some.start > 100_000:
            raise InputError(f"seeds={text!r} are more than 100000 runs at once")
        seeds += some
    if not seeds or len(set(seeds)) != len(seeds):
        raise InputError(f"seeds={text!r} must name at least one seed, and none twice")
    return tuple(check_seed(seed) for seed in seeds)


def words(seed: int, stream: Stream, start: int, count: int) -> "NDArray[np.uint64]":
    """Words ``start`` … ``start + count − 1`` of a stream of ``seed``."""
    import numpy as np  # here, so that the command line can check a seed without it

    key = np.array([check_seed(seed), _STREAMS.index(stream)], dtype=np.uint64)
    block, skip = divmod(start, _WORDS_PER_COUNTER)
    return np.random.Philox(key=key, counter=block).random_raw(skip + count)[skip:]
