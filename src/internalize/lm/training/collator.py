"""What a Trainer is fed: positions in the order of training, and the batches that a stage makes of them."""

from collections.abc import Callable, Sequence
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
"""Random numbers of one training example: replayed?, which stage or how much, smoothing, loss on hidden slots."""


class Positions(Dataset[int]):
    """The numbers 0 … length − 1. Position p belongs to update p // batch, on however many processes."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> int:
        return position


class StageCollator:
    """Positions → a batch: examples, encoded, with what their stage hides removed. A pure function of the positions and
    of the schedule, so it does not matter who prepares a batch, or when.
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
        """Tokens that the model has positions for, if there is a limit."""
        self.every_layer = False
        """Whether the model is asked for the states of all its layers, for the loss."""

    def __call__(self, positions: Sequence[int]) -> dict[str, Any]:
        """The batch of these positions."""
        chains = self.text.chains(self.examples(positions))
        sequences = [
            self.stages.training(chain, self.schedule.stage(update), chance, smooth=update >= self.schedule.unsmoothed)
            for chain, update, chance in zip(
                chains, (p // self.batch for p in positions), self._chances(positions), strict=True
            )
        ]
        longest = max(len(s.tokens) for s in sequences)
        if self.longest is not None and longest > self.longest:
            raise InputError(f"an example has {longest} tokens, and the model positions for {self.longest}")
        batch: dict[str, Any] = model_input(sequences, self.text.pad, positions=self.stages.options.keep_positions)
        return batch | {"output_hidden_states": True} if self.every_layer else batch

    def _chances(self, positions: Sequence[int]) -> list[list[float]]:
        """Four numbers in [0, 1) for each position and, for scattered replay, one for each unit of the longest chain."""
        numbers = self._words("replay", _CHANCES, positions)
        units = len(self.stages.count_slots) - 1
        if self.stages.options.replayed == "scattered" and units:
            numbers = np.concatenate([numbers, self._words("scattered", units, positions)], axis=1)
        return ((numbers >> 11) * 2.0**-53).tolist()

    def _words(self, stream: Stream, row: int, positions: Sequence[int]) -> NDArray[np.uint64]:
        """A row of random words for each position, the same whoever asks."""
        first, last = min(positions), max(positions)
        if last - first < 4 * len(positions):  # close together, as they are unless somebody shuffles
            drawn = words(self.seed, stream, row * first, row * (last - first + 1)).reshape(-1, row)
            return drawn[[p - first for p in positions]]
        return np.stack([words(self.seed, stream, row * p, row) for p in positions])


def model_input(rows: Sequence[Row], pad: int, *, positions: bool, least: int = 0) -> dict[str, Tensor]:
    """Sequences as a model takes them: tokens, labels, mask and, where they have a gap, position numbers; of ``least`` length."""
    columns = {
        "input_ids": ([row.tokens for row in rows], pad),
        "labels": ([row.labels for row in rows], IGNORED),
        "attention_mask": ([[1] * len(row.tokens) for row in rows], 0),
    }
    if positions:
        columns["position_ids"] = ([row.positions for row in rows], 0)
    return {name: padded(values, fill, least=least) for name, (values, fill) in columns.items()}


def padded(rows: Sequence[Sequence[int]], fill: int, *, left: bool = False, least: int = 0) -> Tensor:
    """Rows of different lengths as one tensor, at least so long."""
    longest = max(least, *map(len, rows))
    gaps = ([fill] * (longest - len(row)) for row in rows)
    filled = [[*gap, *row] if left else [*row, *gap] for gap, row in zip(gaps, rows, strict=True)]
    return torch.from_numpy(np.array(filled, dtype=np.int64))  # torch.tensor on lists takes five times as long
