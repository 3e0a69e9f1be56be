r"""The paper's model in two forms for computation: level form (fast) and block form (any mask, any gates).

| name             | paper                 | meaning                                                  | where        |
| ---------------- | --------------------- | -------------------------------------------------------- | ------------ |
| H                | x^(ℓ)_{[ℓ+1]}         | B × T hidden states: the block that the last layer wrote | section 2.2  |
| W[l], block form | W^(ℓ)                 | T × T, rows keys, columns queries                        | section 2.2  |
| W[l], level form | its part that is read | n_{l+1} × k/2^{l+1}: keys below a level, its nodes       | appendix C.2 |
| layers           | t                     | layers that run before the readout Ψ_t                   | section 2.2  |

Attention scores depend only on positions, and the output projection is a block shift. So the blocks of the stream
of Definition 3 follow the *block form* \(H_\ell = g \odot \phi(H_{\ell-1} A_\ell) + (1-g) \odot H_{\ell-1}\), where
\(A_\ell\) is the masked softmax of \(W^{(\ell)}\). With the level mask and the prescribed gates, layer ℓ changes
only level ℓ+1 and reads only lower levels, which are all written by then. This gives the *level form*
\(H_\ell = [H_{\ell-1}, \phi(H_{\ell-1}\,\mathrm{softmax}(W_\ell))]\). Values and gradients of both forms equal
those of the literal model up to rounding.

Weights may have leading run dimensions, for many secrets, seeds or settings at once. Data has the same dimensions,
or none if all runs share it.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import torch
from jaxtyping import Bool, Float, Inexact
from torch import Tensor, nn

from internalize.errors import InputError
from internalize.parity.model.gates import named_gates
from internalize.parity.model.link import COSINE, Link
from internalize.parity.model.mask import masked_softmax, named_mask
from internalize.parity.options import FixedGates, Mask
from internalize.parity.task.tree import Levels

AnyModel = TypeVar("AnyModel", bound=nn.Module)
GateFunction = Callable[[int, Tensor, Tensor], Tensor]
"""Gates that depend on the input: (layer, hidden states before it, its update) → gates that broadcast to the states."""


class LevelTransformer(nn.Module):
    """The model in level form: one n_{l+1} × k/2^{l+1} matrix per layer, initially 0. Training uses this form."""

    def __init__(
        self, n: int, k: int, link: Link = COSINE, runs: Sequence[int] = (), dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.levels = Levels(n, k, link.arity, link.modulus)
        self.link = link
        self.W = nn.ParameterList(
            torch.zeros(*runs, self.levels.level_end[layer], self.levels.width(layer + 1), dtype=dtype)
            for layer in range(self.levels.L)
        )

    def attention(self, layer: int) -> Float[Tensor, "*runs keys nodes"]:
        """Return the softmax weights of a layer: rows are the keys it reads, columns the nodes it writes."""
        return at_layer(self.W, layer).softmax(dim=-2)

    def by_level(self, bits: Inexact[Tensor, "*data B n"], layers: int | None = None) -> list[Tensor]:
        """Return the bits, then the node values of each level that the first ``layers`` layers (default all) compute.

        softmax(W)ᵀ · Hᵀ is summed level by level, so that H is never copied and the bits never get a gradient. It
        is transposed because samples are many and nodes few: the samples of one node are adjacent in memory.
        """
        computed = [bits]
        for layer in range(_checked_layers(self.levels, layers)):
            A = self.attention(layer).mT.to(bits.dtype)  # states may be complex
            z = A[..., : self.levels.n] @ bits.mT
            for level, H in enumerate(computed[1:], start=1):
                z = z + A[..., self.levels.span(level)] @ H.mT
            computed.append(self.link(z).mT)
        return computed

    def states(self, bits: Inexact[Tensor, "*data B n"], layers: int | None = None) -> Inexact[Tensor, "*runs B m"]:
        """Return the bits and all node values that the first ``layers`` layers (default all) compute from them."""
        computed = self.by_level(bits, layers)
        runs_and_samples = computed[-1].shape[:-1]
        return torch.cat([H.expand(*runs_and_samples, -1).mT for H in computed], dim=-2).mT

    def forward(self, D: Inexact[Tensor, "*data B T"], layers: int | None = None) -> Inexact[Tensor, "*runs B T"]:
        """Return the readout after ``layers`` layers: the levels they computed, then the input's own tokens."""
        check_width(D, self.levels)
        H = self.states(D[..., : self.levels.n], layers)
        shown = D[..., H.shape[-1] :]
        return torch.cat([H, shown.expand(*H.shape[:-1], -1)], dim=-1)


class BlockTransformer(nn.Module):
    """The model in block form: T × T attention in every layer, any mask and any gates, fixed or learned.

    Args:
        n: number of input bits.
        k: size of the secret set.
        mask: a name, or ``visible[key, query]``.
        gates: a name, an L × T tensor, or a function of (layer, states, update). To learn them, pass an
            ``nn.Parameter`` or an ``nn.Module``: either becomes part of this module.
        link: the link function.
        runs: leading dimensions of the weights.
        dtype: the dtype of weights and gates.
    """

    visible: Tensor
    gates: Tensor | GateFunction

    def __init__(
        self,
        n: int,
        k: int,
        mask: Mask | Bool[Tensor, "T T"] = "level",
        gates: FixedGates | Float[Tensor, "*runs L T"] | GateFunction = "paper",
        link: Link = COSINE,
        runs: Sequence[int] = (),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.levels = Levels(n, k, link.arity, link.modulus)
        self.link = link
        self.register_buffer("visible", named_mask(mask, self.levels) if isinstance(mask, str) else mask)
        if isinstance(gates, str):
            gates = named_gates(gates, self.levels)
        if isinstance(gates, Tensor) and not isinstance(gates, nn.Parameter):
            self.register_buffer("gates", gates.to(dtype))
        else:
            self.gates = gates
        self.W = nn.ParameterList(
            torch.zeros(*runs, self.levels.T, self.levels.T, dtype=dtype) for _ in range(self.levels.L)
        )

    def attention(self, layer: int) -> Float[Tensor, "*runs T T"]:
        """Return the softmax weights of a layer: rows keys, columns queries."""
        return masked_softmax(at_layer(self.W, layer), self.visible)

    def gate(self, layer: int, H: Inexact[Tensor, "*runs B T"], Y: Inexact[Tensor, "*runs B T"]) -> Tensor:
        """Return the gates of a layer, which broadcast against the states H before it and its update Y."""
        if isinstance(self.gates, Tensor):
            return self.gates[..., layer, :].unsqueeze(-2)
        return self.gates(layer, H, Y)

    def update(self, layer: int, H: Inexact[Tensor, "*runs B T"]) -> Inexact[Tensor, "*runs B T"]:
        """Return what a layer computes for every position, before the gates."""
        return self.link(H @ self.attention(layer))

    def readouts(
        self, D: Inexact[Tensor, "*data B T"], layers: int | None = None
    ) -> list[Inexact[Tensor, "*runs B T"]]:
        """Return the readouts before the first layer and after each of the first ``layers`` layers (default all)."""
        check_width(D, self.levels)
        found = [D]
        for layer in range(_checked_layers(self.levels, layers)):
            H = found[-1]
            Y = self.update(layer, H)
            g = self.gate(layer, H, Y)
            found.append(g * Y + (1 - g) * H)
        return found

    def forward(self, D: Inexact[Tensor, "*data B T"], layers: int | None = None) -> Inexact[Tensor, "*runs B T"]:
        """Return the readout after ``layers`` layers (default all)."""
        return self.readouts(D, layers)[-1]


def set_weights(model: AnyModel, W: Sequence[Tensor]) -> AnyModel:
    """Copy ``W`` into the model, into every run if it has several, and return it."""
    with torch.no_grad():
        for parameter, w in zip(model.parameters(), W, strict=True):
            parameter.copy_(w)
    return model


def check_width(D: Tensor, levels: Levels) -> None:
    """Raise if an input does not have one number per position."""
    if D.shape[-1] != levels.T:
        raise InputError(f"an input of {D.shape[-1]} positions; n={levels.n}, k={levels.k} have {levels.T}")


def at_layer(W: nn.ParameterList, layer: int) -> Tensor:
    """Return the tensor of a layer."""
    return cast(Tensor, W[layer])  # torch declares the items of a ParameterList as Any


def _checked_layers(levels: Levels, layers: int | None) -> int:
    layers = levels.L if layers is None else layers
    if not 0 <= layers <= levels.L:
        raise InputError(f"layers={layers} is outside 0 … {levels.L} (the model has log2 k layers)")
    return layers
