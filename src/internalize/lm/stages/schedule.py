"""The schedule: stages begin at fixed updates, or when held-out accuracy allows it, and `adaptive` may give one up."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from internalize.curriculum import largest_removal, smaller_removal
from internalize.errors import InputError
from internalize.lm.options import ScheduleOptions

GAIN: Final = 0.1
"""An attempt makes progress when its errors, or its loss, fall by this fraction."""
NEARLY: Final = 0.75
"""An attempt is not given up while its accuracy above chance exceeds this fraction of the last good stage's."""


class Attempt(NamedTuple):
    """An attempt at a stage, which begins at an update counted from 0 and lasts until the next attempt begins."""

    begins: int
    stage: int


class Best(NamedTuple):
    """The accuracy and loss of an attempt at its latest progress, and the number of updates then."""

    accuracy: float
    loss: float | None
    """None until it is measured."""
    at: int

    def after(self, done: int, accuracy: float, loss: float | None) -> "Best":
        """Return the new record if the errors or the loss have fallen by `GAIN`, otherwise the same one."""
        if loss is not None and self.loss is None:
            return Best(self.accuracy, loss, self.at).after(done, accuracy, loss)
        right = 1 - accuracy <= (1 - GAIN) * (1 - self.accuracy)
        surer = loss is not None and self.loss is not None and loss <= (1 - GAIN) * self.loss
        if not (right or surer):
            return self
        return Best(accuracy if right else self.accuracy, loss if surer else self.loss, done)


class Schedule:
    """The stage of each update. It depends on the update's number alone, so that batches can be prepared ahead and a
    resumed run sees the same batches.

    With ``advance="accuracy"`` an attempt passes when its accuracy reaches the threshold, and the next stage begins.
    With ``targets`` (`adaptive`) the first stage is followed by the last one, and training may go back. An attempt
    stalls if its accuracy is not above `NEARLY` and it has made no progress for ``patience`` updates, or used all its
    updates. Then the next attempt is at the first target after the last good stage or, if the stalled attempt was at
    that target, removes half as much beyond the last good stage. The attempt after a good stage is at the next target
    again.

    An attempt at the stage right after the last good one cannot be made smaller. It ends after ``stage_steps`` updates
    (at the last stage, never), and its stage then counts as good, whatever its accuracy. The same holds for an attempt
    whose accuracy is above `NEARLY`, and for all attempts without ``targets``.
    """

    def __init__(
        self,
        options: ScheduleOptions,
        stages: int,
        updates_per_epoch: int | None,
        targets: Sequence[int] | None = None,
        chance: float = 0.0,
    ) -> None:
        self.options = options
        self.stages = stages
        self.targets = targets
        self.chance = chance
        """Exact match of always giving the most frequent answer."""
        self.attempts = [Attempt(0, 0)]
        """All attempts, in the order of training."""
        self.good = -1
        """The last good stage: it was passed, or used all its updates. Only with ``advance="accuracy"``."""
        self.held = 1.0
        """The accuracy at the end of the last good stage, with which the next attempt is compared."""
        self.best = Best(0.0, None, 0)
        """The latest progress of the current attempt."""
        self.unsmoothed = 0
        """Number of updates before smoothing begins."""
        if options.advance == "steps":
            first = options.first_steps or options.stage_steps
            self.attempts += (Attempt(first + (s - 1) * options.stage_steps, s) for s in range(1, stages))
        elif options.advance == "epochs":
            if updates_per_epoch is None:
                raise InputError(
                    "advance=epochs needs data with an end; a generated task has none: use advance=steps or accuracy"
                )
            self.unsmoothed = first = round(options.first_epochs * updates_per_epoch)
            each = round(updates_per_epoch / options.stages_per_epoch)
            # As published: if this is 0, each update removes more, the first one included, whatever is shown before.
            self.attempts += (
                Attempt(first + stage * each if each else max(first, stage - 1), stage) for stage in range(1, stages)
            )

    def restart(self) -> None:
        """Return to the first attempt, if accuracy decides about attempts."""
        if self.options.advance == "accuracy":
            self.attempts, self.good, self.held, self.best = [Attempt(0, 0)], -1, 1.0, Best(0.0, None, 0)

    def records(self, number: int) -> int:
        """Return how many attempts before this one have an update. Those that begin with the next one have none."""
        return sum(one.begins < after.begins for one, after in pairwise(self.attempts[: number + 1]))

    @property
    def begins(self) -> list[int]:
        """The first update of every attempt."""
        return [attempt.begins for attempt in self.attempts]

    def attempt(self, update: int) -> int:
        """Return the number of the attempt that an update belongs to, from 0."""
        return bisect_right(self.attempts, update, key=lambda attempt: attempt.begins) - 1

    def stage(self, update: int) -> int:
        """Return the stage of an update."""
        return self.attempts[self.attempt(update)].stage

    def goes_back(self, update: int) -> bool:
        """Return whether an attempt at a smaller removal begins with this update, because a larger one stalled."""
        number = self.attempt(update)
        if not number or self.attempts[number].begins != update:
            return False
        return self.attempts[number].stage < self.attempts[number - 1].stage

    @property
    def may_go_back(self) -> bool:
        """Whether the latest attempt could be given up for a smaller one."""
        return self.targets is not None and self.attempts[-1].stage - self.good > 1

    @property
    def nearly(self) -> float:
        """The accuracy above which an attempt has not stalled."""
        return self.chance + NEARLY * max(self.held - self.chance, 0)

    def longest(self, stage: int) -> float:
        """Return the largest number of updates of an attempt at a stage when accuracy decides."""
        if stage == self.stages - 1:
            return math.inf
        first = self.options.first_steps or max(self.options.steps // 2, 1)
        return self.options.stage_steps if stage else first

    def advance(self, done: int, accuracy: float, loss: float | None = None) -> bool:
        """Decide after ``done`` updates, from the accuracy at their stage, and return whether this set the next
        attempt.

        The loss, if it is known, shows progress before any answer is right. The batch of the next update may already be
        prepared, so the next attempt begins with the update after it.
        """
        began, stage = self.attempts[-1]
        if self.options.advance != "accuracy" or done <= began or self.good == self.stages - 1:
            return False
        begins = done + 1
        compared = (
            loss is None or self.best.loss is not None
        )  # the first loss of an attempt has nothing to compare with
        self.best = self.best.after(done, accuracy, loss)
        passed, at_its_end = accuracy >= self.options.threshold, begins - began >= self.longest(stage)
        stands = (compared and begins - max(began, self.best.at) >= self.options.patience) or at_its_end
        stalls = self.may_go_back and accuracy <= self.nearly and stands
        if not (passed or stalls or at_its_end):
            return False
        self.best = Best(0.0, None, begins)
        if passed or not stalls:
            self.good, self.held = stage, accuracy
            if stage == self.stages - 1:
                return False
            following = stage + 1 if self.targets is None else largest_removal(stage, self.targets)
        else:
            assert self.targets is not None
            following = smaller_removal(self.good, stage, self.targets)
        self.attempts.append(Attempt(begins, following))
        return True
