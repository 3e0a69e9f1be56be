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
"""The first so many examples are looked at."""


Children = Sequence[tuple[int, ...]] | None
"""Of a cell: for each child the positions that stand for it, the same in all examples; None where they are not known."""


@dataclass(frozen=True)
class CellSignal:
    """What one layer, the embedding among them, says about one cell. None where children are not known, and for the embedding."""

    gradient: float
    gradient_error: float
    child_attention: list[float] | None
    """For each child the greatest over heads of the mean attention to its position or to the one that predicts it, another one for
    each child."""
    child_pull: list[float] | None
    """For each child the greatest pull over heads and over the same positions; None also where no key has any pull: the loss asks
    nothing of the cell's position in this layer."""
    other_pull: float | None
    """The median over all other keys of their greatest pull over heads."""


def measure_signals(model: Any, sequences: Sequences, children: Sequence[Children]) -> list[list[CellSignal]]:
    """Gradients and attention of a model under a budget, by layer and cell.

    Args:
        model: a causal language model of transformers.
        sequences: what it is given; the loss is that of the last layer, of all that they supervise.
        children: of each cell.
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
        if not all(look.requires_grad for look in looks):  # attention that is told of, not used
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
    """Examples × cells × heads × keys, from attention and the gradient of the loss by it: the gradient by the scores below the
    softmax.
    """
    a, g = (at_positions(each.detach().transpose(1, 2), predicted).double().cpu() for each in (attention, gradient))
    return -a * (g - (a * g).sum(-1, keepdim=True))


def _pull_scores(parts: Sequence[Tensor], count: int) -> Tensor:
    """Mean over standard error, from sums and sums of squares over parts of the examples; 0 for keys that the mask hides."""
    mean, square = reduce(torch.add, parts) / count
    error = ((square - mean.square()).clamp(min=0) / count).sqrt()
    return torch.where(error > 0, mean / error, 0.0)


def mean_attention(model: Any, sequences: Sequences) -> list[Tensor]:
    """A tensor a layer, the first being the one above the embedding: cells × heads × keys, from the position that predicts the
    cell, the mean over the first `EXAMPLES` examples.
    """
    model.set_attn_implementation("eager")  # the quicker ones do not say what they attend to
    sums: list[list[Tensor]] = []
    with torch.no_grad():
        for some, batch in sequences.batches(model.device, EXAMPLES):
            del batch["labels"]
            predicted = sequences.cells.predicted[some].to(model.device)
            every: tuple[Tensor, ...] = model(**batch, output_attentions=True, use_cache=False).attentions
            sums.append([at_positions(layer.transpose(1, 2), predicted).sum(0).cpu() for layer in every])
    return [reduce(torch.add, parts) / len(sequences.rows[:EXAMPLES]) for parts in zip(*sums, strict=True)]


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over examples of the mean over their supervised tokens: then gradients are those of each example's own loss."""
    following = labels[:, 1:]
    each = cross_entropy(logits[:, :-1].float().transpose(1, 2), following, ignore_index=IGNORED, reduction="none")
    return (each.sum(1) / (following != IGNORED).sum(1)).sum()


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


def _on_children(values: Tensor, children: Children) -> list[float] | None:
    """From heads × keys, the greatest over heads at one position of each child: different positions, so that one key does not
    stand for two children (a step's own is the one that predicts the next), and those at which the least of them is greatest.
    """
    if children is None:
        return None
    best = values.max(0).values
    choices = [chosen for chosen in product(*children) if len(set(chosen)) == len(chosen)] or product(*children)
    return max(
        ([best[place].item() for place in chosen] for chosen in choices), key=lambda found: (min(found), sum(found))
    )


def _pulls(scores: Tensor, children: Children) -> tuple[list[float] | None, float | None]:
    """From heads × keys, the pull of the children, and the median over the other keys that are seen."""
    seen = (scores != 0).any(0)
    if children is None or not seen.any():
        return None, None
    seen[[place for positions in children for place in positions]] = False
    others = scores.max(0).values[seen]
    return _on_children(scores, children), others.median().item() if len(others) else None
