"""Weights in level form under the contract's names: W1 … WL, Wℓ of shape n_ℓ × k/2^ℓ."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from internalize.errors import InputError
from internalize.parity.tree import Levels


def named_weights(W: Sequence[Tensor]) -> dict[str, Tensor]:
    """The layers' weights by name."""
    return {f"W{layer + 1}": w for layer, w in enumerate(W)}


def level_weights(tensors: Mapping[str, Tensor], levels: Levels, where: Path) -> list[Tensor]:
    """The layers' weights out of a file's tensors; refuses a file of another form or of other sizes."""
    found: list[Tensor] = []
    for layer in range(levels.L):
        name, shape = f"W{layer + 1}", (levels.level_end[layer], levels.width(layer + 1))
        if name not in tensors:
            raise InputError(f"{where} has weights {', '.join(tensors)} but no {name}: not a model in level form")
        if tuple(tensors[name].shape) != shape:
            raise InputError(f"{where}: {name} has shape {tuple(tensors[name].shape)}, not {shape} as n and k ask")
        found.append(tensors[name])
    return found
