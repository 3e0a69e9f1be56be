"""Figures to files: SVG and PDF, whole or not at all, and the same bytes every time."""

import io
from pathlib import Path

from matplotlib.figure import Figure

from internalize.report.figures.style import house_style
from internalize.storage.files import write_atomically, writing


def svg_bytes(figure: Figure) -> bytes:
    """A figure as SVG, without the date."""
    return _bytes(figure, "svg", {"Date": None, "Creator": None})


def pdf_bytes(figure: Figure) -> bytes:
    """A figure as PDF, without the date."""
    return _bytes(figure, "pdf", {"CreationDate": None})


def save(figure: Figure, folder: Path, name: str) -> Path:
    """Write ``name.svg`` and ``name.pdf`` to a folder, made if missing, and return the path of the SVG."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.svg"
    write_atomically(path, svg_bytes(figure))
    write_atomically(folder / f"{name}.pdf", pdf_bytes(figure))
    return path


def _bytes(figure: Figure, kind: str, metadata: dict[str, str | None]) -> bytes:
    file = io.BytesIO()
    with house_style():
        figure.savefig(file, format=kind, metadata=metadata)
    return file.getvalue()
