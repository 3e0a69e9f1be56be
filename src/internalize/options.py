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


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds as the command line has them: ``3``, ``0:20`` (0 … 19) or ``0,5,7:9``."""
    seeds: list[int] = []
    for part in text.split(","):
        first, colon, end = part.partition(":")
        try:
            seeds += range(int(first), int(end)) if colon else [int(first)]
        except ValueError:
            raise InputError(f"seeds={text!r}: {part!r} is neither a number nor a range like 0:20") from None
        if len(seeds) > 100_000:
            raise InputError(f"seeds={text!r} are more than 100000 runs at once")
    if not seeds or len(set(seeds)) != len(seeds):
        raise InputError(f"seeds={text!r} must name at least one seed, and none twice")
    return tuple(check_seed(seed) for seed in seeds)
