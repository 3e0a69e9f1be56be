"""The positions at which each token of a chain is read, and the model's states there.

A token is predicted at the position before its own. A hidden token's own position is its slot. A token without a slot
of its own has one position for both: if there are fewer slots than tokens, the next token's slot; with deletion, or
without any slots, the last position before the gap.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from internalize.lm.stages.chains import Chain
from internalize.lm.stages.removal import IGNORED, Row, TextStages, slotted
from internalize.lm.training.collator import model_input
from internalize.lm.training.supervised_loss import last_norm

BATCH: Final = 128
"""Number of examples per batch."""


@dataclass(frozen=True)
class Budget:
    """The amount that is hidden: what a stage hides or, without a stage, ``hidden`` units of every chain."""

    hidden: int
    stage: int | None

    @classmethod
    def of(cls, stages: TextStages, hidden: int) -> "Budget":
        """Return the budget of ``hidden`` units. If stages hide as many, it is the budget of the last of them."""
        return cls(hidden, max((s for s, count in enumerate(stages.hidden) if count == hidden), default=None))

    @classmethod
    def at(cls, stages: TextStages, number: int) -> "Budget":
        """Return the budget of a stage, counted from 1. Numbers beyond the last stage mean the last one."""
        stage = min(number - 1, stages.last)
        return cls(stages.hidden[stage], stage)

    def of_chain(self, stages: TextStages, chain: Chain) -> tuple[int, tuple[int, ...] | None]:
        """Return the number of a chain's hidden units, and its numbers of slots as `TextStages.parts` takes them."""
        if self.stage is not None:
            return stages.hidden_units(chain, self.stage), stages.stage_gaps(self.stage)
        return min(self.hidden, len(chain.units)), stages.count_gaps(self.hidden)


class TokenPlace(NamedTuple):
    """A token of a step or of the answer, and its positions in a sequence."""

    token: int
    own: int
    """The position of the token or of its slot."""
    predicted: int
    """The position that has to predict the token."""
    shown: bool


def places(stages: TextStages, chain: Chain, budget: Budget) -> tuple[Row, list[TokenPlace]]:
    """Return the sequence of a chain under a budget, and the places of the tokens of its steps and its answer."""
    hidden, gaps = budget.of_chain(stages, chain)
    found: list[TokenPlace] = []
    at = len(chain.prompt)
    for tokens, slots in stages.parts(chain, hidden, gaps):
        if slots is None:
            found += (TokenPlace(token, at + i, at + i - 1, True) for i, token in enumerate(tokens))
            at += len(tokens)
            continue
        slot_of = {token: at + slot for slot, token in slotted(len(tokens), slots).items()}
        own: list[TokenPlace] = []
        following = at - 1  # without slots
        for i in reversed(range(len(tokens))):
            following = slot_of.get(i, following)
            own.append(TokenPlace(tokens[i], following, following - (i in slot_of), False))
        found += reversed(own)
        at += slots
    row = stages.sequence(chain, hidden, gaps, supervise_hidden=stages.options.slot_loss > 0)
    return row, found


@dataclass(frozen=True)
class Cells:
    """The tokens to read. A cell is token ``j`` of element ``e`` of the chain, for ``(e, j)`` in ``keys``.

    All tensors are examples × cells.
    """

    keys: list[tuple[int, int]]
    tokens: Tensor
    """The true tokens; `IGNORED` if an example has no such token."""
    own: Tensor
    predicted: Tensor
    shown: Tensor

    def having(self, cell: int) -> Tensor:
        """Return a mask of the examples that have the token of a cell."""
        return self.tokens[:, cell] != IGNORED


def cells_of(chains: Sequence[Chain], found: Sequence[list[TokenPlace]], keep: Callable[[Tensor], bool]) -> Cells:
    """Return the cells to read, sorted by element and token.

    Args:
        chains: the chains in units of steps, also for a curriculum that removes tokens. The answer is the element after
            the steps of the longest chain.
        found: the places of their tokens.
        keep: tells from the true tokens of a cell, over the examples that have it, whether to read the cell.
    """
    answer = max(len(chain.units) for chain in chains)
    at: dict[tuple[int, int], dict[int, TokenPlace]] = {}  # cell → example → place
    for example, (chain, own) in enumerate(zip(chains, found, strict=True)):
        elements = [*enumerate(chain.units), (answer, chain.answer)]
        cells = [(element, token) for element, unit in elements for token in range(len(unit))]
        for cell, place in zip(cells, own, strict=True):
            at.setdefault(cell, {})[example] = place
    keys = [key for key in sorted(at) if keep(torch.tensor([place.token for place in at[key].values()]))]
    missing = TokenPlace(IGNORED, 0, 0, False)
    rows = [[at[key].get(example, missing) for key in keys] for example in range(len(found))]
    tokens, own, predicted, shown = torch.tensor(rows, dtype=torch.int64).reshape(len(found), len(keys), 4).unbind(2)
    return Cells(keys, tokens, own, predicted, shown.bool())


@dataclass(frozen=True)
class Sequences:
    """The input of a model under a budget, with the cells to read."""

    rows: list[Row]
    cells: Cells
    pad: int
    positions: bool
    """Whether the model gets position numbers, which it needs only if they have a gap."""

    def batches(self, device: Any, count: int | None = None) -> Iterator[tuple[slice, dict[str, Tensor]]]:
        """Yield the first sequences in batches of model input, each with the slice of its sequences."""
        rows = self.rows[:count]
        for start in range(0, len(rows), BATCH):
            some = rows[start : start + BATCH]
            longest = max(len(row.tokens) for row in self.rows)  # the same for all batches, to concatenate their states
            batch = model_input(some, self.pad, positions=self.positions, least=longest)
            yield slice(start, start + len(some)), {name: column.to(device) for name, column in batch.items()}


@dataclass(frozen=True)
class Readings:
    """A model's states, and what its own head reads from them: one tensor per layer, from the embedding on."""

    states: list[Tensor]
    """The states, as examples × positions × width. Empty if they were not requested."""
    read: list[Tensor]
    """The most likely token of the head at the predicting position, as examples × cells. Empty for a layer that cannot
    be read because the norm before the head is not known."""
    error: list[Tensor]
    """1 − the head's probability of the true token, in the same shape."""


def read_states(model: Any, sequences: Sequences, *, keep: bool = True) -> Readings:
    """Return what a model's head reads from its states on sequences and, with ``keep``, the states."""
    norm, head, cells = last_norm(model), model.get_output_embeddings(), sequences.cells
    states: dict[int, list[Tensor]] = {}
    read: dict[int, list[Tensor]] = {}
    error: dict[int, list[Tensor]] = {}
    with torch.no_grad():
        for some, batch in sequences.batches(model.device):
            del batch["labels"]
            every: tuple[Tensor, ...] = model(**batch, output_hidden_states=True, use_cache=False).hidden_states
            tokens, predicted = cells.tokens[some].to(model.device), cells.predicted[some].to(model.device)
            for layer, state in enumerate(every):
                if keep:
                    states.setdefault(layer, []).append(state.float().cpu())
                last = layer == len(every) - 1  # transformers returns the last layer with the norm applied
                normed = state if last else norm(state) if norm is not None else None
                found = _read(head, normed, tokens, predicted) if normed is not None else (torch.empty(0),) * 2
                read.setdefault(layer, []).append(found[0])
                error.setdefault(layer, []).append(found[1])
    together = ([torch.cat(parts) for parts in layers.values()] for layers in (states, read, error))
    return Readings(*together)


def _read(head: Any, states: Tensor, tokens: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the head reads for each cell, and its error. One cell at a time, because vocabularies are large."""
    read: list[Tensor] = []
    error: list[Tensor] = []
    for cell in range(tokens.shape[1]):
        likely = head(at_positions(states, predicted[:, cell])).float().softmax(1)
        read.append(likely.argmax(1))
        error.append(1 - likely.gather(1, tokens[:, cell].clamp(min=0)[:, None])[:, 0])
    return torch.stack(read, 1).cpu(), torch.stack(error, 1).cpu()


def at_positions(values: Tensor, positions: Tensor) -> Tensor:
    """Return the values of each example at one position or, for positions of examples × cells, at one per cell.

    The values have examples × positions × …, and the result examples × … or examples × cells × ….
    """
    every = torch.arange(len(positions), device=values.device)
    return values[every if positions.ndim == 1 else every[:, None], positions]
