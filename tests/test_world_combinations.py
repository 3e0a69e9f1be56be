"""Options of different worlds together: each combination is computed right, or refused in one line."""

from pathlib import Path

import pytest

from internalize.parity.task.tree import Levels
from internalize.parity.theory.chunks import chunk_signal
from tests.asking import ask, call, refused


def test_explicit_chains_with_wrong_labels_are_refused_where_no_rate_is_calibrated():
    for command in ("solve", "predict"):
        refused(f"{command} --n 8 --k 4 --curriculum cot --noise 0.1", "no rate is calibrated for that")
    assert ask("solve --n 8 --k 2 --curriculum cot --noise 0.1 --samples 4000")["exact_recovery"]


def test_predict_refuses_what_solve_refuses():
    refused("predict --n 8 --k 4 --modulus 3 --curriculum cot", "modulus=3 needs the paper's mask and gates")
    refused("predict --n 8 --k 4 --modulus 3 --curriculum none --hidden-loss", "hidden_loss is for modulus 2")


def test_certificates_of_three_children():
    """Statements about two children do not apply, and no certificate is violated."""
    verdicts = {each["statement"]: each["verdict"] for each in ask("certify --n 12 --k 9 --arity 3")["certificates"]}
    assert "violated" not in verdicts.values()
    assert {verdicts[name] for name in ("collapse-noise", "theorem-probability", "theorem-oracle")} == {
        "not applicable"
    }


def test_a_finished_transfer_with_three_children_is_shown_again(tmp_path: Path):
    words = f"train --curriculum cot --transfer --arity 3 --n 12 --k 9 --steps 2 --out {tmp_path / 'run'}"
    call(words)
    call(f"{words} --resume")


def test_hidden_loss_in_log_icot_is_not_the_papers_training(tmp_path: Path):
    call(f"train --n 8 --k 4 --hidden-loss --steps 5 --out {tmp_path / 'run'}")
    found = ask(f"certify --run {tmp_path / 'run'} --only curriculum loss")["certificates"]
    assert [each["verdict"] for each in found] == ["not applicable"] * 2


@pytest.mark.parametrize("world", ["--modulus 3", "--noise 0.2", "--arity 3"])
def test_the_rule_for_chunks_is_about_the_papers_trees(world: str):
    k = 9 if "arity" in world else 8
    assert "chunk_noise_over_signal" in ask("predict --n 16 --k 8 --skip 1")
    assert "chunk_noise_over_signal" not in ask(f"predict --n 16 --k {k} --skip 1 {world}")


def test_a_signal_that_is_lost_in_rounding_is_0():
    """Its terms cancel in float64, so neither its size nor its sign is known."""
    assert chunk_signal(Levels(16, 8), count=2).signal[0] > 0
    found = chunk_signal(Levels(256, 128), count=7)
    assert found.signal[0] == 0
    assert found.updates(500, 0.03) == float("inf")
