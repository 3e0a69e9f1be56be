"""What can be asked for: one frozen dataclass a command. The same dataclass is the Python API's argument, the command
line and, resolved, the run's ``config.json``. No torch here, so that ``--help`` is quick.
"""

import math
from dataclasses import dataclass
from typing import Literal

from internalize.counter import check_seed
from internalize.curriculum import Curriculum, Method
from internalize.errors import InputError

Dtype = Literal["float32", "float64"]
Grid = Literal["1", "K"]
Rate = Literal["paper", "calibrated"]
Oracle = Literal["none", "random", "adversarial"]

MAX_SAMPLES = 2**53
"""Beyond, a count of samples is not a float64 any more."""


@dataclass(frozen=True)
class TrainOptions:
    """Train by AdamW through the stages of a curriculum. The defaults are the paper's experiment (its appendix)."""

    n: int = 30
    """Number of input bits."""
    k: int = 16
    """Size of the secret set, a power of two. The model has log2 k layers."""
    curriculum: Method = "log-icot"
    """How the chain of thought is taken away. `cot` trains the one-layer model that writes its chain."""
    chunk: int = 1
    """For icot: steps removed at a time."""
    boundaries: tuple[int, ...] = ()
    """For icot: numbers of hidden steps after the first stage, in place of a chunk."""
    steps: int = 500
    """Gradient steps a stage."""
    batch: int = 500
    """Fresh samples a gradient step."""
    lr: float = 0.1
    """Learning rate of AdamW."""
    weight_decay: float = 0.01
    """Weight decay of AdamW. The paper does not say; this is torch's default."""
    eval_every: int = 25
    """Steps between evaluations. There is always one directly after a stage begins, before any update."""
    eval_samples: int = 2000
    """Held-out samples, the same at every evaluation."""
    link: str = "cosine"
    """Link function: cosine (the paper's) or quartic."""
    dtype: Dtype = "float32"
    """Precision of weights and arithmetic."""

    def __post_init__(self) -> None:
        self.schedule()
        at_least = {"steps": 0, "batch": 1, "eval_every": 1, "eval_samples": 1}
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)} must be at least {least}")
        for name in ("lr", "weight_decay"):
            value: float = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name}={value} must be a finite number from 0 up")

    def schedule(self) -> Curriculum:
        """The curriculum with its options."""
        return Curriculum(self.curriculum, self.chunk, self.boundaries)


@dataclass(frozen=True)
class StepOptions:
    """How Algorithm 1 takes its steps: all that decides how many samples it needs."""

    n: int = 30
    """Number of input bits."""
    k: int = 16
    """Size of the secret set, a power of two."""
    K: float | None = None
    """Amplitude: what a child's weight becomes. Default: the least that bounds the final error and freezes layers."""
    grid: Grid = "K"
    """Weights are rounded to multiples of 1 (as in the paper) or of K."""
    rate: Rate = "calibrated"
    """Learning rate: the paper's K n_t²/(2c), or the same over the exact signal."""
    oracle: Oracle = "none"
    """Error of the gradient oracle: none, a random direction, or the worst one."""
    oracle_error: float = 0.0
    """2-norm of the oracle's error over all weights."""
    link: str = "cosine"
    """Link function: cosine (the paper's) or quartic."""


@dataclass(frozen=True)
class SolveOptions(StepOptions):
    """Algorithm 1. The defaults work at every n; ``preset="paper"`` is verbatim and does not."""

    seed: int = 0
    """Decides the secret set, all samples and the oracle's random error."""
    samples: int | None = None
    """Fresh samples a stage. Default: enough for a predicted failure probability of at most 1e-6."""
    dtype: Dtype = "float32"
    """Precision of states and products. Sums over chunks are always in float64."""
    device: str = "cpu"
    """Where states and products are."""
    update: Literal["needed", "all"] = "needed"
    """Compute the gradients that can matter, or all."""
    preset: Literal["none", "paper"] = "none"
    """``paper``: K = ⌈n^{ε/16}⌉, B = ⌈n^{2+ε}⌉, grid 1 and the paper's rate, whatever is said above."""
    epsilon: float = 1.0
    """ε of the theorem, for the preset."""
    test_samples: int = 10_000
    """Fresh samples on which the final errors are measured."""
    chunk: int | None = None
    """Samples held at once. Default: about 32 MB of states."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name, least in {"samples": 1, "chunk": 1, "test_samples": 1}.items():
            value: int | None = getattr(self, name)
            if value is not None and not least <= value <= MAX_SAMPLES:
                raise InputError(f"{name}={value} is outside {least} … {MAX_SAMPLES}")
        check_epsilon(self.epsilon)
        if self.preset == "paper" and (self.samples is not None or self.K is not None):
            raise InputError(
                f"samples={self.samples}, K={self.K}: the paper's preset sets both from epsilon (Theorem 1)"
            )


def check_epsilon(epsilon: float) -> float:
    """Return ε if the theorem's constants can be computed with it."""
    if not 0.001 <= epsilon <= 16:
        raise InputError(
            f"epsilon={epsilon} is outside 0.001 … 16 (ε > 0 in Theorem 1; beyond, n^ε leaves the numbers)"
        )
    return epsilon


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
