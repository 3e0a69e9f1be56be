"""The paper's figures, one module each: take a tree or runs, return a `Drawing`. `save` writes it as SVG and PDF."""

from internalize.report.figures.drawing import Drawing
from internalize.report.figures.save import save

__all__ = ["Drawing", "save"]
