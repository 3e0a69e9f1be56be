"""Accounts of runs of `lm compare --keep-stages`, as `lm probe` gives them, into src/internalize/results/NAME.json, beside its
command: `python -m tools.stalls NAME FOLDER …`.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from internalize.lm.kept import open_kept
from internalize.lm.probe import probe
from internalize.lm.quiet import quiet_transformers
from internalize.runs import Run

EXAMPLES = 1024
"""Questions that are read of each."""


def stalls(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """A row for each run: what it came to, and the account of the model of its last stage."""
    return [
        _row(Run(Path(path)))
        for folder in folders
        for row in json.loads((folder / "rows.json").read_text(encoding="utf-8"))["rows"]
        for path in row["runs"]
    ]


def _row(run: Run) -> dict[str, Any]:
    config, result = run.config, run.result
    asked = ("data", "method", "layers", "layer_loss", "replay", "replay_of", "hidden_loss", "seed")
    found = probe(open_kept(run.path, examples=EXAMPLES))["accounts"]
    (account,) = (each for each in found if each["stage"] == result["stages"][-1]["stage"])
    return {
        **{key: config[key] for key in asked},
        "exact_match": result["exact_match"],
        "steps": [stage["steps"] for stage in result["stages"]],
        "account": account,
    }


if __name__ == "__main__":
    from tools.findings import write_rows

    quiet_transformers()
    write_rows(sys.argv[1], stalls(map(Path, sys.argv[2:])))
