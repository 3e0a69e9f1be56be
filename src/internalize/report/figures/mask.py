"""Figure 2(a): the level-restricted attention mask of Definition 1."""

from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from internalize.parity.model.mask import level_mask
from internalize.parity.task.tree import Levels
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import BLUE, FAINT, INK, MUTED, VERMILION, note, sheet, spaced


def draw_mask(levels: Levels | None = None) -> Drawing:
    """Draw the mask of n bits and k − 1 nodes, queries × keys; by default that of the paper's example, n = 8, k = 4."""
    levels = levels or Levels(8, 4)
    visible = level_mask(levels).T.numpy()
    with sheet(3.3, 3.6) as figure:
        axes = figure.add_subplot()
        axes.pcolormesh(visible, cmap=ListedColormap([FAINT, BLUE]), vmin=0, vmax=1, edgecolors="white", linewidth=0.6)
        axes.set_aspect("equal")
        axes.invert_yaxis()
        step = 1 if levels.T <= 20 else 5
        places = range(0, levels.T, step)
        axes.set_xticks([j + 0.5 for j in places], [str(j) for j in places])
        axes.set_yticks([m + 0.5 for m in places], [str(m) for m in places])
        axes.tick_params(length=0, pad=2)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("key position")
        axes.set_ylabel("query position")
        _mark_levels(axes, levels)
    ends = ", ".join(f"n{_subscript(number)} = {end}" for number, end in enumerate(levels.level_end[:-1], start=1))
    return Drawing(
        name="figure-2a-mask",
        figure=figure,
        title="Figure 2(a). The attention mask",
        caption=(
            f"The level-restricted mask for n = {levels.n}, k = {levels.k} (T = {levels.T} positions, counted from 0). "
            "Blue: the query may attend to the key; gray: masked. An input bit sees earlier bits. A node sees every "
            "position of the levels below it, and none of its own or a higher level. Rows are named by the layer that "
            f"writes them. Dashed lines mark the ends of the levels: {ends}."
        ),
        alt=(
            f"A grid of {levels.T} queries by {levels.T} keys. The upper left {levels.n} by {levels.n} block is a "
            "strict lower triangle. Below it, every row of a level is filled up to the end of the next lower level, so "
            f"the layers read {', '.join(map(str, levels.level_end[:-1]))} keys."
        ),
    )


def _mark_levels(axes: Axes, levels: Levels) -> None:
    points = 72 * 2.6 / levels.T  # side of a cell
    named = spaced(levels.level_end[:-1], 14 / points)
    for number, end in enumerate(levels.level_end[:-1], start=1):
        axes.axhline(end, color=VERMILION, linewidth=0.9, linestyle=(0, (4, 2)))
        axes.axvline(end, color=VERMILION, linewidth=0.9, linestyle=(0, (4, 2)))
        if number - 1 in named:
            note(axes, f"$n_{number}$", (end, 0), (0, 2), ha="center", va="bottom", color=VERMILION, fontsize=None)
    middles = [(levels.nodes(level).start + levels.nodes(level).stop) / 2 for level in range(levels.L + 1)]
    for level in spaced(middles, 9 / points):
        name = "bits" if level == 0 else f"layer {level}"
        note(axes, name, (levels.T, middles[level]), (3, 0), va="center", color=INK if level else MUTED)


def _subscript(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
