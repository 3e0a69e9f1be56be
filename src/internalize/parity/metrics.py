"""How well a model computes the tree: what an evaluation measures.

| name            | paper               | meaning                                                       | where        |
| --------------- | ------------------- | ------------------------------------------------------------- | ------------ |
| accuracy        | validation accuracy | share of samples whose root has the right sign                | section 4    |
| l2_error        | E(θ)                | mean squared error of the root, at this secret set            | section 2.1  |
| max_error       | the theorem's norm  | largest error of the root over the samples                    | Theorem 1    |
| level_accuracy  | –                   | share of right signs, one number for each level of nodes      |              |
| child_attention | Definition 4        | smallest attention on a true child, one number for each layer | appendix C.5 |

All but ``child_attention`` are of the *inference input*, which shows no position of the chain.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from internalize.parity.cot import CoTTransformer
from internalize.parity.transformer import LevelTransformer
from internalize.parity.tree import ParityTree


def infer(model: LevelTransformer | CoTTransformer, bits: Float[Tensor, "*data B n"]) -> Float[Tensor, "*runs B T"]:
    """Every node from the bits alone: in one pass, or by writing the chain."""
    return model.states(bits) if isinstance(model, LevelTransformer) else model.generate(bits, by="level")


def layer_attention(model: LevelTransformer | CoTTransformer, layer: int) -> Float[Tensor, "*runs keys nodes"]:
    """Attention of the nodes of level ``layer + 1`` over the positions below them."""
    if isinstance(model, LevelTransformer):
        return model.attention(layer)
    nodes, n = model.levels.nodes(layer + 1), model.levels.n
    return model.attention()[..., : model.levels.level_end[layer], nodes.start - n : nodes.stop - n]


def child_attention(model: LevelTransformer | CoTTransformer, trees: Sequence[ParityTree]) -> Float[Tensor, "runs L"]:
    """Smallest attention on a true child, for each run and layer."""
    columns: list[Tensor] = []
    for layer in range(model.levels.L):
        attention = layer_attention(model, layer)
        children = torch.tensor([tree.layer_children(layer) for tree in trees], device=attention.device)
        on_children = attention.gather(-2, children.transpose(-1, -2))
        columns.append(on_children.flatten(-2).amin(-1))
    return torch.stack(columns, dim=-1)


@torch.no_grad()
def measure(
    model: LevelTransformer | CoTTransformer, trees: Sequence[ParityTree], sequence: Float[Tensor, "runs B T"]
) -> list[dict[str, Any]]:
    """The measurements of every run on the true sequences of its samples."""
    levels = model.levels
    output = infer(model, sequence[..., : levels.n])
    right = (output * sequence > 0).to(output.dtype)
    error = output[..., -1] - sequence[..., -1]
    by_level = [
        right[..., levels.nodes(level).start : levels.nodes(level).stop].mean((-1, -2))
        for level in range(1, levels.L + 1)
    ]
    columns: dict[str, list[Any]] = {
        "level_accuracy": torch.stack(by_level, dim=-1).tolist(),
        "accuracy": right[..., -1].mean(-1).tolist(),
        "l2_error": error.square().mean(-1).tolist(),
        "max_error": error.abs().amax(-1).tolist(),
        "child_attention": child_attention(model, trees).tolist(),
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
