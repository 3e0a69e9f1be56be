r"""Gradient signal over noise at a position, its attention on the children of its node, and the pull of these children.

The gradient of an example's loss with respect to the state at a position is the direction in which that state should
move. If a step is 0 as often as 1, the mean over all examples is near zero. So the gradient is averaged over the
examples in which the step has the same value. A weight that writes the step there would learn these means:

.. math:: \text{signal}^2 = \sum_c p_c \, |\bar g_c|^2, \qquad \text{noise}^2 = \sum_c p_c \, s_c^2 / n_c

with the share, the mean, the variance and the number of examples of each value c. Without a signal the ratio is about
1.

The pull of a key is what a step of gradient descent adds to its attention score at the position's query: the mean over
examples, divided by its standard error. The paper's stages rest on it: the gradient of the children stands out from the
noise of the other keys. The pull alone is not evidence. In an untrained model every key has a pull, because attention
to any position changes the output. Only the difference from other keys is evidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from internalize.lm.probe.discriminant import tally
from internalize.lm.probe.states import Cells, Sequences, at_positions
from internalize.lm.stages.removal import IGNORED

EXAMPLES: Final = 512
"""Number of examples that are used, from the first."""


Children = Sequence[tuple[int, ...]] | None
"""The places of each child of a cell, which are the same positions in all examples; None if they are not known."""


@dataclass(frozen=True)
class CellSignal:
    """The signals of a cell at a layer. The last three are None if children are not known, and for the embedding."""

    gradient: float
    gradient_error: float
    child_attention: list[float] | None
    """For each child, the greatest mean attention over heads to one of its places, which differ between children."""
    child_pull: list[float] | None
    """For each child, the greatest pull over heads at such places. Also None if no key has a pull, because the loss
    does not depend on the attention of the cell's position in this layer."""
    other_pull: float | None
    """The median over all other keys of their greatest pull over heads."""


def measure_signals(model: Any, sequences: Sequences, children: Sequence[Children]) -> list[list[CellSignal]]:
    """Measure gradients and attention of a model under a budget, by layer and cell.

    Args:
        model: a causal language model of transformers.
        sequences: the model's input. The loss is that of the last layer on all supervised tokens.
        children: the children of each cell.
    """
    known = any(each is not None for each in children)
    attention = mean_attention(model, sequences) if known else []
    gradients: list[list[Tensor]] = []
    moments: list[list[Tensor]] = []
    for some, batch in sequences.batches(model.device, EXAMPLES):
        labels = batch.pop("labels")
        outputs = model(**batch, output_hidden_states=True, output_attentions=known, use_cache=False)
        states: tuple[Tensor, ...] = outputs.hidden_states
        looks: tuple[Tensor, ...] = outputs.attentions if known else ()
        if not all(look.requires_grad for look in looks):  # a copy of the attention that the output does not depend on
            looks = ()
        loss = _loss(outputs.logits, labels)
        found = torch.autograd.grad(loss, [*states, *looks], allow_unused=True, materialize_grads=True)
        predicted = sequences.cells.predicted[some].to(model.device)
        gradients.append([at_positions(gradient, predicted).cpu() for gradient in found[: len(states)]])
        pulls = (_pull(*pair, predicted) for pair in zip(looks, found[len(states) :], strict=True))
        moments.append([torch.stack([pull.sum(0), pull.square().sum(0)]) for pull in pulls])
    by_layer = [torch.cat(parts) for parts in zip(*gradients, strict=True)]
    scores = [_pull_scores(parts, len(by_layer[0])) for parts in zip(*moments, strict=True)]
    return [
        [
            CellSignal(
                *_signal_and_noise(sequences.cells, gradient[:, cell], cell),
                _on_children(attention[layer - 1][cell], own) if layer and attention else None,
                *(_pulls(scores[layer - 1][cell], own) if layer and scores else (None, None)),
            )
            for cell, own in enumerate(children)
        ]
        for layer, gradient in enumerate(by_layer)
    ]


def _pull(attention: Tensor, gradient: Tensor, predicted: Tensor) -> Tensor:
    """Return minus the gradient with respect to the scores, from the attention (their softmax) and the gradient by it.

    The result has examples × cells × heads × keys.
    """
    a, g = (at_positions(each.detach().transpose(1, 2), predicted).double().cpu() for each in (attention, gradient))
    return -a * (g - (a * g).sum(-1, keepdim=True))


def _pull_scores(parts: Sequence[Tensor], count: int) -> Tensor:
    """Return mean over standard error, from sums and sums of squares over parts of the examples; 0 for masked keys."""
    mean, square = reduce(torch.add, parts) / count
    error = ((square - mean.square()).clamp(min=0) / count).sqrt()
    return torch.where(error > 0, mean / error, 0.0)


def mean_attention(model: Any, sequences: Sequences) -> list[Tensor]:
    """Return the mean attention from the position that predicts each cell, over the first `EXAMPLES` examples.

    There is one tensor per layer above the embedding, with cells × heads × keys.
    """
    model.set_attn_implementation("eager")  # faster implementations do not return the attention
    sums: list[list[Tensor]] = []
    with torch.no_grad():
        for some, batch in sequences.batches(model.device, EXAMPLES):
            del batch["labels"]
            predicted = sequences.cells.predicted[some].to(model.device)
            every: tuple[Tensor, ...] = model(**batch, output_attentions=True, use_cache=False).attentions
            sums.append([at_positions(layer.transpose(1, 2), predicted).sum(0).cpu() for layer in every])
    return [reduce(torch.add, parts) / len(sequences.rows[:EXAMPLES]) for parts in zip(*sums, strict=True)]


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the examples' mean losses, so that each state's gradient is that of its own example's loss."""
    following = labels[:, 1:]
    each = cross_entropy(logits[:, :-1].float().transpose(1, 2), following, ignore_index=IGNORED, reduction="none")
    return (each.sum(1) / (following != IGNORED).sum(1)).sum()


def _signal_and_noise(cells: Cells, gradients: Tensor, cell: int) -> tuple[float, float]:
    """Return signal and noise of one cell's gradients, given as examples × width."""
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


def _on_children(values: Tensor, children: Children) -> list[float] | None:
    """Return for each child the greatest value over heads at one of its places, from heads × keys.

    Children get different places, so that one key does not count for two children: a step's own position also predicts
    the next step. Of all such choices of places, the result is the one whose least value is greatest.
    """
    if children is None:
        return None
    best = values.max(0).values
    choices = [chosen for chosen in product(*children) if len(set(chosen)) == len(chosen)] or product(*children)
    return max(
        ([best[place].item() for place in chosen] for chosen in choices), key=lambda found: (min(found), sum(found))
    )


def _pulls(scores: Tensor, children: Children) -> tuple[list[float] | None, float | None]:
    """Return the pull of the children, and the median pull of the other visible keys, from heads × keys."""
    seen = (scores != 0).any(0)
    if children is None or not seen.any():
        return None, None
    seen[[place for positions in children for place in positions]] = False
    others = scores.max(0).values[seen]
    return _on_children(scores, children), others.median().item() if len(others) else None
