"""A figure with the words that belong to it."""

from dataclasses import dataclass

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """What a figure module returns: all that a page or a manuscript needs of a figure."""

    name: str
    """File name without ending."""
    figure: Figure
    title: str
    """Its number in the paper and what it is, in a few words."""
    caption: str
    """One paragraph of plain text: what is drawn, from how many seeds, and what the marks mean."""
    alt: str
    """What it shows, for those who cannot see it."""
