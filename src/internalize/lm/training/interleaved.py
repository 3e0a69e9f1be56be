"""Greedy generation at a stage that shows steps between hidden ones: the model writes, and slots are filled in.

The model is given the question and the first slots, and writes a step. When the step is complete (`StepEnd`), the slots
of the next hidden steps follow, and so on, until the model writes the mark of the answer in place of a step. So the
slots depend on the number of steps that the model has written, and on nothing else.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from internalize.curriculum import at_or_last
from internalize.errors import InputError
from internalize.lm.stages.chains import Chain, TextFormat
from internalize.lm.stages.removal import TextStages
from internalize.lm.stages.step_end import StepEnd
from internalize.lm.training.collator import padded


def is_interleaved(stages: TextStages, stage: int) -> bool:
    """Return whether slots stand between the tokens that a model writes at a stage."""
    return stages.options.thins and stages.options.padded and 0 < stage < stages.last


@dataclass
class _Writing:
    """The tokens that a model has written for one example, and the rule for the slots that follow them."""

    gaps: Sequence[int]
    end: StepEnd
    marks: frozenset[int]
    """The first tokens of answers."""
    slot: int
    last: int
    """The end token."""
    room: int
    """The number of tokens that may still be given to the model."""
    written: list[int] = field(default_factory=list[int])
    done: bool = False
    _answers: bool = False
    _steps: int = 0
    _of_step: int = 0

    def take(self, token: int) -> list[int]:
        """Add a token that the model has written, and return the tokens that it is given next."""
        if self.done:
            return []
        self.written.append(token)
        given = [token]
        self._answers = self._answers or (self._of_step == 0 and token in self.marks)
        if not self._answers:
            self._of_step += 1
            if self.end.reached(self._of_step, token):
                self._steps, self._of_step = self._steps + 1, 0
                given += [self.slot] * at_or_last(self.gaps, self._steps)
        self.room -= len(given)
        self.done = token == self.last or self.room < 0
        return [] if self.done else given


def generate_between_slots(
    model: Any, text: TextFormat, stages: TextStages, chains: Sequence[Chain], stage: int, most: int, positions: int
) -> list[list[int]]:
    """Return the tokens that the model writes for each chain, without the slots, at most ``most`` and an end token.

    A model has ``positions`` for slots and tokens together. An example that does not fit is cut off.
    """
    if stages.step_end is None:
        raise InputError("these data have no mark at the end of a step, so slots cannot be filled in between steps")
    takes = inspect.signature(model.forward).parameters
    if "past_key_values" not in takes:
        raise InputError(f"{type(model).__name__} has no cache of keys and values, which slots between steps need")
    given = [stages.prompt(chain, stage).tokens for chain in chains]
    marks = frozenset(chain.answer[0] for chain in chains)
    gaps = stages.stage_gaps(stage)
    rows = [_Writing(gaps, stages.step_end, marks, stages.slot, text.end, positions - len(prompt)) for prompt in given]
    mask = torch.zeros((len(rows), 0), dtype=torch.int64, device=model.device)
    more: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
    cache: Any = None
    with torch.no_grad():
        for _ in range(most):
            # Rows that are given fewer tokens than others have padding before them, which the mask hides for good.
            ids = padded(given, text.pad, left=True).to(model.device)
            mask = torch.cat([mask, padded([[1] * len(row) for row in given], 0, left=True).to(model.device)], dim=1)
            if "position_ids" in takes:
                more["position_ids"] = (mask.cumsum(1)[:, -ids.shape[1] :] - 1).clamp(min=0)
            out = model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **more)
            cache = out.past_key_values
            latest: list[int] = out.logits[:, -1].argmax(-1).tolist()
            given = [row.take(token) for row, token in zip(rows, latest, strict=True)]
            if all(row.done for row in rows):
                break
    return [row.written for row in rows]
