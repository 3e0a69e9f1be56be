"""Options of the lm wing: the argument of the Python API, the command line and, resolved, ``config.json``.

This module does not import torch, so that ``--help`` is quick.
"""

import math
import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeVar, get_args

from internalize.curriculum import Curriculum, Side, doubling
from internalize.errors import InputError, check_choices
from internalize.lm.model_options import (
    EPOCHS,
    FINE_TUNING,
    FINE_TUNING_ADAPTERS,
    CountDefault,
    LmModelOptions,
    OptimizerOptions,
    RateDefault,
    check_at_least,
    plain,
)
from internalize.storage.files import Json, check_schema

LmMethod = Literal["none", "cot", "icot", "icot-steps", "doubling", "log-icot", "thin", "adaptive", "pause"]
LM_METHODS: Final[tuple[LmMethod, ...]] = get_args(LmMethod)
LevelSource = Literal["auto", "given", "graph", "thin", "steps", "tokens"]
Removal = Literal["pad", "delete"]
Advance = Literal["steps", "epochs", "accuracy"]
HALF: Final = 50
"""The default percentile of `CurriculumOptions.slots`: half of the chains have a slot for each hidden token."""
LONGEST: Final = 100
_PERCENTILE: Final = re.compile(r"p([0-9]{1,3})")
Replay = Literal["stages", "counts", "scattered"]
ReplayOf = Literal["auto", Replay]


@dataclass(frozen=True)
class SlotLimit:
    """The largest number of slots at a stage: a percentile of the lengths of the hidden parts, and a limit to it."""

    percentile: int
    """Percentage of the chains that have a slot for each hidden token."""
    most: int | None = None
    """Largest number of slots."""
    share: float | None = None
    """Largest number of slots as a share of the tokens of the median chain."""


@dataclass(frozen=True)
class CurriculumOptions:
    """The removal of the chain's steps from a text."""

    TITLE: ClassVar = "Curriculum"

    method: LmMethod = "adaptive"
    """Order in which the chain is hidden. adaptive: all at once and, if that stalls, in smaller parts. log-icot: level
    by level of the reasoning tree, or half of the rest if no levels are known. thin: keep every 2nd step, then every
    4th, …, for chains in which each step continues the one before. icot: token by token (Deng et al.).
    icot-steps: step by step. doubling: 1, 2, 4, … tokens. cot: no step. pause: no chain, but slots. none: no chain."""
    levels: LevelSource = "auto"
    """For log-icot and adaptive: where the levels of steps come from. given: from the data. graph: from the equations
    of the steps, such as <<16-3=13>> <<13*2=26>>. thin: keep every 2nd step, every 4th, …, as --method thin does.
    steps, tokens: no levels, hide half of the remaining steps or tokens.
    auto: the first of these that the data allow."""
    removal: Removal = "pad"
    """What a hidden token leaves. pad: a slot, a filler token that the model uses as scratch space. delete: nothing."""
    slots: int | float | str | None = f"p{HALF}"
    """For pad: number of slots at a stage, the same for all examples. p90: a slot for every hidden token of 90 % of the
    chains; longer hidden parts have fewer slots than tokens. longest: of all chains. 0.5: at most half as many slots as
    the median chain has tokens. 8: at most 8 slots. Fewer slots make an answer cheaper. Scattered replay has a slot for
    every hidden token."""
    side: Side = "left"
    """For icot and icot-steps: remove from the front of the chain (left) or from its end (right)."""
    cutoff: int | None = None
    """For icot and icot-steps: hide everything once this many tokens or steps are to be hidden."""
    smoothing: float = math.inf
    """λ of removal smoothing: each training example hides o more tokens (or steps) with probability proportional to
    exp(−λ·o). inf: no smoothing."""
    keep_positions: bool = False
    """For delete: keep the position numbers of the tokens after the removed ones."""
    replay: float = 0.5
    """After the first stage, share of the training examples that are replayed, so that the circuits of earlier stages
    are not lost. They hide other steps than the stage does; --replay-of says which."""
    replay_of: ReplayOf = "auto"
    """What a replayed example hides. scattered: each step of the whole chain with a probability drawn per example.
    stages: what a random stage up to the current one hides. counts: a random number of steps up to the current one.
    auto: scattered for pad, counts for delete or if --slots is a whole number."""
    hidden_loss: float | None = None
    """For pad: share of the examples whose slots still have to predict the tokens they hide. Default: 1 with scattered
    replay, otherwise 0."""

    def __post_init__(self) -> None:
        check_choices(self)
        self.curriculum()
        for name in ("replay", "hidden_loss"):
            value: float | None = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"{name}={value} is a fraction of the examples, 0 … 1")
        if not self.smoothing > 0:
            raise InputError(f"smoothing={self.smoothing} must be positive (inf: no smoothing)")
        self.slot_limit  # noqa: B018  (refuses a wrong value)
        given = self.slots not in (None, "longest", CurriculumOptions.slots)
        if self.removal == "delete" and self.method != "pause" and (given or self.hidden_loss):
            raise InputError("slots and hidden_loss need --removal pad (or pause): deletion leaves no slots")
        if self.method == "cot" and not math.isinf(self.smoothing):
            raise InputError(f"smoothing={self.smoothing} would hide steps, and cot hides none")
        if self.removal == "pad" and self.keep_positions:
            raise InputError("keep_positions needs --removal delete: padding keeps positions anyway")
        if self.method == "thin" and self.levels not in ("auto", "thin"):
            raise InputError(f"levels={self.levels} belongs to log-icot and adaptive; thin has its own order of steps")
        if self.thins and self.keep_positions:
            raise InputError(
                "keep_positions does not work with thinning: the gap before a shown step has no fixed length"
            )
        if self.side == "right" and self.removal == "pad":
            raise InputError(
                "side=right needs --removal delete: the slots would come after steps that the model still has to write"
            )

    def as_json(self) -> dict[str, Any]:
        """Return all options for JSON, infinity as a string and defaults that depend on other options resolved."""
        resolved = {"replay_of": self.replayed, "hidden_loss": self.slot_loss, "slots": self.slots}
        if self.slots == "longest" or (self.slots == CurriculumOptions.slots and not self.padded):
            resolved["slots"] = None
        smoothing = str(self.smoothing) if math.isinf(self.smoothing) else self.smoothing
        return {**asdict(self), **resolved, "smoothing": smoothing}

    def curriculum(self) -> Curriculum:
        """Return the curriculum of `curriculum.py` behind the method."""
        if self.method in ("icot", "icot-steps"):
            return Curriculum("icot", side=self.side, cutoff=self.cutoff)
        if self.side != "left" or self.cutoff is not None:
            raise InputError(f"side and cutoff belong to icot and icot-steps; {self.method} has its own removal")
        match self.method:
            case "none" | "pause":
                return Curriculum("none")
            case "cot":
                return Curriculum("cot")
            case "log-icot" | "thin" | "adaptive":
                return Curriculum("log-icot")
            case "doubling":
                return doubling()

    @property
    def thins(self) -> bool:
        """Whether the stages thin the chain, so that hidden steps stand between shown ones."""
        return self.method == "thin" or (self.levels == "thin" and self.method in ("log-icot", "adaptive"))

    @property
    def subdivides(self) -> bool:
        """Whether there are further stages between those of the curriculum, to be tried if one stalls."""
        return self.method == "adaptive"

    @property
    def replayed(self) -> Replay:
        """The value of `replay_of` with ``auto`` resolved."""
        if self.replay_of == "auto":
            return "scattered" if self.removal == "pad" and not isinstance(self.slots, int) else "counts"
        return self.replay_of

    @property
    def slot_limit(self) -> "SlotLimit":
        """The value of `slots` with its meaning. Without slots, gaps in positions fit the longest chain."""
        if self.slots in (None, "longest"):
            return SlotLimit(LONGEST)
        if isinstance(self.slots, int):
            check_at_least(self, 0, "slots")
            return SlotLimit(LONGEST, most=self.slots)
        found = None
        if isinstance(self.slots, float) and 0 < self.slots <= 1:
            found = SlotLimit(HALF, share=self.slots)
        if isinstance(self.slots, str) and (percentile := _PERCENTILE.fullmatch(self.slots)):
            found = SlotLimit(int(percentile[1]))
        if found and 1 <= found.percentile <= LONGEST:
            return found if self.padded else SlotLimit(LONGEST)
        raise InputError(
            f"slots={self.slots} is neither a number (8), nor a percentile of the chains from p1 to p100 (p90), nor a "
            "share of the median chain above 0 and up to 1.0 (0.5), nor longest"
        )

    @property
    def slot_loss(self) -> float:
        """The value of `hidden_loss` with its default resolved. Without a curriculum, slots hide no tokens."""
        if self.hidden_loss is not None:
            return self.hidden_loss
        scatters = self.removal == "pad" and self.replay > 0 and self.replayed == "scattered"
        return float(scatters and self.method not in ("none", "cot", "pause"))

    @property
    def padded(self) -> bool:
        """Whether sequences have slots. With `none` there is no chain to pad."""
        return self.method == "pause" or (self.removal == "pad" and self.method != "none")


@dataclass(frozen=True)
class ScheduleOptions:
    """The rules for the end of a stage and the end of training."""

    TITLE: ClassVar = "Schedule"

    steps: int = CountDefault(3000)
    """Largest number of updates in all stages together. A pretrained model has --epochs in its place."""
    epochs: float | None = None
    """Passes over the data in all stages together, in place of --steps. Default: 20 for a pretrained model, if neither
    is given and the data have an end."""
    advance: Advance = "accuracy"
    """When the next stage begins. accuracy: when held-out exact match reaches --threshold, or after --stage-steps.
    steps: every --stage-steps updates. epochs: --stages-per-epoch stages per epoch, as Deng et al. do."""
    stage_steps: int = 1000
    """Updates per stage after the first. With --advance accuracy this is the largest number."""
    patience: int = 600
    """For adaptive: updates without progress after which an attempt has stalled. It has stalled if its exact match is
    below 75 % of the last good stage's, both above chance, and neither its errors nor its held-out loss have dropped by
    a tenth. Training then returns to the weights of the last good stage and hides less."""
    first_steps: int | None = None
    """Updates of the first stage. Default: --stage-steps; with --advance accuracy at most half of --steps."""
    stages_per_epoch: float = 8.0
    """For --advance epochs: number of stages per epoch."""
    first_epochs: float = 0.0
    """For --advance epochs: epochs with the whole chain shown before the first removal is scheduled."""
    threshold: float = 0.99
    """For --advance accuracy: held-out exact match that ends a stage. The model writes the steps that are shown."""
    stop_at: float | None = None
    """End training once held-out exact match with the whole chain hidden reaches this. Default: use all --steps."""
    consolidate: int = 100
    """Updates at the end over which the learning rate falls to zero, at most a quarter of --steps. They also follow
    when --stop-at is reached."""
    reset_optimizer: bool = False
    """Start every stage with a new optimizer, as Deng et al. do."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "steps", "stage_steps", "patience", "first_steps")
        if self.epochs is not None and not (math.isfinite(self.epochs) and self.epochs > 0):
            raise InputError(f"epochs={self.epochs} must be positive")
        check_at_least(self, 0, "consolidate")
        if not (math.isfinite(self.stages_per_epoch) and self.stages_per_epoch > 0):
            raise InputError(f"stages_per_epoch={self.stages_per_epoch} must be positive")
        if not (math.isfinite(self.first_epochs) and self.first_epochs >= 0):
            raise InputError(f"first_epochs={self.first_epochs} must be at least 0")
        for name in ("threshold", "stop_at"):
            share: float | None = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise InputError(f"{name}={share} is an exact match, above 0 and at most 1")


@dataclass(frozen=True)
class DataOptions:
    """The data to train on."""

    TITLE: ClassVar = "Data"

    data: str = "parity:n=16,k=8"
    """A file (text, .jsonl, .json, .csv, .parquet), a data set (its folder, or hf:NAME:SPLIT), or a generated task:
    parity:n=16,k=8, multiply:digits=4, multiply-tree:digits=4, hops:hops=4, stories:steps=4, words:group=S5,length=16,
    graph:hops=4, arithmetic:depth=3. See `internalize lm data --help`."""
    validation: str = ""
    """File or data set of held-out examples. Default: a part of the data."""
    skip_bad: bool = False
    """Skip lines of the data that cannot be read, and report how many."""
    max_examples: int | None = None
    """Read only this many examples from the start of --data; the rest of a file is not read. Default: all."""
    max_tokens: int | None = None
    """Leave out examples that are longer than this in tokens, with the chain written and the end token, and name their
    lines. Default: none is left out, and an example that does not fit into the model is an error."""
    template: str = "icot"
    """Text around question, steps and answer. icot: `question || steps #### answer`, as published. plain: labels in
    words. lines: one step per line. chat: the tokenizer's chat template. Or a JSON file with parts of your own."""


@dataclass(frozen=True)
class EvaluationOptions:
    """The measurements during and after training."""

    TITLE: ClassVar = "Evaluation"

    eval_every: int = 25
    """Updates between evaluations on held-out examples. A stage can end only at an evaluation."""
    eval_examples: int = 512
    """Held-out examples per evaluation."""
    eval_first: int = CountDefault(0)
    """Ask this many of them first. If their exact match is clearly below --threshold, or if nothing depends on the
    others, the others are not asked. 0: ask all. Default for a pretrained model: 64."""
    skip_stage_ends: bool = False
    """Evaluate only when --eval-every says so, not also at the end of every stage that ends after a fixed number of
    updates. Such a stage then has no exact match in the result. The first stage is always evaluated."""
    keep_best: bool = False
    """End with the weights of the highest held-out exact match with the whole chain hidden, not with the last ones."""
    test_examples: int = 4096
    """Held-out examples of the final evaluation, with the whole chain hidden."""
    budgets: Literal["never", "end", "stages"] = "end"
    """When to measure exact match for every number of shown steps: never, after training, or after each stage."""
    keep_stages: bool = False
    """Keep the model at the end of every stage in the run folder, for `internalize lm probe`."""


@dataclass(frozen=True)
class LmTrainOptions(
    EvaluationOptions, OptimizerOptions, ScheduleOptions, CurriculumOptions, DataOptions, LmModelOptions
):
    """Train a causal language model through the stages of a curriculum on text."""

    def __post_init__(self) -> None:
        CurriculumOptions.__post_init__(self)
        ScheduleOptions.__post_init__(self)
        LmModelOptions.__post_init__(self)
        check_at_least(self, 1, "batch", "accumulate", "eval_every", "eval_examples", "test_examples")
        check_at_least(self, 0, "warmup", "eval_first")
        check_at_least(self, 1, "max_examples", "max_tokens")
        self._fit_to_model()
        if self.subdivides and self.advance != "accuracy":
            raise InputError(
                f"advance={self.advance} does not work with adaptive, which needs accuracy to detect a stall; "
                "use --method log-icot (or icot, …)"
            )
        if self.steps * self.batch >= 2**63:
            raise InputError(f"steps={self.steps} times batch={self.batch} must be below 2^63 examples")
        if self.batch % self.accumulate:
            raise InputError(f"batch={self.batch} cannot be split into accumulate={self.accumulate} equal parts")
        for name in ("lr", "weight_decay", "clip", "layer_loss"):
            value: float = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name}={value} must be a finite number of at least 0")
        if not 0 < self.beta2 < 1:
            raise InputError(f"beta2={self.beta2} must be between 0 and 1")

    def _fit_to_model(self) -> None:
        """Set the defaults that depend on whether the model is pretrained. What a user gave stays as it is."""
        for name in FINE_TUNING:
            if isinstance(value := getattr(self, name), CountDefault | RateDefault):
                own = FINE_TUNING | (FINE_TUNING_ADAPTERS if self.lora_rank else {})
                default = own[name] if self.pretrained else getattr(LmTrainOptions, name)
                object.__setattr__(self, name, type(value)(default))
        if self.epochs is None or isinstance(self.epochs, RateDefault):
            own = self.pretrained and isinstance(self.steps, CountDefault)
            object.__setattr__(self, "epochs", RateDefault(EPOCHS) if own else None)
        elif not isinstance(self.steps, CountDefault):
            raise InputError(f"give steps={self.steps} or epochs={self.epochs}, not both")

    def as_json(self) -> dict[str, Any]:
        """Return all options for JSON. The number of updates that follows from epochs is not known yet."""
        found = {name: plain(value) for name, value in super().as_json().items()}
        return found if self.epochs is None else {**found, "steps": None}

    def with_updates(self, examples: int | None) -> "LmTrainOptions":
        """Return the options with the number of updates that the epochs over so many examples take.

        Data without an end have no epochs: there the default is the number of updates of a new model.
        """
        if self.epochs is None:
            return self
        if examples is not None:
            return replace(self, epochs=None, steps=max(1, math.ceil(self.epochs * examples / self.batch)))
        if isinstance(self.epochs, RateDefault):
            return replace(self, epochs=None, steps=int(self.steps))
        raise InputError(f"epochs={self.epochs}: the data have no end; give --steps")


Kind = TypeVar("Kind", bound=CurriculumOptions)


def options_from_json(kind: type[Kind], found: Json, path: Path) -> Kind:
    """Return the options in the JSON of a file that `as_json` made. Refuse missing options and wrong types."""
    check_schema(found, Json, path)
    if missing := [field.name for field in fields(kind) if field.name not in found]:
        raise InputError(f"{path} has no {missing[0]!r}")
    smoothing = math.inf if found["smoothing"] == "inf" else found["smoothing"]
    if found.get("epochs") is not None:  # the number of updates follows from them
        found = {name: value for name, value in found.items() if name != "steps"}
    return check_schema({**found, "smoothing": smoothing}, kind, path)


def with_method(options: LmTrainOptions, method: LmMethod) -> LmTrainOptions:
    """Return the options for another method, with options that do not apply to it at their defaults."""
    left_out: dict[str, Any] = {}
    if method not in ("icot", "icot-steps"):
        left_out |= {"side": "left", "cutoff": None}
    if method == "cot":
        left_out |= {"smoothing": math.inf}
    if method == "pause":
        left_out |= {"hidden_loss": None}
    if method == "thin":
        left_out |= {"levels": "auto"}
    return replace(options, method=method, **left_out)


def with_adaptive(methods: tuple[LmMethod, ...], options: LmTrainOptions) -> tuple[LmMethod, ...]:
    """Return the methods and, if stages end by accuracy, also adaptive."""
    return (*methods, "adaptive") if options.advance == "accuracy" else methods
