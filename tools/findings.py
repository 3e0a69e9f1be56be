"""The tables of docs/findings.md and of the README's summary of it, from the stored rows of `internalize compare`:
`python tools/findings.py` writes them in.

With `--store FOLDER …` it first takes the rows of those comparisons' `rows.json` into docs/results/compare.json.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
STORED = DOCS / "results" / "compare.json"
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


def _tried(row: Row) -> Row:
    return {"tried": row["tried"]} if row["of"] == "curricula" and row["optimizer"] == "adamw" else {}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(own) for key, own in value.items()}
    return [_rounded(own) for own in value] if isinstance(value, list) else value


def table(columns: dict[str, Callable[[Row], str]], rows: list[Row]) -> str:
    """A markdown table."""
    lines = [list(columns), ["---"] * len(columns), *([cell(row) for cell in columns.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int = 3) -> str:
    """A count whole, anything else to some digits; nothing as a dash."""
    if value is None:
        return "–"
    return f"{value:,.0f}".replace(",", " ") if value == int(value) and abs(value) >= 1 else f"{value:.{digits}g}"


def accuracy(row: Row) -> str:
    return f"{row['accuracy']:.4f} ({row['accuracy_low']:.4f} – {row['accuracy_high']:.4f})"


def solved(row: Row) -> str:
    return f"{row['solved']} of {row['seeds']}"


def breaks(row: Row) -> str:
    return ", ".join(f"stage {stage}: {seeds}" for stage, seeds in row["breaks_at"].items()) or "–"


def turned(row: Row) -> str:
    if row["turned"] is None:
        return "not judged"
    return ", ".join(f"`{found['statement']}`" for found in row["turned"]) or "–"


def stages(row: Row) -> str:
    return f"{row['stages']}" + (f" ({number(row['idle_stages'])} idle)" if row["idle_stages"] else "")


def scales(row: Row) -> str:
    return ", ".join(f"{scale + 0:.2f}" for scale in row.get("answer_scale", ())) or "–"


def distance(part: str) -> Callable[[Row], str]:
    return lambda row: f"{row['gate_distance'][part]:.4f}" if "gate_distance" in row else "–"


def milliseconds(name: str) -> Callable[[Row], str]:
    return lambda row: f"{row[name]:.2g}" if row[name] < 10 else f"{row[name]:.0f}"


COST = {
    "optimizer": lambda row: row["optimizer"] + (f", lr {row['lr']:g}" if row["lr"] else ""),
    "curriculum": lambda row: row["method"],
    "stages": stages,
    "steps to 99 %": lambda row: number(row["steps_to_99"]),
    "samples to 99 %": lambda row: number(row["samples_to_99"]),
    "seconds to 99 %": lambda row: number(row["seconds_to_99"], 2),
    "solved": solved,
    "accuracy at equal samples": accuracy,
    "passes": lambda row: str(row["passes"]),
    "ms, batch 1": milliseconds("latency_ms"),
    "ms, batch 1000": milliseconds("latency_ms_1000"),
}
BROKEN = {
    "what": lambda row: row["what"],
    "solved": solved,
    "accuracy": accuracy,
    "breaks at": breaks,
}
SUMMARY = {
    name: cell for name, cell in COST.items() if name not in ("seconds to 99 %", "ms, batch 1", "ms, batch 1000")
}
WAYS = {"node": "chain written node by node", "level": "chain written level by level", "direct": "internalised"}


def latency_table(rows: list[Row]) -> str:
    """One line for each way to answer and batch, one column for each k."""
    ks = sorted({row["k"] for row in rows})
    by = {(row["by"], row["batch"], row["k"]): row for row in rows}
    columns: dict[str, Callable[[Row], str]] = {
        "answer": lambda row: WAYS[row["by"]],
        "batch": lambda row: str(row["batch"]),
    }
    for k in ks:
        columns[f"k = {k}"] = lambda row, k=k: milliseconds("latency_ms")(by[row["by"], row["batch"], k])
    return table(columns, [by[way, batch, ks[0]] for batch in (1, 1000) for way in WAYS])


def tables(rows: list[Row]) -> dict[str, str]:
    """Every table of the page, by its name there."""
    found: dict[str, str] = {}
    for n in sorted({row["n"] for row in rows if row["of"] == "curricula"}):
        found[f"curricula-{n}"] = table(COST, [row for row in rows if row["of"] == "curricula" and row["n"] == n])
    found["summary"] = table(SUMMARY, [row for row in rows if row["of"] == "curricula" and row["n"] == 30])
    timed = [row for row in rows if row["of"] == "latency"]
    if timed:
        found["latency"] = latency_table(timed)
    for optimizer in ("adamw", "algorithm-1"):
        own = [row for row in rows if row["of"] == "ablations" and row["optimizer"] == optimizer]
        found[f"ablations-{optimizer}"] = table({**BROKEN, "certificates that turn": turned}, own)
    parts = {"inputs": "inputs", "written": "written", "below": "kept"}
    columns = {"n, k": lambda row: f"{row['n']}, {row['k']}", **BROKEN}
    columns |= {f"distance, {name}": distance(part) for part, name in parts.items()}
    found["gates"] = table(columns, [row for row in rows if row["of"] == "gates"])
    columns = {**BROKEN, "scale of each layer's answer": scales}
    found["simplifications"] = table(columns, [row for row in rows if row["of"] == "simplifications"])
    return found


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
    rows = json.loads(STORED.read_text(encoding="utf-8"))["rows"]
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
