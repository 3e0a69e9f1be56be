"""The records behind the tables of language models: command, date, file, the cost of each method, and every seed.

docs/lm/all-results.md has one block per stored comparison, between `<!-- table: NAME-record -->` and `<!-- end -->`.
"""

from collections.abc import Sequence

from tools.language import LANGUAGE, REMOVES, rows_of
from tools.results import DOCS, markdown, path_of, stored

from internalize.report import comparison_tables as columns
from internalize.report.comparison_tables import Columns, Table
from internalize.storage.files import Json

_WIDEST = 84
"""Longest line of a command that a page shows without wrapping."""


def _of(row: columns.Row) -> str:
    """Return the method, with its levels if they distinguish two rows of a comparison."""
    tokens = row["method"] == "log-icot" and row["levels"] == "tokens" and "tree" in row["data"]
    return f"{row['method']} ({REMOVES['log-icot tokens']})" if tokens else row["method"]


def _setting(row: columns.Row) -> str:
    return f"`{row['data']}`, {row['layers']} layer{'s' if row['layers'] > 1 else ''}"


METHODS: Columns = {
    "data": _setting,
    "method": _of,
    "seeds": lambda row: str(row["seeds"]),
    "all updates": lambda row: columns.number(row["steps"]),
    "tokens per run": lambda row: f"{row['tokens'] / 1e6:.1f} M",
    "tokens per answer": lambda row: columns.number(row["tokens_per_answer"]),
    "seconds per run": lambda row: f"{row['seconds']:,.0f}".replace(",", " "),
}
SEEDS: Columns = {
    "data": _setting,
    "method": _of,
    "seed": lambda row: str(row["seed"]),
    "exact match": lambda row: f"{row['exact_match']:.4f}",
    "words right": lambda row: "" if row.get("word_match") is None else f"{row['word_match']:.4f}",
    "explicit stage": lambda row: columns.number(row["explicit"]),
    "after it, to 99 %": lambda row: columns.number(row["after_explicit"]),
    "updates per attempt": lambda row: ", ".join(columns.number(updates) for updates in row["steps"]),
}
STALLED_SEEDS: Columns = {
    "replay": lambda row: row["replay_of"] if row["replay"] else "none",
    "loss on hidden slots": lambda row: "all" if row["hidden_loss"] else "none",
    "seed": lambda row: str(row["seed"]),
    "exact match": lambda row: f"{row['exact_match']:.4f}",
    "updates per stage": lambda row: ", ".join(columns.number(updates) for updates in row["steps"]),
    "missing steps": lambda row: (
        ", ".join(f"{each['step']} ({each['reason']})" for each in row["account"]["missing"]) or "–"
    ),
}
GENERATION: Columns = {
    "task": lambda row: f"`{row['task']}`",
    "chain": lambda row: row["chain"],
    "ratio": lambda row: f"{row['median']:.1f} ({row['low']:.1f} – {row['high']:.1f})",
}


def informative(made: Columns, rows: Sequence[columns.Row]) -> str:
    """Return a table without uninformative columns: empty ones, and data if it is the same in all rows."""
    table = Table.of("", "", made, rows)
    told = {name: {line[i] for line in table.body} for i, name in enumerate(table.head)}
    kept = [i for i, name in enumerate(table.head) if any(told[name]) and (name != "data" or len(told[name]) > 1)]
    return markdown([table.head[i] for i in kept], [[line[i] for i in kept] for line in table.body])


def wrapped(command: str) -> str:
    """Return a command on lines that fit a page."""
    lines, line = list[str](), ""
    for part in command.replace(" --", "\n--").splitlines():
        if line and len(line) + 1 + len(part) > _WIDEST:
            lines, line = [*lines, line], f"  {part}"
        else:
            line = f"{line} {part}" if line else part
    return " \\\n".join([*lines, line])


def origin(name: str) -> str:
    """Return the commands, the date and the file of a stored result."""
    found = stored(name)
    commands = [found[key] for key in ("command", "read_by") if key in found]
    path = path_of(f"{name}.json").relative_to(DOCS.parent).as_posix()
    return "```\n" + "\n".join(map(wrapped, commands)) + f"\n```\n\nStored in `{path}`, {found['date']}."


def _with_seeds(rows: Sequence[Json]) -> list[Json]:
    asked = ("data", "layers", "levels", "method")
    return [{**{key: row[key] for key in asked}, **each} for row in rows for each in row["each"]]


def _record(name: str) -> str:
    rows = rows_of(name)
    return "\n\n".join([origin(name), informative(METHODS, rows), informative(SEEDS, _with_seeds(rows))])


def _probed(name: str) -> str:
    """Return the accuracy of the probe, with a row per layer and a column per step."""
    rows: dict[int, list[Json]] = {}
    for row in rows_of(name):
        rows.setdefault(row["layer"], []).append(row)
    steps = rows[0]
    head = ["layer", *(f"step {row['step']}" for row in steps[:-1]), "answer"]
    chance = ["chance", *(f"{row['chance']:.2f}" for row in steps)]
    body = [chance, *([str(n), *(f"{r['probe']:.2f}" for r in own)] for n, own in rows.items())]
    return f"{origin(name)}\n\n{markdown(head, body)}"


def records() -> dict[str, str]:
    """Return every block by its name."""
    found = {f"{name}-record": _record(name) for name in LANGUAGE}
    found |= {f"{name}-record": _probed(name) for name in ("lm-probe", "lm-probe-multiply")}
    found["lm-certify-record"] = origin("lm-certify")
    found["lm-stalls-record"] = f"{origin('lm-stalls')}\n\n{informative(STALLED_SEEDS, rows_of('lm-stalls'))}"
    found["lm-generation"] = informative(GENERATION, rows_of("lm-generation"))
    return found
