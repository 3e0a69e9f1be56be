"""Options of the model to train and of its updates, and the defaults that differ for a pretrained model.

This module does not import torch, so that ``--help`` is quick.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from internalize.errors import InputError

MAX_LAYERS: Final = 1000
"""Largest number of layers of any model, as of the deepest published ones. Making one takes a few milliseconds."""
_MOST: Final = 2**53
"""Largest number of anything that is counted. Floating-point numbers are exact up to here."""
SLOT: Final = "<|slot|>"
"""The slot token that a pretrained model gets."""
EPOCHS: Final = 20.0
"""Passes over the data by default, if a pretrained model is trained on data with an end."""
FINE_TUNING: Final = {"batch": 32, "lr": 5e-5, "eval_first": 64}
"""Defaults for a pretrained model, where they differ from those for a new one."""
FINE_TUNING_ADAPTERS: Final = {"lr": 2e-4}


class CountDefault(int):
    """A number that is a default and not given by a user. It changes if the model is pretrained."""


class RateDefault(float):
    """A fraction that is a default and not given by a user. It changes if the model is pretrained."""


def plain(value: Any) -> Any:
    """Return a default as a plain number, for files and for other libraries. Other values are returned unchanged."""
    if isinstance(value, CountDefault):
        return int(value)
    return float(value) if isinstance(value, RateDefault) else value


@dataclass(frozen=True)
class LmModelOptions:
    """The model to train."""

    TITLE: ClassVar = "Model"

    model: str = ""
    """Folder of a pretrained model, a .gguf file, a llama2.c file, a name on the Hugging Face hub, or a config.json for
    a new model of any architecture. Default: a new GPT-2 of the size below, with one token per word."""
    layers: int = 5
    """Layers of the new GPT-2."""
    width: int = 64
    """Width of the new GPT-2."""
    heads: int = 4
    """Attention heads per layer of the new GPT-2."""
    init_std: float = 0.1
    """Standard deviation of the new GPT-2's initial weights. Tiny models need more than the usual 0.02."""
    positions: int | None = None
    """Positions of the new GPT-2, for `lm eval` on longer questions than those of training. Default: room for the
    longest sequence, once more its slots, and 16 more. Positions that training does not use stay as drawn."""
    lora_rank: int = 0
    """Train LoRA adapters of this rank (peft), which are merged at the end, in place of all weights. 0: all weights."""
    lora_alpha: float | None = None
    """Scale of the adapters: they are multiplied by this over their rank. Default: twice the rank."""
    lora_dropout: float = 0.0
    """Share of the adapters' inputs that are dropped in training."""
    lora_targets: str = "all-linear"
    """Layers that get adapters: all-linear, or names such as q_proj,v_proj."""
    lora_keep: bool = False
    """Also keep the adapters by themselves, in adapter/ of the run folder, as peft loads them."""
    quantize: Literal["none", "8bit", "4bit"] = "none"
    """Hold the weights beside LoRA adapters in 8 or 4 bits. Needs a GPU and bitsandbytes. Not tried here."""
    slot_token: str = ""
    """Token of the tokenizer that fills hidden slots. Default: for a pretrained model a new one, <|slot|>, whose
    embedding begins as the mean of all; for a new model the padding token."""

    @property
    def pretrained(self) -> bool:
        """Whether the model has weights already."""
        return bool(self.model) and Path(self.model).suffix != ".json"

    def __post_init__(self) -> None:
        check_at_least(self, 1, "layers", "width", "heads")
        check_at_least(self, 1, "positions")
        check_at_least(self, 0, "lora_rank")
        if self.positions is not None and self.model:
            raise InputError(f"positions={self.positions} is for a new GPT-2; {self.model} has its own number")
        if self.lora_alpha is not None and not (math.isfinite(self.lora_alpha) and self.lora_alpha > 0):
            raise InputError(f"lora_alpha={self.lora_alpha} must be positive")
        if not 0 <= self.lora_dropout < 1:
            raise InputError(f"lora_dropout={self.lora_dropout} is a share of the inputs, at least 0 and below 1")
        if not all(self.lora_targets.split(",")):
            raise InputError(
                f"lora_targets={self.lora_targets!r} is all-linear, or names of layers such as q_proj,v_proj"
            )
        own = (self.lora_alpha, self.lora_dropout, self.lora_targets, self.lora_keep, self.quantize)
        if not self.lora_rank and own != (None, 0.0, "all-linear", False, "none"):
            raise InputError(
                "lora_alpha, lora_dropout, lora_targets, lora_keep and quantize need adapters: --lora-rank"
            )
        if self.layers > MAX_LAYERS:
            raise InputError(f"layers={self.layers} must be at most {MAX_LAYERS}")
        if self.width % self.heads:
            raise InputError(f"width={self.width} is not a multiple of heads={self.heads}")
        if not (math.isfinite(self.init_std) and self.init_std > 0):
            raise InputError(f"init_std={self.init_std} must be a positive number")


@dataclass(frozen=True)
class OptimizerOptions:
    """The computation of an update."""

    TITLE: ClassVar = "Optimizer"

    batch: int = CountDefault(128)
    """Examples per update, over all processes and accumulated parts. Default for a pretrained model: 32."""
    accumulate: int = 1
    """Number of parts that the batch is split into, to save memory. The update is the same."""
    lr: float = RateDefault(1e-3)
    """Learning rate of AdamW. It is constant between warm-up and consolidation. Default for a pretrained model: 5e-5,
    with adapters 2e-4."""
    scheduler: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after warm-up. linear, cosine: it falls to zero until the last of --steps, without consolidation."""
    beta2: float = 0.99
    """β₂ of AdamW."""
    weight_decay: float = 0.01
    """Weight decay of AdamW."""
    warmup: int = 50
    """Updates over which the learning rate rises from zero."""
    clip: float = 1.0
    """Largest gradient norm; larger gradients are scaled down. 0: no limit."""
    layer_loss: float = 0.0
    """Weight of the loss at every layer below the last, read by the model's own head, so that steps are computed in
    early layers. Deep reasoning trees need it (parity with k=16: 1); shallow ones train more slowly with it."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the arithmetic. bfloat16: mixed precision, the weights stay in float32."""
    gradient_checkpointing: bool = False
    """Compute activations a second time in the backward pass, to save memory. The update is the same."""


def check_at_least(options: object, least: int, *names: str) -> None:
    """Refuse numbers that are below the least one, or too large to be exact."""
    for name in names:
        value: int | None = getattr(options, name)
        if value is not None and value < least:
            raise InputError(f"{name}={value} must be at least {least}")
        if value is not None and value > _MOST:
            raise InputError(f"{name}={value} must be at most {_MOST}")
