"""When each stage begins: at an update fixed beforehand, or once held-out accuracy allows it."""

import math
from bisect import bisect_right

from internalize.errors import InputError
from internalize.lm.options import ScheduleOptions


class Schedule:
    """``begins[s]`` is the first update of stage s, counted from 0. Which stage an update belongs to is a function of its
    number alone, so batches may be prepared ahead and a resumed run sees the same ones.
    """

    def __init__(self, options: ScheduleOptions, stages: int, updates_per_epoch: int | None) -> None:
        self.options = options
        self.stages = stages
        self.begins = [0]
        self.unsmoothed = 0
        """Updates before smoothing sets in."""
        if options.advance == "steps":
            first = options.first_steps or options.stage_steps
            self.begins = [0, *(first + stage * options.stage_steps for stage in range(stages - 1))]
        elif options.advance == "epochs":
            if updates_per_epoch is None:
                raise InputError(
                    "advance=epochs needs data with an end; a generated task has none: take steps or accuracy"
                )
            self.unsmoothed = first = round(options.first_epochs * updates_per_epoch)
            each = max(1, round(updates_per_epoch / options.stages_per_epoch))
            self.begins = [0, *(first + stage * each for stage in range(1, stages))]

    def restart(self) -> None:
        """Forget the stages that accuracy has allowed."""
        if self.options.advance == "accuracy":
            self.begins = [0]

    def stage(self, update: int) -> int:
        """The stage of an update."""
        return bisect_right(self.begins, update) - 1

    def longest(self, stage: int) -> float:
        """Updates that a stage may have when accuracy decides."""
        if stage == self.stages - 1:
            return math.inf
        first = self.options.first_steps or max(self.options.steps // 2, 1)
        return self.options.stage_steps if stage else first

    def advance(self, done: int, accuracy: float) -> bool:
        """After ``done`` updates, with that accuracy at their stage: whether the next stage is now set to begin.

        The batch of the next update may be prepared already, so a new stage begins with the one after it.
        """
        stage = len(self.begins) - 1
        if self.options.advance != "accuracy" or stage + 1 >= self.stages or done <= self.begins[-1]:
            return False
        begins = done + 1
        if accuracy < self.options.threshold and begins - self.begins[-1] < self.longest(stage):
            return False
        self.begins.append(begins)
        return True
