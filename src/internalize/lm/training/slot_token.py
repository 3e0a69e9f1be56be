"""The slot token of a pretrained model: a token of its own, which means nothing before training.

The padding or end token would mean something: a model that reads forty end tokens has been told that the text is over.
"""

from pathlib import Path
from typing import Any, TypedDict

import torch

from internalize.errors import InputError
from internalize.lm.model_options import SLOT, LmModelOptions
from internalize.lm.training.model_files import PROMPT_FILE
from internalize.storage.files import present, read_json


class _Slot(TypedDict):
    slot_token: str


def slot_token_of(options: LmModelOptions, tokenizer: Any | None) -> tuple[str, bool]:
    """Return the slot token ("" for the tokenizer's padding token), and whether the model lacks an embedding of it.

    A new token is added to the tokenizer. A model that we trained keeps its slot token.
    """
    if options.slot_token or not options.pretrained or tokenizer is None:
        return options.slot_token, False
    folder = Path(options.model)
    if folder.is_dir() and present(ours := folder / PROMPT_FILE):
        return read_json(ours, _Slot)["slot_token"], False
    from tokenizers import AddedToken

    tokenizer.add_tokens([AddedToken(SLOT, special=True, normalized=False)], special_tokens=True)
    return SLOT, True


def with_slot(model: Any, slot: int) -> Any:
    """Return the model with a row for the slot token in its embeddings, which begins as the mean of the others.

    Many models have more rows than their tokenizer has tokens. Then the row exists and has never been trained.
    """
    inputs: Any = model.get_input_embeddings()
    rows = int(inputs.weight.shape[0])
    if slot > rows:
        raise InputError(f"the slot token is token {slot}, but the model has {rows}: they do not belong together")
    if slot == rows:
        model.resize_token_embeddings(rows + 1, mean_resizing=False)
    with torch.no_grad():
        for part in {id(layer.weight): layer for layer in _ends(model)}.values():
            part.weight[slot] = part.weight[:slot].float().mean(dim=0).to(part.weight.dtype)
            if getattr(part, "bias", None) is not None:
                part.bias[slot] = part.bias[:slot].mean()
    return model


def _ends(model: Any) -> list[Any]:
    """Return the embeddings at a model's input and output."""
    return [layer for layer in (model.get_input_embeddings(), model.get_output_embeddings()) if layer is not None]


def embedding_name(model: Any) -> str:
    """Return the name of a model's input embedding."""
    inputs = model.get_input_embeddings()
    return next(name for name, module in model.named_modules() if module is inputs)
