"""Stored results: those that the page shows ship with the package, all others are in docs/results."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from internalize.lm.evaluation.linear_baseline import SeedRow, compare_with_linear
from internalize.report.stored import FOLDER

DOCS = Path(__file__).parents[1] / "docs"


def path_of(name: str) -> Path:
    """Return the file of a stored result. A new one goes to docs/results."""
    shipped = FOLDER / name
    return shipped if shipped.is_file() else DOCS / "results" / name


def read(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def stored(name: str) -> dict[str, Any]:
    """Return a stored JSON object by its name without ending. Callers must not change it."""
    return read(path_of(f"{name}.json"))


def markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body))


def row_of(rows: Iterable[dict[str, Any]], *wanted: str) -> dict[str, Any]:
    """Return the only row that has every wanted word among its values and every wanted `key=value`."""

    def fits(row: dict[str, Any], word: str) -> bool:
        key, equals, value = word.partition("=")
        return str(row.get(key)) == value if equals else word in row.values()

    (found,) = (row for row in rows if all(fits(row, word) for word in wanted))
    return found


def against_linear(own: Sequence[dict[str, Any]], linear: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return how the stored seeds of a method compare with those of linear ICoT, or of another method."""
    found = compare_with_linear(*([SeedRow(**each) for each in seeds] for seeds in (own, linear)))
    return found and asdict(found)
