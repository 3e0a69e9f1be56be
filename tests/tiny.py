"""Parity runs that are small enough for every test, and functions that stop, copy and change them."""

import json
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from internalize.parity.adamw.train import TrainProgress, train
from internalize.parity.algorithm1.solve import SolveState
from internalize.parity.options import TrainOptions
from internalize.report import page as report
from internalize.storage.runs import Run, find_runs

OPTIONS = TrainOptions(n=8, k=4, steps=120, batch=200, eval_every=20, eval_samples=200)
"""Solved in a second."""
SEEDS = (0, 1, 2)
SMALLEST = TrainOptions(n=4, k=2, steps=2, eval_samples=50)
"""For tests of files and commands: trained at once, not solved."""


def stop_training(done: int) -> Callable[[TrainProgress], None]:
    """Return a `report` that stops training by SIGTERM after so many updates."""

    def report(now: TrainProgress) -> None:
        if now.done == done:
            signal.raise_signal(signal.SIGTERM)

    return report


def stop_solving(stage: int) -> Callable[[SolveState], None]:
    """Return an `on_stage` that stops Algorithm 1 by Ctrl-C after this stage."""

    def on_stage(state: SolveState) -> None:
        if len(state.records) == stage:
            raise KeyboardInterrupt

    return on_stage


def tiny_runs(folder: Path, options: TrainOptions = OPTIONS, seeds: tuple[int, ...] = SEEDS) -> list[Run]:
    """Train one run per seed below a folder."""
    runs = [Run(folder / f"seed-{seed}") for seed in seeds]
    train(options, seeds, runs, snapshots=seeds[:1])
    return runs


def tiny_report(folder: Path, runs: Sequence[Run], *, figures: bool = True) -> Path:
    """Write the page of these runs alone, without stored results; without `figures` it takes no seconds to draw."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "parts", lambda full: [])
        if not figures:
            patch.setattr(report, "paper_drawings", lambda runs: [])
        return report.write_report(folder, report.ReportInputs(runs), paper=OPTIONS).page


def finish_times(out: Path) -> dict[Path, int]:
    """Return when each finished run below a folder wrote its result: equal times show that nothing was trained again."""
    return {run.path: (run.path / "result.json").stat().st_mtime_ns for run in find_runs(out) if run.finished}


def copies(runs: list[Run], folder: Path) -> list[Run]:
    """Copy runs, so that a test may change their files."""
    for run in runs:
        shutil.copytree(run.path, folder / run.path.name)
    return [Run(folder / run.path.name) for run in runs]


def rewrite_metrics(run: Run, metrics: list[dict[str, Any]]) -> None:
    """Replace the evaluations of a run."""
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))


def rewrite_result(run: Run, **values: object) -> None:
    """Replace values in the result of a run."""
    (run.path / "result.json").write_text(json.dumps({**run.result, **values}))
