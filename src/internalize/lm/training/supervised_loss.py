"""The loss of training: cross-entropy of the supervised tokens and, with `layer_loss`, the same at every layer.

The head reads only the columns of a batch that have a supervised token.

The loss at every layer is read by the model's own head, so that the model computes its steps in early layers. A later
step can use a hidden step only if an early layer has it. A model that writes its chain has no reason for that: a step
may be ready only in the last layer, because the first layer reads it back. The loss at every layer asks for each step
as early as possible, and in the directions in which the embedding writes it.
"""

import inspect
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.stages.chains import TextFormat
from internalize.lm.stages.removal import IGNORED, TextStages
from internalize.lm.training.collator import model_input, supervised_columns

_NORMS: Final = ("ln_f", "norm", "final_layer_norm", "final_layernorm", "final_norm", "norm_f", "layer_norm")
"""Names that architectures give to the norm between the last layer and the head. Some also use them inside layers."""


class SupervisedLoss:
    """The cross-entropy of the next token, plus ``weight`` times its mean over the layers below the last.

    It serves as a Trainer's ``compute_loss_func``. The head, which is the larger part of a small model with a large
    vocabulary, reads only the columns of the batch in which some token is supervised, if the model was called with
    these `supervised_columns` as ``logits_to_keep``. A positive weight needs ``output_hidden_states=True``.
    """

    def __init__(self, model: Any, weight: float = 0.0) -> None:
        self.weight = weight
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # below LoRA
        self.selects = "logits_to_keep" in inspect.signature(inner.forward).parameters
        """Whether the model takes ``logits_to_keep``."""
        if not weight:
            return
        self.head: nn.Module = inner.get_output_embeddings()
        norm = last_norm(inner)
        if norm is None:
            raise InputError(
                f"layer_loss needs the norm before the head, and {type(inner).__name__} has none of the names "
                f"{', '.join(_NORMS)}; use --layer-loss 0"
            )
        self.norm = norm
        self.dtype: torch.dtype = next(norm.parameters()).dtype
        """The dtype of the norm and the head. In mixed precision the states may have another one."""

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the loss of a batch, or of a part of a batch with ``num_items_in_batch`` supervised tokens in all."""
        following = labels[:, 1:]
        supervised = following != IGNORED
        target = following[supervised]
        logits = outputs.logits
        kept = supervised[:, supervised_columns(labels)] if logits.shape[1] < labels.shape[1] else supervised
        loss = cross_entropy(logits[:, : kept.shape[1]][kept].float(), target, reduction="sum")
        if self.weight:
            # Without the embedding, and without the last layer, whose loss is that of the logits.
            below = outputs.hidden_states[1:-1]
            for states in below:
                logits = self.head(self.norm(states[:, :-1][supervised].to(self.dtype)))
                loss = loss + self.weight / len(below) * cross_entropy(logits.float(), target, reduction="sum")
        return loss / (target.numel() if num_items_in_batch is None else num_items_in_batch)


def last_norm(model: Any) -> nn.Module | None:
    """Return the norm between a model's last layer and its head: the least nested one by name, outside the layers."""
    parts = ((name.split("."), module) for name, module in model.named_modules())
    found = [(len(path), module) for path, module in parts if path[-1] in _NORMS and not any(map(str.isdecimal, path))]
    return min(found, key=lambda each: each[0])[1] if found else None


def held_out_loss(
    model: Any, text: TextFormat, stages: TextStages, examples: Sequence[Example], stage: int, at_once: int
) -> tuple[float, int]:
    """Return the sum of the cross-entropy over the tokens that a stage supervises, and the number of these tokens.

    A batch has ``at_once`` examples. Tokens of hidden slots count if training has a loss on them.
    """
    options, total, tokens = stages.options, 0.0, 0
    model = model.module if hasattr(model, "module") else model  # in a run of several processes
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for start in range(0, len(examples), at_once):
            chains = text.chains(examples[start : start + at_once])
            rows = [stages.at_stage(chain, stage, supervise_hidden=options.slot_loss > 0) for chain in chains]
            batch = model_input(rows, text.pad, positions=options.keep_positions)
            labels = batch.pop("labels")[:, 1:].to(model.device)
            logits = model(**{name: value.to(model.device) for name, value in batch.items()}).logits[:, :-1]
            supervised = labels != IGNORED
            total += float(cross_entropy(logits[supervised].float(), labels[supervised], reduction="sum"))
            tokens += int(supervised.sum())
    model.train(was_training)
    return total, tokens
