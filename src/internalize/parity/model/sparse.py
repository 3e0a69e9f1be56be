r"""Inference with fixed weights in sparse form, for an internalized model and for the model that writes its chain.

| name  | paper                     | meaning                                                           | where       |
| ----- | ------------------------- | ----------------------------------------------------------------- | ----------- |
| X     | x^(ℓ)_[ℓ+1]               | states, one row per position and one column per sample            | section 2.2 |
| write | –                         | nodes computed together, from the positions before a level's end  | –           |
| base  | –                         | softmax weight of the many keys of a column that share one logit  | –           |
| few   | c_1[m], c_2[m], recovered | the keys with another logit                                       | section 3.4 |

In a quantized column all keys but a few share one logit. Its mean over the keys is then
\(\text{base} \sum_j x_j + \sum_{\text{few}} (\sigma_j - \text{base}) x_j\), which costs as much as the states
themselves. Other columns use the dense product: grid 1 leaves many keys at −1, and AdamW rounds nothing. Both
compute the same function.

An internalized model writes one level after the other in one pass. The one-layer model of explicit CoT has the same
columns in one matrix and reads what it wrote, with one node or one level per pass. So each of the three is a list
of writes.
"""

from collections.abc import Sequence
from typing import Final, Literal, get_args

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from internalize.errors import InputError
from internalize.parity.model.cot import chain_passes
from internalize.parity.model.link import Link, get_link
from internalize.parity.model.weights import form_of_weights, read_weights
from internalize.parity.task.tree import Levels
from internalize.storage.runs import Run

By = Literal["node", "level", "direct"]
"""Write the chain node by node or level by level, or answer directly."""
WAYS: Final[tuple[By, ...]] = get_args(By)

STATE_NUMBERS: Final = 2**23
"""Default size of a chunk's states, as a count of numbers: 32 MB in float32."""
_FEW: Final = 6
"""Columns are stored sparse if at most this many keys of each have another logit than the common one."""


def read_model(run: Run) -> tuple[Levels, Link, bool, list[Tensor]]:
    """Return the levels and the link of a finished run of `solve` or `train`, whether it writes its chain, and W."""
    config, tensors = run.config, run.weights()
    levels = Levels(config["n"], config["k"], config.get("arity", 2), config.get("modulus", 2))
    link = get_link(config["link"], levels.arity, levels.modulus)
    writes_chain = form_of_weights(tensors) == "cot"
    W = read_weights(tensors, levels, "cot" if writes_chain else "level", run.path / "weights.safetensors")
    return levels, link, writes_chain, W


class _Columns:
    """Computes the nodes of a write from the states that they read and the sum of those states."""

    def __init__(self, W: Float[Tensor, "keys nodes"], link: Link, like: Tensor) -> None:
        self.link = link
        W = W.double()
        attention = W.softmax(dim=0)
        common = W.median(dim=0, keepdim=True).values
        few = common != W
        most = int(few.sum(dim=0).max())
        self.dense = attention.T.contiguous().to(like) if most > _FEW else None
        base = (common - W.logsumexp(dim=0, keepdim=True)).exp()
        self.base = base.T.contiguous().to(like)
        # A column with fewer such keys than the others is filled up with other keys, whose extra weight is 0.
        rows = few.double().topk(most, dim=0).indices
        extra = torch.where(few.gather(0, rows), attention.gather(0, rows) - base, 0.0)
        self.few = list(zip(rows.to(like.device), extra.unsqueeze(-1).to(like), strict=True))

    def __call__(self, X: Inexact[Tensor, "keys b"], total: Inexact[Tensor, " b"]) -> Inexact[Tensor, "nodes b"]:
        if self.dense is not None:
            return self.link(self.dense @ X)
        z = self.base * total
        for rows, extra in self.few:
            z.addcmul_(extra, X[rows])
        return self.link(z)


class SparseModel:
    """A model with fixed weights that maps bits to states or answers, in one pass or in a chain of passes.

    Args:
        levels: the levels of the problem.
        W: the first layers in level form; with ``by`` node or level, the one layer of explicit CoT.
        link: φ.
        by: how the answer is computed.
        like: a tensor with the dtype and device of the states; by default float32 on the CPU.
    """

    def __init__(
        self, levels: Levels, W: Sequence[Tensor], link: Link, by: By = "direct", like: Tensor | None = None
    ) -> None:
        self.levels = levels
        self.by: By = by
        self.like = torch.empty(0) if like is None else like
        writes = [(levels.nodes(layer + 1), w) for layer, w in enumerate(W)]
        if by != "direct":
            (w,), n = W, levels.n
            passes = chain_passes(levels, by)
            writes = [(m, w[: self._read(m), m.start - n : m.stop - n]) for m in passes]
        self._writes = [(nodes, _Columns(w, link, self.like)) for nodes, w in writes]

    @classmethod
    def of(cls, run: Run, by: By | None = None, like: Tensor | None = None) -> "SparseModel":
        """Return the model of a finished run of `solve` or `train`; ``by`` is node or level if it writes its chain."""
        levels, link, writes_chain, W = read_model(run)
        by = by or ("node" if writes_chain else "direct")
        if (by == "direct") is writes_chain:
            kind = "writes its chain, by node or level" if writes_chain else "is internalized and answers directly"
            raise InputError(f"by={by!r}: the model of {run.path} {kind}")
        return cls(levels, W, link, by, like)

    @property
    def passes(self) -> int:
        """Number of sequential passes per answer: one for an internalized model."""
        return 1 if self.by == "direct" else len(self._writes)

    def states(self, bits: Inexact[Tensor, "n b"]) -> Inexact[Tensor, "positions b"]:
        """Return the bits, then every node that is written, one row per position."""
        end = self._writes[-1][0].stop if self._writes else self.levels.n
        X = bits.new_empty(end, bits.shape[1])
        X[: self.levels.n] = bits
        total, summed = bits.sum(dim=0), self.levels.n
        for nodes, columns in self._writes:
            read = self._read(nodes)
            if read > summed:
                total, summed = total + X[summed:read].sum(dim=0), read
            X[nodes.start : nodes.stop] = columns(X[:read], total)
        return X

    def _read(self, nodes: range) -> int:
        """Return the end of the positions that nodes of one level read: all of lower levels."""
        return self.levels.level_end[self.levels.level_of(nodes.start) - 1]

    @torch.no_grad()
    def __call__(self, bits: Inexact[Tensor, "B n"], chunk: int | None = None) -> Inexact[Tensor, " B"]:
        """Return the root of every sample, whose sign is the answer. Hold the states of one chunk at a time."""
        if bits.ndim != 2 or bits.shape[1] != self.levels.n:
            raise InputError(f"bits of shape {tuple(bits.shape)}; the model expects samples × {self.levels.n}")
        chunk = chunk or max(STATE_NUMBERS // self.levels.T, 1)
        found = self.like.new_empty(len(bits))
        for first in range(0, len(bits), chunk):
            some = bits[first : first + chunk].T.to(self.like)
            found[first : first + chunk] = self.states(some)[-1]
        return found
