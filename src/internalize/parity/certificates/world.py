r"""The world of a statement: a model, its task, its training and its data, each ingredient replaceable.

| name       | paper         | meaning                                                           | where        |
| ---------- | ------------- | ----------------------------------------------------------------- | ------------ |
| weights    | W^(ℓ)         | level form, float64; ``full`` has them as T × T                   | section 2.2  |
| whole      | W^(ℓ)         | block form, if the model has it; ``weights`` is then a part of it | section 2.2  |
| visible    | C             | ``visible[key, query]``                                           | Definition 1 |
| softmax    | S             | (logits, visible) → attention, keys × queries                     | Definition 1 |
| link       | φ             | link function                                                     | Definition 2 |
| gates      | g^(ℓ)         | layers × positions                                                | Eq. (gating) |
| shift[l]   | W_O^(l+1)     | (L+1) × (L+1): entry (i, j) adds block j to block i               | section 2.2  |
| readout[t] | Ψ_t           | L + 1 numbers: the block that stage t reads                       | section 2.2  |
| stages     | –             | padded and supervised positions of each stage                     | section 3.1  |
| pad_value  | 0             | value of padded positions                                         | section 3.1  |
| loss       | L^(t)         | (output, sequence, stage) → number                                | Eq. (loss-t) |
| root_loss  | L_B           | (output, sequence) → number: the loss without a chain of thought  | section 2.1  |
| draw       | b             | (first sample, number of samples, stream) → bits                  | section 2.1  |
| algorithm  | K_n, η_t, q   | settings of Algorithm 1; None for weights of another origin       | Algorithm 1  |
| ranges     | fresh batches | (first, count) of the ``train`` samples that each stage used      | Algorithm 1  |
| history    | θ(1) … θ(L)   | weights after each stage                                          | Algorithm 1  |
| epsilon    | ε             | ε of the theorem                                                  | Theorem 1    |

The forward pass is Definition 3 block by block. Positions never enter a value (W_O is zero on them) and attention
scores depend only on positions, so the stream is L + 1 blocks of samples × positions. The pass computes in float64
and uses only the ingredients above, so a test breaks one of them with ``dataclasses.replace``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from internalize.curriculum import Curriculum
from internalize.errors import InputError
from internalize.parity.certificates.ingredients import ingredients_of_run, ingredients_of_solve
from internalize.parity.model.gates import paper_gates
from internalize.parity.model.link import COSINE, Link
from internalize.parity.model.loss import stage_loss
from internalize.parity.model.mask import level_mask, masked_softmax
from internalize.parity.model.weights import full_weights, level_parts, weight_shapes
from internalize.parity.options import SolveOptions
from internalize.parity.task.data import add_trace, draw_bits, pad
from internalize.parity.task.stages import ParityStage, parity_stages
from internalize.parity.task.tree import Levels, ParityTree
from internalize.parity.theory.prediction import Setting
from internalize.random_words import Stream
from internalize.storage.runs import Run

Layers = tuple[Tensor, ...]

EXHAUSTIVE = 12
"""Largest n for which statements are checked on all 2^n inputs."""


def answer_loss(output: Tensor, sequence: Tensor) -> Tensor:
    """Return the loss without a chain of thought: half the mean squared error of the root (section 2.1)."""
    return (output[..., -1] - sequence[..., -1]).square().mean() / 2


@dataclass(frozen=True)
class World:
    """A model, its task, its training and its data, in which the paper's statements are checked."""

    tree: ParityTree
    link: Link
    weights: Layers
    visible: Tensor
    gates: Tensor
    shift: Tensor
    readout: Tensor
    stages: tuple[ParityStage, ...]
    draw: Callable[[int, int, Stream], Tensor]
    seed: int = 0
    softmax: Callable[[Tensor, Tensor], Tensor] = masked_softmax
    pad_value: float = 0.0
    loss: Callable[[Tensor, Tensor, ParityStage], Tensor] = stage_loss
    root_loss: Callable[[Tensor, Tensor], Tensor] = answer_loss
    algorithm: Setting | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    history: tuple[Layers, ...] = ()
    curriculum: str = "log-icot"
    whole: Layers = ()
    epsilon: float = 1.0
    test_count: int = 1000

    # -- where worlds come from -------------------------------------------------------------------------------------

    @staticmethod
    def of_weights(
        tree: ParityTree, weights: Sequence[Tensor], link: Link = COSINE, seed: int = 0, **more: Any
    ) -> "World":
        """Return the world of the paper's model with these weights, in level or block form (docs/contract.md)."""
        levels = tree.levels
        whole: Layers = ()
        if weights and all(tuple(w.shape) == (levels.T, levels.T) for w in weights) and len(weights) == levels.L:
            whole, weights = _doubled(weights), level_parts(weights, levels)
        wanted = list(weight_shapes(levels, "level").values())
        if [tuple(w.shape) for w in weights] != wanted:
            raise InputError(f"weights have shapes {[tuple(w.shape) for w in weights]}; n and k require {wanted}")
        if not all(bool(w.isfinite().all()) for w in (*weights, *whole)):
            raise InputError("a weight is not a finite number; no statement covers such a model")

        def draw(start: int, count: int, stream: Stream) -> Tensor:
            return draw_bits(tree.n, seed, start, count, stream, torch.float64)

        given: dict[str, Any] = {
            "visible": level_mask(levels),
            "gates": paper_gates(levels),
            "shift": block_shifts(levels.L),
            "readout": torch.eye(levels.L + 1, dtype=torch.float64),
            "stages": parity_stages(levels, Curriculum("log-icot")),
            "draw": draw,
        }
        given["history"] = tuple(_doubled(layers) for layers in more.pop("history", ()))
        return World(tree=tree, link=link, weights=_doubled(weights), whole=whole, seed=seed, **(given | more))

    @staticmethod
    def of_solve(options: SolveOptions) -> "World":
        """Run Algorithm 1 and return the world of its weights and samples at every stage."""
        return World.of_weights(**ingredients_of_solve(options))

    @staticmethod
    def of_run(run: Run, epsilon: float | None = None) -> "World":
        """Return the world of a run folder of train or solve.

        Args:
            run: the folder, whatever program wrote it.
            epsilon: ε of the theorem, to replace the run's own.
        """
        world = World.of_weights(**ingredients_of_run(run))
        return world if epsilon is None else replace(world, epsilon=epsilon)

    # -- derived from the ingredients -------------------------------------------------------------------------------

    @property
    def levels(self) -> Levels:
        """The levels of the tree."""
        return self.tree.levels

    @property
    def exhaustive(self) -> bool:
        """Whether statements are checked on all inputs."""
        return self.tree.n <= EXHAUSTIVE

    @property
    def departure(self) -> str | None:
        """Why statements about Algorithm 1 do not apply here; None if they do."""
        if self.algorithm is None:
            return "the weights are not from Algorithm 1, whose quantized steps the statement is about"
        if self.curriculum != "log-icot":
            return f"trained by {self.curriculum}; the statement is about Algorithm 1 on the stages of Log-ICoT"
        if self.algorithm.noise:
            return "trained on wrong labels; the statement is about Algorithm 1 on true ones"
        if self.algorithm.grid == "none":
            return "the weights were not rounded; the statement is about the quantized steps of Algorithm 1"
        return None

    @property
    def in_papers_tree(self) -> bool:
        """Whether every node has two children and every leaf is L levels below the root."""
        return self.tree.arity == 2 and self.levels.complete

    @property
    def gated_as_printed(self) -> bool:
        """Whether the gates are the prescribed ones."""
        return torch.equal(self.gates, paper_gates(self.levels))

    @property
    def masked_and_gated_as_printed(self) -> bool:
        """Whether the mask and the gates are the prescribed ones."""
        return self.gated_as_printed and torch.equal(self.visible, level_mask(self.levels))

    def full(self, weights: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Return weights as T × T matrices: level form gets zeros at entries that Definition 3 never reads."""
        W = (self.whole or self.weights) if weights is None else weights
        return list(W) if W[0].shape[-1] == self.levels.T else full_weights(W, self.levels)

    def written(self, W: Tensor, layer: int) -> Tensor:
        """Return the columns of T × T weights that a layer writes with, −∞ at invisible keys: T × nodes."""
        nodes = self.levels.span(layer + 1)
        return W[:, nodes].masked_fill(~self.visible[:, nodes], -torch.inf)

    def keys(self, layer: int) -> int:
        """Return the largest number of keys that a node of the layer sees."""
        return int(self.visible[:, self.levels.span(layer + 1)].sum(dim=0).max())

    def attention(self, W: Tensor) -> Tensor:
        """Return the attention of a layer with the T × T weights W, keys × queries."""
        return self.softmax(W, self.visible)

    def layer_attention(self, layer: int) -> Tensor:
        """Return the attention of the nodes that a layer writes, over all T positions: T × nodes."""
        return self.attention(self.full()[layer])[:, self.levels.span(layer + 1)]

    def streams(self, D: Tensor, W: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Return the blocks of X^(0) … X^(L), each (L + 1) × B × T, with T × T weights W (default: the world's)."""
        W = self.full() if W is None else W
        X = torch.cat([D.unsqueeze(0), D.new_zeros(self.levels.L, *D.shape)])
        found = [X]
        for layer, g in enumerate(self.gates):
            A = self.attention(W[layer])
            read = self.shift[layer].any(dim=0).nonzero().flatten()  # blocks that W_O does not ignore
            gated = g * self.link(X[read] @ A) + (1 - g) * X[read]
            X = X + torch.einsum("ij,jbt->ibt", self.shift[layer][:, read], gated)
            found.append(X)
        return found

    def output(self, D: Tensor, layers: int, W: Sequence[Tensor] | None = None) -> Tensor:
        """Return f^(t)(D) for t = ``layers``: the readout of X^(L) at every position, B × T."""
        return torch.einsum("i,ibt->bt", self.readout[layers], self.streams(D, W)[-1])

    def stage_input(self, sequence: Tensor, stage: ParityStage) -> Tensor:
        """Return the sequence with the stage's hidden positions padded."""
        return pad(sequence, stage.hidden, self.pad_value)

    def inference_input(self, bits: Tensor) -> Tensor:
        """Return the bits, with padding in place of the chain."""
        return nn.functional.pad(bits, (0, self.levels.T - bits.shape[-1]), value=self.pad_value)

    def sequence(self, bits: Tensor) -> Tensor:
        """Return the bits and the true values of all nodes."""
        return add_trace(self.tree, bits)

    @cached_property
    def test_bits(self) -> Tensor:
        """All inputs if they are few, otherwise drawn ones."""
        if not self.exhaustive:
            return self.draw(0, self.test_count, "test")
        numbers = torch.arange(2**self.tree.n).unsqueeze(1)
        return 1.0 - 2.0 * ((numbers >> torch.arange(self.tree.n)) & 1).double()

    @cached_property
    def finite(self) -> bool:
        """Whether attention and states are finite numbers, with the world's weights and with weights 0."""
        D = self.inference_input(self.some_bits(2))
        start = [torch.zeros_like(w) for w in self.full()]
        return all(bool(X.isfinite().all()) for W in (None, start) for X in self.streams(D, W))

    def some_bits(self, count: int) -> Tensor:
        """Draw a few inputs, for statements that hold for each input and take a gradient per input."""
        return self.draw(0, count, "validation")

    def generic(self, scale: float = 2.0) -> list[Tensor]:
        """Draw normal T × T weights of this standard deviation, for statements about all weights."""
        generator = torch.Generator().manual_seed(self.seed % 2**63)
        T = self.levels.T
        return [torch.randn(T, T, generator=generator, dtype=torch.float64) * scale for _ in range(self.levels.L)]


def block_shifts(L: int) -> Tensor:
    """Return W_O^(1) … W_O^(L) on the blocks: layer ℓ adds block ℓ to block ℓ + 1."""
    shift = torch.zeros(L, L + 1, L + 1, dtype=torch.float64)
    layers = torch.arange(L)
    shift[layers, layers + 1, layers] = 1.0
    return shift


def _doubled(weights: Sequence[Tensor]) -> Layers:
    return tuple(w.detach().cpu().double() for w in weights)
