r"""The model exactly as the paper prints it, in float64: the reference that every other form is tested against.

| name   | paper   | meaning                                                             | where        |
| ------ | ------- | ------------------------------------------------------------------- | ------------ |
| D      | D       | B × T data, all samples of a batch side by side                     | section 2.2  |
| X      | X^(ℓ)   | d × T residual stream, d = T + B(L + 1): positions, then L+1 blocks | section 2.2  |
| W[l]   | W^(ℓ)   | T × T block of the key-query matrix, rows keys, columns queries     | section 2.2  |
| W_KQ   | W_KQ    | d × d, zero but for W                                               | section 2.2  |
| C      | C       | mask, 0 or −∞                                                       | Definition 1 |
| W_O(l) | W_O^(ℓ) | d × d block shift, block ℓ to block ℓ + 1                           | section 2.2  |
| Psi(t) | Ψ_t     | d × B readout of block t + 1                                        | section 2.2  |

The whole batch is one d × T matrix, so the cost grows with B²: use it only for small cases.

For sums modulo p the data are complex numbers; positions, weights and scores stay real.

Departs from the paper: the first position has no key, and its softmax over no keys is defined as 0.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Inexact
from torch import Tensor

from internalize.environment import check_memory
from internalize.errors import InputError
from internalize.parity.model.gates import paper_gates
from internalize.parity.model.link import COSINE, Link
from internalize.parity.model.mask import level_mask
from internalize.parity.task.tree import Levels


class LiteralTransformer:
    """Definition 3: stream, key-query block, mask, link, gated connection, block shift and readout as printed."""

    def __init__(
        self,
        levels: Levels,
        link: Link = COSINE,
        visible: Bool[Tensor, "T T"] | None = None,
        gates: Float[Tensor, "layers T"] | None = None,
    ) -> None:
        self.levels = levels
        self.link = link
        self.L = levels.L if gates is None else len(gates)
        self._refuse_if_too_large(B=1)
        visible = level_mask(levels) if visible is None else visible
        self.C = torch.zeros(levels.T, levels.T, dtype=torch.float64).masked_fill(~visible, -torch.inf)
        self.gates = (paper_gates(levels) if gates is None else gates).to(torch.float64)

    def embed(self, D: Inexact[Tensor, "B T"]) -> Inexact[Tensor, "d T"]:
        """Return E(D): one-hot positions, the data in block 1, zeros in the blocks that the layers will write."""
        B, T = D.shape
        self._refuse_if_too_large(B)
        return torch.cat([torch.eye(T, dtype=D.dtype), D, D.new_zeros(B * self.L, T)])

    def attention(self, X: Inexact[Tensor, "d T"], W: Float[Tensor, "T T"]) -> Inexact[Tensor, "d T"]:
        """Return Attn(X; W) = X · S(Xᵀ W_KQ X + C), with the column-wise softmax S (Definition 1)."""
        d, T = X.shape
        W_KQ = torch.nn.functional.pad(W, (0, d - T, 0, d - T))
        keyless = self.C.isneginf().all(dim=0)
        scores = (X.T @ W_KQ.to(X.dtype) @ X).real + self.C.masked_fill(keyless, 0.0)
        return X @ scores.softmax(dim=0).masked_fill(keyless, 0.0).to(X.dtype)

    def W_O(self, layer: int, B: int) -> Float[Tensor, "d d"]:
        """Return the block shift: zero on positions, e_{L+1,ℓ+1} e_{L+1,ℓ}ᵀ ⊗ I_B on the blocks."""
        shift = torch.zeros(self.L + 1, self.L + 1, dtype=torch.float64)
        shift[layer + 1, layer] = 1.0
        blocks = torch.kron(shift, torch.eye(B, dtype=torch.float64))
        return torch.nn.functional.pad(blocks, (self.levels.T, 0, self.levels.T, 0))

    def Psi(self, layers: int, B: int) -> Inexact[Tensor, "d B"]:
        """Return the readout of the block that layer ``layers`` writes: zero on positions, e ⊗ I_B on the blocks."""
        e = torch.zeros(self.L + 1, 1, dtype=torch.float64)
        e[layers] = 1.0
        return torch.nn.functional.pad(torch.kron(e, torch.eye(B, dtype=torch.float64)), (0, 0, self.levels.T, 0))

    def streams(self, W: Sequence[Float[Tensor, "T T"]], D: Inexact[Tensor, "B T"]) -> list[Inexact[Tensor, "d T"]]:
        """Return X^(0), …, X^(L), where X^(ℓ) = X^(ℓ−1) + W_O^(ℓ) GC(φ(Attn(X^(ℓ−1); W^(ℓ))), X^(ℓ−1); g^(ℓ))."""
        if len(W) != self.L:
            raise InputError(f"{len(W)} weight matrices for a model of {self.L} layers")
        X = self.embed(D)
        streams = [X]
        for layer, g in enumerate(self.gates.to(D.dtype)):
            A = self.link(self.attention(X, W[layer]))
            gated = A @ g.diag() + X @ (torch.eye(self.levels.T, dtype=torch.float64) - g.diag())
            X = X + self.W_O(layer, len(D)).to(D.dtype) @ gated
            streams.append(X)
        return streams

    def __call__(
        self, W: Sequence[Float[Tensor, "T T"]], D: Inexact[Tensor, "B T"], layers: int
    ) -> Inexact[Tensor, "B T"]:
        """Return f^(t)(D) = Ψ_tᵀ X^(L), the readout at every position, for t = ``layers``."""
        return self.Psi(layers, len(D)).T.to(D.dtype) @ self.streams(W, D)[-1]

    def _refuse_if_too_large(self, B: int) -> None:
        d = self.levels.T + B * (self.L + 1)
        need = 8.0 * self.L * (3 * d * d + 8 * d * self.levels.T)
        check_memory(need, f"{d} × {d} matrices of the literal model at n={self.levels.n}, k={self.levels.k}, B={B}")
