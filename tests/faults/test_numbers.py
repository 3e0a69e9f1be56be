"""The short version of the campaign of numbers, and that its judge can say no."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.faults import numbers
from tests.faults.asking import ask, complaints


def test_numbers(tmp_path: Path):
    for tally in numbers.campaign(14, seed=0, folder=tmp_path):
        assert not tally.lost, "\n".join(tally.lost)
        assert tally.tried, tally.what


def test_the_judge_bites(tmp_path: Path):
    one, other = {"W": torch.zeros(2)}, {"W": torch.tensor([0.0, 1e-3])}
    assert numbers._apart(one, one, 0, "") == []
    assert "0.001 apart" in numbers._apart(one, other, 1e-4, "")[0]
    for name, text, finite in [
        ("a.json", '{"a": 1e308}', True),
        ("a.json", '{"a": NaN}', False),
        ("a.jsonl", '{"a": 1}\n{"a": -Infinity}\n', False),
        ("a.jsonl", '{"a": 1}\n', True),
    ]:
        (tmp_path / name).write_text(text)
        assert numbers._finite(tmp_path / name) == finite


@pytest.mark.parametrize(
    ("check", "worse"),
    [
        (numbers._solve_verdicts, lambda options: options.dtype == "float64"),
        (numbers._solve_threads, lambda options: torch.get_num_threads() == 2),
    ],
)
def test_other_verdicts_are_seen(check: numbers.Check, worse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A solve that succeeds with one dtype, or on one thread, and not with the other."""
    honest = numbers.solve
    monkeypatch.setattr(
        numbers,
        "solve",
        lambda options: honest(replace(options, samples=1 if worse(options) else 50_000, grid="K", link="cosine")),
    )
    assert check(random.Random(0), tmp_path)


TRAIN = "--steps 3 --eval-every 1 --eval-samples 20"


@pytest.mark.parametrize(
    "line",
    [
        "solve --n 2 --k 2",
        "solve --n 8 --k 8",
        "solve --n 8 --k 4 --samples 1",
        "solve --n 8 --k 4 --K 200",
        "predict --n 2 --k 2",
        "predict --n 8 --k 4 --K 200",
        f"train --n 2 --k 2 --batch 1 {TRAIN}",
        f"train --n 8 --k 8 --batch 1 {TRAIN}",
        f"train --n 8 --k 8 --batch 20 --gates learned {TRAIN}",
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_edges_by_name(line: str, dtype: str, tmp_path: Path):
    """Of those that `numbers` draws: every one of them, whatever the seed."""
    words = [] if line.startswith("predict") else ["--dtype", dtype]
    answer = ask([*line.split(), *words, "--out", str(tmp_path / "run"), "--json"])
    assert complaints(["--json"], answer) == []
    assert answer.status in ((0, 1) if "--samples 1" in line else (0,))
    files = numbers._files(tmp_path)
    assert files
    assert all(map(numbers._finite, files))
