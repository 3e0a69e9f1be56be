"""Phase diagrams: the share of successes over two options of a sweep, and where it crosses one half."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable

from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import FAINT, INK, MEASURED, PLAIN, WEIGHTS, error_bars, note, sheet
from internalize.storage.files import Json


def draw_phase(rows: Sequence[Json], half: Sequence[Json], by: Sequence[str]) -> Drawing:
    """Draw a heat map of the share of successes.

    Mark the predicted and measured numbers for one half in each column, if there are any.

    Args:
        rows: the rows of `success_rates`, grouped by the same options.
        half: the rows of `half_points`, grouped by the same options.
        by: the options on the horizontal and vertical axis, and perhaps a third with a panel per value.
    """
    x, y = by[0], by[1]
    columns, heights = _values(rows, x), _values(rows, y)
    panels = _values(rows, by[2]) if len(by) > 2 else [None]
    with sheet(3.2) as figure:
        all_axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, value in zip(all_axes, panels, strict=True):
            own = [row for row in rows if len(by) < 3 or row[by[2]] == value]
            _heat(axes, own, columns, None if half else heights, x, y)
            _mark(axes, [point for point in half if len(by) < 3 or point[by[2]] == value], columns, x)
            if len(by) > 2:
                axes.set_title(f"{by[2]} = {_label(value)}", pad=16 if half else 6, **PLAIN)
        all_axes[0].set_ylabel({"samples": "samples per stage", "steps": "updates per stage"}.get(y, y))
        bar = figure.colorbar(ScalarMappable(cmap=WEIGHTS), ax=list(all_axes), pad=0.01, aspect=30)
        bar.set_label("share of runs that succeed")
        if half:
            named = {
                name: own for axes in all_axes for own, name in zip(*axes.get_legend_handles_labels(), strict=True)
            }
            figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=2)
    told = _in_words(half, by)
    runs = [row["cells"] - row["failed"] for row in rows]
    most = f"{min(runs)} to {max(runs)}" if min(runs) != max(runs) else str(runs[0])
    return Drawing(
        name=f"phase-{'-'.join(by)}",
        figure=figure,
        title=f"Phase diagram over {' and '.join(by[:2])}",
        caption=f"Share of runs that succeed over {x} and {y}: {sum(runs)} runs, {most} seeds per cell.{told}",
        alt=f"A heat map of {len(rows)} cells over {x} and {y}, from none to all runs succeeding.{told}",
    )


def _heat(
    axes: Axes, rows: Sequence[Json], columns: Sequence[Any], heights: Sequence[Any] | None, x: str, y: str
) -> None:
    """Draw a rectangle per cell, in a row for each of the heights or, without them, on a logarithmic scale."""
    axes.set_facecolor(FAINT)  # the color of cells that were not run
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
        axes.set_yticks(range(len(heights)), [_label(height) for height in heights], **PLAIN)
    axes.set_xticks(range(len(columns)), [_label(column) for column in columns], **PLAIN)
    axes.set_xlabel(x)


def _values(rows: Sequence[Json], name: str) -> list[Any]:
    """Return the sorted values of an option, with the default (None) first."""
    found = {row[name] for row in rows}
    return [*([None] if None in found else []), *sorted(found - {None})]


def _label(value: object) -> str:
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


_LOOK: Final[Json] = {"cmap": WEIGHTS, "vmin": 0, "vmax": 1, "rasterized": False, "edgecolor": "face", "linewidth": 0.1}


def _edges(places: Sequence[float]) -> list[float]:
    """Return the edges of the cells around places on a logarithmic scale: halfway between neighbors."""
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
        places = [columns.index(point[x]) for point in measured]
        bounds = [(point["low"], point["high"]) for point in measured]
        middles = [point["measured"] for point in measured]
        error_bars(axes, places, middles, bounds, **MEASURED, capsize=2, label="measured (95 %)")
    for point in measured:
        if point["deviation"] is not None:
            text, place = f"{point['deviation']:+.1%}", (columns.index(point[x]), 1)
            note(axes, text, place, (0, 3), xycoords=("data", "axes fraction"), ha="center", fontsize=7)


def _in_words(points: Sequence[Json], by: Sequence[str]) -> str:
    """Return the deviations of measured from predicted numbers as a sentence."""
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
    return f" Relative deviation of measured from predicted {by[1]} for one half (95 % intervals): {'; '.join(texts)}."
