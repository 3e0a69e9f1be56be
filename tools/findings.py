"""The tables of docs/findings.md and docs/speed.md, and of the README's summaries of both, from the stored results of
`internalize compare` and `internalize bench`: `python tools/findings.py` writes them in.

With `--store FOLDER …` it first takes the rows of those comparisons' `rows.json` into src/internalize/results/compare.json; with
`--bench FOLDER`, the results and profiles of that bench into bench.json beside it; with `--phase FOLDER`, what a phase diagram
needs of a sweep's cells into phase.json.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from internalize import columns
from internalize.columns import Columns, Table
from internalize.results import FOLDER, read_phase

DOCS = Path(__file__).parents[1] / "docs"
STORED = FOLDER / "compare.json"
BENCH = FOLDER / "bench.json"
PAGES = (DOCS / "findings.md", DOCS / "speed.md", DOCS.parent / "README.md")
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
    """Keep the shares of successes of a sweep, and where they cross one half."""
    text = ",\n".join(f"{json.dumps(key)}: {_lines(own)}" for key, own in read_phase(folder / "sweep.json").items())
    (FOLDER / "phase.json").write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def _lines(rows: list[Row]) -> str:
    return "[\n" + ",\n".join(json.dumps(_rounded(row), ensure_ascii=False) for row in rows) + "\n]"


def store_bench(folder: Path) -> None:
    """Keep the results of a bench, with the profiles that are beside them."""
    found = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
    profiles = {
        subject: json.loads((folder / f"profile-{subject}.json").read_text(encoding="utf-8"))["rows"]
        for subject in ("solve", "train")
    }
    text = ",\n".join(f"{json.dumps(key)}: {json.dumps(own, ensure_ascii=False)}" for key, own in found.items())
    text += f',\n"profiles": {json.dumps(profiles, ensure_ascii=False)}'
    BENCH.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def _tried(row: Row) -> Row:
    return {"tried": row["tried"]} if row["of"] == "curricula" and row["optimizer"] == "adamw" else {}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(own) for key, own in value.items()}
    return [_rounded(own) for own in value] if isinstance(value, list) else value


def table(own: Columns, rows: Sequence[columns.Row]) -> str:
    """A markdown table."""
    made = Table.of("", "", own, rows)
    lines = [made.head, ("---",) * len(made.head), *made.body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(rows: list[Row]) -> dict[str, str]:
    """Every table of comparisons, by its name."""

    def of(kind: str, **values: object) -> list[Row]:
        chosen = [row for row in rows if row["of"] == kind]
        return [row for row in chosen if all(row[key] == value for key, value in values.items())]

    found: dict[str, str] = {}
    for n in sorted({row["n"] for row in of("curricula")}):
        found[f"curricula-{n}"] = table(columns.COST, of("curricula", n=n))
    found["summary"] = table(columns.SUMMARY, of("curricula", n=30))
    found["latency"] = table(*columns.latency_columns(of("latency")))
    for optimizer in ("adamw", "algorithm-1"):
        found[f"ablations-{optimizer}"] = table(columns.ABLATIONS, of("ablations", optimizer=optimizer))
    found["gates"] = table(columns.GATES, of("gates"))
    found["simplifications"] = table(columns.SIMPLIFICATIONS, of("simplifications"))
    return found


def spread(row: columns.Row) -> str:
    unit = f" {row['unit']}" if row["unit"] else ""
    error = f" ± {row['standard_error']:.2f}" if "standard_error" in row else ""
    between = f" ({row['low']:.3g} – {row['high']:.3g})" if row["repeats"] > 1 else ""
    return f"**{row['median']:.3g}{unit}**{error}{between}"


def goal(row: columns.Row) -> str:
    if row["goal"] is None:
        return "–"
    return f"{'≤' if row['at_most'] else '≥'} {row['goal']:.3g}: {'met' if row['met'] else 'missed'}"


def sides(row: columns.Row) -> str:
    if "solve_seconds" in row:
        return f"{row['solve_seconds']:.3g} in all"
    return ", ".join(f"{name} {seconds:.3g}" for name, seconds in row["seconds"].items())


MEASURED: Columns = {
    "measurement": lambda row: f"`{row['name']}`",
    "what": lambda row: row["what"],
    "median (smallest – largest)": spread,
    "goal": goal,
}
IN_FULL: Columns = {
    "measurement": lambda row: f"`{row['name']}`",
    "by the clock": spread,
    "in CPU time": lambda row: (
        f"{row['cpu_median']:.3g} ({row['cpu_low']:.3g} – {row['cpu_high']:.3g})" if "cpu_median" in row else "–"
    ),
    "repeats": lambda row: str(row["repeats"]),
    "seconds, medians": sides,
    "load": lambda row: f"{row['load']:.1f}",
}
PROFILED: Columns = {
    "function": lambda row: f"`{row['function']}`",
    "calls": lambda row: columns.number(row["calls"]),
    "share of CPU time": lambda row: f"{row['share']:.1%}",
}


def bench_tables(found: Row) -> dict[str, str]:
    """The tables of the bench and its profiles."""
    rows = [{"name": name, **own} for name, own in found.items() if isinstance(own, dict) and "median" in own]
    of_profiles = {f"profile-{subject}": table(PROFILED, own) for subject, own in found["profiles"].items()}
    return {"bench": table(MEASURED, rows), "bench-in-full": table(IN_FULL, rows), **of_profiles}


def all_tables() -> dict[str, str]:
    """Every table, by its name, from what is stored."""
    rows, found = (json.loads(path.read_text(encoding="utf-8")) for path in (STORED, BENCH))
    return tables(rows["rows"]) | bench_tables(found)


def filled(page: str, found: dict[str, str]) -> str:
    """The page with its tables between their marks."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{found[match[2]]}\n{match[3]}"

    return re.sub(r"(<!-- table: (\S+) -->)\n[^<]*?(<!-- end -->)", fill, page)


def main() -> None:
    """Store, then fill."""
    if sys.argv[1:2] == ["--store"]:
        store(Path(folder) for folder in sys.argv[2:])
    if sys.argv[1:2] == ["--phase"]:
        store_phase(Path(sys.argv[2]))
    if sys.argv[1:2] == ["--bench"]:
        store_bench(Path(sys.argv[2]))
    found = all_tables()
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
