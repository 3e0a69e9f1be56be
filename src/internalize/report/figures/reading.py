"""Where each step of a chain can be read in a language model: layers × steps, with a panel per stage."""

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from numpy.typing import NDArray

from internalize.errors import InputError
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import FAINT, RED, VERMILION, WEIGHTS, note, sheet
from internalize.storage.files import Json

ACROSS: Final = 4
"""Most panels in a row."""
READ: Final = 0.99
"""Accuracy at which a step counts as read."""
_percent: Final = f"{READ:.0%}".replace("%", " %")


def draw_reading(result: Json) -> Drawing:
    """Draw the probe's accuracy from the output of ``lm probe``.

    Each stage has a panel with the fewest hidden steps that were probed and, if it differs, one below with the most.
    """
    rows: Sequence[Json] = result["rows"]
    if not rows:
        raise InputError("there are no rows to draw")
    by_stage = {stage: sorted({r["hidden"] for r in own}) for stage, own in groupby(rows, lambda r: r["stage"])}
    least = [(stage, hidden[0]) for stage, hidden in by_stage.items()]
    most = [(stage, hidden[-1]) for stage, hidden in by_stage.items()]
    blocks = [least, most] if least != most else [least]
    steps = sorted({row["step"] for row in rows})
    layers = result["layers"] + 1
    across = min(ACROSS, len(by_stage))
    places = [at for block in blocks for at in (*block, *[None] * (-len(block) % across))]  # each block starts a row
    high = len(places) // across
    panel = min(1.9, 0.55 + 0.13 * layers)
    with sheet(0.35 + (panel + 0.42) * high) as figure:
        panels = figure.subplots(high, across, squeeze=False, sharex=True, sharey=True)
        used: list[Axes] = []
        for axes, at in zip(panels.flat, places, strict=True):
            if at is None:
                axes.set_visible(False)
                continue
            _panel(axes, _of(rows, *at), steps, layers, result["steps"] + 1)
            axes.set_title(f"stage {at[0]}, {at[1]} hidden", pad=12)
            used.append(axes)
        for axes in panels[:, 0]:
            axes.set_ylabel("layer")
        figure.supxlabel("step of the chain", fontsize=9)
        bar = figure.colorbar(ScalarMappable(cmap=WEIGHTS), ax=used, pad=0.01, aspect=30)
        bar.set_label("probe, from chance to always right")
    return Drawing(
        name="reading",
        figure=figure,
        title="Where each step can be read",
        caption=(
            "Accuracy of a linear probe for each step at each layer (0 is the embedding), read at the position that "
            f"has to predict the step, on {result['examples']} examples of {result['data']}, half of them used to fit. "
            "0 is the accuracy of the most frequent value, 1 is always right; a step with several tokens has their "
            f"mean. A is the answer. A dot: the model's own head reads the step there in at least {_percent} of the "
            "examples. Red lines separate hidden steps from shown ones, dotted lines separate levels."
        ),
        alt=f"{len(used)} heat maps of {layers} layers over {len(steps)} steps. {_in_words(rows, blocks[-1])}",
    )


def _of(rows: Sequence[Json], stage: int, hidden: int) -> list[Json]:
    return [row for row in rows if (row["stage"], row["hidden"]) == (stage, hidden)]


def above_chance(rows: Sequence[Json], steps: Sequence[int], layers: int) -> NDArray[np.float64]:
    """Return the probe's accuracy, layers × steps, scaled from 0 (chance) to 1 (always right); NaN if not probed."""
    grid = np.full((layers, len(steps)), np.nan)
    for row in rows:
        room = 1 - row["chance"]
        share = (row["probe"] - row["chance"]) / room if room > 0 else 0.0
        grid[row["layer"], steps.index(row["step"])] = max(share, 0.0)
    return grid


def _panel(axes: Axes, rows: Sequence[Json], steps: Sequence[int], layers: int, answer: int) -> None:
    edges = np.arange(len(steps) + 1) - 0.5, np.arange(layers + 1) - 0.5
    axes.set_facecolor(FAINT)
    grid = np.ma.masked_invalid(above_chance(rows, steps, layers))
    axes.pcolormesh(*edges, grid, cmap=WEIGHTS, vmin=0, vmax=1, edgecolors=FAINT, linewidth=0.2)
    read = [(steps.index(r["step"]), r["layer"]) for r in rows if (r["lens"] or 0) >= READ]
    if read:
        axes.scatter(*zip(*read, strict=True), s=5, color=VERMILION, linewidths=0)
    first = {steps.index(row["step"]): row for row in rows if row["layer"] == 0}
    for (at, one), (_, other) in pairwise(sorted(first.items())):
        if (one["shown"] < 0.5) != (other["shown"] < 0.5):
            axes.axvline(at + 0.5, color=RED, linewidth=1.6)
    place = 0
    for level, own in groupby(range(len(steps)), lambda at: first[at]["level"] if at in first else None):
        count = len(list(own))
        if place:
            axes.axvline(place - 0.5, color="black", linewidth=0.9, linestyle=":")
        if level is not None:
            middle = (place + (count - 1) / 2, layers - 0.5)
            note(axes, f"{'' if place else 'level '}{level}", middle, (0, 2), ha="center", fontsize=7)
        place += count
    every = max(1, len(steps) // 8)
    some = [at for at, step in enumerate(steps) if step == answer or (at % every == 0 and at <= len(steps) - 1 - every)]
    axes.set_xticks(some, ["A" if steps[at] == answer else str(steps[at]) for at in some])
    axes.set_yticks(range(0, layers, max(1, layers // 6)))
    axes.tick_params(length=0)


def _in_words(rows: Sequence[Json], panels: Sequence[tuple[int, int]]) -> str:
    """Return a sentence with the lowest layer from which each step can be read."""
    texts: list[str] = []
    for stage, hidden in panels:
        own = _of(rows, stage, hidden)
        lowest = [
            min((r["layer"] for r in own if r["step"] == step and r["probe"] >= READ), default=None)
            for step in sorted({r["step"] for r in own})
        ]
        listed = ", ".join("none" if layer is None else str(layer) for layer in lowest)
        texts.append(f"stage {stage} with {hidden} hidden: {listed}")
    return f"The lowest layer from which each step is read in {_percent} of the examples: {'; '.join(texts)}."
