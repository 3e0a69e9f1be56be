"""`train`: AdamW through the stages of a curriculum, stored in run folders and resumed from them.

| name         | paper             | meaning                                              | where        |
| ------------ | ----------------- | ---------------------------------------------------- | ------------ |
| TrainOptions | n = 30, k = 16, … | the settings, the paper's by default                 | appendix B.2 |
| train        | section 4         | every stage in turn, evaluated and saved on the way  | section 4    |
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict

import torch
from msgspec import Meta
from torch import Tensor

from internalize.environment import check_memory
from internalize.errors import InputError
from internalize.parallel.interrupt import Interrupted, Interruptible
from internalize.parity.adamw.ensemble import Training, make_model, named_parameters
from internalize.parity.adamw.groups import options_of
from internalize.parity.model.link import get_link
from internalize.parity.model.relaxed import HIDDEN
from internalize.parity.model.weights import check_dtype, columns_as_layers, weight_shapes
from internalize.parity.options import TrainOptions, stored
from internalize.parity.task.stages import parity_stages
from internalize.parity.task.tree import Levels, ParityTree
from internalize.storage.files import Json, check_schema
from internalize.storage.runs import Checkpoint, Run, begin_runs


class Metrics(TypedDict):
    """A line of `metrics.jsonl`."""

    step: int
    stage: int
    samples: int
    loss: float
    level_accuracy: list[float]
    accuracy: float
    l2_error: float
    max_error: float
    child_attention: list[float]
    seconds: float


class Result(TypedDict):
    """The fields of `result.json`."""

    seed: int
    accuracy: float
    l2_error: float
    max_error: float
    min_child_attention: float
    steps: int
    samples: int
    seconds: float


class TrainCheckpoint(Checkpoint):
    """A checkpoint's fields about the place in training."""

    stage: Annotated[int, Meta(ge=0)]
    stage_step: Annotated[int, Meta(ge=0)]
    seconds: float


CHECKPOINT_SECONDS = 3.0
"""Least time between two checkpoints, in seconds."""
_TOGETHER_BYTES = 512 * 2**20
"""Approximate memory for the states of runs that are trained together, in bytes."""


@dataclass(frozen=True)
class TrainProgress:
    """Progress of training: updates made and in total, and the latest metrics of every run."""

    done: int
    total: int
    stages: int
    metrics: list[Json]


def train(
    options: TrainOptions,
    seeds: Sequence[int] = (0,),
    runs: Sequence[Run] | None = None,
    *,
    device: str = "cpu",
    snapshots: bool | Collection[int] = False,
    resume: bool = False,
    report: Callable[[TrainProgress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Json]:
    """Train one run per seed, together, and return their results in the order of the seeds.

    Args:
        options: the settings.
        seeds: one per run; each decides the secret set and the samples.
        runs: the folder of each run; without them nothing is written.
        device: the device to compute on.
        snapshots: store the weights of every evaluation: of all runs, or of those with these seeds.
        resume: continue unfinished runs; the results of finished ones are read.
        report: called at every evaluation.
        say: called with a line if a resumed run restarts from the beginning, or if its last bits will differ from
            those of an uninterrupted run.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
    """
    _refuse_if_too_large(options)
    if runs is None:
        results: list[Json] = []
        for first in range(0, len(seeds), together := _together(options)):
            training = Training(options, seeds[first : first + together], device)
            results += _train(training, [], snapshots=(), report=report)
        return results
    if len(runs) != len(seeds):
        raise InputError(f"{len(runs)} run folders for {len(seeds)} seeds; each run needs its own")
    configs = [run_config(options, seed) for seed in seeds]
    kept = snapshots if not isinstance(snapshots, bool) else seeds if snapshots else ()
    with begin_runs(runs, "train", configs, resume=resume):
        left = {run: seed for run, seed in zip(runs, seeds, strict=True) if not run.finished}
        for run in runs:
            if run not in left:
                check_finished(run)
                run.tidy()
        for step, group in _groups(options, left):
            training = Training(options, [left[run] for run in group], device)
            _restore(training, group, step, say)
            _train(training, group, snapshots=kept, report=report)
        return [run.result for run in runs]


def run_config(options: TrainOptions, seed: int) -> Json:
    """Return the `config.json` of a run."""
    if not options.has_network:
        get_link(options.link, options.arity, options.modulus)
    tree = ParityTree.drawn(options, seed)
    parity_stages(tree.levels, options.schedule())  # raises if the tree lacks a level of the curriculum
    gates = "cot" if options.curriculum == "cot" and not options.transfer else options.gates
    supervised = "shown" if options.shows else "hidden"
    resolved = {"gates": gates, "supervised_tokens": supervised}
    return {**stored(options), "seed": seed, "secret": list(tree.secret), **resolved}


def _together(options: TrainOptions) -> int:
    """Return how many runs to train together: one if their stages may end at different steps, otherwise as many as fit."""
    levels = Levels.of(options)
    if options.advance == "accuracy" and len(parity_stages(levels, options.schedule())) > 1:
        return 1
    return max(1, _TOGETHER_BYTES // (64 * options.batch * levels.T * _states(options)))


def _states(options: TrainOptions) -> int:
    """Estimate the states that a pass with gradients keeps, relative to level form. Block form keeps every layer's."""
    if options.as_in_paper or options.curriculum == "cot":
        return 1
    return 4 * Levels.of(options).L * (HIDDEN if options.has_network else 1)


def _groups(options: TrainOptions, seeds: Mapping[Run, int]) -> list[tuple[int, list[Run]]]:
    """Return groups of runs that can continue together: as many as memory allows, from checkpoints at one step.

    Runs that were trained together and killed while saving share the previous step, or step 0, where runs without a
    checkpoint are. Groups are in the order of seeds, because the last bits of a run depend on its place.
    """
    together = _together(options)
    groups: list[tuple[int, list[Run]]] = []
    steps = {run: run.checkpoint_steps() or {0} for run in sorted(seeds, key=lambda run: seeds[run])}
    while steps:
        common = Counter(step for own in steps.values() for step in own)
        step = max(common, key=lambda s: (common[s], s))
        group = [run for run, own in steps.items() if step in own][:together]
        groups.append((step, group))
        for run in group:
            del steps[run]
    return groups


def _restore(training: Training, runs: Sequence[Run], step: int, say: Callable[[str], None]) -> None:
    """Restore the training from the runs' checkpoints at ``step``. Check all of them before changing anything."""
    if step == 0:
        for run in runs:
            run.rewind_metrics(None, (lambda line: None) if run.checkpoint_steps() else say)
            run.drop_checkpoints(but=0)
        return
    loaded = [run.load_checkpoint(step) for run in runs]
    for run, (tensors, state) in zip(runs, loaded, strict=True):
        _check_checkpoint(training, run, tensors, state)
    for run, (_, state) in zip(runs, loaded, strict=True):
        run.rewind_metrics(state)
        run.drop_checkpoints(but=step)  # those of a later step refer to metrics that are removed
    state = loaded[0][1]
    for name, value in training.circumstances().items():
        if state.get(name) != value:
            say(f"resumed with {name} {value}, which was {state.get(name)}: the last bits will differ")
    training.restore([tensors for tensors, _ in loaded], state)
    training.latest = [run.metrics()[-1] for run in runs]


def _check_checkpoint(training: Training, run: Run, tensors: Mapping[str, Tensor], state: Json) -> None:
    """Raise if a checkpoint does not belong to this training: check its place, and every tensor's shape and dtype."""
    found, options = check_schema(state, TrainCheckpoint, run.path / "checkpoint"), training.options
    stage, stage_step, step = found["stage"], found["stage_step"], found["step"]
    place = (
        stage < len(training.stages)
        and stage_step <= step <= training.total
        and (options.advance == "accuracy" or stage * options.steps + stage_step == step)
    )
    if not (place and run.metrics(found["metrics_bytes"], Metrics)):
        raise InputError(f"{run.path / 'checkpoint'} is damaged: there is no step {stage_step} of stage {stage}")
    wanted: dict[str, tuple[torch.Size, torch.dtype]] = {}
    for name, weight in training.weights(0).items():
        own = wanted[name] = weight.shape, training.dtype
        if f"{name}.step" in tensors:  # a layer that got a gradient; AdamW counts its steps in float32
            count = torch.Size(), torch.float32
            wanted |= {f"{name}.step": count, f"{name}.exp_avg": own, f"{name}.exp_avg_sq": own}
    if {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()} != wanted:
        raise InputError(f"{run.path / 'checkpoint'} lacks the tensors of this n, k, curriculum and dtype")


def check_finished(run: Run) -> None:
    """Raise if the files of a finished training run are damaged or do not belong together."""
    result, metrics, weights = run.result_as(Result), run.metrics(schema=Metrics), run.weights()
    ends = metrics[-1]["step"] if metrics else None
    if ends != result["steps"]:
        where = run.path / "metrics.jsonl"
        raise InputError(f"{where} is damaged: it ends at step {ends}, the result at {result['steps']}")
    options = options_of(run)
    wanted = {name: tuple(p.shape[1:]) for name, p in named_parameters(make_model(options, [0])).items()}
    if options.transfer:
        wanted = dict(weight_shapes(Levels.of(options), "level"))
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    where = run.path / "weights.safetensors"
    for name in {**wanted, **found}:
        if name not in found:
            raise InputError(f"{where} has {', '.join(found)} but no {name}, which the options require")
        if found[name] != wanted.get(name):
            raise InputError(f"{where}: {name} has shape {found[name]}, but the options require {wanted.get(name)}")
    check_dtype(weights, options.dtype, where)


def check_snapshots(run: Run) -> None:
    """Raise if a finished training run did not store the weights of every evaluation."""
    evaluated = sorted({line["step"] for line in run.metrics()})
    if [step for step, _ in run.snapshots()] != evaluated:
        raise InputError(f"{run.path / 'snapshots'} lacks the weights of some evaluations")


def _refuse_if_too_large(options: TrainOptions) -> None:
    """Raise if a single run does not fit in this machine's memory."""
    levels, itemsize = Levels.of(options), 8 if options.dtype == "float64" else 4
    weights = sum(levels.level_end[layer] * levels.width(layer + 1) for layer in range(levels.L))
    states = _states(options)
    if states > 1:
        weights = levels.L * levels.T**2
    need = itemsize * (8 * max(options.batch, options.eval_samples) * levels.T * states + 5 * weights)
    check_memory(need, f"n={options.n}, k={options.k}, batch={options.batch}, eval_samples={options.eval_samples}")


def _train(
    training: Training, runs: Sequence[Run], *, snapshots: Collection[int], report: Callable[[TrainProgress], None]
) -> list[Json]:
    """Train from the current place to the end of the last stage; write metrics, snapshots and checkpoints."""
    began = time.perf_counter() - training.seconds
    saved = time.perf_counter()

    def evaluate() -> None:
        training.seconds = time.perf_counter() - began
        training.evaluate()
        for number, run in enumerate(runs):
            run.append_metrics(training.latest[number])
            if training.seeds[number] in snapshots:
                run.save_snapshot(training.done, _weights(training, number))
        report(TrainProgress(training.done, training.total, len(training.stages), training.latest))

    def save() -> None:
        nonlocal saved
        training.seconds = time.perf_counter() - began
        place = {"stage": training.stage, "stage_step": training.step, "seconds": training.seconds}
        place |= training.circumstances()
        for number, run in enumerate(runs):
            run.save_checkpoint(training.done, training.state(number), place)
        for run in runs:
            run.drop_checkpoints(but=training.done)
        saved = time.perf_counter()

    with Interruptible(active=bool(runs)) as interrupt:
        if not training.latest:
            save()  # so that runs share a checkpoint if a kill comes while the next one is being saved
            evaluate()
        while True:
            while not training.stage_over:
                training.update()
                if training.step % training.options.eval_every == 0 or training.stage_over:
                    evaluate()
                if interrupt.requested or time.perf_counter() - saved > CHECKPOINT_SECONDS:
                    save()
                if interrupt.requested:
                    raise Interrupted("--resume continues")
            if training.last_stage:
                break
            training.stage, training.step = training.stage + 1, 0
            evaluate()
        save()  # so that a kill while the final files of several runs are written loses none of them

    results = [_result(training, number) for number in range(len(training.seeds))]
    for number, run in enumerate(runs):
        run.save_weights(_weights(training, number))
        run.finish(results[number])
    return results


def _weights(training: Training, number: int) -> Mapping[str, Tensor]:
    """Return the weights of one run as its files hold them: with transfer, as layers."""
    weights = training.weights(number)
    if not training.options.transfer:
        return weights
    layers = columns_as_layers(weights["W"], training.levels)
    return dict(zip(weight_shapes(training.levels, "level"), layers, strict=True))


def _result(training: Training, number: int) -> Json:
    latest = training.latest[number]
    return {
        "seed": training.seeds[number],
        **{key: latest[key] for key in ("accuracy", "l2_error", "max_error")},
        "min_child_attention": min(latest["child_attention"]),
        "steps": training.done,
        "samples": training.done * training.options.batch,
        "seconds": round(training.seconds, 3),
    }
