"""Gates of the gated connection: ``gates[l, m]`` is the share of layer l's update that position m takes.

| name        | paper   | meaning                                                      | where        |
| ----------- | ------- | ------------------------------------------------------------ | ------------ |
| paper_gates | g_m^(ℓ) | 1 where layer ℓ writes, 0 elsewhere                          | Eq. (gating) |
| ones        | –       | every position takes every update: the collapse of Lemma 1   | section 3.2  |
| cot         | –       | every node takes every update, the input bits keep theirs    | section 3.2  |
"""

import torch
from jaxtyping import Float
from torch import Tensor

from internalize.errors import InputError
from internalize.parity.task.tree import Levels


def paper_gates(levels: Levels) -> Float[Tensor, "L T"]:
    """Return the prescribed gates: layer l is open only at level l + 1."""
    gates = torch.zeros(levels.L, levels.T, dtype=torch.float64)
    for layer in range(levels.L):
        gates[layer, levels.span(layer + 1)] = 1.0
    return gates


def named_gates(name: str, levels: Levels) -> Float[Tensor, "L T"]:
    """Return the gates called ``name``: ``paper``, ``ones`` or ``cot``."""
    if name not in ("paper", "ones", "cot"):
        raise InputError(f"gates {name!r} are not paper, ones or cot (section 3.2)")
    if name == "paper":
        return paper_gates(levels)
    gates = torch.ones(levels.L, levels.T, dtype=torch.float64)
    if name == "cot":
        gates[:, : levels.n] = 0.0
    return gates
