"""Tables of comparisons, for the docs and for the page. Each column is a function from a row to the text of a cell.

A name from the code, such as a statement's, is between `backticks` in a cell.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], str]]


@dataclass(frozen=True)
class Table:
    """A table of texts."""

    name: str
    """File name without ending."""
    title: str
    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(name: str, title: str, columns: Columns, rows: Sequence[Row]) -> "Table":
        """Return a table with one line per row."""
        return Table(name, title, tuple(columns), tuple(tuple(cell(row) for cell in columns.values()) for row in rows))


def number(value: float | None, digits: int = 3) -> str:
    """Return a number as text: a count in full, any other number to `digits` digits, None as a dash."""
    if value is None:
        return "–"
    return f"{value:,.0f}".replace(",", " ") if value == int(value) and abs(value) >= 1 else f"{value:.{digits}g}"


def interval(name: str) -> Callable[[Row], str]:
    """Return a column of shares with their 95 % intervals."""
    return lambda row: f"{row[name]:.4f} ({row[f'{name}_low']:.4f} – {row[f'{name}_high']:.4f})"


def solved(row: Row) -> str:
    """Return the number of solved seeds and of all seeds."""
    return f"{row['solved']} of {row['seeds']}"


def _turned(row: Row) -> str:
    if row["turned"] is None:
        return "not judged"
    return ", ".join(f"`{found['statement']}`" for found in row["turned"]) or "–"


def _scales(row: Row) -> str:
    return ", ".join(f"{scale + 0:.2f}" for scale in row.get("answer_scale", ())) or "–"


def _distance(part: str) -> Callable[[Row], str]:
    return lambda row: f"{row['gate_distance'][part]:.4f}" if "gate_distance" in row else "–"


def over_linear(row: Row) -> str:
    """Return the ratio of updates after the explicit stage to those of linear ICoT on the same seeds."""
    ahead = row["against_linear"]
    shown = [ahead[name] for name in ("ratio", "ratio_low", "ratio_high")] if ahead else [None]
    return "–" if None in shown else "{:.2f} ({:.2f} – {:.2f})".format(*shown)


def milliseconds(name: str) -> Callable[[Row], str]:
    """Return a column of milliseconds: two digits below 10, whole numbers above."""
    return lambda row: f"{row[name]:.2g}" if row[name] < 10 else f"{row[name]:.0f}"


COST: Final[Columns] = {
    "optimizer": lambda row: row["optimizer"] + (f", lr {row['lr']:g}" if row["lr"] else ""),
    "curriculum": lambda row: row["method"],
    "stages": lambda row: f"{row['stages']}" + (f" ({number(row['idle_stages'])} idle)" if row["idle_stages"] else ""),
    "steps to 99 %": lambda row: number(row["steps_to_99"]),
    "samples to 99 %": lambda row: number(row["samples_to_99"]),
    "seconds to 99 %": lambda row: number(row["seconds_to_99"], 2),
    "solved": solved,
    "accuracy at equal samples": interval("accuracy"),
    "passes": lambda row: str(row["passes"]),
    "ms, batch 1": milliseconds("latency_ms"),
    "ms, batch 1000": milliseconds("latency_ms_1000"),
}
SUMMARY: Final[Columns] = {
    name: cell for name, cell in COST.items() if name not in ("seconds to 99 %", "ms, batch 1", "ms, batch 1000")
}
_BROKEN: Final[Columns] = {
    "what": lambda row: row["what"],
    "solved": solved,
    "accuracy": interval("accuracy"),
    "breaks at": lambda row: ", ".join(f"stage {stage}: {seeds}" for stage, seeds in row["breaks_at"].items()) or "–",
}
ABLATIONS: Final[Columns] = {**_BROKEN, "certificates that turn": _turned}
GATES: Final[Columns] = {
    "n, k": lambda row: f"{row['n']}, {row['k']}",
    **_BROKEN,
    "distance, inputs": _distance("inputs"),
    "distance, written": _distance("written"),
    "distance, kept": _distance("below"),
}
SIMPLIFICATIONS: Final[Columns] = {**_BROKEN, "scale of each layer's answer": _scales}
LANGUAGE: Final[Columns] = {
    "method": lambda row: row["method"],
    "seeds": lambda row: str(row["seeds"]),
    "solved": lambda row: str(row["solved"]),
    "exact match (95 % over seeds)": interval("exact_match"),
    "stages trained": lambda row: f"{row['attempts']:.3g}",
    "updates to 99 %": lambda row: number(row["steps_to_99"]),
    "after the explicit stage": lambda row: number(row["steps_after_explicit"]),
    "ratio to linear ICoT (95 %)": over_linear,
    "all updates": lambda row: number(row["steps"]),
}
WAYS: Final = {"node": "chain written node by node", "level": "chain written level by level", "direct": "internalized"}


def latency_columns(rows: Sequence[Row]) -> tuple[Columns, list[Row]]:
    """Return columns and lines for `compare --study latency`: a line per way to answer and batch, a column per k."""
    ks = sorted({row["k"] for row in rows})
    by = {(row["by"], row["batch"], row["k"]): row for row in rows}
    columns: dict[str, Callable[[Row], str]] = {
        "answer": lambda row: WAYS[row["by"]],
        "batch": lambda row: str(row["batch"]),
    }
    for k in ks:
        columns[f"k = {k}"] = lambda row, k=k: milliseconds("latency_ms")(by[row["by"], row["batch"], k])
    batches = sorted({row["batch"] for row in rows})
    return columns, [by[way, batch, ks[0]] for batch in batches for way in WAYS]
