"""Figure 3: what every layer attends to at the end of training."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from internalize.parity.algorithm1.recovery import split
from internalize.parity.model.weights import read_weights
from internalize.parity.task.tree import ParityTree
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import FAINT, HATCH, PAGE_WIDTH, RED, WEIGHTS, note, sheet, spaced, vector_bar
from internalize.storage.runs import Run

FULL = 0.5
"""The top of the color scale: perfect attention puts one half on each of the two children."""


def draw_attention(run: Run) -> Drawing:
    """Draw the attention of one run's final weights, with one panel per layer, queries × keys."""
    tree = ParityTree.of(run.config)
    columns = [w.double().softmax(dim=0) for w in read_weights(run.weights(), tree.levels, "level", run.path)]
    maps = [A.T.numpy() for A in columns]
    with sheet(_cell_points(tree) / 72 * (tree.k - 1) + 0.34 * tree.L + 0.62) as figure:
        panels = figure.subplots(tree.L, 1, sharex=True, squeeze=False, height_ratios=[len(A) for A in maps])[:, 0]
        meshes = [_draw_layer(axes, tree, layer, A) for layer, (axes, A) in enumerate(zip(panels, maps, strict=True))]
        _mark_boundaries(panels[0], tree)
        panels[-1].set_xlabel("key position (red ticks: the secret set)")
        figure.supylabel("query position", fontsize=9)
        extend = "max" if max(A.max() for A in maps) > FULL else "neither"  # a query may attend to a single key
        bar = figure.colorbar(meshes[-1], ax=list(panels), fraction=0.02, pad=0.01, aspect=28, extend=extend)
        vector_bar(bar, "attention")
        bar.outline.set_linewidth(0.5)  # pyright: ignore[reportCallIssue]
    parts = [split(A, tree.layer_children(layer)) for layer, A in enumerate(columns)]
    on_children = [float(children.min()) for children, _ in parts]
    elsewhere = max(0.0, *(float(others.max()) for _, others in parts))
    smallest = ", ".join(f"{value:.3f}" for value in on_children)
    return Drawing(
        name="figure-3-attention",
        figure=figure,
        title="Figure 3. Attention of every layer after training",
        caption=(
            f"Softmax attention of the {tree.L} layers of one run (n = {tree.n}, k = {tree.k}, seed "
            f"{run.config['seed']}) at the end of training. Rows are the queries that the layer writes, columns are "
            "keys; hatched keys are masked. Dotted lines mark the ends of the levels, red ticks the secret set, red "
            f"frames the two true children of each query. The smallest attention on a true child is {smallest} in "
            f"layers 1 … {tree.L}; one half is perfect. Positions count from 0."
        ),
        alt=(
            f"{tree.L} heat maps, one per layer, with {', '.join(str(len(A)) for A in maps)} rows over {tree.T} keys. "
            "The cells of the two children of each row's node are framed; the smallest weight in a frame is "
            f"{min(on_children):.3f}, and the largest outside the frames {elsewhere:.3f}."
        ),
    )


def _cell_points(tree: ParityTree) -> float:
    """Return the side of a cell in points, from the part of the page's width that the labels leave."""
    return 72 * (PAGE_WIDTH - 1.15) / tree.T


def _draw_layer(axes: Axes, tree: ParityTree, layer: int, A: NDArray[np.float64]) -> QuadMesh:
    points = _cell_points(tree)
    queries = tree.levels.nodes(layer + 1)
    read = tree.levels.level_end[layer]
    # A grid helps to count large cells and would cover small ones
    grid: dict[str, Any] = {"edgecolors": FAINT, "linewidth": 0.2} if points > 5 else {}
    edges = np.arange(read + 1), np.arange(queries.start, queries.stop + 1)
    mesh = axes.pcolormesh(*edges, A, cmap=WEIGHTS, vmin=0, vmax=FULL, **grid)
    masked = Rectangle((read, queries.start), tree.T - read, len(queries), facecolor="white", edgecolor=HATCH, lw=0)
    masked.set_hatch("//////")
    axes.add_patch(masked)
    for query in queries:
        for child in tree.children(query):
            axes.add_patch(Rectangle((child, query), 1, 1, fill=False, edgecolor=RED, linewidth=0.7))
    for end in tree.levels.level_end[:-1]:
        axes.axvline(end, color="black", linewidth=0.9, linestyle=":")
    axes.set_xlim(0, tree.T)
    axes.set_ylim(queries.stop, queries.start)
    axes.spines[:].set_visible(True)
    axes.set_title(f"layer {layer + 1}", loc="left", pad=3)
    some = [queries[number] for number in spaced(queries, 8 / points)]
    axes.set_yticks([query + 0.5 for query in some], [str(query) for query in some])
    axes.tick_params(axis="y", length=0, pad=2)
    keys = range(0, tree.T, 5 if tree.T <= 100 else 20)
    axes.set_xticks([j + 0.5 for j in keys], [str(j) for j in keys])
    axes.tick_params(axis="x", length=0, pad=6)
    axes.xaxis.remove_overlapping_locs = False  # matplotlib drops the minor tick where there is a major one
    # A second set of ticks marks the secret set, so that the numbered ticks stay regular
    axes.set_xticks([j + 0.5 for j in tree.secret], minor=True)
    axes.tick_params(axis="x", which="minor", length=4, width=1.3, color=RED)
    return mesh


def _mark_boundaries(axes: Axes, tree: ParityTree) -> None:
    ends = tree.levels.level_end[:-1]
    for number in spaced(ends, 14 / _cell_points(tree)):
        place = (ends[number], tree.levels.level_end[0])
        note(axes, f"$n_{number + 1}$", place, (0, 2), ha="center", va="bottom", fontsize=None)
