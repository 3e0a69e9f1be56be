"""The law of B*(n): samples per stage at which half of all runs of Algorithm 1 succeed, predicted and measured."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes

from internalize.parity.theory.prediction import Setting, limit_factor
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import BLUE, MEASURED, MUTED, error_bars, note, sheet
from internalize.storage.files import Json

SIZES = tuple(2**exponent for exponent in range(3, 13))
"""The n of the predicted line, with k = n/2."""
EPSILON = 1.0
"""ε of the theorem."""


def draw_law(points: Sequence[Json]) -> Drawing:
    """Draw the predicted line and measured points, with the theorem's n^{2+ε} for comparison.

    Args:
        points: measurements at k = n/2 with `n`, `measured` (B*) and `points`, whose `samples` bracket B*.
    """
    predicted = [Setting(n, n // 2).samples_for(0.5) or math.nan for n in SIZES]
    limit = limit_factor(0.5)
    with sheet(2.8) as figure:
        left, right = figure.subplots(1, 2)
        theorem = [n ** (2 + EPSILON) for n in SIZES]
        demand = rf"the theorem's $n^{{2+\epsilon}}$, $\epsilon={EPSILON:g}$"
        left.plot(SIZES, theorem, color=MUTED, linestyle="--", label=demand)
        left.plot(SIZES, predicted, color=BLUE, label="predicted, nothing fitted")
        right.plot(SIZES, [b / (n * math.log(n)) for n, b in zip(SIZES, predicted, strict=True)], color=BLUE)
        right.axhline(limit, color=MUTED, linestyle=":", linewidth=0.9)
        note(right, f"limit {limit:g}", (SIZES[0], limit), (0, -9))
        _mark_measured(left, points, over_law=False)
        _mark_measured(right, points, over_law=True)
        left.set_yscale("log")
        left.set_ylim(top=theorem[-1] * 1e4)  # room for the legend
        left.set_ylabel(r"samples per stage, $B^*(n)$")
        right.set_ylabel(r"$B^*(n)\,/\,(n\,\ln n)$")
        right.set_ylim(0, limit * 1.08)
        left.legend(loc="upper left")
    seeds = ", ".join(f"{point['points'][0]['seeds']} at n = {point['n']}" for point in points)
    worst = max(abs(point["measured"] / point["predicted"] - 1) for point in points)
    return Drawing(
        name="law",
        figure=figure,
        title="The law of B*(n)",
        caption=(
            "Samples per stage at which half of all runs of Algorithm 1 recover every layer, k = n/2: predicted "
            f"(line), measured (points; seeds: {seeds}) and required by the theorem. Right: the same divided by n ln "
            f"n, with the derived limit {limit:g}. The largest relative difference between point and line is "
            f"{worst:.0%}."
        ),
        alt=(
            "Two panels over n from 8 to 4096. The measured points lie on the predicted line, which grows like n ln n, "
            f"far below the theorem's power; divided by n ln n it rises slowly toward {limit:g}."
        ),
    )


def _mark_measured(axes: Axes, points: Sequence[Json], *, over_law: bool) -> None:
    sizes = [int(point["n"]) for point in points]
    units = [n * math.log(n) if over_law else 1.0 for n in sizes]
    middles = [point["measured"] / unit for point, unit in zip(points, units, strict=True)]
    tried = [[at["samples"] / unit for at in point["points"]] for point, unit in zip(points, units, strict=True)]
    bounds = [(min(some), max(some)) for some in tried]
    error_bars(axes, sizes, middles, bounds, **MEASURED, label="measured (bar: numbers of samples tried)")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("n")
