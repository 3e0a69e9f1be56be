"""Runs small enough for every test: n = 8, k = 4, solved in a second."""

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
from internalize.storage.runs import Run

OPTIONS = TrainOptions(n=8, k=4, steps=120, batch=200, eval_every=20, eval_samples=200)
SEEDS = (0, 1, 2)


def stop_training(done: int) -> Callable[[TrainProgress], None]:
    """What to pass as ``report`` so that training is stopped by SIGTERM after so many updates."""

    def report(now: TrainProgress) -> None:
        if now.done == done:
            signal.raise_signal(signal.SIGTERM)

    return report


def stop_solving(stage: int) -> Callable[[SolveState], None]:
    """What to pass as ``on_stage`` so that Algorithm 1 is stopped by Ctrl-C after this stage."""

    def on_stage(state: SolveState) -> None:
        if len(state.records) == stage:
            raise KeyboardInterrupt

    return on_stage


def tiny_runs(folder: Path, options: TrainOptions = OPTIONS, seeds: tuple[int, ...] = SEEDS) -> list[Run]:
    """Train one run a seed below the folder."""
    runs = [Run(folder / f"seed-{seed}") for seed in seeds]
    train(options, seeds, runs, snapshots=seeds[:1])
    return runs


def tiny_report(folder: Path, runs: Sequence[Run], *, figures: bool = True) -> Path:
    """The page of these runs alone, without stored results, and perhaps without figures: they take seconds to draw."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "parts", lambda full: [])
        if not figures:
            patch.setattr(report, "paper_drawings", lambda runs: [])
        return report.write_report(folder, report.ReportInputs(runs), paper=OPTIONS).page


def copies(runs: list[Run], folder: Path) -> list[Run]:
    """The same runs in folders of their own, to be doctored."""
    for run in runs:
        shutil.copytree(run.path, folder / run.path.name)
    return [Run(folder / run.path.name) for run in runs]


def rewrite_metrics(run: Run, metrics: list[dict[str, Any]]) -> None:
    """Other evaluations for a run."""
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))


def rewrite_result(run: Run, **values: object) -> None:
    """Other results for a run."""
    (run.path / "result.json").write_text(json.dumps({**run.result, **values}))
