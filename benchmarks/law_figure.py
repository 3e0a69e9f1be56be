"""Draw the law of B*(n) from its stored points into docs/figures: python benchmarks/law_figure.py."""

from pathlib import Path

from internalize.report.figures.law import draw_law
from internalize.report.stored import FOLDER
from internalize.storage.files import read_json

DOCS = Path(__file__).resolve().parents[1] / "docs"

if __name__ == "__main__":
    drawing = draw_law(read_json(FOLDER / "finite-n.json")["law"])
    print(drawing.save(DOCS / "figures"))
    print(drawing.caption)
