"""A figure with its title, caption and description, and its files: written atomically, and identical every time."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from matplotlib.figure import Figure

from internalize.report.figures.style import house_style
from internalize.storage.files import write_atomically, writing

Kind = Literal["svg", "pdf"]
_UNDATED: Final[dict[Kind, dict[str, None]]] = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}


@dataclass(frozen=True)
class Drawing:
    """The result of a figure module: everything that a page or a manuscript needs of a figure."""

    name: str
    """File name without ending."""
    figure: Figure
    title: str
    """Its number in the paper, if any, and its subject."""
    caption: str
    """One paragraph of plain text: what is drawn, from how many seeds, and what the marks mean."""
    alt: str
    """What the figure shows, for readers who cannot see it."""

    def content(self, kind: Kind = "svg") -> bytes:
        """Return the figure as a file without a date."""
        file = io.BytesIO()
        with house_style():
            self.figure.savefig(file, format=kind, metadata=_UNDATED[kind])
        return file.getvalue()

    def save(self, folder: Path) -> Path:
        """Write ``name.svg`` and ``name.pdf`` to a folder, created if missing, and return the path of the SVG."""
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for kind in _UNDATED:
            write_atomically(folder / f"{self.name}.{kind}", self.content(kind))
        return folder / f"{self.name}.svg"
