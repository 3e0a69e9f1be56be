"""Finished training runs grouped by settings. The runs of a group differ only in seed and secret set."""

from collections.abc import Iterable, Sequence
from dataclasses import fields

from internalize.errors import InputError
from internalize.parity.options import LATER, TrainOptions
from internalize.storage.files import all_fields, check_schema
from internalize.storage.runs import Run


def group_runs(runs: Iterable[Run]) -> dict[TrainOptions, list[Run]]:
    """Group runs by settings, in order of n, k, batch and learning rate; sort each group by seed.

    Raise if a run is unfinished or not a training run, or if a seed occurs twice, because counts would be wrong.
    """
    groups: dict[TrainOptions, dict[int, Run]] = {}
    for run in runs:
        config = run.config
        if config.get("kind") != "train":
            raise InputError(f"{run.path} holds a run of kind {config.get('kind')!r}, not 'train'")
        if not run.finished:
            raise InputError(f"{run.path} is not finished: it has no result.json; continue it with --resume")
        group = groups.setdefault(options_of(run), {})
        seed: int = config["seed"]
        if seed in group:
            raise InputError(f"{group[seed].path} and {run.path} are the same run, seed {seed}; give one of them")
        group[seed] = run
    ordered = sorted(groups, key=lambda o: (o.n, o.k, o.batch, -o.lr, o.curriculum, str(o)))
    return {options: [run for _, run in sorted(groups[options].items())] for options in ordered}


def one_group(runs: Sequence[Run]) -> TrainOptions:
    """Return the settings that all these runs share; raise if they differ."""
    if not runs:
        raise InputError("no runs to draw; train some first")
    groups = group_runs(runs)
    if len(groups) > 1:
        raise InputError(
            f"{len(runs)} runs of {len(groups)} different settings; one figure shows the seeds of one setting"
        )
    return next(iter(groups))


def options_of(run: Run) -> TrainOptions:
    """Return the options that a training run was made with."""
    config = {field.name: field.default for field in fields(TrainOptions) if field.name in LATER} | run.config
    check_schema(config, all_fields(TrainOptions, seed=int, secret=list[int]), run.path / "config.json")
    if config["curriculum"] == "cot":
        config["gates"] = TrainOptions.gates  # the file names the gates of the one-layer model, which are no option
    return check_schema(config, TrainOptions, run.path / "config.json")
