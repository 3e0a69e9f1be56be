"""Folders made by an earlier commit (tests/previous) are listed, continued, certified and reported by today's code."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from internalize.parity.experiments.phase import read_cells
from internalize.storage.runs import Run
from tests.asking import ask
from tests.tiny import tiny_report

MADE = Path(__file__).parent / "previous"
TRAIN = "train --n 8 --k 4 --steps 120 --batch 200 --eval-every 20 --eval-samples 200 --snapshots"
SOLVE = "solve --n 8 --k 4 --snapshots --threads 1"
LM_TRAIN = (
    "lm train --data parity:n=6,k=4 --method log-icot --layers 1 --width 16 --heads 2 --batch 8 --steps 24 --advance steps "
    "--stage-steps 8 --warmup 4 --eval-every 6 --eval-examples 16 --test-examples 32"
)
LM_COMPARE = (
    "lm compare --data parity:n=6,k=4 --layers 1 --width 8 --heads 2 --steps 40 --batch 4 --advance steps --removal delete "
    "--warmup 2 --eval-every 20 --eval-examples 4 --test-examples 8 --budgets never --methods icot log-icot --seeds 0 "
    "--budget steps --jobs 1"
)
COMPARE = (
    "compare --sizes 8,4 --methods icot log-icot --seeds 0:2 --lr 0.1 --steps 20 --batch 50 --eval-samples 50 "
    "--repeats 2 --jobs 1"
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the folders and make the copy the working folder, because they name each other by relative paths."""
    shutil.copytree(MADE, tmp_path / "made")
    monkeypatch.chdir(tmp_path / "made")


def without_times(found: Any) -> Any:
    """Remove the numbers that depend on the clock."""
    if isinstance(found, dict):
        return {key: without_times(own) for key, own in found.items() if "second" not in key and "latency" not in key}
    return [without_times(own) for own in found] if isinstance(found, list) else found


def assert_close(one: Any, other: Any) -> None:
    """Compare up to the last bits: the first half may have been computed on another machine."""
    torch.testing.assert_close(without_times(one), without_times(other), rtol=1e-4, atol=1e-6)


def test_all_are_listed():
    found = {row["path"]: row for row in ask("runs .")["runs"]}
    assert found["train"]["finished"]
    assert not found["train-half"]["finished"]
    assert {row["kind"] for row in found.values()} == {"train", "solve", "lm-train"}
    assert len(found) > 20
    assert not any(row["broken"] for row in found.values())


@pytest.mark.parametrize(
    ("words", "folder"),
    [(f"{TRAIN} --seed 1", "train-half"), (f"{SOLVE} --seed 1", "solve-half"), (LM_TRAIN, "lm-train-half")],
)
def test_half_a_run_is_continued(words: str, folder: str):
    """The result is that of a run made today without interruption."""
    made = Run(Path(folder)).metrics()
    resumed = ask(f"{words} --out {folder} --resume")
    whole = ask(f"{words} --out whole")
    assert without_times(resumed).keys() == without_times(whole).keys()
    numbers = {key: own for key, own in without_times(whole).items() if isinstance(own, int | float)}
    assert_close({key: resumed[key] for key in numbers}, numbers)
    metrics = Run(Path(folder)).metrics()
    assert metrics[: len(made)] == made  # not computed again
    assert [line["step"] for line in metrics] == [line["step"] for line in Run(Path("whole")).metrics()]


@pytest.mark.parametrize(
    ("words", "folder"), [(TRAIN, "train"), (SOLVE, "solve"), (f"{LM_TRAIN} --keep-stages", "lm-train")]
)
def test_a_finished_run_is_shown(words: str, folder: str):
    before = Run(Path(folder)).result
    assert ask(f"{words} --out {folder} --resume") == before


def test_finished_runs_are_certified_asked_and_reported():
    for folder, status in (("train", 1), ("solve", 0)):  # weights of AdamW violate some statements
        assert len(ask(f"certify --run {folder}", status)["certificates"]) > 20
    assert ask("lm eval --model lm-train --examples 32")["examples"] == 32
    assert "seed" in tiny_report(Path("page"), [Run(Path("train"))], figures=False).read_text()


@pytest.mark.parametrize(
    ("words", "folder", "cells"),
    [
        ("sweep solve n=8 k=2,4 samples=100,400 --seeds 0:3", "sweep", 12),
        ("sweep train n=8 k=4 steps=20 batch=50 eval_samples=50 lr=0.1,0.03,0.01 --seeds 0:2", "sweep-train", 6),
    ],
)
def test_a_sweep_is_continued(words: str, folder: str, cells: int):
    before = read_cells(Path(folder))
    assert 0 < before.height < cells
    assert ask(f"{words} --jobs 1 --out {folder} --resume")["done"] == cells
    after = read_cells(Path(folder))
    assert after.head(before.height).equals(before)  # nothing was computed again
    ask(f"{words} --jobs 1 --out whole")
    whole = read_cells(Path("whole")).sort("cell")
    again = after.sort("cell")
    assert again["cell"].equals(whole["cell"])
    assert again["success"].equals(whole["success"])
    assert_close(again["accuracy"].to_list(), whole["accuracy"].to_list())
    assert ask(f"sweep show {folder}")["rows"]


def test_a_comparison_of_language_models_is_continued():
    first = Run(Path("lm-compare-half/steps/icot/seed-0")).result
    resumed = ask(f"{LM_COMPARE} --out lm-compare-half --resume")["rows"]
    assert Run(Path("lm-compare-half/steps/icot/seed-0")).result == first
    whole = ask(f"{LM_COMPARE} --out whole")["rows"]
    for one, other in zip(resumed, whole, strict=True):
        for key in ("method", "seeds", "steps", "tokens", "stage_steps", "solved"):
            assert one[key] == other[key]
        assert one["exact_match"] == pytest.approx(other["exact_match"], abs=0.13)  # one of eight questions


def test_a_comparison_of_curricula_is_continued():
    missing = Run(Path("compare/curricula/n8-k4/adamw-lr0.1/icot/seed-1"))
    assert not missing.exists
    before = json.loads(Path("compare/rows.json").read_text())["rows"]
    rows = ask(f"{COMPARE} --out compare --resume")["rows"]
    assert missing.finished
    for one, other in zip(rows, before, strict=True):
        for key in ("method", "optimizer", "seeds", "solved", "steps_to_99", "samples_to_99", "runs"):
            assert one[key] == other[key]
