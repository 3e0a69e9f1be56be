"""LoRA adapters: small trained matrices beside the weights of a model, which stay as they are."""

import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from internalize.errors import InputError
from internalize.lm.model_options import LmModelOptions
from internalize.lm.training.slot_token import embedding_name
from internalize.storage.files import writing


def quantization(bits: Literal["8bit", "4bit"]) -> Any:
    """Return the setting with which transformers holds weights in few bits. Refuse it where that cannot work."""
    import torch

    if find_spec("bitsandbytes") is None:
        raise InputError(f"quantize={bits} needs the package bitsandbytes (pip install bitsandbytes)")
    if not torch.cuda.is_available():
        raise InputError(f"quantize={bits} needs a GPU with CUDA")
    from transformers import BitsAndBytesConfig

    if bits == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)


def with_adapters(model: Any, options: LmModelOptions, new_slot: int | None = None) -> Any:
    """Return the model with adapters of the options. The embedding of a new slot token is trained beside them."""
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    if options.quantize != "none":
        model = import_module("peft").prepare_model_for_kbit_training(model)
    model.name_or_path = model.config._name_or_path = ""  # otherwise peft would look for it on the hub
    targets = "all-linear" if options.lora_targets == "all-linear" else options.lora_targets.split(",")
    config = LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha or 2 * options.lora_rank,  # pyright: ignore[reportArgumentType]  (may be a fraction)
        lora_dropout=options.lora_dropout,
        target_modules=targets,
        trainable_token_indices=None if new_slot is None else {embedding_name(model).split(".")[-1]: [new_slot]},
        task_type="CAUSAL_LM",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),  # GPT-2's linear layers
    )
    try:
        adapted: Any = get_peft_model(model, config)
    except ValueError as error:
        if options.lora_targets == "all-linear":
            raise
        raise InputError(f"lora_targets={options.lora_targets!r}: {' '.join(str(error).split())[:200]}") from None
    for weight in adapted.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()  # small updates of a lower precision would be lost
    return adapted


def save_adapters(folder: Path, model: Any, base: str) -> None:
    """Write the adapters of a model as peft loads them, completely or not at all."""
    beside = folder.with_name(f".{folder.name}.tmp")
    with writing(folder):
        shutil.rmtree(beside, ignore_errors=True)
        model.peft_config["default"].base_model_name_or_path = base
        model.save_pretrained(beside, save_embedding_layers=False)
        shutil.rmtree(folder, ignore_errors=True)
        beside.replace(folder)
