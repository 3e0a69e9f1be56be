"""The success rate of Algorithm 1 against its number of samples: measured points on the predicted line."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from internalize.intervals import wilson
from internalize.parity.theory.prediction import Setting
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import BLUE, MEASURED, MUTED, error_bars, note, sheet


def draw_success(points: Sequence[Mapping[str, int]], setting: Setting) -> Drawing:
    """Draw the shares of seeds with exact recovery, with 95 % intervals, and the predicted probability.

    Args:
        points: measurements with `samples` per stage, `seeds` and `successes`.
        setting: the setting of the algorithm.
    """
    tried = [point["samples"] for point in points]
    shares = [point["successes"] / point["seeds"] for point in points]
    bands = [wilson(point["successes"], point["seeds"]) for point in points]
    predicted = [math.exp(setting.log_success(samples)) for samples in tried]
    line = np.geomspace(min(tried) / 1.4, max(tried) * 1.4, 120)
    inside = sum(low <= middle <= high for middle, (low, high) in zip(predicted, bands, strict=True))
    told = ", ".join(f"{share:.0%} at B = {samples}" for share, samples in zip(shares, tried, strict=True))
    half, seeds = setting.samples_for(0.5), points[0]["seeds"]
    with sheet(2.6) as figure:
        axes = figure.add_subplot()
        axes.plot(line, [math.exp(setting.log_success(b)) for b in line], color=BLUE, label="predicted, nothing fitted")
        label = f"measured, {seeds} seeds per point (95 %)"
        error_bars(axes, tried, shares, bands, **MEASURED | {"markersize": 4}, label=label)
        if half:
            axes.axvline(half, color=MUTED, linestyle=":", linewidth=0.9)
            note(axes, f"predicted for one half: {half}", (half, 0), (4, 3))
        axes.set_xscale("log")
        axes.set_xticks(tried, [str(samples) for samples in tried])
        axes.minorticks_off()
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel("fresh samples per stage, B")
        axes.set_ylabel("share of runs that recover every layer")
        axes.legend(loc="upper left")
    return Drawing(
        name="success",
        figure=figure,
        title="Success of Algorithm 1 against its samples",
        caption=(
            f"Share of {seeds} seeds in which Algorithm 1 recovers every layer exactly, n = {setting.n}, k = "
            f"{setting.k}, with Wilson's 95 % intervals, and the predicted probability from exact moments of the "
            f"gradient and a Gaussian model, without a fitted constant. The line passes through {inside} of "
            f"{len(points)} intervals."
        ),
        alt=f"An S-shaped line over a logarithmic axis with measured points on it: {told}.",
    )
