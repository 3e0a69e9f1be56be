"""The results of a sweep: success rates, and where half of the runs succeed against the prediction.

The prediction is of the samples of Algorithm 1 (``theory/prediction.py``), or of the updates of AdamW in a first stage
of one or several levels (``theory/chunks.py``), and so of the largest n that a number of updates is enough for.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Final

import polars as pl

from internalize.errors import InputError
from internalize.intervals import wilson
from internalize.parity.experiments.crossing import half_crossing
from internalize.parity.experiments.grid import Kind, option_types
from internalize.parity.experiments.jobs import cell_schema, flat_options
from internalize.parity.options import LATER, StepOptions, TrainOptions
from internalize.parity.task.tree import Levels
from internalize.parity.theory.chunks import chunk_signal
from internalize.parity.theory.prediction import Setting
from internalize.storage.conditions import condition, is_value
from internalize.storage.files import Json
from internalize.storage.summaries import SOLVED
from internalize.storage.sweep_store import CellStore, kind_of

_AS_PREDICTED: Final = {"curriculum": "log-icot", "mask": "level", "gates": "paper", "preset": "none", "skip": None}
"""The options that the prediction assumes."""
_UNPREDICTED: Final = ("advance", "threshold", "weight_decay", "eval_every", "eval_samples", "dtype")
"""Options of train that the prediction of updates does not depend on."""


def read_cells(out: Path) -> pl.DataFrame:
    """Return the cells of a sweep, with a column `success`: every layer recovered, or 99 % of the answers right."""
    kind = kind_of(out)
    success = pl.col("exact_recovery") if kind == "solve" else pl.col("accuracy") >= SOLVED
    cells = CellStore(out, kind, cell_schema(kind)).frame().with_columns(success.alias("success"))
    if cells.filter(pl.col("success").is_null() & (pl.col("status") == "done")).height:
        raise InputError(f"{out} is damaged: a finished cell has no result")
    if kind == "solve" and cells.filter(pl.col("samples") < 1).height:
        raise InputError(f"{out} is damaged: a cell has less than one sample")
    return cells


def keep_where(cells: pl.DataFrame, conditions: Sequence[str]) -> pl.DataFrame:
    """Return the cells that meet all conditions, each of the form ``name=value``."""
    for name, value in map(condition, conditions):
        if name not in cells.columns:
            raise InputError(f"where={name}={value}: no such column; the cells have {', '.join(cells.columns)}")
        cells = cells.filter(pl.Series([is_value(found, value) for found in cells[name]], dtype=pl.Boolean))
    return cells


def varied(cells: pl.DataFrame) -> list[str]:
    """Return the options that have more than one value among the cells."""
    kind: Kind = "solve" if "exact_recovery" in cells.columns else "train"
    names = (*option_types(kind), "stop_at_failure")
    return [name for name in names if name in cells.columns and cells[name].n_unique() > 1]


def check_columns(cells: pl.DataFrame, by: Sequence[str]) -> None:
    """Raise if a name is not a column of the cells, or occurs twice."""
    for name in by:
        if name not in cells.columns:
            raise InputError(f"by={name!r}: no such column; the cells have {', '.join(cells.columns)}")
    if len(set(by)) != len(by):
        raise InputError(f"by={' '.join(by)!r} names a column twice")


def success_rates(cells: pl.DataFrame, by: Sequence[str]) -> list[Json]:
    """Return the share of successes, its Wilson interval and the failed cells per combination of column values."""
    check_columns(cells, by)
    if "stop_at_failure" in varied(cells) and "stop_at_failure" not in by:
        raise InputError("cells with and without stop_at_failure would count the same seeds twice; choose by --where")
    rows: list[Json] = []
    for values, group in groupby(
        cells.sort(list(by)).iter_rows(named=True), key=lambda row: [row[name] for name in by]
    ):
        own = list(group)
        done = [row["success"] for row in own if row["status"] == "done"]
        share: Json = {"rate": None, "low": None, "high": None}
        if done:
            low, high = wilson(sum(done), len(done))
            share = {"rate": sum(done) / len(done), "low": low, "high": high}
        counts = {"cells": len(own), "successes": sum(done), "failed": len(own) - len(done)}
        rows.append({**dict(zip(by, values, strict=True)), **counts, **share})
    return rows


def phase_of(cells: pl.DataFrame, by: Sequence[str]) -> Json:
    """Return the contents of a phase diagram of these cells: ``by``, ``rows`` and ``half``, for `draw_phase`."""
    half = half_points(cells, by)
    return {"by": list(by), "rows": success_rates(cells, by), "half": half}


def half_points(cells: pl.DataFrame, by: Sequence[str]) -> list[Json]:
    """Return where half of the runs succeed, measured and predicted, at each value on the horizontal axis.

    The vertical axis is `samples` for solve, and `steps` or `n` for train; otherwise the list is empty. An object has
    its options, `measured` with `low` and `high` (null if one half is not crossed), `predicted` (null if the prediction
    does not cover the model, or is beyond the runs) and `deviation`, measured over predicted minus 1.
    """
    x, y = _check(cells, by)
    solved = "exact_recovery" in cells.columns
    if y not in (("samples",) if solved else ("steps", "n")) or cells[y].has_nulls():
        return []
    points: list[Json] = []
    for value, own in _panels(cells, by):
        for column in own[x].unique().sort().to_list():
            runs = own.filter(pl.col(x).eq_missing(column) & (pl.col("status") == "done"))
            rates = success_rates(runs, [y])
            trials = [row["cells"] for row in rates]
            won = [row["successes"] for row in rates]
            if y == "n":  # success falls with n, and half_crossing expects it to rise
                won = [cells - own for cells, own in zip(trials, won, strict=True)]
            crossing = half_crossing([row[y] for row in rates], won, trials)
            predicted = _predicted(runs) if solved else _predicted_of_training(runs, y)
            point: Json = {x: column} | ({by[2]: value} if len(by) > 2 else {})
            point |= dict.fromkeys(("measured", "low", "high", "deviation")) | {"predicted": predicted}
            if crossing is not None:
                point |= {"measured": crossing.at, "low": crossing.low, "high": crossing.high}
                point["deviation"] = crossing.at / predicted - 1 if predicted else None
            points.append(point)
    return points if solved or any(point["predicted"] for point in points) else []


def _check(cells: pl.DataFrame, by: Sequence[str]) -> tuple[str, str]:
    """Return the options of both axes; raise if cells at one place differ in more than the seed."""
    if len(by) not in (2, 3):
        raise InputError(
            f"by={' '.join(by)}: the phase diagram of --figure takes two options for the axes, and a third for panels"
        )
    check_columns(cells, by)
    if cells.is_empty():
        raise InputError("there are no cells to draw")
    rest = [name for name in varied(cells) if name not in by]
    if rest:
        counts = cells.group_by(list(by)).agg(pl.col(rest).n_unique()).select(rest).max().row(0)
        if other := next((name for name, count in zip(rest, counts, strict=True) if count > 1), None):
            raise InputError(f"cells with the same {', '.join(by)} differ in {other}; choose by --where {other}=…")
    return by[0], by[1]


def _panels(cells: pl.DataFrame, by: Sequence[str]) -> list[tuple[object, pl.DataFrame]]:
    if len(by) < 3:
        return [(None, cells)]
    return [(value, cells.filter(pl.col(by[2]).eq_missing(value))) for value in cells[by[2]].unique().sort().to_list()]


def _predicted_of_training(runs: pl.DataFrame, y: str) -> int | None:
    """Return the predicted updates per stage, or the largest n for which those of the runs are enough.

    None if the lowest levels are not what these runs skip, if their columns begin equal, or if n is beyond the runs.
    """
    default = flat_options(TrainOptions())
    others = set(default) - {"n", "k", "steps", "batch", "lr", *_UNPREDICTED}
    own = runs.select(name for name in option_types("train") if name != y).unique()
    if own.height != 1:
        return None
    (setting,) = own.to_dicts()
    if any(setting.get(name) != default.get(name) for name in others - {y}):
        return None
    if any(setting.get(name) for name in LATER - {"skip", "init_std", y}):
        return None  # the rule is about the paper's trees, labels and loss
    skip = tuple(int(level) for level in (setting["skip"] or "").split("+") if level)
    count = len(skip) + 1
    if skip != tuple(range(1, count)) or (skip and not setting["init_std"]):
        return None

    def updates(n: int) -> float:
        levels = Levels(n, setting["k"])
        return (
            chunk_signal(levels, count=count).updates(setting["batch"], setting["lr"]) if levels.complete else math.inf
        )

    if y == "steps":
        return round(found) if setting["n"] > setting["k"] and (found := updates(setting["n"])) < math.inf else None
    sizes = range(setting["k"] + 1, int(runs["n"].max()) + 1)  # pyright: ignore[reportArgumentType]
    enough = bisect_right(sizes, setting["steps"], key=updates)
    return sizes[enough - 1] if 0 < enough < len(sizes) else None


def _predicted(runs: pl.DataFrame) -> int | None:
    """Return the predicted samples at which half of these runs succeed; None if there is no prediction."""
    if runs.is_empty():
        return None
    names = [field.name for field in fields(StepOptions)]
    later = [pl.col(field.name).fill_null(field.default) for field in fields(StepOptions) if field.name in LATER]
    settings = runs.with_columns(later).select(*names, *_AS_PREDICTED, "hidden_loss").unique().to_dicts()
    for setting in settings:
        if setting.pop("hidden_loss") and setting["curriculum"] == "none":
            setting["curriculum"] = "log-icot"  # the prediction is the same
    if len(settings) > 1 or any(settings[0].pop(name) != value for name, value in _AS_PREDICTED.items()):
        return None
    if settings[0]["grid"] == "none" or any(value is None for name, value in settings[0].items() if name != "K"):
        return None
    return Setting(**settings[0]).samples_for(0.5)
