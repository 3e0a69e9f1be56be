"""The names and shapes of weights in files, for each form of the model (docs/contract.md).

| form  | names               | shape of each                                                                   |
| ----- | ------------------- | ------------------------------------------------------------------------------- |
| level | W1 … WL             | n_ℓ × k/2^ℓ: the keys below a level × its nodes                                 |
| block | W1_full … WL_full   | T × T: every key × every query (other masks, other gates)                       |
| cot   | W                   | T × (k − 1): every key × the nodes (the one layer of explicit CoT)              |
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
    """Return the names of a model's weights, each with its shape."""
    if form == "cot":
        return {"W": (levels.T, levels.T - levels.n)}
    if form == "block":
        return {f"W{layer + 1}_full": (levels.T, levels.T) for layer in range(levels.L)}
    return {f"W{layer + 1}": (levels.level_end[layer], levels.width(layer + 1)) for layer in range(levels.L)}


def form_of_weights(tensors: Mapping[str, Tensor]) -> Form:
    """Return the form of a file's weights by their names; level form if no name tells."""
    return "block" if "W1_full" in tensors else "cot" if "W" in tensors else "level"


def read_weights(tensors: Mapping[str, Tensor], levels: Levels, form: Form, where: Path) -> list[Tensor]:
    """Return the weights among a file's tensors; raise if the form or the sizes are other ones."""
    found: list[Tensor] = []
    for name, shape in weight_shapes(levels, form).items():
        if name not in tensors:
            raise InputError(f"{where} has weights {', '.join(tensors)} but no {name}: not a model in {form} form")
        if tuple(tensors[name].shape) != shape:
            raise InputError(f"{where}: {name} has shape {tuple(tensors[name].shape)}; n and k require {shape}")
        found.append(tensors[name])
    return found


def check_dtype(tensors: Mapping[str, Tensor], dtype: str, where: Path) -> None:
    """Raise if a tensor of a run's file has another dtype than the run writes, because its last bits are lost then."""
    for name, tensor in tensors.items():
        if str(tensor.dtype) != f"torch.{dtype}":
            raise InputError(f"{where}: {name} has dtype {tensor.dtype}, but this run stores torch.{dtype}")


def full_weights(W: Iterable[Tensor], levels: Levels) -> list[Tensor]:
    """Return weights in level form as T × T matrices, with 0 at the entries that Definition 3 never reads."""
    full: list[Tensor] = []
    for layer, w in enumerate(W):
        nodes = levels.nodes(layer + 1)
        full.append(pad(w, (nodes.start, levels.T - nodes.stop, 0, levels.T - nodes.start)))
    return full


def columns_as_layers(W: Tensor, levels: Levels) -> list[Tensor]:
    r"""Return the columns of the one-layer model of explicit CoT as layers in level form.

    **Claim.** For any weights and any link, these layers compute in one pass what the one-layer model writes level by
    level. **Proof.** A node of level ℓ + 1 sees the same keys in both, the positions of lower levels, and its column has
    the same softmax over them. Both compute φ of the weighted mean of their states: the bits, which are equal, and the
    nodes of lower levels, which are equal by induction. ∎ So where the chain that the model writes is right, the answer
    without a chain is right, with the same error. Nothing is trained: a pass of the chain becomes a layer.
    """
    found: list[Tensor] = []
    for layer, end in enumerate(levels.level_end[:-1]):
        found.append(W[:end, end - levels.n : levels.level_end[layer + 1] - levels.n].clone())
    return found


def level_parts(W: Sequence[Tensor], levels: Levels) -> list[Tensor]:
    """Return the parts of weights in block form that the paper's model reads."""
    return [w[: levels.level_end[layer], levels.span(layer + 1)] for layer, w in enumerate(W)]
