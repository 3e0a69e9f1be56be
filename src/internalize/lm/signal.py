r"""What the loss asks of a position, and what the position looks at: gradient signal over noise, attention on the children.

The gradient of an example's loss by the state at a position says in which direction that state should move. On average over
all examples it would say nothing where a step is as often 0 as 1; so it is averaged over the examples whose step has one
value, and these means are what a weight would learn that writes the step there:

.. math:: \text{signal}^2 = \sum_c p_c \, |\bar g_c|^2, \qquad \text{noise}^2 = \sum_c p_c \, s_c^2 / n_c

with the means, the variances and the numbers of examples of each value c. Without any signal their ratio is about 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from internalize.lm.discriminant import tally
from internalize.lm.removal import IGNORED
from internalize.lm.states import Cells, Sequences, at_positions

EXAMPLES: Final = 512
"""The first so many examples are looked at."""


@dataclass(frozen=True)
class Signals:
    """A list a layer, the first of the embedding; in it one entry a cell."""

    gradient: list[list[float]]
    gradient_error: list[list[float]]
    attention: list[list[list[float] | None]]
    """For each child the greatest over heads of the mean attention to its position or to the one that predicts it; None where
    children are not known, and for the embedding."""


def measure_signals(model: Any, sequences: Sequences, children: Sequence[Sequence[tuple[int, ...]] | None]) -> Signals:
    """Gradients and attention of a model under a budget.

    Args:
        model: a causal language model of transformers.
        sequences: what it is given; the loss is that of the last layer, of whatever is shown.
        children: for each cell the positions, one or several a child, that stand for its children. The same in all examples.
    """
    known = any(each is not None for each in children)
    attention = mean_attention(model, sequences) if known else []
    gradients: list[list[Tensor]] = []
    for some, batch in sequences.batches(model.device, EXAMPLES):
        labels = batch.pop("labels")
        outputs = model(**batch, output_hidden_states=True, use_cache=False)
        every: tuple[Tensor, ...] = outputs.hidden_states
        found = torch.autograd.grad(_loss(outputs.logits, labels), every)
        predicted = sequences.cells.predicted[some].to(model.device)
        gradients.append([_at_cells(gradient, predicted).cpu() for gradient in found])
    signal: list[list[float]] = []
    noise: list[list[float]] = []
    for parts in zip(*gradients, strict=True):
        pairs = [_signal(sequences.cells, torch.cat(parts)[:, cell], cell) for cell in range(len(children))]
        signal.append([pair[0] for pair in pairs])
        noise.append([pair[1] for pair in pairs])
    nothing: list[list[float] | None] = [None] * len(children)
    by_layer = [nothing, *([_on_children(layer, children) for layer in attention] or [nothing] * (len(signal) - 1))]
    return Signals(signal, noise, by_layer)


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


def _signal(cells: Cells, gradients: Tensor, cell: int) -> tuple[float, float]:
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


def _on_children(attention: Tensor, children: Sequence[Sequence[tuple[int, ...]] | None]) -> list[list[float] | None]:
    """From cells × heads × keys, the greatest over heads and over the positions of each child."""
    return [
        None if each is None else [attention[cell][:, list(positions)].max().item() for positions in each]
        for cell, each in enumerate(children)
    ]
