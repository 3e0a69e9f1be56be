r"""Gradients and answers over more samples than fit in memory: chunk by chunk, summed in float64.

| name        | paper       | meaning                                                            | where       |
| ----------- | ----------- | ------------------------------------------------------------------ | ----------- |
| X           | x^(ℓ)_[ℓ+1] | states, one row per position and one column per sample             | section 2.2 |
| true_values | b_m         | true values of a level, from the bits alone                        | section 2.1 |

States are positions × samples here, the transpose of ``transformer.py``, so that gathering a few positions copies whole
rows. Trained layers are applied in sparse form (``sparse.py``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from jaxtyping import Float, Inexact
from torch import Tensor, nn

from internalize.parity.model.link import Link
from internalize.parity.model.sparse import STATE_NUMBERS, SparseModel
from internalize.parity.model.transformer import LevelTransformer, set_weights
from internalize.parity.task.data import EXACT, add_trace, draw_flips, draw_inputs, state_dtype
from internalize.parity.task.noise import LabelNoise
from internalize.parity.task.tree import ParityTree
from internalize.random_words import Stream


@dataclass(frozen=True)
class Samples:
    """Samples ``start`` … ``start + count − 1`` of a stream, iterated in chunks."""

    tree: ParityTree
    seed: int
    start: int
    count: int
    stream: Stream = "train"
    chunk: int | None = None
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    noise: LabelNoise = EXACT
    """The noise of the labels, which gradients use; `roots` compares with the true values."""

    @property
    def like(self) -> Tensor:
        """An empty tensor with the states' dtype and device."""
        return torch.empty(0, dtype=state_dtype(self.tree.levels, self.dtype), device=self.device)

    def default_chunk(self, copies: int = 1) -> int:
        """Return the number of samples whose states fill the default memory when ``copies`` copies are held."""
        return max(STATE_NUMBERS // (copies * self.tree.T), 1)

    def chunks(self) -> Iterator[Inexact[Tensor, "n b"]]:
        """Yield the bits of at most a chunk of samples at a time."""
        yield from (bits for bits, _ in self.noisy_chunks())

    def noisy_chunks(self) -> Iterator[tuple[Inexact[Tensor, "n b"], Inexact[Tensor, "nodes b"] | None]]:
        """Yield the bits, and the labels over the true values of all nodes if labels are noisy."""
        size = self.chunk or self.default_chunk()
        for first in range(self.start, self.start + self.count, size):
            count = min(size, self.start + self.count - first)
            bits = draw_inputs(self.tree.levels, self.seed, first, count, self.stream, self.dtype)
            flips = draw_flips(self.tree, self.noise, self.seed, first, count, self.dtype)
            yield bits.T.contiguous().to(self.device), None if flips is None else flips.T.to(self.device)

    def share(self) -> "Samples":
        """Return this process's share of the samples; with one process, all of them."""
        if not (dist.is_available() and dist.is_initialized()):
            return self
        rank, world = dist.get_rank(), dist.get_world_size()
        first, end = self.count * rank // world, self.count * (rank + 1) // world
        return replace(self, start=self.start + first, count=end - first)


def true_values(tree: ParityTree, bits: Inexact[Tensor, "n b"], level: int) -> Inexact[Tensor, "nodes b"]:
    """Return the values of a level's nodes: products over the leaves below each node."""
    if tree.levels.complete:
        leaves = bits[list(tree.pairing)]
        return leaves.view(-1, tree.arity**level, bits.shape[1]).prod(dim=1)
    return add_trace(tree, bits.T)[:, tree.levels.span(level)].T


def level_labels(
    tree: ParityTree, bits: Inexact[Tensor, "n b"], flips: Inexact[Tensor, "nodes b"] | None, level: int
) -> Inexact[Tensor, "nodes b"]:
    """Return the labels of a level's nodes: the true values, flipped where labels are noisy."""
    truth, nodes = true_values(tree, bits, level), tree.levels.span(level)
    return truth if flips is None else truth * flips[nodes.start - tree.n : nodes.stop - tree.n]


@torch.no_grad()
def gradient_at_zero(
    samples: Samples, below: Sequence[Tensor], link: Link, columns: Sequence[int] | None = None
) -> Float[Tensor, "keys nodes"]:
    r"""Return the gradient at W = 0 of the layer above ``below``, averaged over all processes' samples.

    \(\frac1{MB}\sum_i (\phi(z_i) - b_m)\,\phi'(z_i)\,(x_j - z_i)\) is one product for all ``columns`` (default: all
    nodes of the level), because all see one z.
    """
    tree, stage = samples.tree, len(below)
    columns = range(tree.levels.width(stage + 1)) if columns is None else columns
    M = tree.levels.level_end[stage]
    total = torch.zeros(M, len(columns), dtype=torch.float64)
    model = SparseModel(tree.levels, below, link, like=samples.like)
    for bits, flips in samples.share().noisy_chunks():
        X = model.states(bits)
        z = X.mean(dim=0)
        R = link.pulled(link(z) - level_labels(tree, bits, flips, stage + 1)[list(columns)], z)
        total += (X @ R.T - R @ z).real.cpu().double()  # not every device has float64
    return summed(total) / (M * samples.count)


def all_gradients(
    samples: Samples, W: Sequence[Tensor], link: Link, stage: int, hidden: int = 0
) -> list[Float[Tensor, "keys nodes"]]:
    """Return the gradients of the stage's loss in layers 0 … ``stage`` by autograd, for any weights.

    The loss is over the stage's level without its first ``hidden`` nodes. Higher levels copy their labels and add 0.
    """
    tree = samples.tree
    model = LevelTransformer(tree.n, tree.k, link, dtype=samples.dtype).to(samples.device)
    set_weights(model, W)

    def loss(bits: Tensor, flips: Tensor | None) -> Tensor:
        output = model.by_level(bits, layers=stage + 1)[-1]
        error = output - level_labels(tree, bits.T, flips, stage + 1).T
        square = (error * error.conj()).real if error.is_complex() else error.square()
        return square[:, hidden:].sum() / 2

    return chunked_gradients(samples, list(model.parameters())[: stage + 1], loss)


def chunked_gradients(
    samples: Samples, parameters: Sequence[nn.Parameter], loss: Callable[[Tensor, Tensor | None], Tensor]
) -> list[Tensor]:
    """Return the gradients of a loss averaged over all processes' samples.

    ``loss`` sums over its rows of bits. It also gets the labels over the true values (nodes × samples), if they differ.
    """
    totals = [torch.zeros_like(parameter, dtype=torch.float64, device="cpu") for parameter in parameters]
    for bits, flips in samples.share().noisy_chunks():
        for total, gradient in zip(totals, torch.autograd.grad(loss(bits.T, flips), parameters), strict=True):
            total += gradient.cpu().double()
    return [summed(total) / samples.count for total in totals]


@torch.no_grad()
def roots(
    samples: Samples, root: Callable[[Inexact[Tensor, "n b"]], Inexact[Tensor, " b"]]
) -> tuple[Inexact[Tensor, " B"], Inexact[Tensor, " B"]]:
    """Return the model's root and the true root of every sample, in double precision."""
    found: list[Tensor] = []
    truth: list[Tensor] = []
    for bits in samples.chunks():
        wide = state_dtype(samples.tree.levels, torch.float64)
        found.append(root(bits).cpu().to(wide))
        truth.append(true_values(samples.tree, bits, samples.tree.L)[0].cpu().to(wide))
    return torch.cat(found), torch.cat(truth)


def summed(total: Tensor) -> Tensor:
    """Return the sum over all processes, in each of them."""
    if dist.is_available() and dist.is_initialized():
        # nccl sums only tensors on its device; gloo works on the CPU.
        device = torch.device("cuda") if dist.get_backend() == "nccl" else total.device
        moved = total.to(device)
        dist.all_reduce(moved)
        return moved.cpu()
    return total
