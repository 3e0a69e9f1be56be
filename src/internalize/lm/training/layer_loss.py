"""The loss of a model that shall compute its steps early: at every layer, read by the model's own head.

A hidden step is of use to a later one only if it is there some layers before the last. A model that writes its chain has no
reason for that: each step may be ready in the last layer only, for it is read back in the first. Loss at every layer asks
for each step as soon as it can be had, and in the directions in which the embedding writes it.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.stages.chains import TextFormat
from internalize.lm.stages.removal import IGNORED, TextStages
from internalize.lm.training.collator import model_input

_NORMS: Final = ("ln_f", "norm", "final_layer_norm", "final_layernorm", "final_norm", "norm_f", "layer_norm")
"""What architectures call the norm between the last layer and the head. Some call those inside of a layer the same."""


class LayeredLoss:
    """Cross-entropy of the next token, and so many times its mean over the layers below the last; for a Trainer's
    ``compute_loss_func``. The model must be called with ``output_hidden_states=True``.
    """

    def __init__(self, model: Any, weight: float) -> None:
        self.weight = weight
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # below LoRA
        self.head: nn.Module = inner.get_output_embeddings()
        norm = last_norm(inner)
        if norm is None:
            raise InputError(
                f"layer_loss needs the norm before the head, and {type(inner).__name__} has none by the names "
                f"{', '.join(_NORMS)}; take --layer-loss 0"
            )
        self.norm = norm
        self.dtype: torch.dtype = next(norm.parameters()).dtype
        """In mixed precision states may come in another than the norm and the head have."""

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss of a batch, or of a part of one with ``num_items_in_batch`` supervised tokens in all."""
        following = labels[:, 1:]
        supervised = following != IGNORED
        target = following[supervised]
        below = outputs.hidden_states[1:-1]  # the first is the embedding, the last is what the logits are made of
        loss = cross_entropy(outputs.logits[:, :-1][supervised].float(), target, reduction="sum")
        for states in below:
            logits = self.head(self.norm(states[:, :-1][supervised].to(self.dtype)))
            loss = loss + self.weight / len(below) * cross_entropy(logits.float(), target, reduction="sum")
        return loss / (target.numel() if num_items_in_batch is None else num_items_in_batch)


def last_norm(model: Any) -> nn.Module | None:
    """The norm that stands between a model's last layer and its head: of such a name, not in a list of layers, least deep."""
    parts = ((name.split("."), module) for name, module in model.named_modules())
    found = [(len(path), module) for path, module in parts if path[-1] in _NORMS and not any(map(str.isdecimal, path))]
    return min(found, key=lambda each: each[0])[1] if found else None


def held_out_loss(
    model: Any, text: TextFormat, stages: TextStages, examples: Sequence[Example], stage: int, at_once: int
) -> tuple[float, int]:
    """Cross-entropy of what a stage supervises, over the examples' tokens, and how many tokens these are, with so many
    examples at once. Hidden slots count if training asks anything of them.
    """
    options, total, tokens = stages.options, 0.0, 0
    model = model.module if hasattr(model, "module") else model  # of several processes
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for start in range(0, len(examples), at_once):
            chains = text.chains(examples[start : start + at_once])
            hidden = (stages.hidden_units(chain, stage) for chain in chains)
            rows = [
                stages.sequence(chain, count, stages.stage_slots[stage], supervise_hidden=options.slot_loss > 0)
                for chain, count in zip(chains, hidden, strict=True)
            ]
            batch = model_input(rows, text.pad, positions=options.keep_positions)
            labels = batch.pop("labels")[:, 1:].to(model.device)
            logits = model(**{name: value.to(model.device) for name, value in batch.items()}).logits[:, :-1]
            supervised = labels != IGNORED
            total += float(cross_entropy(logits[supervised].float(), labels[supervised], reduction="sum"))
            tokens += int(supervised.sum())
    model.train(was_training)
    return total, tokens
