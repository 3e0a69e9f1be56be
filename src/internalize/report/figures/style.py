"""The style of all figures: typography for a manuscript, colors for color-blind readers, and reproducible bytes.

The colors are those of Okabe and Ito. The fonts come with matplotlib, so that a figure is the same on every machine; in
SVG they are outlines, in PDF embedded TrueType.
"""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from internalize.errors import InputError
from internalize.storage.files import Json
from internalize.storage.runs import Run

INK: Final = "#1a1a1a"
MUTED: Final = "#6b6b6b"
FAINT: Final = "#e4e4e4"
HATCH: Final = "#c4c4c4"
BLUE: Final = "#0072b2"
SKY: Final = "#56b4e9"
ORANGE: Final = "#e69f00"
VERMILION: Final = "#d55e00"
GREEN: Final = "#009e73"
RED: Final = "#c1121f"

PAGE_WIDTH: Final = 6.9
"""Text width of a page, in inches."""

WEIGHTS: Final = LinearSegmentedColormap.from_list("weights", ["#ffffff", SKY, BLUE, "#00304d"])
"""Color map for 0 to 1. Lightness falls evenly, so it also works in gray print."""
SIGNS: Final = LinearSegmentedColormap.from_list("signs", [ORANGE, "#ececec", SKY])
"""Color map for −1 to +1, light enough for black text."""

MEASURED: Final[dict[str, Any]] = {"fmt": "o", "markersize": 3.5, "color": VERMILION, "linewidth": 1}
"""Style of measured points with error bars."""

PLAIN: Final[dict[str, Any]] = {"parse_math": False}
"""Style of text that comes from files, in which a dollar sign does not start a formula."""

_RC: Final[dict[str, Any]] = {
    "figure.facecolor": "white",
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "font.family": "STIXGeneral",
    "font.size": 9,
    "mathtext.fontset": "stix",
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "lines.linewidth": 1.2,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "hatch.linewidth": 0.4,
    "pdf.fonttype": 42,  # TrueType: text stays text, as journals ask
    "svg.fonttype": "path",  # a page must not depend on the reader's fonts
    "svg.hashsalt": "internalize",  # otherwise the names inside the SVG are random
}


def house_style() -> AbstractContextManager[None]:
    """Return a context in which matplotlib uses our style, whatever the user's own matplotlibrc says."""
    return style.context(_RC, after_reset=True)


@contextmanager
def sheet(height: float, width: float = PAGE_WIDTH) -> Generator[Figure]:
    """Enter our style with a new figure of this size, in inches."""
    with house_style():
        yield Figure(figsize=(width, height), layout="constrained")


def spaced(places: Sequence[float], gap: float) -> list[int]:
    """Return the indices of sorted places that can have a label, so that no two are closer than the gap."""
    kept: list[int] = []
    for number, place in enumerate(places):
        if not kept or place - places[kept[-1]] >= gap:
            kept.append(number)
    return kept


def note(axes: Axes, text: str, place: tuple[float, float], offset: tuple[float, float], **look: Any) -> None:
    """Write a text at an offset in points from a place; 8 points high and muted unless told otherwise."""
    look = {"color": MUTED, "fontsize": 8, **look}
    axes.annotate(text, place, offset, textcoords="offset points", **look)


def error_bars(
    axes: Axes, x: Sequence[float], middles: Sequence[float], bounds: Sequence[tuple[float, float]], **look: Any
) -> None:
    """Draw points with the intervals around them, each from its lower to its upper bound."""
    sides = [(middle - low, high - middle) for middle, (low, high) in zip(middles, bounds, strict=True)]
    axes.errorbar(x, middles, np.array(sides).clip(0).T, **look)


def metrics_together(runs: Sequence[Run], *names: str) -> list[list[Json]]:
    """Return the metrics of each run. Raise an error if their evaluations differ in one of ``names``."""
    metrics = [run.metrics() for run in runs]
    places = [[[line[name] for name in names] for line in own] for own in metrics]
    if any(own != places[0] for own in places):
        raise InputError("the runs were not evaluated at the same steps; one of their metrics.jsonl is incomplete")
    return metrics


def vector_bar(bar: Colorbar, label: str) -> None:
    """Label a color bar, and draw it as vectors like the rest of the figure."""
    bar.set_label(label)
    assert bar.solids is not None  # only an unfilled bar has none
    bar.solids.set(rasterized=False, edgecolor="face")


def bare(axes: Axes) -> None:
    """Remove the frame and the ticks, for diagrams."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
