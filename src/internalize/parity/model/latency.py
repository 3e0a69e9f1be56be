r"""How long an answer takes: one pass of the internalised model, k − 1 of the one that writes its chain.

| name   | paper                  | meaning                                                                     | where       |
| ------ | ---------------------- | --------------------------------------------------------------------------- | ----------- |
| node   | autoregressive passes  | the chain node by node: k − 1 passes, each after the one before             | section 3.1 |
| level  | –                      | the chain level by level: \(\log_2 k\) passes, all nodes of a level at once | –           |
| direct | internalised reasoning | the bits in, the root out: one pass through \(\log_2 k\) layers             | section 3.1 |

Weights decide nothing of a model whose weights may still change: a softmax takes as long whatever it is of. With fixed weights
(``sparse.py``) it need not be computed at all.
"""

import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from internalize.parallel.pool import torch_threads
from internalize.parity.model.cot import CoTTransformer, chain_passes
from internalize.parity.model.sparse import WAYS, By, SparseModel, read_model
from internalize.parity.model.transformer import LevelTransformer, set_weights
from internalize.parity.task.data import draw_bits
from internalize.parity.task.tree import Levels
from internalize.storage.runs import Run

BATCHES = (1, 1000)
WARM_UP = 5


@dataclass(frozen=True)
class Answering:
    """A model with weights that may still change, and the way in which it gives its answer to some bits."""

    model: LevelTransformer | CoTTransformer
    by: By

    @property
    def levels(self) -> Levels:
        """The problem."""
        return self.model.levels

    @property
    def passes(self) -> int:
        """Passes that wait for each other."""
        return 1 if self.by == "direct" else len(chain_passes(self.levels, self.by))

    def __call__(self, bits: Tensor) -> Tensor:
        """The root."""
        if isinstance(self.model, LevelTransformer):
            return self.model.by_level(bits)[-1][..., -1]
        assert self.by != "direct"
        return self.model.generate(bits, self.by)[..., -1]


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one answer: the median of many, with the 95 % interval of the median."""

    median: float
    low: float
    high: float
    repeats: int


def new_models(n: int, k: int) -> list[Answering]:
    """All three ways, with weights as they are before any training."""
    cot = CoTTransformer(n, k)
    return [Answering(LevelTransformer(n, k) if by == "direct" else cot, by) for by in WAYS]


def models_of(run: Run) -> list[Answering]:
    """The ways in which a finished run's model answers: one, or two if it writes its chain. In float32."""
    levels, link, writes_chain, W = read_model(run)
    model = set_weights((CoTTransformer if writes_chain else LevelTransformer)(levels.n, levels.k, link), W)
    return [Answering(model, by) for by in (("node", "level") if writes_chain else ("direct",))]


def measure_latency(subjects: Sequence[Answering | SparseModel], batch: int, repeats: int) -> list[Latency]:
    """Time an answer of each on one thread. All of them, over and over, so that whatever disturbs disturbs all alike.

    Each time in another order: whoever always came after the one with the largest weights would find the caches cold.
    """
    inputs = [draw_bits(subject.levels.n, 0, 0, batch, "test") for subject in subjects]
    times: list[list[float]] = [[] for _ in subjects]
    order, generator = list(range(len(subjects))), random.Random(0)  # noqa: S311  (no secret)
    with torch_threads(1), torch.inference_mode():
        for repeat in range(WARM_UP + repeats):
            generator.shuffle(order)
            for number in order:
                began = time.perf_counter()
                subjects[number](inputs[number])
                if repeat >= WARM_UP:
                    times[number].append(1000 * (time.perf_counter() - began))
    low = median_rank(repeats)
    ordered = [sorted(own) for own in times]
    return [Latency(statistics.median(own), own[low], own[repeats - 1 - low], repeats) for own in ordered]


def median_rank(count: int) -> int:
    """The place, from either end, of the ordered values between which the median lies with 95 %: how many of them are below it
    is binomial. Fewer than six values do not reach 95 %; then the extremes.
    """
    below, rank = 0, 0
    while 40 * (below := below + math.comb(count, rank)) <= 2**count:  # whole numbers: no float holds many repeats
        rank += 1
    return max(rank - 1, 0)
