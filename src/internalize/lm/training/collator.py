"""The data set of a Trainer, whose rows are examples as their stage shows them, and the collator of its batches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.stages.chains import TextFormat
from internalize.lm.stages.removal import IGNORED, Row, TextStages
from internalize.lm.stages.schedule import Schedule
from internalize.random_words import Stream, words

_CHANCES = 4
"""Random numbers per training example: whether it is replayed, what it then hides, smoothing, loss on hidden slots."""


class Positions(Dataset[int]):
    """A dataset of the numbers 0 … length − 1. Position p belongs to update p // batch, for any number of processes."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> int:
        return position


class StageCollator:
    """A collator that turns positions into a batch of encoded examples without what their stage hides.

    The batch depends only on the positions and the schedule, so any process can prepare it at any time.
    """

    def __init__(
        self,
        examples: Callable[[Sequence[int]], list[Example]],
        text: TextFormat,
        stages: TextStages,
        schedule: Schedule,
        batch: int,
        seed: int,
    ) -> None:
        self.examples, self.text, self.stages, self.schedule = examples, text, stages, schedule
        self.batch, self.seed = batch, seed
        self.longest: int | None = None
        """The number of the model's positions; None if it has no limit."""
        self.every_layer = False
        """Whether the model must return the states of all its layers, for the loss at every layer."""
        self.selects = False
        """Whether the model is asked only for the logits that the loss reads."""

    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Return the batch of these rows of `StageRows`, or of these positions."""
        positions = [row for row in rows if isinstance(row, int)]
        sequences = self.sequences(positions) if positions else [_row(row) for row in rows]
        batch: dict[str, Any] = model_input(sequences, self.text.pad, positions=self.stages.options.keep_positions)
        if self.selects:
            batch["logits_to_keep"] = supervised_columns(batch["labels"])
        return batch | {"output_hidden_states": True} if self.every_layer else batch

    def sequences(self, positions: Sequence[int]) -> list[Row]:
        """Return the sequences of these positions."""
        examples = self.examples(positions)
        sequences = [
            self.stages.training(chain, self.schedule.stage(update), chance, smooth=update >= self.schedule.unsmoothed)
            for chain, update, chance in zip(
                self.text.chains(examples), (p // self.batch for p in positions), self._chances(positions), strict=True
            )
        ]
        longest = max(len(s.tokens) for s in sequences)
        if self.longest is not None and longest > self.longest:
            place = examples[[len(s.tokens) for s in sequences].index(longest)].place or "an example"
            raise InputError(f"{place} has {longest} tokens, but the model has {self.longest} positions")
        return sequences

    def _chances(self, positions: Sequence[int]) -> list[list[float]]:
        """Return numbers in [0, 1) per position: four and, for scattered replay, one per unit of the longest chain."""
        numbers = self._words("replay", _CHANCES, positions)
        units = len(self.stages.count_slots) - 1
        if self.stages.options.replayed == "scattered" and units:
            numbers = np.concatenate([numbers, self._words("scattered", units, positions)], axis=1)
        return ((numbers >> 11) * 2.0**-53).tolist()

    def _words(self, stream: Stream, row: int, positions: Sequence[int]) -> NDArray[np.uint64]:
        """Return ``row`` random words per position, which depend only on the seed, the stream and the position."""
        first, last = min(positions), max(positions)
        if last - first < 4 * len(positions):  # close together, as they are unless they were shuffled
            drawn = words(self.seed, stream, row * first, row * (last - first + 1)).reshape(-1, row)
            return drawn[[p - first for p in positions]]
        return np.stack([words(self.seed, stream, row * p, row) for p in positions])


class StageRows(Dataset[dict[str, list[int]]]):
    """The rows that a Trainer trains on: at each position an example as the stage of its update shows it.

    The stage of an update may depend on evaluations, so rows are to be taken in order, as `Internalization.arguments`
    has a Trainer do it.
    """

    column_names = ("input_ids", "labels", "attention_mask", "position_ids")

    def __init__(self, collator: StageCollator, length: int) -> None:
        self.collator, self.length = collator, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> dict[str, list[int]]:
        """Return the row at a position."""
        if not 0 <= position < self.length:
            raise IndexError(position)
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[dict[str, list[int]]]:
        """Return the rows at these positions, which are encoded together."""
        return [
            {
                "input_ids": row.tokens,
                "labels": row.labels,
                "attention_mask": [1] * len(row.tokens),
                "position_ids": row.positions,
            }
            for row in self.collator.sequences(positions)
        ]


def _row(row: Mapping[str, list[int]]) -> Row:
    return Row(row["input_ids"], row["labels"], row["position_ids"])


def model_input(rows: Sequence[Row], pad: int, *, positions: bool, least: int = 0) -> dict[str, Tensor]:
    """Return tokens, labels, mask and, with ``positions``, position numbers, each with at least ``least`` columns."""
    columns = {
        "input_ids": ([row.tokens for row in rows], pad),
        "labels": ([row.labels for row in rows], IGNORED),
        "attention_mask": ([[1] * len(row.tokens) for row in rows], 0),
    }
    if positions:
        columns["position_ids"] = ([row.positions for row in rows], 0)
    return {name: padded(values, fill, least=least) for name, (values, fill) in columns.items()}


def supervised_columns(labels: Tensor) -> Tensor:
    """Return the columns of a batch whose logits the loss reads: those before a supervised token in any row."""
    return (labels[:, 1:] != IGNORED).any(0).nonzero()[:, 0]


def padded(rows: Sequence[Sequence[int]], fill: int, *, left: bool = False, least: int = 0) -> Tensor:
    """Return rows of different lengths as one tensor, padded to ``least`` columns or more."""
    longest = max(least, *map(len, rows))
    gaps = ([fill] * (longest - len(row)) for row in rows)
    filled = [[*gap, *row] if left else [*row, *gap] for gap, row in zip(gaps, rows, strict=True)]
    return torch.from_numpy(np.array(filled, dtype=np.int64))  # torch.tensor on lists takes five times as long
