r"""What the loss asks of a position, and what the position looks at: gradient signal over noise, attention on the children, and
whether the loss would have it look at them.

The gradient of an example's loss by the state at a position says in which direction that state should move. On average over
all examples it would say nothing where a step is as often 0 as 1; so it is averaged over the examples whose step has one
value, and these means are what a weight would learn that writes the step there:

.. math:: \text{signal}^2 = \sum_c p_c \, |\bar g_c|^2, \qquad \text{noise}^2 = \sum_c p_c \, s_c^2 / n_c

with the means, the variances and the numbers of examples of each value c. Without any signal their ratio is about 1.

The pull of a key is what a step of gradient descent adds to the score that it gets from the position's query: the mean over the
examples over its standard error. It is this that the paper's stages rest on: the gradient of the children stands out from the
noise of the others. (Not all of it is information: in a model that nobody has trained every key has a pull, because attention
anywhere changes the output. It is the difference from other keys that tells.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from internalize.lm.probe.discriminant import tally
from internalize.lm.probe.states import Cells, Sequences, at_positions
from internalize.lm.stages.removal import IGNORED

EXAMPLES: Final = 512
"""The first so many examples are looked at."""


@dataclass(frozen=True)
class Signals:
    """A list a layer, the first of the embedding; in it one entry a cell."""

    gradient: list[list[float]]
    gradient_error: list[list[float]]
    attention: list[list[list[float] | None]]
    """For each child the greatest over heads of the mean attention to its position or to the one that predicts it, another one for
    each child; None where children are not known, and for the embedding."""
    pull: list[list[list[float] | None]]
    """For each child the greatest pull over heads and over the same positions; None where attention is."""
    other_pull: list[list[float | None]]
    """The median over all other keys of their greatest pull over heads."""


def measure_signals(model: Any, sequences: Sequences, children: Sequence[Sequence[tuple[int, ...]] | None]) -> Signals:
    """Gradients and attention of a model under a budget.

    Args:
        model: a causal language model of transformers.
        sequences: what it is given; the loss is that of the last layer, of all that they supervise.
        children: for each cell the positions, one or several a child, that stand for its children. The same in all examples.
    """
    known = any(each is not None for each in children)
    attention = mean_attention(model, sequences) if known else []
    gradients: list[list[Tensor]] = []
    pulls: list[_Pulls] = [_Pulls() for _ in attention]
    for some, batch in sequences.batches(model.device, EXAMPLES):
        labels = batch.pop("labels")
        outputs = model(**batch, output_hidden_states=True, output_attentions=known, use_cache=False)
        states: tuple[Tensor, ...] = outputs.hidden_states
        looks: tuple[Tensor, ...] = outputs.attentions if known else ()
        if not all(look.requires_grad for look in looks):  # attention that is told of, not used
            looks, pulls = (), []
        loss = _loss(outputs.logits, labels)
        found = torch.autograd.grad(loss, [*states, *looks], allow_unused=True, materialize_grads=True)
        predicted = sequences.cells.predicted[some].to(model.device)
        gradients.append([_at_cells(gradient, predicted).cpu() for gradient in found[: len(states)]])
        for pull, look, gradient in zip(pulls, looks, found[len(states) :], strict=True):
            pull.add(*(_at_cells(each.detach().transpose(1, 2), predicted).double().cpu() for each in (look, gradient)))
    signal: list[list[float]] = []
    noise: list[list[float]] = []
    for parts in zip(*gradients, strict=True):
        pairs = [_signal_and_noise(sequences.cells, torch.cat(parts)[:, cell], cell) for cell in range(len(children))]
        signal.append([pair[0] for pair in pairs])
        noise.append([pair[1] for pair in pairs])
    nothing: list[list[float] | None] = [None] * len(children)
    nowhere: list[float | None] = [None] * len(children)
    below = [nothing] * (len(signal) - 1)
    scores = [pull.scores for pull in pulls]
    return Signals(
        signal,
        noise,
        [nothing, *([_values_on_children(layer, children) for layer in attention] or below)],
        [nothing, *([_values_on_children(layer, _children_with_pull(layer, children)) for layer in scores] or below)],
        [nowhere, *([_median_on_others(layer, children) for layer in scores] or [nowhere] * (len(signal) - 1))],
    )


class _Pulls:
    """The pull of each key, cells × heads × keys, over batches of examples."""

    def __init__(self) -> None:
        self.count = 0
        self.sums: Tensor | float = 0.0
        self.squares: Tensor | float = 0.0

    def add(self, attention: Tensor, gradient: Tensor) -> None:
        """Examples × cells × heads × keys: attention, and the gradient of the loss by it; from it that by the scores below
        the softmax.
        """
        pull = -attention * (gradient - (attention * gradient).sum(-1, keepdim=True))
        self.count += len(pull)
        self.sums = self.sums + pull.sum(0)
        self.squares = self.squares + pull.square().sum(0)

    @property
    def scores(self) -> Tensor:
        """Mean over standard error; 0 for keys that the causal mask hides."""
        mean = torch.as_tensor(self.sums) / self.count
        error = ((torch.as_tensor(self.squares) / self.count - mean.square()).clamp(min=0) / self.count).sqrt()
        return torch.where(error > 0, mean / error, 0.0)


def mean_attention(model: Any, sequences: Sequences) -> list[Tensor]:
    """A tensor a layer, the first being the one above the embedding: cells × heads × keys, from the position that predicts the
    cell, the mean over the first `EXAMPLES` examples.
    """
    model.set_attn_implementation("eager")  # the quicker ones do not say what they attend to
    sums: list[Tensor] = []
    seen = 0
    with torch.no_grad():
        for some, batch in sequences.batches(model.device, EXAMPLES):
            del batch["labels"]
            predicted = sequences.cells.predicted[some].to(model.device)
            every: tuple[Tensor, ...] = model(**batch, output_attentions=True, use_cache=False).attentions
            found = [
                _at_cells(layer.transpose(1, 2), predicted).sum(0).cpu() for layer in every
            ]  # heads × queries × keys
            sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else found
            seen += len(predicted)
    return [each / seen for each in sums]


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over examples of the mean over their supervised tokens: then gradients are those of each example's own loss."""
    following = labels[:, 1:]
    each = cross_entropy(logits[:, :-1].float().transpose(1, 2), following, ignore_index=IGNORED, reduction="none")
    return (each.sum(1) / (following != IGNORED).sum(1)).sum()


def _at_cells(values: Tensor, predicted: Tensor) -> Tensor:
    """Of examples × positions × …, what is at each cell's predicting position: examples × cells × …."""
    return torch.stack([at_positions(values, predicted[:, cell]) for cell in range(predicted.shape[1])], 1)


def _signal_and_noise(cells: Cells, gradients: Tensor, cell: int) -> tuple[float, float]:
    """Signal and noise of one cell's gradients, examples × width."""
    tokens = cells.tokens[: len(gradients), cell]
    having = tokens != IGNORED
    g, tokens = gradients[having].double(), tokens[having]
    signal = noise = 0.0
    for token in tally(tokens)[0]:
        own = g[tokens == token]
        if len(own) > 1:
            signal += len(own) * own.mean(0).square().sum().item() / len(g)
            noise += own.var(0).sum().item() / len(g)
    return signal**0.5, noise**0.5


def _values_on_children(
    values: Tensor, children: Sequence[Sequence[tuple[int, ...]] | None]
) -> list[list[float] | None]:
    """From cells × heads × keys, the greatest over heads at one position of each child: different positions, so that one key
    does not stand for two children (a step's own is the one that predicts the next), and those at which the least of them is
    greatest.
    """
    best = values.max(1).values
    found: list[list[float] | None] = []
    for cell, each in enumerate(children):
        if each is None:
            found.append(None)
            continue
        choices = [chosen for chosen in product(*each) if len(set(chosen)) == len(chosen)] or list(product(*each))
        ranked = [[float(best[cell, place]) for place in chosen] for chosen in choices]
        found.append(max(ranked, key=lambda values: (min(values), sum(values))))
    return found


def _children_with_pull(
    scores: Tensor, children: Sequence[Sequence[tuple[int, ...]] | None]
) -> list[Sequence[tuple[int, ...]] | None]:
    """The children, but None for a cell whose keys have no pull at all: the loss asks nothing of its position in this layer."""
    return [each if bool((scores[cell] != 0).any()) else None for cell, each in enumerate(children)]


def _median_on_others(scores: Tensor, children: Sequence[Sequence[tuple[int, ...]] | None]) -> list[float | None]:
    """From cells × heads × keys, the median over the keys that are seen and no child's of the greatest over heads."""
    found: list[float | None] = []
    for cell, each in enumerate(children):
        best = scores[cell].max(0).values
        seen = (scores[cell] != 0).any(0)
        if each is not None:
            seen[[place for positions in each for place in positions]] = False
        found.append(best[seen].median().item() if each is not None and seen.any() else None)
    return found
