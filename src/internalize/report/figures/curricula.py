"""The cost of 99 % accuracy: samples under every curriculum and both optimizers."""

from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes

from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import BLUE, MUTED, VERMILION, note, sheet
from internalize.storage.files import Json

_LOOKS: Final = {"adamw": ("AdamW", BLUE, "o"), "algorithm-1": ("Algorithm 1", VERMILION, "D")}


def draw_curricula(rows: Sequence[Json]) -> Drawing:
    """Draw the samples to 99 %, with a panel per size and a line per curriculum, and the number of solved seeds."""
    sizes = sorted({(int(row["n"]), int(row["k"])) for row in rows})
    with sheet(2.5) as figure:
        panels = figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0]
        for axes, (n, k) in zip(panels, sizes, strict=True):
            _draw_size(axes, [row for row in rows if (row["n"], row["k"]) == (n, k)])
            axes.set_title(f"n = {n}, k = {k}")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    told = "; ".join(_in_words(row) for row in rows if row["method"] in ("icot", "log-icot"))
    return Drawing(
        name="curricula",
        figure=figure,
        title="The cost of 99 % accuracy under each curriculum",
        caption=(
            "Samples until 99 % of the answers are right, medians over seeds. A cross at the right: the curriculum "
            "never reaches 99 %. Beside each mark: the number of seeds solved when every curriculum uses the same "
            "number of samples. Under AdamW a stage ends once its level is learned, so the extra stages of ICoT cost "
            "nothing. Under Algorithm 1 each stage is a step with its own samples."
        ),
        alt=f"Samples to 99 %: {told}. Without a chain, 99 % is never reached.",
    )


def _draw_size(axes: Axes, rows: Sequence[Json]) -> None:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    most = max(row["samples_to_99"] or 0 for row in rows)
    for optimizer, (name, color, marker) in _LOOKS.items():
        shift = 0.14 if optimizer == "adamw" else -0.14
        axes.plot([], [], marker, color=color, label=name, markersize=4.5)
        for row in (row for row in rows if row["optimizer"] == optimizer):
            height, reached = methods.index(row["method"]) + shift, row["samples_to_99"] is not None
            x = row["samples_to_99"] if reached else 6 * most
            axes.plot([x], [height], marker if reached else "x", color=color, markersize=4.5)
            text = f"{row['solved']} of {row['seeds']}"
            side = "left" if reached else "right"
            note(axes, text, (x, height), (6 if reached else -6, 0), ha=side, va="center", fontsize=7)
    axes.axvline(3.2 * most, color=MUTED, linewidth=0.6, linestyle=":")
    axes.text(6 * most, len(methods) - 0.45, "never", ha="center", fontsize=7, color=MUTED)
    axes.set_xscale("log")
    axes.set_xlim(right=11 * most)
    axes.set_ylim(-0.6, len(methods) - 0.3)
    axes.set_yticks(range(len(methods)), methods)
    axes.set_xlabel("samples to 99 %")


def _in_words(row: Json) -> str:
    samples = "never" if row["samples_to_99"] is None else f"{row['samples_to_99']:.0f}"
    return f"{row['method']} under {row['optimizer']} at n = {row['n']} {samples}"
