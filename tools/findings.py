"""The tables of docs/findings.md and of the README's summary of it, from the stored rows of `internalize compare`:
`python tools/findings.py` writes them in.

With `--store FOLDER …` it first takes the rows of those comparisons' `rows.json` into src/internalize/results/compare.json; with
`--store-phase FOLDER` the cells of a sweep into phase.parquet beside it, for the page of `internalize paper`.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from internalize import columns
from internalize.columns import Columns, Table
from internalize.results import FOLDER
from internalize.sweep import read_cells

DOCS = Path(__file__).parents[1] / "docs"
STORED = FOLDER / "compare.json"
PAGES = (DOCS / "findings.md", DOCS.parent / "README.md")
Row = dict[str, Any]


def store(folders: Iterable[Path]) -> None:
    """Keep what the docs need of the rows: not the paths of this machine."""
    rows: list[Row] = []
    for folder in folders:
        for row in json.loads((folder / "rows.json").read_text(encoding="utf-8"))["rows"]:
            kept = {key: value for key, value in row.items() if key not in ("runs", "tried")}
            rows.append(kept | _tried(row))
    rows.sort(key=lambda row: (row["of"], row["n"]))
    text = ",\n".join(json.dumps(_rounded(row), ensure_ascii=False) for row in rows)
    STORED.write_text(f'{{"rows": [\n{text}\n]}}\n', encoding="utf-8")


def store_phase(folder: Path) -> None:
    """Keep what a phase diagram needs of a sweep's cells."""
    cells = read_cells(folder).drop("cell", "accuracy", "l2_error", "max_error", "seconds")
    cells.sort("n", "samples", "seed").write_parquet(FOLDER / "phase.parquet", compression="zstd", compression_level=19)


def _tried(row: Row) -> Row:
    return {"tried": row["tried"]} if row["of"] == "curricula" and row["optimizer"] == "adamw" else {}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(own) for key, own in value.items()}
    return [_rounded(own) for own in value] if isinstance(value, list) else value


def markdown(table: Table) -> str:
    """A table as markdown."""
    lines = [table.head, ("---",) * len(table.head), *table.body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(rows: list[Row]) -> dict[str, str]:
    """Every table of the pages, by its name there."""

    def of(kind: str, **values: object) -> list[Row]:
        chosen = [row for row in rows if row["of"] == kind]
        return [row for row in chosen if all(row[key] == value for key, value in values.items())]

    found: dict[str, tuple[Columns, Sequence[columns.Row]]] = {
        f"curricula-{n}": (columns.COST, of("curricula", n=n)) for n in sorted({row["n"] for row in of("curricula")})
    }
    found["summary"] = (columns.SUMMARY, of("curricula", n=30))
    found["latency"] = columns.latency_columns(of("latency"))
    for optimizer in ("adamw", "algorithm-1"):
        found[f"ablations-{optimizer}"] = (columns.ABLATIONS, of("ablations", optimizer=optimizer))
    found["gates"] = (columns.GATES, of("gates"))
    found["simplifications"] = (columns.SIMPLIFICATIONS, of("simplifications"))
    return {name: markdown(Table.of(name, "", own, chosen)) for name, (own, chosen) in found.items()}


def filled(page: str, rows: list[Row]) -> str:
    """The page with its tables between their marks."""
    found = tables(rows)

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{found[match[2]]}\n{match[3]}"

    return re.sub(r"(<!-- table: (\S+) -->)\n[^<]*?(<!-- end -->)", fill, page)


def main() -> None:
    """Store, then fill."""
    if sys.argv[1:2] == ["--store"]:
        store(Path(folder) for folder in sys.argv[2:])
    if sys.argv[1:2] == ["--store-phase"]:
        store_phase(Path(sys.argv[2]))
    rows = json.loads(STORED.read_text(encoding="utf-8"))["rows"]
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
