"""The options of the parity commands: one frozen dataclass per command.

The same dataclass is the argument of the Python function, the command line and, resolved, the run's
``config.json``. Torch is not imported here, so that ``--help`` is quick.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Final, Literal

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
Noisy = Literal["nodes", "steps", "carried"]

MAX_SAMPLES = 2**53
"""Largest number of samples: up to it, float64 represents every integer exactly."""


LATER: Final = frozenset({"skip", "init_std", "hidden_loss", "transfer", "arity", "modulus", "noise", "noisy"})
"""Options that files leave out at their default, so that files of versions without them describe the same runs."""


@dataclass(frozen=True)
class TreeOptions:
    """The size of the parity tree."""

    TITLE: ClassVar = "Task"

    n: int = 30
    """Number of input bits."""
    k: int = 16
    """Size of the secret set. In the paper a power of two; for others the tree is ragged. The model has log2 k layers."""
    arity: int = 2
    """Number of children of a node. k must be 1 more than a multiple of arity - 1."""
    modulus: int = 2
    """The modulus of the sums; 2 is parity. 3 and 5 need arity 2 and true labels, and use another link function."""


@dataclass(frozen=True)
class NoiseOptions:
    """Wrong labels in training."""

    TITLE: ClassVar = "Task"

    noise: float = 0.0
    """Probability that the training label of a node is flipped. Held-out samples are always right."""
    noisy: Noisy = "nodes"
    """Which labels --noise flips. nodes: any node's. steps: any but the answer's. carried: any node's, and later nodes are
    computed from the wrong value, so the chain stays consistent."""

    def __post_init__(self) -> None:
        if not 0 <= self.noise < 0.5:
            raise InputError(f"noise={self.noise} is outside 0 … 0.5: from 0.5 on, labels do not show the true value")
        if self.noise and getattr(self, "modulus", 2) != 2:
            raise InputError(f"noise={self.noise}: labels are flipped only with modulus 2")


@dataclass(frozen=True)
class LinkOption:
    """The link function, without the networks that can take its place."""

    TITLE: ClassVar = "Model"

    link: str = "cosine"
    """Link function: cosine (the paper's) or quartic."""


@dataclass(frozen=True)
class MaskOption:
    """The attention mask."""

    TITLE: ClassVar = "Model"

    mask: Mask = "level"
    """Which positions a node may attend to. level: those of lower levels, as in the paper. causal: all earlier ones."""


@dataclass(frozen=True)
class LearnedGateOptions:
    """The initial values and the penalty of learned gates."""

    TITLE: ClassVar = "Model"

    gate_bias: float = -2.0
    """For learned gates: initial logits. A negative value starts with closed gates."""
    gate_penalty: float = 0.001
    """For learned gates: weight of the sum of all gates in the loss. A larger value keeps more gates closed."""


@dataclass(frozen=True)
class SampleOptions:
    """The samples of a training run."""

    TITLE: ClassVar = "Training"

    batch: int = 500
    """Fresh samples per gradient step."""
    eval_samples: int = 2000
    """Held-out samples, the same at every evaluation."""


@dataclass(frozen=True)
class ParityModelOptions(LearnedGateOptions, MaskOption, TreeOptions):
    """The model of Definition 3, with one change at a time: an ablation, or a part that is learned."""

    TITLE: ClassVar = "Model"

    gates: Gates = "paper"
    """Which positions accept a layer's update. paper: the level that the layer writes. ones: all. cot: all nodes.
    learned: one trained gate per layer and position. input: trained gates that also depend on the state and its
    update, as in GTrXL."""
    link: str = "cosine"
    """Link function: cosine (the paper's), quartic, or a small trained network that starts at random weights (mlp) or
    at the cosine (mlp-fitted)."""
    value: Literal["fixed", "learned"] = "fixed"
    """Scale of what a layer reads: fixed to 1, or one trained number per layer."""
    output: Literal["shift", "residual", "streams"] = "shift"
    """Where a layer writes. shift: the next block, as in the paper. residual: one residual stream. streams:
    several, with trained weights for reading, writing and mixing them (hyper-connections)."""
    tokens: Literal["auto", "shown", "hidden"] = "auto"
    """Whether the input shows the tokens that a stage supervises. The paper shows them; learned gates would copy
    them. auto: hidden if anything besides the attention is learned. With hidden, the loss covers only the level in
    training."""

    def __post_init__(self) -> None:
        check_choices(self)
        if not -100 <= self.gate_bias <= 100:
            raise InputError(f"gate_bias={self.gate_bias} is outside −100 … 100, where gates are fully open or closed")
        if not (math.isfinite(self.gate_penalty) and self.gate_penalty >= 0):
            raise InputError(f"gate_penalty={self.gate_penalty} must be finite and at least 0")

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
class TrainOptions(NoiseOptions, SampleOptions, ParityModelOptions):
    """Training by AdamW through the stages of a curriculum. The defaults are the paper's experiment (its appendix)."""

    TITLE: ClassVar = "Training"

    curriculum: Method = "log-icot"
    """Order in which the chain of thought is hidden. log-icot: level by level. icot: step by step. none: all of it
    from the start. cot: nothing; this trains the one-layer model that writes its chain."""
    chunk: int = 1
    """For icot: number of steps hidden per stage."""
    boundaries: tuple[int, ...] = ()
    """For icot: number of hidden steps at each stage after the first, in place of --chunk."""
    skip: tuple[int, ...] = ()
    """For log-icot: levels from 1 without a stage of their own. A level below log2 k - 1 that is skipped cannot be
    learned from weights of 0."""
    hidden_loss: bool = False
    """Keep the loss on hidden nodes. With --curriculum none, all levels are then learned in one stage."""
    transfer: bool = False
    """For --curriculum cot: at the end, copy the columns of the one layer into layers, which answer in one pass."""
    init_std: float = 0.0
    """Standard deviation of the initial attention weights. 0 is the paper's start, from which training cannot tell the
    nodes of a hidden level apart."""
    steps: int = 500
    """Gradient steps per stage."""
    advance: Literal["steps", "accuracy"] = "steps"
    """When a stage ends. steps: after --steps. accuracy: when the level it trains reaches --threshold on held-out
    samples; the last stage then continues until --steps times log2 k steps are used."""
    threshold: float = 0.99
    """For --advance accuracy: share of held-out samples on which the trained level must be right."""
    lr: float = 0.1
    """Learning rate of AdamW. Larger trees need a smaller one: 0.03 for n=128, k=64."""
    parts_lr: float = 0.01
    """Learning rate of the learned values, streams and networks."""
    weight_decay: float = 0.01
    """Weight decay of AdamW. The paper does not state one; this is torch's default."""
    eval_every: int = 25
    """Gradient steps between evaluations. Every stage also begins with one, before any update."""
    dtype: Dtype = "float32"
    """Precision of weights and arithmetic."""

    def __post_init__(self) -> None:
        ParityModelOptions.__post_init__(self)
        NoiseOptions.__post_init__(self)
        self.schedule()
        if self.curriculum == "cot" and not self.as_in_paper:
            raise InputError(
                "curriculum=cot is its own one-layer model, without mask, gates, value, output, tokens or network link"
            )
        if self.modulus != 2 and (not self.as_in_paper or self.curriculum == "cot"):
            raise InputError(f"modulus={self.modulus} needs the paper's mask, gates, parts and layers")
        if self.arity != 2 and self.has_network:
            raise InputError(f"arity={self.arity}: the networks in place of the link stand for nodes with 2 children")
        if self.hidden_loss and not (self.as_in_paper and self.curriculum != "cot"):
            raise InputError(
                "hidden_loss needs the paper's model with layers: no learned parts, other mask, gates or cot"
            )
        if self.transfer and self.curriculum != "cot":
            raise InputError(f"transfer belongs to --curriculum cot: {self.curriculum} trains the layers themselves")
        if not 0 < self.threshold <= 1:
            raise InputError(f"threshold={self.threshold} is a share of samples, above 0 and at most 1")
        at_least = {"steps": 0, "batch": 1, "eval_every": 1, "eval_samples": 1}
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)} must be at least {least}")
        for name in ("lr", "parts_lr", "weight_decay", "init_std"):
            value: float = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name}={value} must be finite and at least 0")

    def schedule(self) -> Curriculum:
        """Return the curriculum with its options."""
        return Curriculum(self.curriculum, self.chunk, self.boundaries, skip=self.skip)


@dataclass(frozen=True)
class StepOptions(NoiseOptions, LinkOption, TreeOptions):
    """The options of a step of Algorithm 1: everything that decides how many samples it needs."""

    TITLE: ClassVar = "Algorithm 1"

    K: Annotated[float | None, tyro.conf.arg(name="amplitude")] = None
    """The paper's K, the weight of a true child. Default: the least that bounds errors and freezes trained layers."""
    grid: Grid = "K"
    """What weights are rounded to: multiples of 1, as in the paper; multiples of the amplitude K; or nothing (none)."""
    rate: Rate = "calibrated"
    """Learning rate. paper: K n_t²/(2c). calibrated: the same, divided by the exact signal."""
    oracle: Oracle = "none"
    """Error of the gradient oracle: none, in a random direction, or in the worst direction."""
    oracle_error: float = 0.0
    """2-norm of the oracle's error, over all weights."""

    def __post_init__(self) -> None:
        check_choices(self)
        NoiseOptions.__post_init__(self)
        if self.K is not None and not 0 < self.K <= 10_000:
            raise InputError(f"K={self.K} is outside 0 … 10000 (a true child's weight becomes K; softmax takes e^K)")
        if self.K is not None and self.grid == "1" and round(self.K) != self.K:
            raise InputError(f"K={self.K} is not an integer, but grid 1 rounds weights to integers (section 2)")


@dataclass(frozen=True)
class SolveOptions(MaskOption, StepOptions):
    """Algorithm 1. The defaults work at every n; ``preset="paper"`` is the paper's algorithm verbatim and does not."""

    seed: int = 0
    """Random seed. It decides the secret set, all samples and the oracle's random error."""
    curriculum: Method = "log-icot"
    """Order in which the chain of thought is hidden, with one gradient step per stage. cot is the one-layer model that
    writes its chain."""
    skip: tuple[int, ...] = ()
    """For log-icot: levels from 1 without a stage of their own."""
    hidden_loss: bool = False
    """For --curriculum none: keep the loss on hidden nodes, and take log2 k steps. Step t moves the layers up to t."""
    gates: FixedGates = "paper"
    """Which positions accept a layer's update. paper: the level that the layer writes. ones: all. cot: all nodes."""
    transfer: bool = False
    """For --curriculum cot: copy the columns that its step found into the layers, and answer in one pass."""
    samples: int | None = None
    """Fresh samples per stage. Default: enough for a predicted probability of failure of at most 1e-6."""
    dtype: Dtype = "float32"
    """Precision of states and products. Sums over chunks are always in float64."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, cuda:1, mps."""
    update: Annotated[Literal["needed", "all"], tyro.conf.arg(name="gradients")] = "needed"
    """Which gradients to compute: those that can change a rounded weight, or all of them."""
    preset: Literal["none", "paper"] = "none"
    """paper: the paper's K = ⌈n^(ε/16)⌉, B = ⌈n^(2+ε)⌉, grid and rate, in place of the options above."""
    epsilon: float = 1.0
    """For --preset paper: ε of Theorem 1."""
    test_samples: int = 10_000
    """Number of fresh samples on which the final errors are measured."""
    chunk: int | None = None
    """Samples in memory at a time. Default: about 32 MB of states."""

    def __post_init__(self) -> None:
        StepOptions.__post_init__(self)
        check_seed(self.seed)
        self.schedule()
        for name, least in {"samples": 1, "chunk": 1, "test_samples": 1}.items():
            value: int | None = getattr(self, name)
            if value is not None and not least <= value <= MAX_SAMPLES:
                raise InputError(f"{name}={value} is outside {least} … {MAX_SAMPLES}")
        check_epsilon(self.epsilon)
        if self.preset == "paper" and (self.samples is not None or self.K is not None):
            raise InputError(
                f"samples={self.samples}, K={self.K}: the paper's preset sets both from epsilon (Theorem 1)"
            )
        if self.modulus != 2 and (self.mask, self.gates, self.curriculum == "cot") != ("level", "paper", False):
            raise InputError(f"modulus={self.modulus} needs the paper's mask and gates, and layers")
        if self.transfer and self.curriculum != "cot":
            raise InputError(f"transfer belongs to --curriculum cot: {self.curriculum} trains the layers themselves")
        if self.noise and self.curriculum == "cot" and self.k > self.arity:
            raise InputError(
                f"noise={self.noise}: with --curriculum cot later nodes see the wrong labels, too, and no rate is calibrated "
                "for that; use another curriculum, or train"
            )
        if self.hidden_loss and self.modulus != 2:
            raise InputError(f"modulus={self.modulus}: hidden_loss is for modulus 2")
        if self.hidden_loss and (self.curriculum, self.mask, self.gates) != ("none", "level", "paper"):
            raise InputError(
                "hidden_loss needs --curriculum none, which hides every node from the start, and the paper's mask and gates"
            )
        if self.curriculum == "cot" and (self.mask, self.gates) != ("level", "paper"):
            raise InputError(
                f"mask={self.mask}, gates={self.gates}: --curriculum cot has its own one-layer model (section 1.1)"
            )

    def schedule(self) -> Curriculum:
        """Return the curriculum with its options."""
        return Curriculum(self.curriculum, skip=self.skip)


def stored(options: TrainOptions | SolveOptions) -> dict[str, Any]:
    """Return the options by name for a file, without those of `LATER` that have their default."""
    return without_later(asdict(options), type(options))


def without_later(values: Mapping[str, Any], kind: type[TreeOptions]) -> dict[str, Any]:
    """Return options by name, without those of `LATER` that have the default of their dataclass."""
    default = {field.name: field.default for field in fields(kind)}
    return {name: own for name, own in values.items() if name not in LATER or own != default[name]}


def check_epsilon(epsilon: float) -> float:
    """Return ε if the theorem's constants can be computed with it."""
    if not 0.001 <= epsilon <= 16:
        raise InputError(
            f"epsilon={epsilon} is outside 0.001 … 16 (Theorem 1 needs ε > 0; above 16, n^ε gets too large)"
        )
    return epsilon
