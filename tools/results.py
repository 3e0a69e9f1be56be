"""Where stored results are: those that the page shows ship with the package, all others are in docs/results."""

import json
from pathlib import Path
from typing import Any

from internalize.report.stored import FOLDER

DOCS = Path(__file__).parents[1] / "docs"


def path_of(name: str) -> Path:
    """Return the file of a stored result; a new one goes to docs/results."""
    shipped = FOLDER / name
    return shipped if shipped.is_file() else DOCS / "results" / name


def stored(name: str) -> dict[str, Any]:
    """Read a stored JSON object by its name without ending."""
    return json.loads(path_of(f"{name}.json").read_text(encoding="utf-8"))
