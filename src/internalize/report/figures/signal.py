"""The signal at finite n: the expected step on a child, as a fraction of the K that the paper's rate intends."""

from typing import Final

from internalize.parity.theory.prediction import Setting
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import BLUE, GREEN, MUTED, ORANGE, VERMILION, sheet

SIZES: Final = tuple(2**exponent for exponent in range(3, 12))
"""The n of the lines, with k = n/2."""
_LOOKS: Final = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (VERMILION, "D"))


def draw_signal(n: int = 30, k: int = 16) -> Drawing:
    """Draw the exact signal and noise of the first stages against n. The caption has every stage of one task."""
    found = {size: Setting(size, size // 2).gradients for size in SIZES}
    with sheet(2.7) as figure:
        left, right = figure.subplots(1, 2)
        for stage, (color, marker) in enumerate(_LOOKS):
            sizes = [size for size, stages in found.items() if len(stages) > stage]
            look = {"color": color, "marker": marker, "markersize": 3.2, "label": f"stage {stage + 1}"}
            left.plot(sizes, [found[size][stage].signal for size in sizes], **look)
            right.plot(sizes, [found[size][stage].noise for size in sizes], **look)
        left.axhline(1, color=MUTED, linestyle=":", linewidth=0.9)
        left.set_ylim(0, 1.05)
        left.set_ylabel("signal: expected step on a child / K")
        right.set_yscale("log")
        right.set_ylabel("noise of one sample / K")
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xlabel("n")
        left.legend(loc="lower right")
    stages = ", ".join(f"{gradient.signal:.3f}" for gradient in Setting(n, k).gradients)
    return Drawing(
        name="signal",
        figure=figure,
        title="The signal at finite n",
        caption=(
            "Algorithm 1's step at the paper's rate, from exact moments at k = n/2, stage by stage. Left: the expected "
            "step on a true child, which the paper assumes to be K. It is smaller at every finite n, so rounding to "
            f"integers gives the two children different weights. At n = {n}, k = {k}: {stages}. Right: the noise, as "
            "the standard deviation of a step on a single sample."
        ),
        alt=(
            f"Left: four lines that rise toward 1, from {found[SIZES[0]][0].signal:.2f} at n = {SIZES[0]} to "
            f"{found[SIZES[-1]][0].signal:.3f} at n = {SIZES[-1]} in stage 1. Right: the noise grows like the root of "
            "n."
        ),
    )
