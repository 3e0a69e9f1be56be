r"""The model as Algorithm 1 steps it: where its weights are, what their gradients are, what it answers.

| name       | paper         | meaning                                                                              | where       |
| ---------- | ------------- | ------------------------------------------------------------------------------------ | ----------- |
| LevelModel | Definition 3  | level form: the paper's mask and gates, and what it proves idle is not computed      | section 2.2 |
| BlockModel | –             | block form: other masks and gates; all T × T weights are stepped, by autograd        | section 3.2 |
| CotModel   | –             | the one layer of explicit CoT: teacher forcing, the loss on every node               | section 1.1 |
| rate       | η_t           | of the layer that the stage reads; of explicit CoT, one for each column              | Theorem 1   |
| pairs      | c_1[m], c_2[m] | children of the nodes that a layer writes                                           | section 2.1 |

The paper's algorithm is Log-ICoT on the first of them. What the others say about it:

- *icot* has one stage a node. The first of a level supervises all of it and trains it; the others find it trained, and
  rounding returns every weight. Where ``freezing.py`` proves that, no gradient is computed, and the step is recorded as 0.
- *none* has one stage: the loss on the root, from W = 0 in every layer, and one step at the last layer's rate.
- *cot* has one stage. Departs from the other models: columns of different levels see different numbers of keys, and each has
  the rate of its level, because one rate would leave a child K at one level alone.
- Under other gates a layer also updates positions of other levels, so their columns have gradients too, and are stepped.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from internalize.curriculum import Curriculum
from internalize.environment import check_memory
from internalize.parity.algorithm1.counting import gradient_to_round
from internalize.parity.algorithm1.recovery import Pairs, off_child_share, recovered_columns
from internalize.parity.algorithm1.streaming import Samples, all_gradients, chunked_gradients, roots
from internalize.parity.model.cot import CoTTransformer
from internalize.parity.model.link import Link, get_link
from internalize.parity.model.loss import stage_loss
from internalize.parity.model.mask import level_mask, named_mask
from internalize.parity.model.metrics import infer
from internalize.parity.model.sparse import SparseModel
from internalize.parity.model.transformer import BlockTransformer, set_weights
from internalize.parity.model.weights import Form, weight_shapes
from internalize.parity.options import SolveOptions
from internalize.parity.task.data import add_trace, stage_input
from internalize.parity.task.stages import ParityStage, parity_stages
from internalize.parity.task.tree import Levels, ParityTree
from internalize.parity.theory.freezing import frozen_gradient_bounds, trained_gradient_bounds
from internalize.parity.theory.prediction import Setting

_COPIES: Final = 6
"""States that autograd keeps of a layer in block form, about."""
_WEIGHTS: Final = 4
"""Matrices of the weights' shape that are there at once in the other forms, about: weights, gradients, the step, what it led to."""


def form_of(options: SolveOptions) -> Form:
    """The form that a request is run in; refuses one whose matrices do not fit."""
    as_in_paper = (options.mask, options.gates) == ("level", "paper")
    form: Form = "cot" if options.curriculum == "cot" else "level" if as_in_paper else "block"
    levels = Levels(options.n, options.k)
    entries = levels.L * levels.T**2 * _COPIES
    if form != "block":
        entries = _WEIGHTS * sum(rows * columns for rows, columns in weight_shapes(levels, form).values())
    check_memory(8.0 * entries, f"n={options.n}, k={options.k} in {form} form")
    return form


def stages_of(options: SolveOptions) -> tuple[ParityStage, ...]:
    """The stages of a request: one gradient step each."""
    return parity_stages(Levels(options.n, options.k), Curriculum(options.curriculum))


@dataclass(frozen=True)
class SteppedModel(ABC):
    """A model under Algorithm 1. Weights are float64 matrices, rows keys, as ``weights.py`` names them."""

    tree: ParityTree
    setting: Setting
    options: SolveOptions
    form: ClassVar[Form]

    @property
    def link(self) -> Link:
        """φ."""
        return get_link(self.options.link)

    def start(self) -> list[Tensor]:
        """W = 0."""
        shapes = weight_shapes(self.tree.levels, self.form).values()
        return [torch.zeros(shape, dtype=torch.float64) for shape in shapes]

    def rate(self, stage: ParityStage) -> float | Float[Tensor, " nodes"]:
        """The learning rate of a stage."""
        return self.setting.amplitude * self.setting.unit_rates[stage.layers - 1]

    def pairs(self, layer: int) -> Pairs:
        """Children of a layer's columns."""
        return self.tree.layer_children(layer)

    def columns(self, w: Tensor, layer: int) -> Float[Tensor, "keys nodes"]:
        """The columns of the nodes that a layer writes, −∞ at keys that they do not see."""
        return w

    def added(self, w: Tensor, layer: int, more: Float[Tensor, "keys nodes"]) -> Tensor:
        """The layer with something added to these columns."""
        return w + more

    def recovered(self, W: Sequence[Tensor], layer: int) -> bool:
        """Whether a layer has the children of all its nodes."""
        columns, pairs = self.columns(W[layer], layer), self.pairs(layer)
        return bool(recovered_columns(columns, pairs, self.setting.amplitude).all())

    @abstractmethod
    def gradients(
        self, samples: Samples, W: Sequence[Tensor], stage: ParityStage, slack: Sequence[float] | None
    ) -> list[Tensor]:
        """The gradient of every layer, 0 where a bound shows that it could not change a rounded weight.

        A gradient within the layer's ``slack`` is rounded away. None computes everything.
        """

    @abstractmethod
    def answers(self, samples: Samples, W: Sequence[Tensor]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """The root as the model computes it from the bits alone, and as it is."""


class LevelModel(SteppedModel):
    """The paper's mask and gates."""

    form: ClassVar[Form] = "level"

    def gradients(
        self, samples: Samples, W: Sequence[Tensor], stage: ParityStage, slack: Sequence[float] | None
    ) -> list[Tensor]:
        """By counting or one product at the start of a layer, not at all where nothing can move, and else by autograd."""
        layer, levels = stage.layers - 1, self.tree.levels
        nothing = [torch.zeros_like(w) for w in W]
        hidden = stage.supervised[0] - levels.nodes(stage.layers).start
        if slack is not None and all(self.recovered(W, below) for below in range(layer)):
            masses = [off_child_share(w, self.pairs(below)) for below, w in enumerate(W[: layer + 1])]
            if not bool(W[layer].any()):
                if _below(frozen_gradient_bounds(levels, self.link, masses[:layer]), slack):
                    # The random oracle moves each weight's threshold by another amount.
                    half = slack[layer] if self.options.oracle != "random" else 0.0
                    nothing[layer] = gradient_to_round(samples, W[:layer], masses[:layer], self.link, half)
                    nothing[layer][:, :hidden] = 0
                    return nothing
            elif self.recovered(W, layer) and _below(trained_gradient_bounds(levels, self.link, masses), slack):
                return nothing
        return [*all_gradients(samples, W, self.link, layer, hidden), *nothing[layer + 1 :]]

    def answers(self, samples: Samples, W: Sequence[Tensor]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """In one pass."""
        model = SparseModel(self.tree.levels, W, self.link, like=samples.like)
        return roots(samples, lambda bits: model.states(bits)[-1])


class _AutogradModel(SteppedModel):
    """A model that is stepped by autograd of the printed loss, on the stage's input as the paper shows it."""

    def gradients(
        self, samples: Samples, W: Sequence[Tensor], stage: ParityStage, slack: Sequence[float] | None
    ) -> list[Tensor]:
        """By autograd, whatever the slack."""
        model = set_weights(self._new(samples), W)

        def loss(bits: Tensor) -> Tensor:
            sequence = add_trace(self.tree, bits)
            shown = isinstance(model, BlockTransformer)
            output = model(stage_input(sequence, stage), stage.layers) if shown else model(sequence)
            return stage_loss(output, sequence, stage) * len(sequence)

        samples = replace(samples, chunk=samples.chunk or samples.default_chunk(_COPIES * len(W)))
        found = chunked_gradients(samples, list(model.parameters())[: stage.layers], loss)
        return [*found, *(torch.zeros_like(w) for w in W[stage.layers :])]

    def answers(self, samples: Samples, W: Sequence[Tensor]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """In one pass, or by generation, a level at a time."""
        model = set_weights(self._new(samples), W)
        return roots(samples, lambda bits: infer(model, bits.T)[:, -1])

    @abstractmethod
    def _new(self, samples: Samples) -> BlockTransformer | CoTTransformer:
        """The model with any weights, in the dtype and on the device of the samples."""


class BlockModel(_AutogradModel):
    """Any mask, any gates."""

    form: ClassVar[Form] = "block"

    def columns(self, w: Tensor, layer: int) -> Float[Tensor, "T nodes"]:
        """Of the nodes of the layer's level: under the causal mask they also see their own level's."""
        nodes = self.tree.levels.span(layer + 1)
        return _seen(w[:, nodes], named_mask(self.options.mask, self.tree.levels)[:, nodes])

    def added(self, w: Tensor, layer: int, more: Float[Tensor, "T nodes"]) -> Tensor:
        """The same, in place."""
        nodes = self.tree.levels.nodes(layer + 1)
        return w + torch.nn.functional.pad(more, (nodes.start, self.tree.T - nodes.stop))

    def _new(self, samples: Samples) -> BlockTransformer:
        n, k, mask, gates = self.tree.n, self.tree.k, self.options.mask, self.options.gates
        return BlockTransformer(n, k, mask, gates, self.link, dtype=samples.dtype).to(samples.device)


class CotModel(_AutogradModel):
    """One layer, which all levels share: each node is computed from the true values below it."""

    form: ClassVar[Form] = "cot"

    def rate(self, stage: ParityStage) -> Float[Tensor, " nodes"]:
        """Of each column the rate of its level."""
        levels, rates = self.tree.levels, self.setting.unit_rates
        columns = [rates[levels.level_of(m) - 1] for m in range(levels.n, levels.T)]
        return self.setting.amplitude * torch.tensor(columns, dtype=torch.float64)

    def pairs(self, layer: int) -> Pairs:
        """Of all nodes."""
        return [self.tree.children(m) for m in range(self.tree.n, self.tree.T)]

    def columns(self, w: Tensor, layer: int) -> Float[Tensor, "T nodes"]:
        """Of all nodes."""
        return _seen(w, level_mask(self.tree.levels)[:, self.tree.n :])

    def _new(self, samples: Samples) -> CoTTransformer:
        return CoTTransformer(self.tree.n, self.tree.k, self.link, dtype=samples.dtype).to(samples.device)


FORMS: Final[dict[Form, type[SteppedModel]]] = {"level": LevelModel, "block": BlockModel, "cot": CotModel}


def _below(bounds: Sequence[float], slack: Sequence[float]) -> bool:
    return all(bound < slack[layer] for layer, bound in enumerate(bounds))


def _seen(columns: Tensor, visible: Bool[Tensor, "keys nodes"]) -> Tensor:
    return columns.masked_fill(~visible, -torch.inf)
