"""Algorithm 1 in a run folder: each finished stage is saved, and a stopped run continues with the next stage.

| file            | content                                                                                       |
| --------------- | --------------------------------------------------------------------------------------------- |
| `metrics.jsonl` | one object per stage: its record, `step` (gradient steps so far), `samples` so far, `seconds` |
| `snapshots/`    | per step: the stage's layer before rounding (`step`), its `gradient`, and all weights after   |

Under torch.distributed the first process keeps the folder and tells the others where to begin.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, TypedDict

import torch
import torch.distributed as dist
from msgspec import Meta

from internalize.errors import InputError
from internalize.parallel.interrupt import Interrupted
from internalize.parity.algorithm1.recovery import StageRecord
from internalize.parity.algorithm1.solve import SolveOutcome, SolveResult, SolveState, samples_of, setting_of, solve
from internalize.parity.algorithm1.weight_layouts import form_of, stages_of
from internalize.parity.model.weights import Form, check_dtype, form_of_weights, read_weights, weight_shapes
from internalize.parity.options import SolveOptions, stored
from internalize.parity.task.tree import Levels, ParityTree
from internalize.storage.files import Json, check_schema
from internalize.storage.runs import Checkpoint, Run, begin_runs

_DTYPE: Final = "float64"
"""Dtype of all stored tensors, whatever dtype the gradients are computed in."""


class SolveMetrics(TypedDict):
    """The fields of a line of `metrics.jsonl` besides the stage's record."""

    step: int
    samples: int
    first_sample: Annotated[int, Meta(ge=0)]
    stage_samples: Annotated[int, Meta(ge=1)]
    seconds: float


class SolveCheckpoint(Checkpoint):
    """A checkpoint's fields about the finished stages."""

    records: tuple[StageRecord, ...]
    seconds: float


@dataclass(frozen=True)
class SolveProgress:
    """Stages done and in total over all runs, and the seed and record of the latest finished stage."""

    done: int
    total: int
    stages: int
    seed: int
    record: StageRecord | None = None


def solve_runs(
    options: SolveOptions,
    seeds: Sequence[int],
    runs: Sequence[Run] | None,
    *,
    resume: bool = False,
    snapshots: bool = False,
    report: Callable[[SolveProgress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda line: None,
) -> list[SolveResult]:
    """Run Algorithm 1 once per seed, keep each run in its folder, and return the results in the order of the seeds.

    All folders are checked before the first run begins, so that either all runs begin or none.

    Args:
        options: the request; each run replaces its seed.
        seeds: one per run.
        runs: the folder of each run; None in every process but the first, or to store nothing.
        resume: continue unfinished runs; finished ones are read.
        snapshots: store every stage's weights, and its step before rounding.
        report: called once before the first run, and after each stage.
        say: called with a line if an unfinished run has to restart from the beginning.

    Raises:
        Interrupted: after Ctrl-C, with all finished stages saved.
    """
    requests = [replace(options, seed=seed) for seed in seeds]
    stages = len(stages_of(options))
    total = len(seeds) * stages
    if runs is not None:
        for request, run in zip(requests, runs, strict=True):
            run.check("solve", solve_config(request), resume=resume)
        samples_of(options)  # raises if the request cannot be run
    report(SolveProgress(0, total, stages, options.seed))
    results: list[SolveResult] = []
    for number, request in enumerate(requests):

        def on_stage(state: SolveState, before: int = number * stages, seed: int = request.seed) -> None:
            record = state.records[-1]
            report(SolveProgress(before + record.stage, total, stages, seed, record))

        run = runs[number] if runs is not None else None
        results.append(solve_kept(request, run, resume=resume, snapshots=snapshots, on_stage=on_stage, say=say))
    return results


def solve_kept(
    options: SolveOptions,
    run: Run | None,
    *,
    resume: bool = False,
    snapshots: bool = False,
    on_stage: Callable[[SolveState], None] = lambda state: None,
    say: Callable[[str], None] = lambda line: None,
) -> SolveResult:
    """Run Algorithm 1 and store it in ``run``; read a finished run, continue an unfinished one.

    ``on_stage`` is called after each stage. The other arguments and the errors are those of ``solve_runs``.
    """
    if run is None:
        finished, begun = _from_the_first((None, None))
        return finished or solve(options, begun=begun, on_stage=on_stage)
    tree = ParityTree.drawn(options, options.seed)
    samples = samples_of(options)  # raises if the request cannot be run, before any folder is made
    form = form_of(options)
    names = list(weight_shapes(tree.levels, form))
    config = solve_config(options)

    def keep(state: SolveState) -> None:
        stage, seconds = len(state.records), round(state.seconds, 3)
        first, count = state.samples
        place = {"step": stage, "samples": stage * samples, "first_sample": first, "stage_samples": count}
        run.append_metrics({**vars(state.records[-1]), **place, "seconds": seconds})
        tensors = {"step": state.step, **dict(zip(names, state.weights, strict=True))}
        if snapshots:
            run.save_snapshot(stage, {**tensors, "gradient": state.gradient})
        records = [vars(record) for record in state.records]
        run.save_checkpoint(stage, tensors, {"records": records, "seconds": state.seconds})
        run.drop_checkpoints(but=stage)
        on_stage(state)

    with begin_runs([run], "solve", [config], resume=resume):
        known = (read_solved(run), None) if run.finished else (None, _load(run, tree, form, say))
        finished, begun = _from_the_first(known)
        if finished:
            run.tidy()
            return finished
        try:
            result = solve(options, begun=begun, on_stage=keep)
        except KeyboardInterrupt:
            raise Interrupted("all finished stages are saved, --resume continues") from None
        if options.transfer:
            names = list(weight_shapes(tree.levels, "level"))
        run.save_weights(dict(zip(names, result.weights, strict=True)))
        run.finish(result.to_json())
        return result


def solve_config(options: SolveOptions) -> Json:
    """Return the `config.json` of a run."""
    tree = ParityTree.drawn(options, options.seed)
    gates = "cot" if form_of(options) == "cot" and not options.transfer else options.gates
    setting = setting_of(options)  # a preset decides the grid and the rate
    return {**stored(options), "grid": setting.grid, "rate": setting.rate, "secret": list(tree.secret), "gates": gates}


def read_solved(run: Run) -> SolveResult:
    """Return the result of a finished run; raise if its files are damaged or do not belong together."""
    config, weights = run.config, run.weights()
    levels = Levels(config["n"], config["k"], config.get("arity", 2), config.get("modulus", 2))
    check_dtype(weights, _DTYPE, run.path / "weights.safetensors")
    weights = read_weights(weights, levels, form_of_weights(weights), run.path)
    return SolveResult(**vars(run.result_as(SolveOutcome)), weights=tuple(weights))


def _load(run: Run, tree: ParityTree, form: Form, say: Callable[[str], None]) -> SolveState | None:
    steps = run.checkpoint_steps()
    if not steps:
        run.rewind_metrics(None, say)
        return None
    tensors, state = run.load_checkpoint(max(steps))
    check_dtype(tensors, _DTYPE, run.path / "checkpoint")
    weights = tuple(read_weights(tensors, tree.levels, form, run.path / "checkpoint"))
    found = check_schema(state, SolveCheckpoint, run.path / "checkpoint")
    records, step = found["records"], tensors.get("step")
    if step is None or step.shape not in {W.shape for W in weights}:
        raise InputError(f"{run.path / 'checkpoint'} is damaged: its step does not have the shape of a layer")
    if [record.stage for record in records] != list(range(1, found["step"] + 1)):
        raise InputError(f"{run.path / 'checkpoint'} is damaged: {len(records)} stages at step {found['step']}")
    run.rewind_metrics(state)
    return SolveState(weights, records, found["seconds"], step, (0, 0), torch.empty(0))


def _from_the_first(
    known: tuple[SolveResult | None, SolveState | None],
) -> tuple[SolveResult | None, SolveState | None]:
    """Return in every process what the first process knows."""
    if not (dist.is_available() and dist.is_initialized()):
        return known
    box = [known]
    dist.broadcast_object_list(box, src=0)
    return box[0]
