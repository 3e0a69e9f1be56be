"""`lm train`: trains a causal language model through the stages of a curriculum with a plain Trainer, in a run folder.

The Trainer writes its checkpoints below the run's ``checkpoint/``. A checkpoint is complete once it contains our
`PLACE` file. What else a resumed run needs (its stage and its data) is a function of the update's number.
"""

import contextlib
import copy
import errno
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, NotRequired, TypedDict

from msgspec import Meta

from internalize.errors import InputError
from internalize.lm.data.source import Source, digests_of, source_of
from internalize.lm.data.tasks import is_task
from internalize.lm.options import CurriculumOptions, LmTrainOptions, options_from_json
from internalize.lm.stages.lengths import expected_lengths
from internalize.lm.training.adapters import save_adapters
from internalize.lm.training.answer_costs import answer_costs
from internalize.lm.training.callback import RunHooks
from internalize.lm.training.first_stage import SharedStage
from internalize.lm.training.flops import model_size
from internalize.lm.training.internalization import Internalization
from internalize.lm.training.memory import check_training_memory
from internalize.lm.training.models import check_vocabulary, is_disk_message, load_tokenizer, make_model, positions_of
from internalize.lm.training.trainer_checkpoints import read_by_trainer, read_place, whole_checkpoints
from internalize.lm.training.unusual import unusual
from internalize.parallel.interrupt import Interrupted, Interruptible
from internalize.parallel.launcher import launched
from internalize.storage.files import Json, check_schema
from internalize.storage.runs import Run, begin_runs, trainer_checkpoints

KIND = "lm-train"
STAGES: Final = "stages"
"""Folder in a run that holds the model at the end of each stage, with ``keep_stages``."""
EXPECTED: Final = 2_000
"""Number of training examples whose lengths give the expected operations of a run."""
ADAPTERS: Final = "adapter"
"""Folder in a run that holds the adapters by themselves, with ``lora_keep``."""


@dataclass(frozen=True)
class LmTrainProgress:
    """The state of training, for a progress display."""

    done: int
    total: int
    stages: int
    metrics: Json
    finished: Sequence[Json]
    """One record for each attempt that has ended, as in the result."""


def train(
    options: LmTrainOptions,
    seed: int = 0,
    run: Run | None = None,
    *,
    device: str = "cpu",
    resume: bool = False,
    checkpoint_steps: int = 200,
    report_to: Sequence[str] = (),
    report: Callable[[LmTrainProgress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda line: None,
    shared: SharedStage | None = None,
) -> Json:
    """Train a model and return the result: exact match with the whole chain hidden, and a record of every attempt.

    Under torchrun or `accelerate launch` every process calls this function, and the first one writes.

    Args:
        options: the settings.
        seed: draws the task, a new model's weights, the held-out examples, the order of the data and the replayed
            examples.
        run: the run folder. Default: nothing is kept.
        device: the device that trains. Each process of a launcher takes its own.
        resume: continue a run that was begun. The result of a finished run is returned unchanged.
        checkpoint_steps: updates between checkpoints.
        report_to: loggers of the Trainer that record losses and evaluations, such as tensorboard or wandb.
        report: called at every evaluation.
        say: called with each line that the user should see.
        shared: the first stage that the run shares with others, if it shares one. Needs ``run``.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
    """
    here = launched()
    processes, first = here.count, here.first
    if options.batch % (options.accumulate * processes):
        raise InputError(
            f"batch={options.batch} cannot be split into accumulate={options.accumulate} parts on {processes} processes"
        )
    if ":" in device:
        raise InputError(
            f"device={device!r}: use cuda, and choose the GPU with CUDA_VISIBLE_DEVICES (as for any Trainer)"
        )
    if run is not None:
        options = as_begun(options, run)
    if run is not None and first:
        run.check(KIND, run_config(options, seed), resume=resume)
    if run is not None and run.finished:
        if first:
            check_finished(run)
            run.drop_trainer()  # left by a process that was killed after it wrote the result
        return run.result
    work, model = _prepare(options, seed, say if first else lambda line: None, processes, device)
    config, options = run_config(options, seed), work.options
    if device == "cpu" and options.dtype == "bfloat16":
        model.set_attn_implementation("eager")  # the backward pass of torch's attention is much slower there
    with contextlib.ExitStack() as held:
        if run is not None and first:  # only now, so that bad data or a bad model leave no folder behind
            held.enter_context(begin_runs([run], KIND, [config], resume=resume))
        output = run.path / "checkpoint" if run else Path(held.enter_context(tempfile.TemporaryDirectory()))
        interrupt = held.enter_context(Interruptible(active=run is not None and processes == 1))
        loggers = list(report_to)
        trainer = _trainer(work, model, output, device, processes, checkpoint_steps if run else 0, loggers)
        if run is not None and shared is not None:
            shared.take_over(run, work)
        checkpoint = _rewind_to_checkpoint(run, output, first, say) if run else None

        def keep(metrics: Json) -> None:
            if run is not None:
                run.append_metrics(metrics)
            finished = work.callback.finished_stages
            report(LmTrainProgress(metrics["step"], options.steps, work.stages.count, metrics, finished))

        def end_stage(stage: int) -> None:
            if run is not None and options.keep_stages:  # the model trains on, so adapters are merged in a copy
                work.save(
                    run.path / STAGES / f"stage-{stage + 1}", copy.deepcopy(model) if options.lora_rank else model
                )

        owned = shared if run is not None and shared is not None and shared.owner.path == run.path else None
        work.callback.hooks = RunHooks(
            on_metrics=keep,
            on_stage_end=end_stage,
            on_first_stage=(lambda folder, place: owned.keep(folder, place, work)) if owned else None,
            saved_place=lambda: {"metrics_bytes": _synced_size(run.path / "metrics.jsonl")} if run else {},
            interrupted=lambda: interrupt.requested,
            keep_history=False,
            keep_checkpoints=2,
        )
        with _written_by_trainer(output), read_by_trainer(checkpoint):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if interrupt.requested and work.callback.ended is None:
            raise Interrupted("--resume continues")
        result = _result(work, model, trainer.state.global_step, int(trainer.state.num_input_tokens_seen))
        if run is not None and first:
            if options.lora_keep:
                save_adapters(run.path / ADAPTERS, model, options.model)
            work.save(run.path / "model", model, result)
            run.finish(result)  # the run is now finished; what follows only removes files
            run.drop_trainer()
    return result


class _StageRecord(TypedDict):
    stage: Annotated[int, Meta(ge=1)]
    steps: int


class LmResult(TypedDict):
    """The entries of a run's result that commands show."""

    exact_match: Annotated[float, Meta(ge=0, le=1)]
    word_match: NotRequired[Annotated[float, Meta(ge=0, le=1)]]
    examples: Annotated[int, Meta(ge=1)]
    stages: Annotated[list[_StageRecord], Meta(min_length=1)]
    steps: int
    tokens: int
    tokens_per_answer: float
    seconds: float


class LmMetrics(TypedDict):
    """The entries of an evaluation that commands show."""

    step: int
    stage: Annotated[int, Meta(ge=1)]
    exact_match: float


def metrics_of(run: Run) -> list[Json]:
    """Return the evaluations of a run. Refuse malformed ones."""
    metrics = run.metrics()
    check_schema(metrics, list[LmMetrics], run.path / "metrics.jsonl")
    return metrics


def check_finished(run: Run) -> None:
    """Refuse a finished run whose result or metrics lack entries that commands show."""
    check_schema(run.result, LmResult, run.path / "result.json")
    metrics_of(run)


def _prepare(
    options: LmTrainOptions, seed: int, say: Callable[[str], None], processes: int, device: str
) -> tuple[Internalization, Any]:
    """Open the data and the model, and check that they fit each other and this machine's memory."""
    work = Internalization(options, load_tokenizer(options.model), seed=seed, say=say)
    config = work.config
    check_training_memory(options, config, work.longest, processes=processes, device=device)
    # Beside adapters in mixed precision, the model's own weights may keep the precision of their file.
    small, slot = bool(options.lora_rank) and options.dtype == "bfloat16", work.text.slot if work.new_slot else None
    model = make_model(options, config, seed, small=small, new_slot=slot)
    check_vocabulary(options.model, model, work.text, work.callback.validation, say)
    work.collator.longest = positions_of(model.config)
    if chains := work.text.chains(work.callback.validation):
        costs = answer_costs(model_size(options, config), work.stages, chains)
        if costs.warning:
            say(costs.warning)
    options = work.options
    for line in unusual(options, work.source.size):
        say(line)
    if options.advance != "accuracy" and work.schedule.begins[-1] >= options.steps:
        say(f"steps={options.steps} end before the last stage, which begins after {work.schedule.begins[-1]} updates")
    return work, model


@contextlib.contextmanager
def _of_loggers(report_to: Sequence[str]) -> Generator[None]:
    """Turn a Trainer's errors about loggers that it does not know or cannot use into an `InputError`."""
    try:
        yield
    except (ValueError, RuntimeError, ImportError) as error:
        if not report_to:
            raise
        raise InputError(f"report_to={','.join(report_to)}: {' '.join(str(error).split())[:300]}") from error


@contextlib.contextmanager
def _written_by_trainer(output: Path) -> Generator[None]:
    """Turn a Trainer's errors from a full disk or a missing folder into an `InputError`."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if not _is_disk_error(error, output):
            raise
        name, reason = getattr(error, "filename", None) or output, getattr(error, "strerror", None) or error
        raise InputError(f"cannot write {name}: {' '.join(str(reason).split())}") from error


def _is_disk_error(error: Exception, folder: Path) -> bool:
    """Return whether an error is about a file below the folder or, if it names no file, about a disk."""
    import torch

    if isinstance(error, RuntimeError):  # torch has no exception of its own for a file that it cannot write
        return any(frame.f_code is torch.save.__code__ for frame, _ in traceback.walk_tb(error.__traceback__))
    if not isinstance(error, OSError):
        return is_disk_message(error)
    if error.filename is None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)
    return Path(os.fsdecode(error.filename)).absolute().is_relative_to(folder.absolute())


def _trainer(
    work: Internalization,
    model: Any,
    output: Path,
    device: str,
    processes: int,
    checkpoint_steps: int,
    report_to: list[str],
) -> Any:
    """Return the Trainer of the run."""
    from transformers import PrinterCallback, ProgressCallback, Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(output),
        **work.arguments(processes),
        use_cpu=device == "cpu",
        logging_nan_inf_filter=False,  # a loss that is not finite must be reported, not skipped
        logging_steps=1,  # the mean over several updates would be lost if the process were killed between them
        save_strategy="steps" if checkpoint_steps else "no",
        save_steps=checkpoint_steps or 500,
        report_to=report_to or "none",
        disable_tqdm=True,
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # pyright: ignore[reportPrivateUsage]  (one GPU per process; a launcher starts more)
    with _written_by_trainer(output), _of_loggers(report_to):
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=work.rows,
            data_collator=work.collator,
            compute_loss_func=work.loss(model),
        )
    work.attach(trainer)
    for noisy in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(noisy)
    return trainer


def _rewind_to_checkpoint(run: Run, output: Path, first: bool, say: Callable[[str], None]) -> Path | None:
    """Return the last complete checkpoint, and cut the metrics back to it. The first process decides for all."""
    import torch.distributed as dist

    found: list[Path | None] = [None]
    if first:
        whole, metrics = whole_checkpoints(output), run.path / "metrics.jsonl"
        place = None
        if whole:
            found[0], place = whole[-1], read_place(whole[-1])
            size = place.get("metrics_bytes")
            if not isinstance(size, int):
                raise InputError(f"{whole[-1]} is not a checkpoint of a run folder; choose another --out")
            if _synced_size(metrics) < size:
                raise InputError(f"{metrics} is damaged: it is shorter than when the checkpoint was made")
            run.metrics(size)  # refuses damaged metrics before anything is changed
        run.rewind_metrics(place, say)
        for path in trainer_checkpoints(output):
            if path not in whole:
                shutil.rmtree(path, ignore_errors=True)  # the process was killed while it saved
    if dist.is_initialized():
        dist.broadcast_object_list(found)
    return found[0]


def _result(work: Internalization, model: Any, steps: int, tokens: int) -> Json:
    """Return the result, which `--json` prints."""
    options, callback = work.options, work.callback
    test = work.source.test(options.test_examples)
    answers = work.answers(model, test)
    result: Json = {
        "seed": work.seed,
        "method": options.method,
        **answers.summary(test),
        "tokens_per_answer": answers.generated_tokens / len(test),
        "stages": callback.finished_stages,
        "steps": steps,
        "samples": steps * options.batch,
        "tokens": tokens,
        "flops": _training_flops(work, steps),
        "seconds": round(callback.seconds, 3),
    }
    if callback.best:
        result["best_step"] = callback.best[1]
    if options.budgets != "never":
        result["budgets"] = [
            {"stage": stage + 1, "hidden": work.stages.hidden[stage], "exact_match": callback.exact_match(model, stage)}
            for stage in work.stages.targets
        ]
    return result


def _training_flops(work: Internalization, steps: int) -> float:
    """Return the operations of the updates that were made, by the formula of `flops.py` and from expected lengths."""
    size, schedule = model_size(work.options, work.config), work.schedule
    chains = work.text.chains(work.leveled(work.source.training_sample(min(work.source.size or EXPECTED, EXPECTED))))
    total = 0.0
    borders = [(0, 0), *schedule.attempts[1:], (steps, 0)]
    for smooth in (False, True):
        lengths, squares = expected_lengths(work.stages, chains, smooth=smooth).tolist()
        for (begin, stage), (end, _) in pairwise(borders):
            updates = max(min(end, steps) - max(begin, schedule.unsmoothed), 0)
            updates = updates if smooth else max(min(end, steps) - begin, 0) - updates
            each = size.training_flops(lengths[stage], squares[stage], every_layer=work.options.layer_loss > 0)
            total += updates * work.options.batch * each
    return total


def _synced_size(path: Path) -> int:
    """Return the size of a file after its bytes are safely on disk, because a checkpoint depends on them."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


def kept_stages(run: Run) -> dict[int, Path]:
    """Return the folders of the models that a run has kept, by stage from 1."""
    found = {path.name.removeprefix("stage-"): path for path in (run.path / STAGES).glob("stage-*")}
    return {int(stage): found[stage] for stage in sorted(filter(str.isdecimal, found), key=int)}


def as_begun(options: LmTrainOptions, run: Run) -> LmTrainOptions:
    """Return the options for a run. One of an earlier version keeps that version's default number of slots, longest."""
    if options.slots == CurriculumOptions.slots and run.exists and run.config.get("slots", options.slots) is None:
        return replace(options, slots=None)
    return options


def run_config(options: LmTrainOptions, seed: int) -> Json:
    """Return a run's `config.json`. It has digests of the data, so that a run cannot be resumed with other data."""
    options = options.with_updates(None) if is_task(options.data) else options
    return {**options.as_json(), "seed": seed, "data_sha256": digests_of(options)}


def run_source(run: Run, say: Callable[[str], None]) -> Source:
    """Open the data of a run. Refuse changed data, whose held-out examples could have been trained on."""
    options = options_from_json(LmTrainOptions, run.config, run.path / "config.json")
    source = source_of(options, run.config.get("seed", 0), say)  # first: its message for a missing file is better
    if digests_of(options) != (run.config.get("data_sha256") or {}):
        raise InputError(
            f"{options.data} has changed since {run.path} was trained on it, so the held-out examples are no longer "
            "known; restore it, or give --data"
        )
    return source
