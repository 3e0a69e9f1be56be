"""How well a model computes the tree: what an evaluation measures.

| name            | paper               | meaning                                                       | where        |
| --------------- | ------------------- | ------------------------------------------------------------- | ------------ |
| accuracy        | validation accuracy | share of samples whose root has the right sign                | section 4    |
| l2_error        | E(θ)                | mean squared error of the root, at this secret set            | section 2.1  |
| max_error       | the theorem's norm  | largest error of the root over the samples                    | Theorem 1    |
| level_accuracy  | –                   | share of right signs, one number per level of nodes           |              |
| child_attention | Definition 4        | smallest attention on a true child, one number per layer      | appendix C.5 |
| gate_distance   | Eq. (gating)        | mean distance of learned gates from the prescribed ones       | section 3.2  |

All but the last two are measured on the *inference input*, which shows no position of the chain. Each level is read
after the layer that writes it. In the paper's model later layers do not change a level; in other models they may.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from internalize.parity.model.cot import CoTTransformer
from internalize.parity.model.gates import paper_gates
from internalize.parity.model.relaxed import RelaxedTransformer
from internalize.parity.model.transformer import BlockTransformer, LevelTransformer
from internalize.parity.task.data import inference_input
from internalize.parity.task.tree import Levels, ParityTree

Model = LevelTransformer | BlockTransformer | CoTTransformer


def is_right(answer: Tensor, truth: Tensor, modulus: int = 2) -> Tensor:
    """Return where the true value is the nearest one: the sign agrees, or the angle to the true root is below π/p."""
    if modulus == 2:
        return answer * truth > 0
    turned = answer * truth.conj()
    return turned.real > math.cos(math.pi / modulus) * turned.abs()


def infer(model: Model, bits: Inexact[Tensor, "*data B n"]) -> Inexact[Tensor, "*runs B T"]:
    """Return the bits and every node that the model computes from them, in one pass or by writing the chain."""
    if isinstance(model, LevelTransformer):
        return model.states(bits)
    if isinstance(model, CoTTransformer):
        return model.generate(bits, by="level")
    by_layer = model.readouts(inference_input(bits, model.levels.T))
    read = [by_layer[level][..., model.levels.span(level)] for level in range(model.levels.L + 1)]
    return torch.cat([H.expand(*read[-1].shape[:-1], -1) for H in read], dim=-1)


def layer_attention(model: Model, layer: int) -> Float[Tensor, "*runs keys nodes"]:
    """Return the attention of the nodes of level ``layer + 1`` over the positions below them."""
    if isinstance(model, LevelTransformer):
        return model.attention(layer)
    nodes, n = model.levels.span(layer + 1), model.levels.n
    if isinstance(model, BlockTransformer):
        return model.attention(layer)[..., : model.levels.level_end[layer], nodes]
    return model.attention()[..., : model.levels.level_end[layer], nodes.start - n : nodes.stop - n]


def gate_distance(gates: Float[Tensor, "runs L T"], levels: Levels) -> list[dict[str, float]]:
    """Return the mean distance of each run's gates from the prescribed ones, for four kinds of position of a layer.

    ``inputs``: the bits, which a layer must keep. ``written``: the nodes that it writes. ``below``: nodes of lower
    levels, which it must keep. ``above``: nodes that a later layer writes; under the level mask nothing reads them
    before, so their gates are free.
    """
    level = torch.tensor([levels.level_of(m) for m in range(levels.T)])
    written = torch.arange(1, levels.L + 1).unsqueeze(1)
    distance = (gates.detach().cpu() - paper_gates(levels).to(gates.dtype)).abs()
    parts = {
        "inputs": (level == 0).expand(levels.L, -1),
        "written": level == written,
        "below": (level > 0) & (level < written),
        "above": level > written,
    }
    return [{name: float(run[part].mean()) for name, part in parts.items() if bool(part.any())} for run in distance]


def child_attention(model: Model, trees: Sequence[ParityTree]) -> Float[Tensor, "runs L"]:
    """Return the smallest attention on a true child, for each run and layer."""
    columns: list[Tensor] = []
    for layer in range(model.levels.L):
        attention = layer_attention(model, layer)
        children = torch.tensor([tree.layer_children(layer) for tree in trees], device=attention.device)
        on_children = attention.gather(-2, children.transpose(-1, -2))
        columns.append(on_children.flatten(-2).amin(-1))
    return torch.stack(columns, dim=-1)


@torch.no_grad()
def measure(
    model: Model,
    trees: Sequence[ParityTree],
    sequence: Inexact[Tensor, "runs B T"],
    output: Inexact[Tensor, "runs B T"] | None = None,
) -> list[dict[str, Any]]:
    """Return the measurements of every run on the true ``sequence``; ``output`` is what ``infer`` returns, if known."""
    levels = model.levels
    output = infer(model, sequence[..., : levels.n]) if output is None else output
    by_level = [
        # not every device has float64
        is_right(output[..., nodes], sequence[..., nodes], levels.modulus).cpu().double().mean((-1, -2))
        for nodes in map(levels.span, range(1, levels.L + 1))
    ]
    error = output[..., -1] - sequence[..., -1]
    columns: dict[str, list[Any]] = {
        "level_accuracy": torch.stack(by_level, dim=-1).tolist(),
        "accuracy": by_level[-1].tolist(),
        "l2_error": error.abs().square().mean(-1).tolist(),
        "max_error": error.abs().amax(-1).tolist(),
        "child_attention": child_attention(model, trees).tolist(),
    }
    if isinstance(model, RelaxedTransformer) and (gates := model.gate_values()) is not None:
        columns["gate_distance"] = gate_distance(gates, levels)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
