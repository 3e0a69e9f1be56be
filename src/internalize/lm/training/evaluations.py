"""The evaluations during training: how many held-out examples they ask, and how a Trainer's log comes to show them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from internalize.intervals import wilson
from internalize.lm.data.example import Example
from internalize.storage.files import Json

LOGGED: Final = {
    "stage": "stage",
    "hidden": "hidden",
    "exact_match": "eval_exact_match",
    "held_out_loss": "eval_held_out_loss",
}
"""The entries of an evaluation that go to the Trainer's log, with their names there. Loggers group by the prefix eval_."""


class Measured(NamedTuple):
    """An exact match and the number of examples that it was measured on."""

    exact_match: float
    examples: int


def measured(
    right: Callable[[Sequence[Example]], int], examples: Sequence[Example], first: int, limits: Sequence[float]
) -> Measured:
    """Return the exact match on the examples, or on the first ones alone if that decides as well.

    Args:
        right: asks examples and returns how many answers are right.
        examples: the held-out examples.
        first: number of examples to ask first. 0: ask all at once.
        limits: the exact matches that decisions depend on. The other examples are asked if the 95 % interval of the
            first ones holds one of them.
    """
    if not 0 < first < len(examples):
        return Measured(right(examples) / len(examples), len(examples))
    found = right(examples[:first])
    low, high = wilson(found, first)
    if not any(low <= limit <= high for limit in limits):
        return Measured(found / first, first)
    return Measured((found + right(examples[first:])) / len(examples), len(examples))


class EvaluationLog(TrainerCallback):
    """A callback that adds the latest evaluation to a Trainer's log. It must come before those that report the log."""

    def __init__(self) -> None:
        self.due: Json | None = None
        """An evaluation that the next log shall show."""

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add the evaluation to what is logged, and to the history."""
        logs: dict[str, Any] | None = kwargs.get("logs")
        if self.due is None or not logs or "loss" not in logs:
            return
        found = logged(self.due)
        self.due = None
        logs.update(found)
        if state.log_history:
            state.log_history[-1].update(found)


def logged(evaluation: Mapping[str, Any]) -> Json:
    """Return what a log shows of an evaluation."""
    return {name: evaluation[own] for own, name in LOGGED.items() if own in evaluation}
