"""Store the accounts that `lm probe` gives of runs of `lm compare --keep-stages`, and make their table.

`python -m tools.stalls NAME FOLDER …` writes them to docs/results/NAME.json and keeps its command.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from internalize.lm.probe.probe import probe
from internalize.lm.probe.probed_models import open_probed_models
from internalize.lm.training.quiet import quiet_transformers
from internalize.report import comparison_tables as columns
from internalize.report.comparison_tables import Columns
from internalize.storage.files import Json
from internalize.storage.runs import Run
from internalize.storage.summaries import SOLVED

EXAMPLES = 1024
"""Number of questions that the probe reads per run."""


def stalls(folders: Iterable[Path]) -> list[Json]:
    """Return a row per run with its result and the account of the model of its last stage."""
    return [
        _row(Run(Path(path)))
        for folder in folders
        for row in json.loads((folder / "rows.json").read_text(encoding="utf-8"))["rows"]
        for path in row["runs"]
    ]


def _row(run: Run) -> Json:
    config, result = run.config, run.result
    asked = ("data", "method", "layers", "layer_loss", "replay", "replay_of", "hidden_loss", "seed")
    found = probe(open_probed_models(run.path, examples=EXAMPLES))["accounts"]
    (account,) = (each for each in found if each["stage"] == result["stages"][-1]["stage"])
    return {
        **{key: config[key] for key in asked},
        "exact_match": result["exact_match"],
        "steps": [stage["steps"] for stage in result["stages"]],
        "account": account,
    }


def by_setting(rows: Sequence[Json]) -> list[Json]:
    """Group runs that differ only in the seed."""
    together: dict[tuple[float, float], list[Json]] = {}
    for row in rows:
        together.setdefault((row["replay"], row["hidden_loss"]), []).append(row)
    return [{**runs[0], "runs": runs} for runs in together.values()]


def after_explicit(row: columns.Row) -> str:
    """Return the mean updates after the explicit stage of the solved runs."""
    found = [sum(run["steps"][1:]) for run in row["runs"] if run["exact_match"] >= SOLVED]
    return columns.number(round(sum(found) / len(found))) if found else "–"


def reasons(row: columns.Row) -> str:
    """Return the steps that are missing at the end and the reasons, seed by seed."""
    found = {run["seed"]: run["account"]["missing"] for run in row["runs"]}
    words = {seed: [f"{each['step']} {each['reason']}" for each in missing] for seed, missing in found.items()}
    return "; ".join(f"seed {seed}: {', '.join(own)}" for seed, own in words.items() if own) or "–"


STALLS: Columns = {
    "replay": lambda row: row["replay_of"] if row["replay"] else "none",
    "loss on hidden slots": lambda row: "all" if row["hidden_loss"] else "none",
    "solved": lambda row: f"{sum(run['exact_match'] >= SOLVED for run in row['runs'])} of {len(row['runs'])}",
    "updates after the explicit stage, solved seeds (mean)": after_explicit,
    "missing steps at the end, with reasons": reasons,
}


if __name__ == "__main__":
    from tools.findings import write_rows

    quiet_transformers()
    write_rows(sys.argv[1], stalls(map(Path, sys.argv[2:])))
