"""Phase diagrams: the share of successes over two options of a sweep, and where it crosses one half against the prediction."""

import math
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any, Final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure

from internalize.errors import InputError
from internalize.parity.experiments.crossing import half_crossing
from internalize.parity.experiments.sweep import check_columns, success_rates, varied
from internalize.parity.options import StepOptions
from internalize.parity.theory.prediction import Setting
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import FAINT, INK, MEASURED, PAGE_WIDTH, WEIGHTS, house_style, note
from internalize.storage.files import Json

_AS_PREDICTED: Final = {"curriculum": "log-icot", "mask": "level", "gates": "paper", "preset": "none"}
"""What the prediction is of."""


def draw_phase(rows: Sequence[Json], half: Sequence[Json], by: Sequence[str]) -> Drawing:
    """A heat map of the share of successes.

    Over numbers of samples, with the predicted and the measured number for one half at each value across.

    Args:
        rows: of `success_rates`, by the same options.
        half: of `half_points`, by the same options.
        by: the option across, the one upwards, and perhaps one with a panel for each of its values.
    """
    x, y = by[0], by[1]
    columns, heights = _values(rows, x), _values(rows, y)
    panels = _values(rows, by[2]) if len(by) > 2 else [None]
    with house_style():
        figure = Figure(figsize=(PAGE_WIDTH, 3.2), layout="constrained")
        all_axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, value in zip(all_axes, panels, strict=True):
            own = [row for row in rows if len(by) < 3 or row[by[2]] == value]
            _heat(axes, own, columns, None if half else heights, x, y)
            _mark(axes, [point for point in half if len(by) < 3 or point[by[2]] == value], columns, x)
            if len(by) > 2:
                axes.set_title(f"{by[2]} = {_label(value)}", pad=16 if half else 6)
        all_axes[0].set_ylabel("samples a stage" if y == "samples" else y)
        bar = figure.colorbar(ScalarMappable(cmap=WEIGHTS), ax=list(all_axes), pad=0.01, aspect=30)
        bar.set_label("share of runs that succeed")
        if half:
            handles, labels = all_axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=2)
    told = _told(half, by)
    runs = [row["cells"] - row["failed"] for row in rows]
    most = f"{min(runs)} to {max(runs)}" if min(runs) != max(runs) else str(runs[0])
    return Drawing(
        name=f"phase-{'-'.join(by)}",
        figure=figure,
        title=f"Phase diagram over {' and '.join(by[:2])}",
        caption=f"Share of runs that succeed over {x} and {y}, {sum(runs)} runs, {most} seeds in each place.{told}",
        alt=f"A heat map of {len(rows)} places over {x} and {y}, from none to all runs succeeding.{told}",
    )


def phase_of(cells: pl.DataFrame, by: Sequence[str]) -> Json:
    """All that a phase diagram shows of a sweep's cells: ``by``, ``rows`` and ``half``, as `draw_phase` takes them."""
    half = half_points(cells, by)
    return {"by": list(by), "rows": success_rates(cells, by), "half": half}


def half_points(cells: pl.DataFrame, by: Sequence[str]) -> list[Json]:
    """Where half of all runs succeed at each value of the option across: measured and predicted. Only over samples.

    An object has the options it is of, `measured` with `low` and `high` (null where one half is not crossed), `predicted` (null
    where the prediction is of another model) and `deviation`, the measured over the predicted less 1.
    """
    x, y = _check(cells, by)
    if not _by_samples(cells, y):
        return []
    points: list[Json] = []
    for value, own in _panels(cells, by):
        for column in own[x].unique().sort().to_list():
            runs = own.filter(pl.col(x).eq_missing(column) & (pl.col("status") == "done"))
            rates = success_rates(runs, [y])
            trials = [row["cells"] for row in rates]
            crossing = half_crossing([row[y] for row in rates], [row["successes"] for row in rates], trials)
            predicted = _predicted(runs)
            point: Json = {x: column} | ({by[2]: value} if len(by) > 2 else {})
            point |= dict.fromkeys(("measured", "low", "high", "deviation")) | {"predicted": predicted}
            if crossing is not None:
                point |= {"measured": crossing.at, "low": crossing.low, "high": crossing.high}
                point["deviation"] = crossing.at / predicted - 1 if predicted else None
            points.append(point)
    return points


def _check(cells: pl.DataFrame, by: Sequence[str]) -> tuple[str, str]:
    """Refuse what one figure cannot show: cells at one place that differ in something else than the seed."""
    if len(by) not in (2, 3):
        raise InputError(
            f"by={' '.join(by)}: the phase diagram of --figure has an option across, one upwards, and perhaps one for panels"
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


def _predicted(runs: pl.DataFrame) -> int | None:
    """The samples for one half at the setting of these runs; None where there is no prediction."""
    if runs.is_empty():
        return None
    names = [field.name for field in fields(StepOptions)]
    settings = runs.select(*names, *_AS_PREDICTED).unique().to_dicts()
    if len(settings) > 1 or any(settings[0].pop(name) != value for name, value in _AS_PREDICTED.items()):
        return None
    return None if settings[0]["grid"] == "none" else Setting(**settings[0]).samples_for(0.5)


def _heat(
    axes: Axes, rows: Sequence[Json], columns: Sequence[Any], heights: Sequence[Any] | None, x: str, y: str
) -> None:
    """A rectangle for each place: a row for each of the heights; without them, numbers on a logarithmic scale."""
    axes.set_facecolor(FAINT)  # where nothing was tried
    for number, column in enumerate(columns):
        rates = {row[y]: row["rate"] for row in rows if row[x] == column and row["rate"] is not None}
        sides = [number - 0.5, number + 0.5]
        if heights is None:
            if rates:
                axes.pcolormesh(sides, _edges(list(rates)), [[rate] for rate in rates.values()], **_LOOK)
            continue
        for height, rate in rates.items():
            place = heights.index(height)
            axes.pcolormesh(sides, [place - 0.5, place + 0.5], [[rate]], **_LOOK)
    if heights is None:
        axes.set_yscale("log")
    else:
        axes.set_yticks(range(len(heights)), [_label(height) for height in heights])
    axes.set_xticks(range(len(columns)), [_label(column) for column in columns])
    axes.set_xlabel(x)


def _values(rows: Sequence[Json], name: str) -> list[Any]:
    """The values of an option, in their order; the default first."""
    found = {row[name] for row in rows}
    return [*([None] if None in found else []), *sorted(found - {None})]


def _by_samples(cells: pl.DataFrame, y: str) -> bool:
    return y == "samples" and "exact_recovery" in cells.columns and not cells[y].has_nulls()


def _label(value: object) -> str:
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


_LOOK: Final[Json] = {"cmap": WEIGHTS, "vmin": 0, "vmax": 1, "rasterized": False, "edgecolor": "face", "linewidth": 0.1}


def _edges(places: Sequence[float]) -> list[float]:
    """Between neighbours, and as far beyond the first and the last; on a logarithmic scale."""
    if len(places) == 1:
        return [places[0] / 1.2, places[0] * 1.2]
    between = [math.sqrt(low * high) for low, high in pairwise(places)]
    return [places[0] ** 2 / between[0], *between, places[-1] ** 2 / between[-1]]


def _mark(axes: Axes, points: Sequence[Json], columns: Sequence[Any], x: str) -> None:
    predicted = [(columns.index(point[x]), point["predicted"]) for point in points if point["predicted"]]
    if predicted:
        label = "predicted for one half, nothing fitted"
        axes.plot(*zip(*predicted, strict=True), color=INK, linestyle="--", label=label)
    measured = [point for point in points if point["measured"]]
    if measured:
        axes.errorbar(
            [columns.index(point[x]) for point in measured],
            [point["measured"] for point in measured],
            [[p["measured"] - p["low"] for p in measured], [p["high"] - p["measured"] for p in measured]],
            **MEASURED,
            capsize=2,
            label="measured (95 %)",
        )
    for point in measured:
        if point["deviation"] is not None:
            text, place = f"{point['deviation']:+.1%}", (columns.index(point[x]), 1)
            note(axes, text, place, (0, 3), xycoords=("data", "axes fraction"), ha="center", fontsize=7)


def _told(points: Sequence[Json], by: Sequence[str]) -> str:
    """The deviations in words."""
    texts: list[str] = []
    for point in points:
        where = ", ".join(f"{name} = {point[name]}" for name in (*by[:1], *by[2:]))
        if point["deviation"] is None:
            texts.append(
                f"{where}: one half is not crossed" if point["measured"] is None else f"{where}: not predicted"
            )
        else:
            low, high = (point[end] / point["predicted"] - 1 for end in ("low", "high"))
            texts.append(f"{where}: {point['deviation']:+.1%} ({low:+.1%} … {high:+.1%})")
    if not texts:
        return ""
    return f" Measured over predicted samples for one half, less 1, with 95 % intervals: {'; '.join(texts)}."
