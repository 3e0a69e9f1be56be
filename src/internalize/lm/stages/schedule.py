"""When each stage begins: at an update fixed beforehand, or once held-out accuracy allows it; and when one is given up."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from internalize.curriculum import largest_removal, smaller_removal
from internalize.errors import InputError
from internalize.lm.options import ScheduleOptions

GAIN: Final = 0.1
"""The part of its errors, or of its loss, that an attempt must lose to count as getting on."""
NEARLY: Final = 0.75
"""The part of what the last good stage had above chance: with more than that, an attempt is not given up, however slowly it
gets on."""


class Attempt(NamedTuple):
    """A stage, from its first update on, counted from 0. It lasts until the next attempt begins."""

    begins: int
    stage: int


class Best(NamedTuple):
    """How far an attempt has got on, and after how many updates of training it last did. Loss is None until it is measured."""

    accuracy: float
    loss: float | None
    at: int

    def after(self, done: int, accuracy: float, loss: float | None) -> "Best":
        """The same or, if a tenth of the errors or of the loss has gone since, what it has got to now."""
        if loss is not None and self.loss is None:
            return Best(self.accuracy, loss, self.at).after(done, accuracy, loss)
        right = 1 - accuracy <= (1 - GAIN) * (1 - self.accuracy)
        surer = loss is not None and self.loss is not None and loss <= (1 - GAIN) * self.loss
        if not (right or surer):
            return self
        return Best(accuracy if right else self.accuracy, loss if surer else self.loss, done)


class Schedule:
    """Which stage an update belongs to. That is a function of its number alone, so batches may be prepared ahead and a resumed
    run sees the same ones.

    Accuracy takes it from stage to stage; with ``targets``, after the first stage at once to the last one, and it may go
    back: an attempt that is below `NEARLY` and has not got on for ``patience`` updates, or has had all the updates it may
    have, is followed by one at the next target or, if that was it, by one that removes half as much, counted from the last
    good stage; the one after a good stage goes for the next target again. Any other attempt, and one at the very next stage,
    which cannot be made smaller, ends after ``stage_steps`` (that at the last stage never); its stage then counts as good,
    whatever it came to. Without ``targets`` all attempts are of this kind.
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
        """Exact match of whoever always gives the most frequent answer."""
        self.attempts = [Attempt(0, 0)]
        """In the order of training."""
        self.good = -1
        """By accuracy: the last stage that was passed, or had all the updates it may have."""
        self.held = 1.0
        """The accuracy with which that stage ended: what the next attempt can be expected to come to."""
        self.best = Best(0.0, None, 0)
        """How far the attempt under way has got on."""
        self.unsmoothed = 0
        """Updates before smoothing sets in."""
        if options.advance == "steps":
            first = options.first_steps or options.stage_steps
            self.attempts += (Attempt(first + (s - 1) * options.stage_steps, s) for s in range(1, stages))
        elif options.advance == "epochs":
            if updates_per_epoch is None:
                raise InputError(
                    "advance=epochs needs data with an end; a generated task has none: take steps or accuracy"
                )
            self.unsmoothed = first = round(options.first_epochs * updates_per_epoch)
            each = max(1, round(updates_per_epoch / options.stages_per_epoch))
            self.attempts += (Attempt(first + stage * each, stage) for stage in range(1, stages))

    def restart(self) -> None:
        """Forget the attempts that accuracy has led to."""
        if self.options.advance == "accuracy":
            self.attempts, self.good, self.held, self.best = [Attempt(0, 0)], -1, 1.0, Best(0.0, None, 0)

    @property
    def begins(self) -> list[int]:
        """The first update of every attempt."""
        return [attempt.begins for attempt in self.attempts]

    def attempt(self, update: int) -> int:
        """Which attempt an update belongs to."""
        return bisect_right(self.attempts, update, key=lambda attempt: attempt.begins) - 1

    def stage(self, update: int) -> int:
        """The stage of an update."""
        return self.attempts[self.attempt(update)].stage

    def goes_back(self, update: int) -> bool:
        """Whether with this update a smaller removal is tried, because a larger one has failed."""
        number = self.attempt(update)
        if not number or self.attempts[number].begins != update:
            return False
        return self.attempts[number].stage < self.attempts[number - 1].stage

    @property
    def may_go_back(self) -> bool:
        """Whether the latest attempt may yet be given up for a smaller one."""
        return self.targets is not None and self.attempts[-1].stage - self.good > 1

    def longest(self, stage: int) -> float:
        """Updates that an attempt at a stage may have when accuracy decides, if it is not given up."""
        if stage == self.stages - 1:
            return math.inf
        first = self.options.first_steps or max(self.options.steps // 2, 1)
        return self.options.stage_steps if stage else first

    def advance(self, done: int, accuracy: float, loss: float | None = None) -> bool:
        """After ``done`` updates, with that accuracy at their stage: whether another attempt is now set to begin. The loss, if it
        is known, tells that an attempt gets on before it has an answer right.

        The batch of the next update may be prepared already, so it begins with the one after it.
        """
        began, stage = self.attempts[-1]
        if self.options.advance != "accuracy" or done <= began or self.good == self.stages - 1:
            return False
        begins = done + 1
        compared = loss is None or self.best.loss is not None  # the first loss of an attempt has none before it
        self.best = self.best.after(done, accuracy, loss)
        passed, at_its_end = accuracy >= self.options.threshold, begins - began >= self.longest(stage)
        stands = (compared and begins - max(began, self.best.at) >= self.options.patience) or at_its_end
        nearly = self.chance + NEARLY * max(self.held - self.chance, 0)
        stalls = self.may_go_back and accuracy <= nearly and stands
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
