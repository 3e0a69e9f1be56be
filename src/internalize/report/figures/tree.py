"""Figure 4: the parity tree, and the residual stream of the literal model with CoT and with ICoT input."""

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Circle, Rectangle
from numpy.typing import NDArray

from internalize.curriculum import Curriculum
from internalize.errors import InputError
from internalize.parity.algorithm1.recovery import recovered_weights
from internalize.parity.model.literal import LiteralTransformer
from internalize.parity.task.data import add_trace, draw_bits, stage_input
from internalize.parity.task.stages import parity_stages
from internalize.parity.task.tree import ParityTree
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import HATCH, INK, MUTED, SIGNS, bare, sheet

LARGEST_T = 16
"""The longest sequence whose cells are large enough to read."""
SHARP = 20.0
"""Logit on the two children: attention is one half on each, to within 1e-7."""


def draw_tree(tree: ParityTree | None = None, seed: int = 3) -> Drawing:
    """Draw the tree of one sample beside its stream; by default for n = 8, k = 4, the paper's worked example.

    The stream is that of the model of Definition 3 with weights that solve the task, once with the whole chain shown
    and once with the input of stage L.
    """
    tree = tree or ParityTree(8, (1, 2, 4, 7))
    if tree.T > LARGEST_T or tree.L < 2:
        raise InputError(
            f"n={tree.n}, k={tree.k}: the figure has room for {LARGEST_T} positions and needs k of at least 4, "
            "otherwise there is no step to hide"
        )
    model, W = LiteralTransformer(tree.levels), recovered_weights(tree, "block", SHARP)
    written = model.gates.numpy() > 0  # L × T: whether layer l's gate is open at a position
    samples = add_trace(tree, draw_bits(tree.n, seed, 0, 1, "validation", torch.float64))
    sequence: NDArray[np.float64] = samples[0].numpy()
    first, *_, last = parity_stages(tree.levels, Curriculum("log-icot"))
    with sheet(0.72 * (tree.L + 1) + 1.2) as figure:
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[0.9, 2.1], wspace=0.02)[0]
        _draw_tree(left.add_subplot(), tree, sequence)
        panels = right.subplots(tree.L + 1, 2, squeeze=False)
        for column, (name, stage) in enumerate((("CoT input", first), ("ICoT input", last))):
            for layer, X in enumerate(model.streams(W, stage_input(samples, stage))):
                axes = panels[layer, column]
                _draw_stream(axes, tree, X[tree.T :].numpy(), layer, written)
                axes.set_ylabel(f"$X^{{({layer})}}$" if column == 0 else "", rotation=0, ha="right", va="center")
            panels[0, column].set_title(name, fontweight="bold", pad=4)
            panels[-1, column].set_xlabel("position")
    signs = ", ".join(f"{value:+.0f}" for value in sequence)
    hidden = tree.levels.level_end[tree.L - 1] - tree.n
    return Drawing(
        name="figure-4-tree",
        figure=figure,
        title="Figure 4. The parity tree and the residual stream",
        caption=(
            f"Left: the tree of n = {tree.n}, k = {tree.k} over the secret set {set(tree.secret)} on one sample; a "
            f"node is the product of its two children (blue +1, orange −1, gray 0). Right: the {tree.L + 1} blocks of "
            "the residual stream of the model of Definition 3, before and after each layer, with weights that solve "
            f"the task (logit {SHARP:g} on the children). With CoT input the whole chain is shown. With ICoT input, "
            f"that of the last stage of Log-ICoT, the first {hidden} nodes are 0, and each layer writes its nodes "
            "(thick frames) into its own block. Blocks that no layer has written yet are 0 and hatched. Positions "
            "count from 0."
        ),
        alt=(
            f"A binary tree joins {tree.k} of {tree.n} input bits pairwise up to the root, with values {signs}. Beside "
            "it two columns of grids of blocks by positions: they differ in block 1, where the ICoT input has 0 at "
            f"positions {tree.n} to {tree.n + hidden - 1}, and agree at every position that a layer has written."
        ),
    )


def _draw_tree(axes: Axes, tree: ParityTree, sequence: NDArray[np.float64]) -> None:
    bare(axes)
    x = {j: float(j) for j in range(tree.n)}
    for node in range(tree.n, tree.T):
        x[node] = sum(x[child] for child in tree.children(node)) / 2
    step = (tree.n - 1) * 1.2 / tree.L
    y = {m: tree.levels.level_of(m) * step for m in range(tree.T)}
    for position in range(tree.T):
        parent = tree.parent(position)
        if parent is not None:
            axes.plot([x[position], x[parent]], [y[position], y[parent]], color=INK, linewidth=0.8, zorder=1)
        inside, at_input = position >= tree.n or position in tree.secret, position < tree.n
        ink, place = INK if inside else MUTED, (x[position], y[position])
        color = to_hex(SIGNS((float(sequence[position]) + 1) / 2)) if inside else "white"
        axes.add_patch(Circle(place, 0.43, facecolor=color, edgecolor=ink, lw=0.7))
        sign = "+" if sequence[position] > 0 else "−"
        axes.text(*place, sign, ha="center", va="center", color=ink)
        below, side = (y[position] - 0.62, "top") if at_input else (y[position] + 0.62, "bottom")
        axes.text(x[position], below, f"$b_{{{position}}}$", ha="center", va=side, fontsize=8, color=ink)
    axes.text(x[tree.root] + 0.6, y[tree.root], "$= y$", va="center")
    axes.set_xlim(-0.7, tree.n - 0.3)
    axes.set_ylim(-1.5, tree.L * step + 1.5)
    axes.set_aspect("equal")


def _draw_stream(
    axes: Axes, tree: ParityTree, blocks: NDArray[np.float64], layer: int, written: NDArray[np.bool_]
) -> None:
    axes.pcolormesh(blocks, cmap=SIGNS, vmin=-1, vmax=1, edgecolors="white", linewidth=0.6)
    unwritten = Rectangle((0, layer + 1), tree.T, len(blocks) - layer - 1, facecolor="white", edgecolor=HATCH, lw=0)
    unwritten.set_hatch("//////")
    axes.add_patch(unwritten)
    for block, values in enumerate(blocks):
        for position, value in enumerate(values):
            if block <= layer:
                axes.text(position + 0.5, block + 0.53, _number(value), ha="center", va="center", fontsize=7)
            if 0 < block <= layer and written[block - 1, position]:
                axes.add_patch(Rectangle((position, block), 1, 1, fill=False, edgecolor=INK, linewidth=1.1))
    axes.axvline(tree.n, color=MUTED, linewidth=0.8, linestyle=":")
    axes.set_xlim(0, tree.T)
    axes.set_ylim(len(blocks), 0)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(MUTED)
    last = layer == len(blocks) - 1
    axes.set_xticks([j + 0.5 for j in range(tree.T)], [str(j) for j in range(tree.T)] if last else [])
    axes.set_yticks([block + 0.5 for block in range(len(blocks))], [f"block {b + 1}" for b in range(len(blocks))])
    axes.tick_params(length=0, pad=2, labelsize=7)


def _number(value: float) -> str:
    """Return a value as text: as a sign or 0 if it is ±1 or 0 to two digits."""
    nearest = round(value)
    if abs(value - nearest) < 0.005:
        return {1: "+", -1: "−", 0: "0"}.get(nearest, str(nearest))
    return f"{value:.1f}"
