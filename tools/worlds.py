"""Compare the success rates of Algorithm 1 with the prediction in worlds that the paper leaves out, and count their cost.

    python -m tools.worlds FOLDER --seeds 0:400 --jobs 1   run every case at its predicted 50 % samples, or what is missing
    python -m tools.worlds FOLDER AGAIN --store            and store the rows in docs/results/worlds.json

The cases run as a sweep of `solve`, so `internalize sweep show FOLDER` also reads them. AGAIN is a sweep of some cases with
other seeds. The tables without measurements are computed from the exact moments whenever the pages are written.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import get_args

from tools.results import stored

from internalize.intervals import wilson
from internalize.parallel.runner import Runner
from internalize.parity.experiments.phase import read_cells
from internalize.parity.experiments.sweep import sweep
from internalize.parity.options import Noisy, SolveOptions, StepOptions
from internalize.parity.task.tree import Levels
from internalize.parity.theory.and_or import Operation, expected_steps, samples_between
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
"""Name and options of each case. They were fixed after a trial of a few seeds each."""


def settings() -> list[SolveOptions]:
    """Return the options of every case, at the number of samples for which the prediction says 50 %."""
    return [SolveOptions(**case, samples=Setting(**case).samples_for(0.5), test_samples=200) for _, case in CASES]


def rows(folder: Path, *, again: bool = False) -> list[Json]:
    """Return a row per case that was run: what is predicted and what was measured."""
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
        if not own:
            continue
        setting = Setting(**case)
        low, high = wilson(successes := sum(cell["success"] for cell in own), len(own))
        found.append({
            "case": name,
            "again": again,
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
    "n": lambda row: str(row["n"]),
    "k": lambda row: str(row["k"]),
    "q": lambda row: f"{row['noise']:g}" if row["noise"] else "–",
    "stages": lambda row: str(row["stages"]),
    "B at predicted 50 %": lambda row: str(row["samples"]),
    "measured": lambda row: f"{row['successes'] / row['seeds']:.3f} ({row['successes']}/{row['seeds']})",
    "95 %": lambda row: f"{row['low']:.3f} – {row['high']:.3f}",
    "standard errors": lambda row: f"{errors(row):+.1f}",
}
"""The table of predicted and measured success."""


def errors(row: columns.Row) -> float:
    """Return how far the measured rate is from one half, in binomial standard errors."""
    return (row["successes"] / row["seeds"] - 0.5) / (0.5 / math.sqrt(row["seeds"]))


ARITIES: Columns = {
    "children": lambda row: str(row["arity"]),
    "stages": lambda row: str(row["stages"]),
    "signal of the last stage": lambda row: f"{row['signal']:.2f}",
    "B at predicted 50 %": lambda row: f"{row['samples']:.2g}",
    "leading order": lambda row: f"{row['leading']:.2g}",
    "B × stages, over that of 2 children": lambda row: f"{row['cost']:.2g}",
}
"""The table of stages against samples."""


def arities(n: int = 128, k: int = 64) -> list[Json]:
    """Return a row per number of children for which a tree of k leaves is complete."""
    found: list[Json] = []
    for arity in (2, 4, 8):
        setting = Setting(n, k, arity)
        samples, r = float(setting.samples_for(0.5) or math.inf), arity
        leading = max(
            16 * stage.keys ** (2 * r - 3) * (math.pi * r / 2) ** (4 - 2 * r) * math.log(stage.keys * stage.nodes)
            for stage in setting.gradients
        )
        cost = samples * setting.levels.L
        row = {"arity": r, "stages": setting.levels.L, "samples": samples, "leading": leading}
        found.append({**row, "signal": setting.gradients[-1].signal, "cost": cost})
    return [{**row, "cost": row["cost"] / found[0]["cost"]} for row in found]


def _times(name: str) -> Callable[[columns.Row], str]:
    """Return a column of ratios of samples, in which no number of samples is infinite."""
    return lambda row: f"{row[name]:.2f}" if math.isfinite(row[name]) else "no number is enough"


NOISE: Columns = {
    "q": lambda row: f"{row['noise']:g}",
    "(1 − 2q)⁻²": lambda row: f"{row['factor']:.2f}",
    "any node": _times("nodes"),
    "steps only": _times("steps"),
    "carried on": _times("carried"),
}
"""The table of what wrong labels cost."""


def noises(n: int = 128, k: int = 64) -> list[Json]:
    """Return a row per noise: predicted samples over those for true labels, for each kind of noise."""
    base = Setting(n, k).samples_for(0.5) or math.inf

    def ratio(noise: float, noisy: Noisy) -> float:
        return (Setting(n, k, noise=noise, noisy=noisy).samples_for(0.5) or math.inf) / base

    return [
        {"noise": q, "factor": (1 - 2 * q) ** -2, **{noisy: ratio(q, noisy) for noisy in get_args(Noisy)}}
        for q in (0.01, 0.05, 0.1, 0.25)
    ]


SUMS: Columns = {
    "modulus": lambda row: str(row["modulus"]),
    "n, k": lambda row: f"{row['n']}, {row['k']}",
    "B at predicted 50 %": lambda row: str(row["samples"]),
    "over 4 M ln(MN)": lambda row: f"{row['leading']:.2f}",
    "over parity's B": lambda row: f"{row['parity']:.2f}",
}
"""The table of sums modulo p against parity."""


def sums(sizes: Sequence[tuple[int, int, int]] = ((3, 16, 8), (3, 32, 16), (3, 128, 64), (5, 16, 4))) -> list[Json]:
    """Return a row per modulus and size: predicted samples against their leading order and against parity's."""
    found: list[Json] = []
    for p, n, k in sizes:
        setting, parity = Setting(n, k, modulus=p), Setting(n, k).samples_for(0.5) or math.inf
        samples = setting.samples_for(0.5) or math.inf
        leading = max(4 * stage.keys * math.log(stage.keys * stage.nodes) for stage in setting.gradients)
        row = {"modulus": p, "n": n, "k": k, "samples": samples}
        found.append({**row, "leading": samples / leading, "parity": samples / parity})
    return found


GATES: Columns = {
    "tree": lambda row: row["operation"],
    "n, k": lambda row: f"{row['n']}, {row['k']}",
    "keys": lambda row: "centered" if row["centered"] else "as they are",
    "bias": lambda row: f"{row['bias']:g}",
    "step on a child (× M)": lambda row: f"{row['child']:.3g}",
    "largest other step, over a child's": lambda row: f"{row['share']:.2f} ({row['key']})" if row["child"] > 0 else "–",
    "samples to separate them": lambda row: f"{row['samples']:.2g}" if row["samples"] else "no number",
}
"""The table of AND and OR trees."""


def gates(sizes: Sequence[tuple[int, int]] = ((64, 16), (1024, 16), (256, 128))) -> list[Json]:
    """Return a row per tree, size, centering and bias: the exact steps of stage 2."""
    found: list[Json] = []
    names = {"inside": "a leaf below it", "outside": "a node elsewhere", "irrelevant": "a bit elsewhere"}
    trees: Sequence[tuple[Operation, float]] = (("and", 0.5), ("alternating", -0.5))
    for operation, steep in trees:
        for n, k in sizes:
            for centered, bias in ((False, 0.0), (True, 0.0), (True, steep)):
                levels = Levels(n, k)
                child, *others = expected_steps(levels, 1, operation, centered=centered, bias=bias)
                largest = max(others, key=lambda step: step.mean)
                keys = levels.level_end[1]
                found.append({
                    "operation": "AND" if operation == "and" else "OR of ANDs",
                    "n": n, "k": k, "centered": centered, "bias": bias, "child": child.mean * keys,
                    "share": largest.mean / child.mean,
                    "key": names[largest.kind],
                    "samples": samples_between([child, *others], keys * levels.width(2)),
                })  # fmt: skip
    return found


def world_tables() -> dict[str, tuple[Columns, Sequence[columns.Row]]]:
    """Return the columns and rows of the tables of docs/worlds.md."""
    measured = stored("worlds")["rows"]
    return {
        "worlds": (MEASURED, [row for row in measured if not row["again"]]),
        "worlds-again": (MEASURED, [row for row in measured if row["again"]]),
        "worlds-arity": (ARITIES, arities()),
        "worlds-noise": (NOISE, noises()),
        "worlds-sums": (SUMS, sums()),
        "worlds-gates": (GATES, gates()),
    }


def main() -> None:
    """Run what is missing, or store the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("again", type=Path, nargs="*")
    parser.add_argument("--seeds", type=parse_seeds, default=())
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--store", action="store_true")
    asked = parser.parse_args()
    if asked.store:
        from tools.findings import write_rows

        more = [row for folder in asked.again for row in rows(folder, again=True)]
        write_rows("worlds", [*rows(asked.folder), *more])
        return
    sweep(settings(), asked.seeds, asked.folder, Runner(asked.jobs), stop_at_failure=True, resume=asked.folder.exists())


if __name__ == "__main__":
    main()
