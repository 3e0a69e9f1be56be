"""Curricula that give a level no stage of its own: train, solve, sweep and compare take them, and files stay the same."""

from pathlib import Path

import pytest

from internalize.parity.options import SolveOptions, TrainOptions, stored
from internalize.storage.runs import Run
from tests.asking import ask, refused

SMALL = "--n 8 --k 4 --json"


def test_options_at_their_default_are_not_in_files(tmp_path: Path):
    """A run without the options is the run of earlier versions; with one, it is another."""
    ask(f"solve {SMALL} --out {tmp_path}/plain")
    ask(f"solve {SMALL} --skip 1 --out {tmp_path}/skipped", status=1)
    assert "skip" not in Run(tmp_path / "plain").config
    assert Run(tmp_path / "skipped").config["skip"] == [1]
    assert stored(TrainOptions(skip=(3,)))["skip"] == (3,)
    assert len(stored(SolveOptions())) == len(stored(SolveOptions(k=8, skip=(2,)))) - 1


def test_the_level_below_the_root_can_be_skipped(tmp_path: Path):
    """log2 k − 1 stages: AdamW learns level 1 of k = 8, then the parity of four in one stage of two layers."""
    out = tmp_path / "run"
    found = ask(f"train --n 16 --k 8 --skip 2 --steps 300 --lr 0.03 --eval-samples 500 --out {out} --json")
    assert found["accuracy"] > 0.99
    metrics = Run(out).metrics()
    assert max(line["stage"] for line in metrics) == 2
    assert metrics[-1]["level_accuracy"][1] < 0.9  # the hidden level holds no node of the tree
    again = ask(f"certify --run {out} --only symmetry curriculum --json")["certificates"]
    assert {c["statement"]: c["verdict"] for c in again} == {"symmetry": "holds", "curriculum": "not applicable"}


def test_a_step_cannot_train_two_layers(tmp_path: Path):
    """Algorithm 1 takes one step per stage, so it says why a skipped level fails, and what would succeed."""
    found = ask(f"solve --n 10 --k 8 --skip 2 --out {tmp_path}/run --json", status=1)
    assert found["steps"] == 2
    assert "skip=(2,): a stage takes one step" in found["reason"]
    assert "log-icot" in found["reason"]


def test_sweep_and_compare_take_levels_to_skip(tmp_path: Path):
    words = "samples=500 n=8 k=4 test_samples=50 skip=default,1 --seeds 0:2"
    ask(f"sweep solve {words} --jobs 1 --out {tmp_path}/sweep --json", status=0)
    rows = ask(f"sweep show {tmp_path}/sweep --group-by skip --json")["rows"]
    assert [(row["skip"], row["successes"]) for row in rows] == [(None, 2), ("1", 0)]
    found = ask(
        f"compare --sizes 8,4 --methods log-icot --skip 1 --optimizers adamw --seeds 0 --lr 0.1 --steps 40 --batch 50 "
        f"--eval-samples 50 --repeats 1 --jobs 1 --out {tmp_path}/compare --json"
    )
    assert [row["stages"] for row in found["rows"]] == [1]


def test_sweeps_of_switches(tmp_path: Path):
    """transfer is true or false in a grid, and refused where it cannot be."""
    words = "n=8 k=4 curriculum=cot,none transfer=true,false test_samples=50 --seeds 0 --jobs 1"
    found = ask(f"sweep solve {words} --out {tmp_path}/sweep", status=0)
    assert found["cells"] == 3
    rows = ask(f"sweep show {tmp_path}/sweep --group-by curriculum transfer")["rows"]
    assert {(row["curriculum"], row["transfer"], row["successes"]) for row in rows} == {
        ("cot", True, 1),
        ("cot", None, 1),
        ("none", None, 0),
    }
    refused(f"sweep solve n=8 k=4 transfer=maybe --out {tmp_path}/no", "not one of true, false")


@pytest.mark.parametrize("words", ["train --k 8 --skip 3", "solve --k 8 --skip 3", "train --curriculum icot --skip 1"])
def test_levels_that_cannot_be_skipped(words: str, tmp_path: Path):
    refused(f"{words} --n 8 --out {tmp_path}/run", "skip=")
    assert not (tmp_path / "run").exists()
