r"""How long an answer takes: one pass of the internalized model, k − 1 passes of the one that writes its chain.

| name   | paper                  | meaning                                                   | where       |
| ------ | ---------------------- | --------------------------------------------------------- | ----------- |
| node   | autoregressive passes  | the chain node by node: k − 1 passes, one after the other | section 3.1 |
| level  | –                      | the chain level by level: \(\log_2 k\) passes             | –           |
| direct | internalized reasoning | one pass through \(\log_2 k\) layers, from bits to root   | section 3.1 |

The latency of a trainable model does not depend on its weights, because a softmax of any weights takes as long.
With fixed weights (``sparse.py``) no softmax is computed.
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
    """A trainable model, and the way in which it computes its answers."""

    model: LevelTransformer | CoTTransformer
    by: By

    @property
    def levels(self) -> Levels:
        """The levels of the problem."""
        return self.model.levels

    @property
    def passes(self) -> int:
        """Number of sequential passes per answer."""
        return 1 if self.by == "direct" else len(chain_passes(self.levels, self.by))

    def __call__(self, bits: Tensor) -> Tensor:
        """Return the root of every sample."""
        if isinstance(self.model, LevelTransformer):
            return self.model.by_level(bits)[-1][..., -1]
        assert self.by != "direct"
        return self.model.generate(bits, self.by)[..., -1]


@dataclass(frozen=True)
class Latency:
    """The median of ``repeats`` times of one answer, in milliseconds, with its 95 % interval."""

    median: float
    low: float
    high: float
    repeats: int


def new_models(n: int, k: int) -> list[Answering]:
    """Return untrained models that answer in each of the three ways."""
    cot = CoTTransformer(n, k)
    return [Answering(LevelTransformer(n, k) if by == "direct" else cot, by) for by in WAYS]


def models_of(run: Run) -> list[Answering]:
    """Return the model of a finished run in float32, once per way of answering (two if it writes its chain)."""
    levels, link, writes_chain, W = read_model(run)
    model = set_weights((CoTTransformer if writes_chain else LevelTransformer)(levels.n, levels.k, link), W)
    return [Answering(model, by) for by in (("node", "level") if writes_chain else ("direct",))]


def measure_latency(subjects: Sequence[Answering | SparseModel], batch: int, repeats: int) -> list[Latency]:
    """Time one answer of each subject on one thread.

    Every repeat times all subjects, so that disturbances affect them alike. The order is random in each repeat: in
    a fixed order, one subject would always follow the largest weights and find cold caches.
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
    """Return the index, from either end, of the ordered values that enclose the median with probability 95 %.

    The number of values below the median is binomial. Fewer than six values do not reach 95 %; then it is 0.
    """
    below, rank = 0, 0
    while 40 * (below := below + math.comb(count, rank)) <= 2**count:  # integers: 2**count overflows a float
        rank += 1
    return max(rank - 1, 0)
