"""Weights under the contract's names, by form.

| form  | names               | shape of each                                                                   |
| ----- | ------------------- | ------------------------------------------------------------------------------- |
| level | W1 … WL             | n_ℓ × k/2^ℓ: the keys below a level, and its nodes                              |
| block | W1_full … WL_full   | T × T: every key, every query (other masks, other gates)                        |
| cot   | W                   | T × (k − 1): every key, and the nodes (the one layer of explicit CoT)           |
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from torch import Tensor
from torch.nn.functional import pad

from internalize.errors import InputError
from internalize.parity.task.tree import Levels

Form = Literal["level", "block", "cot"]


def weight_shapes(levels: Levels, form: Form) -> dict[str, tuple[int, int]]:
    """The names of a model's weights, each with its shape."""
    if form == "cot":
        return {"W": (levels.T, levels.k - 1)}
    if form == "block":
        return {f"W{layer + 1}_full": (levels.T, levels.T) for layer in range(levels.L)}
    return {f"W{layer + 1}": (levels.level_end[layer], levels.width(layer + 1)) for layer in range(levels.L)}


def form_of_weights(tensors: Mapping[str, Tensor]) -> Form:
    """The form that a file's weights are in, by their names; level form if there is nothing to go by."""
    return "block" if "W1_full" in tensors else "cot" if "W" in tensors else "level"


def read_weights(tensors: Mapping[str, Tensor], levels: Levels, form: Form, where: Path) -> list[Tensor]:
    """The weights out of a file's tensors; refuses a file of another form or of other sizes."""
    found: list[Tensor] = []
    for name, shape in weight_shapes(levels, form).items():
        if name not in tensors:
            raise InputError(f"{where} has weights {', '.join(tensors)} but no {name}: not a model in {form} form")
        if tuple(tensors[name].shape) != shape:
            raise InputError(f"{where}: {name} has shape {tuple(tensors[name].shape)}, not {shape} as n and k ask")
        found.append(tensors[name])
    return found


def check_dtype(tensors: Mapping[str, Tensor], dtype: str, where: Path) -> None:
    """Refuse a file of ours in which a tensor has another dtype than it was written in: its last bits are gone."""
    for name, tensor in tensors.items():
        if str(tensor.dtype) != f"torch.{dtype}":
            raise InputError(f"{where}: {name} has dtype {tensor.dtype}, and this run keeps torch.{dtype}")


def full_weights(W: Iterable[Tensor], levels: Levels) -> list[Tensor]:
    """Weights in level form as T × T matrices, zero where Definition 3 never looks."""
    full: list[Tensor] = []
    for layer, w in enumerate(W):
        nodes = levels.nodes(layer + 1)
        full.append(pad(w, (nodes.start, levels.T - nodes.stop, 0, levels.T - nodes.start)))
    return full


def level_parts(W: Sequence[Tensor], levels: Levels) -> list[Tensor]:
    """Of weights in block form, what the paper's model would read of them."""
    return [w[: levels.level_end[layer], levels.span(layer + 1)] for layer, w in enumerate(W)]
