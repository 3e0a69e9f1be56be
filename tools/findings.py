"""The tables of docs/findings.md and docs/speed.md, and of the README's summaries of both, from the stored results of
`internalize compare` and `internalize bench`: `python tools/findings.py` writes them in.

With `--store FOLDER …` it first takes the rows of those comparisons' `rows.json` into docs/results/compare.json; with
`--bench FOLDER`, the results and profiles of that bench into docs/results/bench.json.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
STORED = DOCS / "results" / "compare.json"
BENCH = DOCS / "results" / "bench.json"
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
    """Every table of comparisons, by its name."""
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


def spread(row: Row) -> str:
    unit = f" {row['unit']}" if row["unit"] else ""
    error = f" ± {row['standard_error']:.2f}" if "standard_error" in row else ""
    between = f" ({row['low']:.3g} – {row['high']:.3g})" if row["repeats"] > 1 else ""
    return f"**{row['median']:.3g}{unit}**{error}{between}"


def goal(row: Row) -> str:
    if row["goal"] is None:
        return "–"
    return f"{'≤' if row['at_most'] else '≥'} {row['goal']:.3g}: {'met' if row['met'] else 'missed'}"


def sides(row: Row) -> str:
    if "solve_seconds" in row:
        return f"{row['solve_seconds']:.3g} in all"
    return ", ".join(f"{name} {seconds:.3g}" for name, seconds in row["seconds"].items())


MEASURED: dict[str, Callable[[Row], str]] = {
    "measurement": lambda row: f"`{row['name']}`",
    "what": lambda row: row["what"],
    "median (smallest – largest)": spread,
    "goal": goal,
}
IN_FULL: dict[str, Callable[[Row], str]] = {
    "measurement": lambda row: f"`{row['name']}`",
    "by the clock": spread,
    "in CPU time": lambda row: (
        f"{row['cpu_median']:.3g} ({row['cpu_low']:.3g} – {row['cpu_high']:.3g})" if "cpu_median" in row else "–"
    ),
    "repeats": lambda row: str(row["repeats"]),
    "seconds, medians": sides,
    "load": lambda row: f"{row['load']:.1f}",
}
PROFILED: dict[str, Callable[[Row], str]] = {
    "function": lambda row: f"`{row['function']}`",
    "calls": lambda row: number(row["calls"]),
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
    if sys.argv[1:2] == ["--bench"]:
        store_bench(Path(sys.argv[2]))
    found = all_tables()
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
