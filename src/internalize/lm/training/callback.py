"""The callback that leads a Trainer through the stages.

It evaluates, decides when a stage ends, records in checkpoints where the curriculum is, and restores the weights of the
last good stage when the schedule goes back.
"""

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.options import LmTrainOptions
from internalize.lm.stages.chains import TextFormat
from internalize.lm.stages.removal import TextStages
from internalize.lm.stages.schedule import Attempt, Best, Schedule
from internalize.lm.training.evaluations import EvaluationLog, Measured, measured
from internalize.lm.training.generation import generate_answers
from internalize.lm.training.supervised_loss import held_out_loss
from internalize.lm.training.trainer_checkpoints import (
    BEST,
    FIRST_STAGE,
    GOOD,
    PLACE,
    check_restored,
    checkpoint_digests,
    read_place,
    trained_parameters,
    whole_checkpoints,
)
from internalize.storage.files import Json, load_tensors, present, save_tensors, sealed, write_json


@dataclass(frozen=True)
class RunHooks:
    """The hooks through which a run folder takes part in training. The defaults are for a user's own Trainer."""

    on_metrics: Callable[[Json], None] = lambda metrics: None
    """Called with every evaluation."""
    on_stage_end: Callable[[int], None] = lambda stage: None
    """Called with every stage that has ended, counted from 0, before a checkpoint records its end."""
    on_first_stage: Callable[[Path, Json], None] | None = None
    """Called when the first stage has ended, with the checkpoint of that update and its place before it is written."""
    saved_place: Callable[[], Json] = dict
    """Returns further entries for the place of a checkpoint."""
    interrupted: Callable[[], bool] = lambda: False
    """Called after every update. Returns whether to save and stop."""
    keep_history: bool = True
    """Whether the Trainer's log may grow. With one line per update it makes checkpoints long."""
    keep_checkpoints: int | None = None
    """Number of checkpoints to keep; None keeps all. The Trainer's own option could remove a user's folder."""


class StageCallback(TrainerCallback):
    """A callback that evaluates, follows the schedule of stages, and resumes from the Trainer's checkpoints."""

    def __init__(
        self,
        options: LmTrainOptions,
        text: TextFormat,
        stages: TextStages,
        schedule: Schedule,
        validation: Sequence[Example],
    ) -> None:
        self.options, self.text, self.stages, self.schedule = options, text, stages, schedule
        self.validation = validation[: options.eval_examples]
        if not self.validation:
            raise InputError("no examples are held out, and stages are evaluated on them; give some as validation")
        self.finished_stages: list[Json] = []
        """One record for each attempt that has ended, as in the result."""
        self.latest: Json = {}
        """The last evaluation."""
        self.ended: int | None = None
        """The number of updates after which training was complete; None before that."""
        self.seconds = 0.0
        self.hooks = RunHooks()
        self.on_push: Callable[[Path], None] = lambda folder: None
        """Called with the folder that a Trainer is about to upload to a hub."""
        self.log = EvaluationLog()
        """Shows evaluations in the Trainer's log."""
        self.best: tuple[float, int] | None = None
        """With `keep_best`: the highest exact match with the whole chain hidden, and the number of updates then."""
        self._losses = (0.0, 0)
        self._good: dict[str, torch.Tensor] = {}
        self._best: dict[str, torch.Tensor] = {}
        self._stop_at: int | None = None
        self._first_ended: int | None = None
        self._began = 0.0
        self._evaluated: Json | None = None

    # Events, in the order in which a Trainer raises them

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse arguments under which batches would not belong to their stage. Restore a checkpoint's place."""
        batch = args.train_batch_size * args.gradient_accumulation_steps * _processes(args)[1]
        if args.train_sampling_strategy != "sequential":
            raise InputError(
                "TrainingArguments need train_sampling_strategy='sequential': the collator shuffles by itself"
            )
        if state.max_steps > self.options.steps:
            raise InputError(
                f"TrainingArguments make {state.max_steps} updates, the options {self.options.steps}: after these the "
                "data would start again; take max_steps from arguments()"
            )
        if args.ignore_data_skip:
            raise InputError("TrainingArguments need ignore_data_skip=False: positions decide what a batch hides")
        if batch != self.options.batch:
            raise InputError(f"TrainingArguments make batches of {batch}, the options of {self.options.batch}")
        if args.dataloader_num_workers and self.options.advance == "accuracy":
            raise InputError("advance=accuracy needs dataloader_num_workers=0: workers would not learn of a new stage")
        self.schedule.restart()
        self.finished_stages, self.ended, self._stop_at, self._losses, self._good = [], None, None, (0.0, 0), {}
        self.best, self._best = None, {}
        if state.global_step:
            checkpoint = Path(args.resume_from_checkpoint or f"{args.output_dir}/checkpoint-{state.global_step}")
            shared = self.restore(checkpoint)
            check_restored(checkpoint, kwargs["model"], self._good, kwargs["optimizer"])
            ended = shared and self._decide(kwargs["model"], args, state, self.latest["exact_match"], None)
            assert ended == shared, "runs that share their first stage end it at the same update"
        state.compute_steps(args, state.max_steps)  # by the present arguments, not those of the checkpoint
        self._began = time.perf_counter() - self.seconds

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the last good weights and start a new optimizer when a smaller removal is tried.

        With ``reset_optimizer`` every stage starts a new optimizer. At the end of training, lower the learning rate to
        zero.
        """
        back = self.schedule.goes_back(state.global_step)
        if back:
            restore_weights(kwargs["model"], self._good)
            self._good = self._good if self.schedule.may_go_back else {}
        if back or (self.options.reset_optimizer and state.global_step in self.schedule.begins[1:]):
            kwargs["optimizer"].state.clear()
        left = min(state.max_steps, self._stop_at or state.max_steps) - state.global_step
        falling = self._annealed_updates(state.max_steps)
        if args.lr_scheduler_type in ("constant", "constant_with_warmup") and left <= falling:
            for group in kwargs["optimizer"].param_groups:
                group["lr"] *= left / (falling + 1)  # the Trainer's schedule sets it again after each update

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Evaluate if an evaluation is due, and let the schedule decide about the stage."""
        done = state.global_step
        number, stage = self.schedule.attempt(done - 1), self.schedule.stage(done - 1)
        ends, at_end = self._ends(done), done in (self._stop_at, state.max_steps)
        asked = not (self.options.skip_stage_ends and number)
        if done % self.options.eval_every == 0 or at_end or (ends and asked):
            model = kwargs["model"]
            accuracy, examples = self._evaluate(model, stage, args, every=at_end)
            self._keep_if_best(model, stage, accuracy, done)
            loss = None
            if self.schedule.may_go_back:
                loss = _finite(self.held_out_loss(model, stage, args), done)
            control.should_log = True  # the Trainer knows the training loss and passes it to on_log
            self._evaluated = {
                "step": done,
                "stage": stage + 1,
                "hidden": self.stages.hidden[stage],
                "samples": done * self.options.batch,
                "tokens": int(state.num_input_tokens_seen),
                "exact_match": accuracy,
                **({"examples": examples} if self.options.eval_first else {}),
                **({} if loss is None else {"held_out_loss": loss}),
            }
            self.log.due = self._evaluated
            stage_ended = self._decide(model, args, state, accuracy, loss)
            if done in (self._stop_at, state.max_steps):
                if len(self.finished_stages) == self.schedule.records(number):
                    self._end_stage(model, args, number, accuracy, done)
                self.ended = done
                if self.best and accuracy < self.best[0]:
                    restore_weights(model, self._best)
                control.should_training_stop = True
                if done < state.max_steps:
                    control.should_save = False  # a Trainer resumed from such a checkpoint would continue training
            elif stage_ended and number == 0 and self.hooks.on_first_stage:
                self._first_ended = done
                control.should_save = True
        elif ends:
            self._end_stage(kwargs["model"], args, number, None, self.schedule.attempts[number + 1].begins)
        if self.ended is None and self.hooks.interrupted():
            control.should_save = control.should_training_stop = True

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Report the evaluation together with the mean training loss since the previous evaluation."""
        if "loss" not in kwargs.get("logs", {}):
            return
        loss = _finite(float(kwargs["logs"]["loss"]), state.global_step)
        self._losses = (self._losses[0] + loss, self._losses[1] + 1)
        self.log.on_log(args, state, control, **kwargs)  # unless it came first in the Trainer's list, and has done it
        if not self.hooks.keep_history:
            state.log_history[:] = [line for line in state.log_history if "stage" in line]
        if self._evaluated is not None:
            self.seconds = time.perf_counter() - self._began
            loss = self._losses[0] / self._losses[1]
            self.latest = {**self._evaluated, "loss": loss, "seconds": round(self.seconds, 3)}
            self._evaluated, self._losses = None, (0.0, 0)
            if args.process_index == 0:
                self.hooks.on_metrics(self.latest)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Record in the checkpoint where the curriculum is."""
        if args.world_size > 1:
            torch.distributed.barrier()  # until every process has written its part
        if args.process_index == 0:
            folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            self.seconds = time.perf_counter() - self._began
            if self._good:
                save_tensors(folder / GOOD, self._good)
            if self._best:
                save_tensors(folder / BEST, self._best)
            place = {
                "step": state.global_step,
                "attempts": self.schedule.attempts,
                "good": self.schedule.good,
                "held": self.schedule.held,
                "best": self.schedule.best,
                "stages": self.finished_stages,
                "latest": self.latest,
                "stop_at": self._stop_at,
                "losses": self._losses,
                "seconds": self.seconds,
                "files": checkpoint_digests(folder),
                **({"best_kept": self.best} if self.best else {}),
                **self.hooks.saved_place(),
            }
            if self.hooks.on_first_stage and self._first_ended == state.global_step:
                self.hooks.on_first_stage(folder, place)
            write_json(folder / PLACE, sealed(place))
            if self.hooks.keep_checkpoints:
                for old in whole_checkpoints(folder.parent)[: -self.hooks.keep_checkpoints]:
                    shutil.rmtree(old, ignore_errors=True)

    def on_push_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add what our commands need to the folder that the Trainer uploads."""
        if args.process_index == 0:
            self.on_push(Path(str(args.output_dir)))

    # Helpers of the events

    def _annealed_updates(self, steps: int) -> int:
        """Return the number of updates at the end over which the learning rate falls."""
        return min(self.options.consolidate, steps // 4)

    def _ends(self, done: int) -> bool:
        """Return whether an attempt ends here by its number of updates and its end is not recorded yet."""
        number = self.schedule.attempt(done - 1)
        return self.schedule.attempt(done) != number and len(self.finished_stages) == self.schedule.records(number)

    def _decide(
        self, model: Any, args: TrainingArguments, state: TrainerState, accuracy: float, loss: float | None
    ) -> bool:
        """Decide after an evaluation whether the stage or training ends, and return whether the stage does."""
        done = state.global_step
        number, stage = self.schedule.attempt(done - 1), self.schedule.stage(done - 1)
        last = self.schedule.stage(done) == stage == self.stages.last  # and not given up already
        if self._stop_at is None and last and accuracy >= (self.options.stop_at or 2):
            self._stop_at = done + self._annealed_updates(state.max_steps)
        good = self.schedule.good
        ends = self._ends(done) or (self._stop_at is None and self.schedule.advance(done, accuracy, loss))
        if ends:
            next_begins = self.schedule.attempts[number + 1].begins
            self._end_stage(model, args, number, accuracy, min(next_begins, state.max_steps))
        if self.schedule.good != good:
            self._good = trained_weights(model) if self.schedule.may_go_back else {}
        return ends

    def _end_stage(self, model: Any, args: TrainingArguments, number: int, accuracy: float | None, end: int) -> None:
        """Record the end of an attempt, whose accuracy may not have been measured."""
        began, stage = self.schedule.attempts[number]
        record: Json = {
            "stage": stage + 1,
            "hidden": self.stages.hidden[stage],
            "steps": end - began,
            "exact_match": accuracy,
            "passed": None if accuracy is None else accuracy >= self.options.threshold,
        }
        if self.options.budgets == "stages":
            record["budgets"] = [self.exact_match(model, shown, args) for shown in self.stages.targets]
        if args.process_index == 0:
            self.hooks.on_stage_end(stage)
        self.finished_stages.append(record)

    def exact_match(self, model: Any, stage: int, args: TrainingArguments | None = None) -> float:
        """Return the greedy exact match on the held-out examples at a stage. Processes share the examples."""
        return self._right(model, stage, args, self.validation) / len(self.validation)

    def _right(self, model: Any, stage: int, args: TrainingArguments | None, examples: Sequence[Example]) -> int:
        """Return how many of the examples the model answers right."""
        rank, world = _processes(args) if args else (0, 1)
        mine = examples[rank::world]
        right = sum(generate_answers(model, self.text, self.stages, mine, stage).right(mine)) if mine else 0
        return round(_summed([right], model, world)[0])

    def _evaluate(self, model: Any, stage: int, args: TrainingArguments, *, every: bool) -> Measured:
        """Measure exact match at a stage: on every example, or on as many as decisions need (`eval_first`)."""
        schedule, last, limits = self.schedule, stage == self.stages.last, list[float]()
        if schedule.good < self.stages.last:
            limits.append(self.options.threshold)
        if last and self._stop_at is None and self.options.stop_at is not None:
            limits.append(self.options.stop_at)
        if schedule.may_go_back:
            limits.append(schedule.nearly)
        every = every or (last and self.options.keep_best)  # or lucky examples would decide which weights are the best
        right = partial(self._right, model, stage, args)
        return measured(right, self.validation, 0 if every else self.options.eval_first, limits)

    def _keep_if_best(self, model: Any, stage: int, accuracy: float, done: int) -> None:
        """Keep the weights if no earlier ones had this exact match with the whole chain hidden."""
        if self.options.keep_best and stage == self.stages.last and (not self.best or accuracy >= self.best[0]):
            self.best, self._best = (accuracy, done), trained_weights(model)

    def held_out_loss(self, model: Any, stage: int, args: TrainingArguments) -> float:
        """Return the held-out loss per token that a stage supervises. Processes share the examples."""
        rank, world = _processes(args)
        examples = self.validation[: self.options.eval_first or None]  # the same ones each time
        at_once = max(self.options.batch // self.options.accumulate // world, 1)
        loss, tokens = held_out_loss(model, self.text, self.stages, examples[rank::world], stage, at_once)
        loss, tokens = _summed([loss, tokens], model, world)
        return loss / tokens

    def restore(self, checkpoint: Path) -> bool:
        """Restore the place of a checkpoint, and return whether it is the end of a first stage that runs share."""
        if not present(checkpoint / PLACE):
            raise InputError(
                f"{checkpoint / PLACE} is missing, which says where the curriculum is; to continue from another folder, "
                "give resume_from_checkpoint of TrainingArguments, too"
            )
        place = read_place(checkpoint)
        if FIRST_STAGE not in place:
            self.schedule.attempts = [Attempt(*pair) for pair in place["attempts"]]
            if max(stage for _, stage in self.schedule.attempts) > self.stages.last:
                raise InputError(f"{checkpoint / PLACE} is damaged: there are {self.stages.count} stages")
            self.schedule.good, self.schedule.held = place["good"], place["held"]
            self.schedule.best = Best(*place["best"])
        self._good = load_tensors(checkpoint / GOOD) if (checkpoint / GOOD).exists() else {}
        if best := place.get("best_kept"):
            self.best, self._best = (best[0], best[1]), load_tensors(checkpoint / BEST)
        self.finished_stages, self.latest, self.seconds = place["stages"], place["latest"], place["seconds"]
        self._stop_at, self._losses = place["stop_at"], (place["losses"][0], place["losses"][1])
        return FIRST_STAGE in place


def trained_weights(model: Any) -> dict[str, torch.Tensor]:
    """Return a copy of the trained parameters in the CPU's memory."""
    return {name: weight.detach().to("cpu", copy=True) for name, weight in trained_parameters(model).items()}


def restore_weights(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Set a model's trained parameters to these values."""
    trained = trained_parameters(model)
    assert trained.keys() == weights.keys(), "the kept weights are those of the trained parameters"
    with torch.no_grad():
        for name, weight in trained.items():
            weight.copy_(weights[name])


def _processes(args: Any) -> tuple[int, int]:
    """Return the index of this process and the number of processes."""
    return args.process_index, args.world_size


def _finite(loss: float, updates: int) -> float:
    """Return the loss, or refuse one that is not finite."""
    if not math.isfinite(loss):
        raise InputError(f"the loss is {loss} after {updates} updates; a smaller --lr or --clip may help")
    return loss


def _summed(numbers: list[float], model: Any, processes: int) -> list[float]:
    """Return the sums of the numbers over all processes."""
    if processes == 1:
        return numbers
    total = torch.tensor(numbers, device=model.device, dtype=torch.float64)
    torch.distributed.all_reduce(total)
    return [float(number) for number in total]
