"""Configs of runs that earlier versions made: the values of options that did not exist then."""

from collections.abc import Mapping
from typing import Any, Final

from internalize.storage.files import Json

_DEFAULTS: Final[dict[str, Json]] = {
    "train": {
        "value": "fixed",
        "output": "shift",
        "tokens": "auto",
        "supervised_tokens": "shown",
        "gate_bias": -2.0,
        "gate_penalty": 0.001,
        "parts_lr": 0.01,
        "advance": "steps",
        "threshold": 0.99,
    },
    "solve": {"curriculum": "log-icot"},
    "lm-train": {
        "layer_loss": 0.0,
        "patience": 300,
        "keep_stages": False,
        "template": "icot",
        "max_examples": None,
        "max_tokens": None,
        "epochs": None,
        "scheduler": "constant",
        "gradient_checkpointing": False,
        "eval_first": 0,
        "skip_stage_ends": False,
        "keep_best": False,
        "lora_alpha": None,
        "lora_dropout": 0.0,
        "lora_targets": "all-linear",
        "lora_keep": False,
        "quantize": "none",
        "positions": None,
    },
}
"""By kind of run: the options that earlier versions lacked, with the values that describe what these versions did."""


def completed(config: Mapping[str, Any]) -> Json:
    """Return a run's config with the options that did not exist when the run was made."""
    return {**_DEFAULTS.get(str(config.get("kind")), {}), **config}
