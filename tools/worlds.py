"""Compare the success rates of Algorithm 1 with the prediction in worlds that the paper leaves out, and count their cost.

    python -m tools.worlds FOLDER --seeds 0:400 --jobs 1   run every case at its predicted 50 % samples, or what is missing
    python -m tools.worlds FOLDER --store                  and store the rows in docs/results/worlds.json

The cases run as a sweep of `solve`, so `internalize sweep show FOLDER` also reads them.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from internalize.intervals import wilson
from internalize.parallel.runner import Runner
from internalize.parity.experiments.phase import read_cells
from internalize.parity.experiments.sweep import sweep
from internalize.parity.options import SolveOptions, StepOptions
from internalize.parity.theory.prediction import Setting
from internalize.random_words import parse_seeds
from internalize.report import comparison_tables as columns
from internalize.report.comparison_tables import Columns
from internalize.storage.files import Json

CASES: Sequence[tuple[str, Json]] = (
    ("wrong labels", {"n": 16, "k": 8, "noise": 0.1}),
    ("wrong labels", {"n": 32, "k": 16, "noise": 0.1}),
    ("wrong labels", {"n": 16, "k": 8, "noise": 0.25}),
    ("wrong labels", {"n": 32, "k": 16, "noise": 0.25}),
    ("wrong steps", {"n": 16, "k": 8, "noise": 0.25, "noisy": "steps"}),
    ("wrong chains", {"n": 16, "k": 8, "noise": 0.05, "noisy": "carried"}),
    ("ragged", {"n": 32, "k": 6}),
    ("ragged", {"n": 32, "k": 10}),
    ("ragged", {"n": 32, "k": 12}),
    ("ragged", {"n": 32, "k": 20}),
    ("3 children", {"n": 16, "k": 9, "arity": 3}),
    ("3 children", {"n": 27, "k": 27, "arity": 3}),
    ("3 children, ragged", {"n": 20, "k": 7, "arity": 3}),
    ("4 children", {"n": 16, "k": 4, "arity": 4}),
    ("4 children", {"n": 16, "k": 16, "arity": 4}),
    ("modulo 3", {"n": 16, "k": 8, "modulus": 3}),
    ("modulo 3", {"n": 32, "k": 16, "modulus": 3}),
    ("modulo 3, ragged", {"n": 24, "k": 6, "modulus": 3}),
    ("modulo 5", {"n": 16, "k": 4, "modulus": 5}),
    ("modulo 5", {"n": 24, "k": 4, "modulus": 5}),
)
"""Name and options of each case. They were chosen before any of them was run at its predicted number of samples."""


def settings() -> list[SolveOptions]:
    """Return the options of every case, at the number of samples for which the prediction says 50 %."""
    return [SolveOptions(**case, samples=Setting(**case).samples_for(0.5), test_samples=200) for _, case in CASES]


def rows(folder: Path) -> list[Json]:
    """Return a row per case: what is predicted and what was measured."""
    cells = read_cells(folder).to_dicts()
    step = [field.name for field in fields(StepOptions)]
    found: list[Json] = []
    for (name, case), options in zip(CASES, settings(), strict=True):
        wanted = {key: getattr(options, key) for key in (*step, "samples")}
        default = {field.name: field.default for field in fields(StepOptions)}
        own = [
            cell
            for cell in cells
            if all((default.get(key) if cell[key] is None else cell[key]) == value for key, value in wanted.items())
        ]
        setting = Setting(**case)
        low, high = wilson(successes := sum(cell["success"] for cell in own), len(own))
        found.append({
            "case": name,
            **{key: getattr(setting, key) for key in ("n", "k", "arity", "modulus", "noise", "noisy")},
            "stages": setting.levels.L,
            "K": setting.amplitude,
            "samples": options.samples,
            "seeds": len(own),
            "successes": successes,
            "low": low,
            "high": high,
        })  # fmt: skip
    return found


MEASURED: Columns = {
    "world": lambda row: row["case"],
    "n": lambda row: row["n"],
    "k": lambda row: row["k"],
    "q": lambda row: f"{row['noise']:g}" if row["noise"] else "–",
    "stages": lambda row: row["stages"],
    "B at predicted 50 %": lambda row: row["samples"],
    "measured": lambda row: f"{row['successes'] / row['seeds']:.3f} ({row['successes']}/{row['seeds']})",
    "95 %": lambda row: f"{row['low']:.3f} – {row['high']:.3f}",
    "standard errors": lambda row: f"{errors(row):+.1f}",
}
"""The table of predicted and measured success."""


def errors(row: columns.Row) -> float:
    """Return how far the measured rate is from one half, in binomial standard errors."""
    return (row["successes"] / row["seeds"] - 0.5) / (0.5 / math.sqrt(row["seeds"]))


def main() -> None:
    """Run what is missing, or store the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=parse_seeds, default=())
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--store", action="store_true")
    asked = parser.parse_args()
    if asked.store:
        from tools.findings import write_rows

        write_rows("worlds", rows(asked.folder))
        return
    sweep(settings(), asked.seeds, asked.folder, Runner(asked.jobs), stop_at_failure=True, resume=asked.folder.exists())


if __name__ == "__main__":
    main()
