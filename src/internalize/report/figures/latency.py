"""Time per answer against k: one pass of the internalized model, and a chain written by node or by level."""

from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes

from internalize.errors import InputError
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import BLUE, ORANGE, VERMILION, error_bars, sheet
from internalize.storage.files import Json

WAYS: Final = {
    "node": ("chain written node by node: $k-1$ passes", VERMILION, "o"),
    "level": (r"chain written level by level: $\log_2 k$ passes", ORANGE, "s"),
    "direct": ("internalized: one pass", BLUE, "^"),
}


def draw_latency(rows: Sequence[Json], name: str = "latency") -> Drawing:
    """Draw latency against k with one panel per batch size, and the 95 % interval of each median.

    Args:
        rows: rows of `compare --study latency`, all with the same n.
        name: name of the files.
    """
    sizes = sorted({int(row["n"]) for row in rows})
    if len(sizes) != 1:
        raise InputError(f"rows of n={sizes}: the figure shows latency against k at one n; give --sizes of one n")
    batches = sorted({int(row["batch"]) for row in rows})
    with sheet(2.8) as figure:
        panels = figure.subplots(1, len(batches), squeeze=False)[0]
        for axes, batch in zip(panels, batches, strict=True):
            _draw_batch(axes, [row for row in rows if row["batch"] == batch])
            axes.set_title(f"batch {batch}")
        panels[0].set_ylabel("milliseconds per answer")
        legend = panels[0].get_legend_handles_labels()
        figure.legend(*legend, loc="outside lower center", ncols=3, handlelength=1.6)
    longest = max(int(row["k"]) for row in rows)
    at = {(row["by"], row["batch"]): row["latency_ms"] for row in rows if row["k"] == longest}
    told = " and ".join(f"{at['node', batch] / at['direct', batch]:.3g} at batch {batch}" for batch in batches)
    repeats = min(int(row["repeats"]) for row in rows)
    return Drawing(
        name=name,
        figure=figure,
        title="Latency of an answer",
        caption=(
            f"Time from the bits to the answer at n = {sizes[0]} on one thread, both axes logarithmic: medians of "
            f"{repeats} answers with their 95 % intervals, timed in mixed order. A chain written node by node takes k "
            f"− 1 passes, each of which waits for the one before; at k = {longest} it takes {told} times as long as "
            "the internalized model. The weights are untrained; any weights cost the same."
        ),
        alt=(
            f"{len(batches)} panels over k up to {longest}. The line of the chain written node by node rises with k; "
            "those of the chain by level and of the internalized model lie below. The ratio at the right end is "
            f"{told}."
        ),
    )


def _draw_batch(axes: Axes, rows: Sequence[Json]) -> None:
    for way, (label, color, marker) in WAYS.items():
        own = sorted((row for row in rows if row["by"] == way), key=lambda row: row["k"])
        bounds = [(row["latency_ms_low"], row["latency_ms_high"]) for row in own]
        look: Json = {"fmt": f"-{marker}", "color": color, "markersize": 3.5, "linewidth": 1.1, "label": label}
        error_bars(axes, [row["k"] for row in own], [row["latency_ms"] for row in own], bounds, **look)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("k")
