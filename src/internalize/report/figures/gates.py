"""Learned gates: their distance from the prescribed ones over training, and at the end for every variant."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from numpy.typing import NDArray

from internalize.errors import InputError
from internalize.parity.adamw.groups import one_group
from internalize.parity.model.gates import paper_gates
from internalize.parity.task.tree import ParityTree
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import (
    BLUE,
    GREEN,
    MUTED,
    PLAIN,
    VERMILION,
    WEIGHTS,
    metrics_together,
    sheet,
    vector_bar,
)
from internalize.storage.files import Json
from internalize.storage.runs import Run

PARTS: Final = {
    "inputs": ("input bits, to be kept", BLUE),
    "written": ("nodes that the layer writes", VERMILION),
    "below": ("nodes written before, to be kept", GREEN),
}
"""Gates on which the result depends. Gates of higher nodes are free under the level mask: no layer reads those nodes
before they are written."""
FLOOR: Final = 1e-5
"""Smaller distances are drawn at this value."""
_MARKERS: Final = {"inputs": "o", "written": "D", "below": "^"}


def learned_gates(run: Run) -> NDArray[np.float64]:
    """Return the gates of a run's model, layers × positions, for states and updates of 0."""
    weights, layers = run.weights(), ParityTree.of(run.config).L
    if "gate1" not in weights:
        raise InputError(f"{run.path / 'weights.safetensors'} has no gate1: the gates of this run are not learned")
    return torch.stack([weights[f"gate{layer + 1}"].double().sigmoid() for layer in range(layers)]).numpy()


def draw_gates(runs: Sequence[Run], name: str = "gates") -> Drawing:
    """Draw the distance over training of runs that differ only in the seed, and the first run's gates beside the
    prescribed.

    Args:
        runs: runs with learned gates.
        name: name of the files.
    """
    options = one_group(runs)
    tree = ParityTree.of(runs[0].config)
    learned, prescribed = learned_gates(runs[0]), paper_gates(tree.levels).numpy()
    metrics = metrics_together(runs, "step")
    steps = [line["step"] for line in metrics[0]]
    parts = [part for part in PARTS if part in metrics[0][0]["gate_distance"]]
    distances = {part: np.array([[line["gate_distance"][part] for line in own] for own in metrics]) for part in parts}
    begins = [line["step"] for before, line in pairwise(metrics[0]) if line["stage"] != before["stage"]]
    with sheet(3.0) as figure:
        grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.15))
        _draw_distances(figure.add_subplot(grid[:, 0]), steps, distances, begins)
        upper, lower = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
        _draw_map(upper, learned, "learned")
        mesh = _draw_map(lower, prescribed, "prescribed")
        lower.set_xlabel("position")
        for axes in (upper, lower):
            for end in tree.levels.level_end[:-1]:
                axes.axvline(end, color="black", linewidth=0.7, linestyle=":")
        bar = figure.colorbar(mesh, ax=[upper, lower], fraction=0.03, pad=0.01)
        vector_bar(bar, "gate")
        bar.outline.set_linewidth(0.5)  # pyright: ignore[reportCallIssue]
    ends = ", ".join(f"{np.median(values[:, -1]):.2g} ({PARTS[part][0]})" for part, values in distances.items())
    return Drawing(
        name=name,
        figure=figure,
        title="Learned gates against the prescribed ones",
        caption=(
            f"Left: mean distance of learned from prescribed gates (n = {options.n}, k = {options.k}, gates "
            f"{options.gates}, {options.mask} mask), with a thin line for each of {len(runs)} seeds and a thick one "
            f"for their median. Dashed lines: a stage begins. Right: the gates of seed {runs[0].config['seed']} after "
            "training and the prescribed ones, layers × positions. Dotted lines mark the ends of the levels. Gates of "
            "nodes above a layer's level are free under the level mask: no layer reads these nodes before they are "
            "written."
        ),
        alt=f"Median distances at the end of training: {ends}.",
    )


def _draw_distances(
    axes: Axes, steps: Sequence[int], distances: dict[str, NDArray[np.float64]], begins: Sequence[int]
) -> None:
    for part, values in distances.items():
        label, color = PARTS[part]
        axes.plot(steps, values.T, color=color, linewidth=0.4, alpha=0.35)
        axes.plot(steps, np.median(values, axis=0), color=color, label=label)
    for begin in begins:
        axes.axvline(begin, color=MUTED, linewidth=0.7, linestyle=(0, (4, 3)), zorder=0)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("gradient step")
    axes.set_ylabel("mean distance from the prescribed gate")
    axes.legend(loc="upper right", frameon=True, facecolor="white", edgecolor="none", framealpha=0.9)


def _draw_map(axes: Axes, gates: NDArray[np.float64], title: str) -> QuadMesh:
    layers, positions = len(gates), len(gates[0])
    mesh = axes.pcolormesh(np.arange(positions + 1), np.arange(layers + 1), gates, cmap=WEIGHTS, vmin=0, vmax=1)
    axes.set_ylim(layers, 0)
    axes.set_yticks([layer + 0.5 for layer in range(layers)], [str(layer + 1) for layer in range(layers)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(True)
    axes.set_ylabel("layer")
    axes.set_title(title, loc="left", pad=3)
    return mesh


def draw_gate_rows(rows: Sequence[Json]) -> Drawing:
    """Draw the distances from the prescribed gates with a line per variant, and the number of solved seeds."""
    rows = [row for row in rows if "gate_distance" in row]
    names = [f"{row['what']}, n = {row['n']}" for row in rows]
    with sheet(0.8 + 0.22 * len(rows)) as figure:
        axes = figure.add_subplot()
        for part, (label, color) in PARTS.items():
            distances = [max(float(row["gate_distance"][part]), FLOOR) for row in rows]
            axes.plot(distances, range(len(rows)), _MARKERS[part], color=color, markersize=4.5, label=label)
        for height, row in enumerate(rows):
            share = f"{row['solved']} of {row['seeds']}"
            axes.text(1.6, height, share, va="center", fontsize=8, color=MUTED if row["solved"] else "#a63c00")
        axes.set_xscale("log")
        axes.set_xlim(FLOOR / 1.5, 1.3)
        axes.set_ylim(len(rows) - 0.5, -0.6)
        axes.set_yticks(range(len(rows)), names, **PLAIN)
        axes.grid(axis="y", color="#ececec", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.text(1.6, -0.8, "solved", fontsize=8, color=MUTED, va="bottom")
        axes.set_xlabel("mean distance from the prescribed gate, after training")
        figure.legend(loc="outside lower center", ncols=3, handlelength=1)
    found = [row for row in rows if row["solved"] == row["seeds"]]
    return Drawing(
        name="gates",
        figure=figure,
        title="Learned gates become the prescribed ones",
        caption=(
            "Mean distance of learned gates from the prescribed ones at the end of training (0: equal, 1: opposite; "
            f"smaller values are drawn at {FLOOR:g}), by variant, with the number of seeds solved. A small penalty on "
            "open gates makes the result reliable. Without it, with a hundred times as much, or if the input shows the "
            "supervised tokens, it fails."
        ),
        alt=f"{len(found)} of {len(rows)} variants are solved on every seed; their input gates end within 0.001.",
    )
