"""What can be asked for: one frozen dataclass a command. The same dataclass is the Python API's argument, the command
line and, resolved, the run's ``config.json``. No torch here, so that ``--help`` is quick.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from internalize.curriculum import Curriculum, Method
from internalize.errors import InputError, check_choices
from internalize.random_words import check_seed

Dtype = Literal["float32", "float64"]
Grid = Literal["none", "1", "K"]
Mask = Literal["level", "causal"]
FixedGates = Literal["paper", "ones", "cot"]
Gates = Literal["paper", "ones", "cot", "learned", "input"]
Rate = Literal["paper", "calibrated"]
Oracle = Literal["none", "random", "adversarial"]

MAX_SAMPLES = 2**53
"""Beyond, a count of samples is not a float64 any more."""


@dataclass(frozen=True)
class TreeOptions:
    """The size of the parity tree."""

    n: int = 30
    """Number of input bits."""
    k: int = 16
    """Size of the secret set, a power of two. The model has log2 k layers."""


@dataclass(frozen=True)
class ParityModelOptions(TreeOptions):
    """The model of Definition 3, and one departure from it at a time: an ablation, or a part that is learned."""

    mask: Mask = "level"
    """Whom a node sees: the positions of lower levels (the paper's), or all earlier positions."""
    gates: Gates = "paper"
    """Who takes a layer's update: the level that it writes (the paper's), all positions, all nodes (cot), or what is learned:
    one gate a layer and position, or gates that also depend on the state and its update (input, as in GTrXL)."""
    link: str = "cosine"
    """Link function: cosine (the paper's), quartic, or a small trained network in its place: mlp begins at random, mlp-fitted
    as the cosine."""
    value: Literal["fixed", "learned"] = "fixed"
    """learned: each layer scales what it reads by a trained number."""
    output: Literal["shift", "residual", "streams"] = "shift"
    """Where a layer reads and writes: the next block (the paper's shift); one residual stream; several, with trained weights
    for reading, writing and mixing them (hyper-connections)."""
    tokens: Literal["auto", "shown", "hidden"] = "auto"
    """Whether the input shows the tokens that a stage supervises (the paper's does). Learned gates would copy them: auto hides
    them exactly if something other than the attention is learned. Hidden, the loss is on the level in training alone."""
    gate_bias: float = -2.0
    """For learned gates: their logits at the start. Negative: carry first."""
    gate_penalty: float = 0.001
    """For learned gates: weight in the loss of the sum of all gates, so that a position writes only where that pays."""

    def __post_init__(self) -> None:
        check_choices(self)
        if not -100 <= self.gate_bias <= 100:
            raise InputError(f"gate_bias={self.gate_bias} is outside −100 … 100; a gate is open or shut long before")
        if not (math.isfinite(self.gate_penalty) and self.gate_penalty >= 0):
            raise InputError(f"gate_penalty={self.gate_penalty} must be a finite number from 0 up")

    @property
    def as_in_paper(self) -> bool:
        """Whether this is Definition 3 itself, which has the fast level form."""
        model = (self.mask, self.gates, self.value, self.output)
        return model == ("level", "paper", "fixed", "shift") and self.shows and not self.has_network

    @property
    def has_network(self) -> bool:
        """Whether a trained network stands in for the link."""
        return self.link in ("mlp", "mlp-fitted")

    @property
    def shows(self) -> bool:
        """Whether the input shows the supervised tokens."""
        if self.tokens != "auto":
            return self.tokens == "shown"
        learned = self.gates in ("learned", "input") or self.has_network
        return not learned and (self.value, self.output) == ("fixed", "shift")


@dataclass(frozen=True)
class TrainOptions(ParityModelOptions):
    """Train by AdamW through the stages of a curriculum. The defaults are the paper's experiment (its appendix)."""

    curriculum: Method = "log-icot"
    """How the chain of thought is taken away. `cot` trains the one-layer model that writes its chain."""
    chunk: int = 1
    """For icot: steps removed at a time."""
    boundaries: tuple[int, ...] = ()
    """For icot: numbers of hidden steps after the first stage, in place of a chunk."""
    steps: int = 500
    """Gradient steps a stage."""
    advance: Literal["steps", "accuracy"] = "steps"
    """steps: every stage has --steps. accuracy: a stage ends once the level it trains is right on a share of --threshold of the
    held-out samples, and the last one goes on until --steps times log2 k are made in all."""
    threshold: float = 0.99
    """For --advance accuracy."""
    batch: int = 500
    """Fresh samples a gradient step."""
    lr: float = 0.1
    """Learning rate of AdamW."""
    parts_lr: float = 0.01
    """Learning rate of what is learned besides attention and gates: values, streams, networks."""
    weight_decay: float = 0.01
    """Weight decay of AdamW. The paper does not say; this is torch's default."""
    eval_every: int = 25
    """Steps between evaluations. There is always one directly after a stage begins, before any update."""
    eval_samples: int = 2000
    """Held-out samples, the same at every evaluation."""
    dtype: Dtype = "float32"
    """Precision of weights and arithmetic."""

    def __post_init__(self) -> None:
        ParityModelOptions.__post_init__(self)
        self.schedule()
        if self.curriculum == "cot" and not self.as_in_paper:
            raise InputError(
                "cot is a model of its own: mask, gates, value, output, tokens and a network as link are not for it"
            )
        if not 0 < self.threshold <= 1:
            raise InputError(f"threshold={self.threshold} is a share of samples, above 0 and at most 1")
        at_least = {"steps": 0, "batch": 1, "eval_every": 1, "eval_samples": 1}
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)} must be at least {least}")
        for name in ("lr", "parts_lr", "weight_decay"):
            value: float = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name}={value} must be a finite number from 0 up")

    def schedule(self) -> Curriculum:
        """The curriculum with its options."""
        return Curriculum(self.curriculum, self.chunk, self.boundaries)


@dataclass(frozen=True)
class StepOptions(TreeOptions):
    """How Algorithm 1 takes its steps: all that decides how many samples it needs."""

    K: float | None = None
    """Amplitude: what a child's weight becomes. Default: the least that bounds the final error and freezes layers."""
    grid: Grid = "K"
    """Weights are rounded to multiples of 1 (as in the paper), of K, or not at all."""
    rate: Rate = "calibrated"
    """Learning rate: the paper's K n_t²/(2c), or the same over the exact signal."""
    oracle: Oracle = "none"
    """Error of the gradient oracle: none, a random direction, or the worst one."""
    oracle_error: float = 0.0
    """2-norm of the oracle's error over all weights."""
    link: str = "cosine"
    """Link function: cosine (the paper's) or quartic."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.K is not None and not 0 < self.K <= 10_000:
            raise InputError(f"K={self.K} is outside 0 … 10000 (a child's weight is to become K, and e^K decides)")
        if self.K is not None and self.grid == "1" and round(self.K) != self.K:
            raise InputError(f"K={self.K} is not a whole number, which the grid 1 rounds weights to (section 2)")


@dataclass(frozen=True)
class SolveOptions(StepOptions):
    """Algorithm 1. The defaults work at every n; ``preset="paper"`` is verbatim and does not."""

    seed: int = 0
    """Decides the secret set, all samples and the oracle's random error."""
    curriculum: Method = "log-icot"
    """How the chain of thought is taken away: one gradient step a stage. `cot` is the one-layer model that writes its chain."""
    mask: Mask = "level"
    """Whom a node sees: the positions of lower levels (the paper's), or all earlier positions."""
    gates: FixedGates = "paper"
    """Who takes a layer's update: the level that it writes (the paper's), all positions, or all nodes (cot)."""
    samples: int | None = None
    """Fresh samples a stage. Default: enough for a predicted failure probability of at most 1e-6."""
    dtype: Dtype = "float32"
    """Precision of states and products. Sums over chunks are always in float64."""
    device: str = "cpu"
    """Where states and products are."""
    update: Annotated[Literal["needed", "all"], tyro.conf.arg(name="gradients")] = "needed"
    """Which gradients to compute: those that can change a rounded weight, or all. On the command line --gradients."""
    preset: Literal["none", "paper"] = "none"
    """``paper``: K = ⌈n^{ε/16}⌉, B = ⌈n^{2+ε}⌉, grid 1 and the paper's rate, whatever is said above."""
    epsilon: float = 1.0
    """ε of the theorem, for the preset."""
    test_samples: int = 10_000
    """Fresh samples on which the final errors are measured."""
    chunk: int | None = None
    """Samples held at once. Default: about 32 MB of states."""

    def __post_init__(self) -> None:
        StepOptions.__post_init__(self)
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
        if self.curriculum == "cot" and (self.mask, self.gates) != ("level", "paper"):
            raise InputError(
                f"mask={self.mask}, gates={self.gates}: the one-layer model of --curriculum cot has its own (section 1.1)"
            )


def check_epsilon(epsilon: float) -> float:
    """Return ε if the theorem's constants can be computed with it."""
    if not 0.001 <= epsilon <= 16:
        raise InputError(
            f"epsilon={epsilon} is outside 0.001 … 16 (ε > 0 in Theorem 1; beyond, n^ε leaves the numbers)"
        )
    return epsilon
