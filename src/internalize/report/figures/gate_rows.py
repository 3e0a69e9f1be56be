"""Learned gates in numbers: how far they end from the prescribed ones, under every variant."""

from collections.abc import Sequence
from typing import Final

from matplotlib.figure import Figure

from internalize.report.figures.drawing import Drawing
from internalize.report.figures.gates import PARTS
from internalize.report.figures.style import MUTED, PAGE_WIDTH, house_style
from internalize.storage.files import Json

FLOOR: Final = 1e-5
"""Smaller distances are drawn here."""
_MARKERS: Final = {"inputs": "o", "written": "D", "below": "^"}


def draw_gate_rows(rows: Sequence[Json]) -> Drawing:
    """Distances from the prescribed gates, a line for each variant, with the seeds that are solved."""
    rows = [row for row in rows if "gate_distance" in row]
    names = [f"{row['what']}, n = {row['n']}" for row in rows]
    with house_style():
        figure = Figure(figsize=(PAGE_WIDTH, 0.8 + 0.22 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        for part, (label, colour) in PARTS.items():
            distances = [max(float(row["gate_distance"][part]), FLOOR) for row in rows]
            axes.plot(distances, range(len(rows)), _MARKERS[part], color=colour, markersize=4.5, label=label)
        for height, row in enumerate(rows):
            share = f"{row['solved']} of {row['seeds']}"
            axes.text(1.6, height, share, va="center", fontsize=8, color=MUTED if row["solved"] else "#a63c00")
        axes.set_xscale("log")
        axes.set_xlim(FLOOR / 1.5, 1.3)
        axes.set_ylim(len(rows) - 0.5, -0.6)
        axes.set_yticks(range(len(rows)), names)
        axes.grid(axis="y", color="#ececec", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.text(1.6, -0.8, "solved", fontsize=8, color=MUTED, va="bottom")
        axes.set_xlabel("mean distance from the prescribed gate, after training")
        figure.legend(loc="outside lower center", ncols=3, handlelength=1)
    found = [row for row in rows if row["solved"] == row["seeds"]]
    return Drawing(
        name="gates",
        figure=figure,
        title="Gates that are learned become the prescribed ones",
        caption=(
            "Mean distance of learned gates from the prescribed ones at the end of training (0: the same, 1: the opposite; "
            f"below {FLOOR:g} drawn there), by variant, with the number of seeds solved. A small price on open gates is what makes "
            "it reliable: without it, or with a hundred times as much, or where the input shows the supervised tokens, it fails."
        ),
        alt=f"{len(found)} of {len(rows)} variants are solved on every seed; in these the gates of the inputs end within 0.001.",
    )
