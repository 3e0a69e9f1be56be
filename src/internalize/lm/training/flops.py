"""Floating-point operations of a causal language model, from its config alone.

| name      | meaning                                                                                                |
| --------- | ------------------------------------------------------------------------------------------------------ |
| N         | entries of the matrices that each token is multiplied with: without embeddings, with the output head,  |
|           | tied or not; of a mixture of experts, those of the experts of one token                                |
| A         | entries of LoRA adapters                                                                               |
| a         | layers × total width of the heads                                                                      |
| training  | a sequence of ℓ tokens takes 6·N·ℓ + 12·a·ℓ² operations, forward and backward. LoRA computes no        |
|           | gradient of the frozen weights: (4·N + 6·A)·ℓ + 12·a·ℓ²                                                |
| answering | with a cache, g tokens given and m generated: 2·N per token (the head only for generated tokens), and  |
|           | 4·a·(g² + (g+1) + … + (g+m−1)) for attention                                                           |

With loss at every layer the head counts once per layer. This is an upper bound, because it reads only the supervised
tokens. Attention over a whole sequence is counted in full, without skipping what the mask hides.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

from internalize.errors import InputError
from internalize.lm.model_options import LmModelOptions
from internalize.lm.training.memory import adapter_entries, description
from internalize.lm.training.model_files import outline

_SECONDS: Final = 3600
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts")  # architectures do not agree on the name


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model that determine its operations."""

    parameters: int
    embedding: int
    """Number of parameters in token and position embeddings, a tied head included."""
    body: int
    """N without the head."""
    head: int
    adapters: int
    layers: int
    attention_width: int

    def training_flops(self, tokens: float, squares: float, *, every_layer: bool = False) -> float:
        """Return the operations of training on sequences with ``tokens`` tokens and a sum ``squares`` of squared
        lengths.

        With ``every_layer`` the loss is taken at every layer.
        """
        weights = self.body + self.head * (self.layers if every_layer else 1)
        per_token = 4 * weights + 6 * self.adapters if self.adapters else 6 * weights
        return per_token * tokens + 12 * self.layers * self.attention_width * squares

    def answer_flops(self, given: int, generated: int) -> float:
        """Return the operations of one answer, generated with a cache. The last generated token is not read again."""
        read = given + generated - 1
        pairs = given**2 + (read * (read + 1) - given * (given + 1)) / 2
        return 2 * (self.body * read + self.head * generated) + 4 * self.layers * self.attention_width * pairs


def model_size(options: LmModelOptions, config: Any) -> ModelSize:
    """Return the size of the model of a config. Its weights are not loaded and take no memory."""
    from torch import nn

    model = outline(config, description(options))
    modules: list[nn.Module] = list(model.modules())
    looked_up = {id(m.weight): m.weight.numel() for m in modules if isinstance(m, nn.Embedding)}
    output = model.get_output_embeddings()
    text = config.get_text_config()
    experts = next((getattr(text, name) for name in _EXPERTS if getattr(text, name, None)), 1)
    met = getattr(text, "num_experts_per_tok", None) or experts
    body = 0
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and id(weight) not in looked_up and (output is None or weight is not output.weight):
            body += weight.numel() * met // experts if ".experts." in name else weight.numel()
    heads = getattr(text, "num_attention_heads", None) or 0
    head_width = getattr(text, "head_dim", None) or text.hidden_size // max(heads, 1)
    return ModelSize(
        parameters=sum(weight.numel() for weight in model.parameters()),
        embedding=sum(looked_up.values()),
        body=body,
        head=0 if output is None else output.weight.numel(),
        adapters=adapter_entries(model, options.lora_rank),
        layers=text.num_hidden_layers,
        attention_width=heads * head_width,
    )


@dataclass(frozen=True)
class Gpu:
    """A GPU: its peak in operations per second, and the share of the peak that training reaches."""

    flops: float = 312e12
    utilization: float = 0.4

    def __post_init__(self) -> None:
        if not (math.isfinite(self.flops) and self.flops > 0):
            raise InputError(f"gpu_flops={self.flops} must be a positive number of operations per second")
        if not 0 < self.utilization <= 1:
            raise InputError(f"utilization={self.utilization} is a share of the peak, above 0 and at most 1")

    def hours(self, flops: float) -> float:
        """Return the hours that one GPU takes for these operations."""
        return flops / (self.flops * self.utilization) / _SECONDS
