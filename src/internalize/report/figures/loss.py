"""Figure 2(b): validation loss through the stages, over seeds."""

from collections.abc import Sequence

import numpy as np

from internalize.parity.adamw.groups import one_group
from internalize.parity.task.stages import parity_stages
from internalize.parity.task.tree import Levels
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import BLUE, MUTED, SKY, VERMILION, metrics_together, note, sheet
from internalize.storage.runs import Run

ROOMY = 5
"""Number of stages up to which there is room for their names, not only their numbers."""
FLOOR = 1e-9
"""A loss of exactly 0, which a logarithmic axis cannot show, is drawn at this value."""


def draw_loss(runs: Sequence[Run]) -> Drawing:
    """Draw the median and range of the validation loss of runs that differ only in the seed.

    Directly after a switch there is an evaluation at the same step as the last one of the previous stage. Drawn in the
    order of the file, the two are the ends of a vertical line, and the upper end is the spike.
    """
    options = one_group(runs)
    levels = Levels.of(options)
    metrics = metrics_together(runs, "step", "stage")
    places: list[tuple[int, int]] = [(line["step"], line["stage"]) for line in metrics[0]]
    steps = np.array([step for step, _ in places])
    begins = [place for place, (_, stage) in enumerate(places) if place == 0 or stage != places[place - 1][1]]
    losses = np.maximum([[line["loss"] for line in own] for own in metrics], FLOOR)
    low, median, high = losses.min(axis=0), np.median(losses, axis=0), losses.max(axis=0)
    widest = float((high / low).max())
    seeds = len(runs)
    switches = begins[1:]
    roomy = len(begins) <= ROOMY
    stages = parity_stages(levels, options.schedule())

    with sheet(2.7) as figure:
        axes = figure.add_subplot()
        axes.set_yscale("log")
        if seeds > 1:
            axes.fill_between(steps, low, high, color=SKY, alpha=0.45, linewidth=0, label=f"range of all {seeds} seeds")
        axes.plot(steps, median, color=BLUE, label=f"median of {seeds} seeds" if seeds > 1 else "1 seed")
        if switches:
            place = steps[switches], median[switches]
            axes.plot(*place, "^", markersize=4.5, color=VERMILION, label="directly after a switch")
        for number in switches if roomy else ():
            note(axes, f"{median[number]:.3g}", (steps[number], median[number]), (5, 1), color=VERMILION)
        for begin in begins:
            axes.axvline(steps[begin], color=MUTED, linewidth=0.7, linestyle=(0, (4, 3)), zorder=0)
        ends = [*(steps[begin] for begin in begins[1:]), steps[-1]]
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            hidden = len(stages[places[begin][1] - 1].hidden)
            name = f"stage {number + 1}: {hidden} of {levels.k - 2} steps hidden" if roomy else str(number + 1)
            place = (steps[begin] + end) / 2, 1.02
            axes.text(*place, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=8)
        axes.margins(x=0.012)
        axes.set_ylim(top=float(high.max()) * 2.5)
        axes.set_xlabel("gradient step")
        axes.set_ylabel("validation loss")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, handlelength=1.6)
    spikes = ", ".join(f"{median[place]:.3g}" for place in switches)
    lows = ", ".join(f"{part.min():.1g}" for part in np.split(median, switches))
    over = (
        f"the median over {seeds} seeds, and the range of all of them as a band, at most a factor of {widest:.3g} wide"
    )
    return Drawing(
        name="figure-2b-loss",
        figure=figure,
        title="Figure 2(b). Validation loss through the stages",
        caption=(
            f"Loss on {options.eval_samples} held-out samples (logarithmic) for n = {options.n}, k = {options.k}, "
            f"{options.curriculum}, AdamW at rate {options.lr:g}, batch {options.batch}: "
            f"{over if seeds > 1 else 'one seed'}. Dashed lines: one of the {len(begins)} stages begins. Triangles: "
            f"the evaluation directly after a switch, before any update{f' (median {spikes})' if switches else ''}."
        ),
        alt=(
            f"The median loss begins at {median[0]:.2g} and ends at {median[-1]:.2g} after {steps[-1]} steps. Its "
            f"lowest values in the {len(begins)} stages are {lows}; "
            + (f"directly after the switches it is {spikes}." if switches else "there is no switch.")
        ),
    )
