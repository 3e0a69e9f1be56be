r"""The models that Algorithm 1 trains: the layout of their weights, their gradients and their answers.

| name       | paper          | meaning                                                            | where       |
| ---------- | -------------- | ------------------------------------------------------------------ | ----------- |
| LevelModel | Definition 3   | level form: the paper's mask and gates; skips provably idle layers | section 2.2 |
| BlockModel | –              | block form: other masks and gates; autograd on all T × T weights   | section 3.2 |
| CotModel   | –              | explicit CoT, one layer: teacher forcing, the loss on every node   | section 1.1 |
| rate       | η_t            | of the layer that is read out; for explicit CoT, one per column    | Theorem 1   |
| pairs      | c_1[m], c_2[m] | children of the nodes that a layer writes                          | section 2.1 |

The paper's algorithm is Log-ICoT on `LevelModel`. The other curricula and gates:

- *icot* has one stage per node. The first stage of a level supervises and trains all of it. In the other stages
  rounding restores every weight. Where ``freezing.py`` proves that, no gradient is computed, and the step is
  recorded as 0.
- *none* has one stage: the loss on the root, from W = 0 in every layer, and one step at the last layer's rate.
- *none* with hidden loss has one stage of log2 k steps. Its input and loss never change. Step t moves the layers up to t,
  at the rate of layer t.
  If all layers moved in every step, layer 3 would find no children. At W = 0 all nodes of a level have one value, a
  function of the mean s of the bits: \(y_1 = \phi(s) \approx -1\), and \(y_2 \approx \phi(-a)\) with a the share of level 1
  among the keys of layer 2. A node that reads more of them comes closer to 0, the best constant guess. So the first
  gradient of a layer above the first is of order 1/M on a whole level, where that of a child in its own stage is
  2c/M²; at the rates of Theorem 1 the step on a level is of order KM. Layer 3 reads two levels of nodes, whose values and
  steps differ. Once they are rounded to values K apart (level 1 on top; at k = n/2 from n = 16 on, by a test), a node of
  level 3 gives its children less than \(e^{-K}\) each. So are the next gradients, which rounding removes for good.
- *cot* has one stage. Departs from the other models: each column has the rate of its level. Columns of different
  levels see different numbers of keys, so with one rate only the children of one level would get weight K.
- Under other gates a layer also updates positions of other levels, so their columns have gradients and are stepped too.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

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
from internalize.parity.model.transformer import BlockTransformer, LevelTransformer, set_weights
from internalize.parity.model.weights import Form, weight_shapes
from internalize.parity.options import SolveOptions
from internalize.parity.task.data import add_trace, stage_input
from internalize.parity.task.stages import ParityStage, parity_stages
from internalize.parity.task.tree import Levels, ParityTree
from internalize.parity.theory.freezing import frozen_gradient_bounds, trained_gradient_bounds
from internalize.parity.theory.prediction import Setting

_COPIES: Final = 6
"""Approximate number of copies of the states that autograd keeps per layer in block form."""
_WEIGHTS: Final = 4
"""Approximate number of matrices held at once in the other forms: old and new weights, gradients and steps."""


def form_of(options: SolveOptions) -> Form:
    """Return the form that a request runs in; raise if its matrices do not fit in memory."""
    as_in_paper = (options.mask, options.gates) == ("level", "paper")
    form: Form = "cot" if options.curriculum == "cot" else "level" if as_in_paper else "block"
    levels = Levels.of(options)
    entries = levels.L * levels.T**2 * _COPIES
    if form != "block":
        entries = _WEIGHTS * sum(rows * columns for rows, columns in weight_shapes(levels, form).values())
    check_memory(8.0 * entries, f"n={options.n}, k={options.k} in {form} form")
    return form


def stages_of(options: SolveOptions) -> tuple[ParityStage, ...]:
    """Return the stages of a request, one per gradient step. With hidden loss, one stage takes a step per level."""
    levels = Levels.of(options)
    found = parity_stages(levels, options.schedule(), hidden_loss=options.hidden_loss)
    return tuple(replace(found[0], moving=t) for t in range(1, levels.L + 1)) if options.hidden_loss else found


@dataclass(frozen=True)
class SteppedModel(ABC):
    """A model that Algorithm 1 trains. Weights are float64 matrices whose rows are keys, named in ``weights.py``."""

    tree: ParityTree
    setting: Setting
    options: SolveOptions
    form: ClassVar[Form]

    @property
    def link(self) -> Link:
        """The link function φ."""
        return get_link(self.options.link, self.options.arity, self.options.modulus)

    def start(self) -> list[Tensor]:
        """Return the initial weights, W = 0."""
        shapes = weight_shapes(self.tree.levels, self.form).values()
        return [torch.zeros(shape, dtype=torch.float64) for shape in shapes]

    def rate(self, stage: ParityStage) -> float | Float[Tensor, " nodes"]:
        """Return the learning rate of a stage."""
        return self.setting.amplitude * self.setting.unit_rates[stage.trained]

    def pairs(self, layer: int) -> Pairs:
        """Return the children of a layer's columns."""
        return self.tree.layer_children(layer)

    def columns(self, w: Tensor, layer: int) -> Float[Tensor, "keys nodes"]:
        """Return the columns of the nodes that a layer writes, with −∞ at keys that they do not see."""
        return w

    def added(self, w: Tensor, layer: int, more: Float[Tensor, "keys nodes"]) -> Tensor:
        """Return the layer with ``more`` added to the columns of the nodes that it writes."""
        return w + more

    def recovered(self, W: Sequence[Tensor], layer: int) -> bool:
        """Return whether the columns of all nodes that a layer writes are recovered."""
        columns, pairs = self.columns(W[layer], layer), self.pairs(layer)
        return bool(recovered_columns(columns, pairs, self.setting.amplitude).all())

    @abstractmethod
    def gradients(
        self, samples: Samples, W: Sequence[Tensor], stage: ParityStage, slack: Sequence[float] | None
    ) -> list[Tensor]:
        """Return the gradient of every layer, 0 where a bound shows that it cannot change a rounded weight.

        Rounding removes gradients within the layer's ``slack``. With None, every gradient is computed.
        """

    @abstractmethod
    def answers(self, samples: Samples, W: Sequence[Tensor]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Return the root that the model computes from the bits alone, and the true root."""


class LevelModel(SteppedModel):
    """The model in level form, with the paper's mask and gates."""

    form: ClassVar[Form] = "level"

    def gradients(
        self, samples: Samples, W: Sequence[Tensor], stage: ParityStage, slack: Sequence[float] | None
    ) -> list[Tensor]:
        """Compute a new layer by counting or a product, skip layers that cannot move, and use autograd otherwise."""
        layer, levels = stage.layers - 1, self.tree.levels
        nothing = [torch.zeros_like(w) for w in W]
        hidden = stage.supervised[0] - levels.nodes(stage.layers).start
        if slack is not None and all(self.recovered(W, below) for below in range(layer)):
            masses = [off_child_share(w, self.pairs(below)) for below, w in enumerate(W[: layer + 1])]
            if not bool(W[layer].any()):
                if _below(frozen_gradient_bounds(levels, self.link, masses[:layer]), slack):
                    # The random oracle moves each weight's threshold by a different amount.
                    half = slack[layer] if self.options.oracle != "random" else 0.0
                    nothing[layer] = gradient_to_round(samples, W[:layer], masses[:layer], self.link, half)
                    nothing[layer][:, :hidden] = 0
                    return nothing
            elif self.recovered(W, layer) and _below(
                trained_gradient_bounds(levels, self.link, masses, exact=not self.options.noise), slack
            ):
                return nothing
        return [*all_gradients(samples, W, self.link, layer, hidden), *nothing[layer + 1 :]]

    def answers(self, samples: Samples, W: Sequence[Tensor]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Compute the answers in one pass."""
        model = SparseModel(self.tree.levels, W, self.link, like=samples.like)
        return roots(samples, lambda bits: model.states(bits)[-1])


class HiddenLossModel(LevelModel):
    """The model in level form with the loss on every node, in steps of one stage."""

    def gradients(
        self, samples: Samples, W: Sequence[Tensor], stage: ParityStage, slack: Sequence[float] | None
    ) -> list[Tensor]:
        """Compute the gradients of the layers up to the one that the step trains; ignore the slack. Higher ones stay."""
        model = set_weights(LevelTransformer(self.tree.n, self.tree.k, self.link, dtype=samples.dtype), W)
        model = model.to(samples.device)

        def loss(bits: Tensor, flips: Tensor | None) -> Tensor:
            labels = add_trace(self.tree, bits)[:, self.tree.n :]
            if flips is not None:
                labels = labels * flips.T
            return (model.states(bits)[:, self.tree.n :] - labels).square().sum() / 2

        samples = replace(samples, chunk=samples.chunk or samples.default_chunk(_COPIES))
        found = chunked_gradients(samples, list(model.parameters())[: stage.trained + 1], loss)
        return [*found, *(torch.zeros_like(w) for w in W[stage.trained + 1 :])]


class _AutogradModel(SteppedModel):
    """A model whose gradients autograd computes from the loss and the stage inputs that the paper prints."""

    def gradients(
        self, samples: Samples, W: Sequence[Tensor], stage: ParityStage, slack: Sequence[float] | None
    ) -> list[Tensor]:
        """Compute all gradients by autograd; ignore the slack."""
        model = set_weights(self._new(samples), W)

        def loss(bits: Tensor, flips: Tensor | None) -> Tensor:
            sequence = add_trace(self.tree, bits)
            if flips is not None:
                sequence[:, self.tree.n :] *= flips.T
            shown = isinstance(model, BlockTransformer)
            output = model(stage_input(sequence, stage), stage.layers) if shown else model(sequence)
            return stage_loss(output, sequence, stage) * len(sequence)

        samples = replace(samples, chunk=samples.chunk or samples.default_chunk(_COPIES * len(W)))
        found = chunked_gradients(samples, list(model.parameters())[: stage.layers], loss)
        return [*found, *(torch.zeros_like(w) for w in W[stage.layers :])]

    def answers(self, samples: Samples, W: Sequence[Tensor]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Compute the answers in one pass, or by generating the chain level by level."""
        model = set_weights(self._new(samples), W)
        return roots(samples, lambda bits: infer(model, bits.T)[:, -1])

    @abstractmethod
    def _new(self, samples: Samples) -> BlockTransformer | CoTTransformer:
        """Return a model with arbitrary weights, in the dtype and on the device of the samples."""


class BlockModel(_AutogradModel):
    """The model in block form, with any mask and any gates."""

    form: ClassVar[Form] = "block"

    def columns(self, w: Tensor, layer: int) -> Float[Tensor, "T nodes"]:
        """Return the columns of the layer's nodes. Under the causal mask they also see nodes of their own level."""
        nodes = self.tree.levels.span(layer + 1)
        return _seen(w[:, nodes], named_mask(self.options.mask, self.tree.levels)[:, nodes])

    def added(self, w: Tensor, layer: int, more: Float[Tensor, "T nodes"]) -> Tensor:
        """Return the layer with ``more`` added to the columns of its nodes."""
        nodes = self.tree.levels.nodes(layer + 1)
        return w + torch.nn.functional.pad(more, (nodes.start, self.tree.T - nodes.stop))

    def _new(self, samples: Samples) -> BlockTransformer:
        n, k, mask, gates = self.tree.n, self.tree.k, self.options.mask, self.options.gates
        return BlockTransformer(n, k, mask, gates, self.link, dtype=samples.dtype).to(samples.device)


class CotModel(_AutogradModel):
    """The one-layer model of explicit CoT. Each node is computed from the true values below it."""

    form: ClassVar[Form] = "cot"

    def rate(self, stage: ParityStage) -> Float[Tensor, " nodes"]:
        """Return the rate of each column: that of its level."""
        levels, rates = self.tree.levels, self.setting.unit_rates
        columns = [rates[levels.level_of(m) - 1] for m in range(levels.n, levels.T)]
        return self.setting.amplitude * torch.tensor(columns, dtype=torch.float64)

    def pairs(self, layer: int) -> Pairs:
        """Return the children of all nodes."""
        return [self.tree.children(m) for m in range(self.tree.n, self.tree.T)]

    def columns(self, w: Tensor, layer: int) -> Float[Tensor, "T nodes"]:
        """Return the columns of all nodes, with −∞ at keys that they do not see."""
        return _seen(w, level_mask(self.tree.levels)[:, self.tree.n :])

    def _new(self, samples: Samples) -> CoTTransformer:
        return CoTTransformer(self.tree.n, self.tree.k, self.link, dtype=samples.dtype).to(samples.device)


_FORMS: Final[dict[Form, type[SteppedModel]]] = {"level": LevelModel, "block": BlockModel, "cot": CotModel}


def model_of(options: SolveOptions, tree: ParityTree, setting: Setting) -> SteppedModel:
    """Return the model of a request."""
    kind = HiddenLossModel if options.hidden_loss else _FORMS[form_of(options)]
    return kind(tree, setting, options)


def _below(bounds: Sequence[float], slack: Sequence[float]) -> bool:
    return all(bound < slack[layer] for layer, bound in enumerate(bounds))


def _seen(columns: Tensor, visible: Bool[Tensor, "keys nodes"]) -> Tensor:
    return columns.masked_fill(~visible, -torch.inf)
