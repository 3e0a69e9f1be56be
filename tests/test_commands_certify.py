"""`internalize certify`: the table, JSON, exit codes, run folders of either kind, and a model that lies."""

import json
from pathlib import Path

import pytest

from internalize.parity.algorithm1.solve_runs import solve_kept
from internalize.parity.certificates import STATEMENTS
from internalize.parity.options import SolveOptions
from internalize.storage.files import save_tensors
from internalize.storage.runs import Run
from tests.asking import ask, call, refused


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of Algorithm 1 at n = 8, k = 4."""
    solve_kept(SolveOptions(n=8, k=4, seed=3), run := Run(tmp_path / "run"))
    return run


def verdicts(words: str, status: int = 0) -> dict[str, str]:
    return {c["statement"]: c["verdict"] for c in ask(f"certify {words}", status)["certificates"]}


def test_all_statements_on_the_worked_example(tmp_path: Path):
    """n = 8, k = 4, all inputs: every statement has a verdict, none is violated, and the record is the contract's."""
    found = verdicts(f"--n 8 --k 4 --out {tmp_path / 'kept'}")
    assert found.keys() == STATEMENTS.keys()
    assert "violated" not in found.values()
    assert [name for name, verdict in found.items() if verdict != "holds"] == ["collapse"]
    for certificate in Run(tmp_path / "kept").result["certificates"]:
        assert set(certificate) >= {"statement", "claim", "measured", "bound", "margin", "verdict", "seeds", "dtype"}


def test_of_a_run_the_options_are_its_own(run: Run, tmp_path: Path):
    kept = Run(tmp_path / "kept")
    call(f"certify --run {run.path} --only gating --out {kept.path}")
    assert [kept.config[name] for name in ("n", "k", "seed", "link", "epsilon")] == [8, 4, 3, "cosine", 1.0]
    refused(f"certify --run {run.path} --k 8", "k=8 beside --run, which has its own k")
    refused(f"certify --run {kept.path}", "is a run of certify, which has no weights")
    (run.path / "result.json").unlink()
    (run.path / "weights.safetensors").unlink()
    refused(f"certify --run {run.path}", "is not finished, so it has no weights yet")


@pytest.mark.parametrize("damage", ["short", "nothing", "words", "missing"])
def test_metrics_of_a_solve_that_do_not_say_which_samples(run: Run, damage: str):
    """Without any the statements about samples do not apply; some, or wrong ones, are damage."""
    metrics = run.path / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines[0] |= {"nothing": {"stage_samples": 0}, "words": {"first_sample": "x"}}.get(damage, {})
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in (lines[:1] if damage == "short" else lines)))
    if damage == "missing":
        metrics.unlink()
        assert set(verdicts(f"--run {run.path}").values()) >= {"holds", "not applicable"}
    else:
        refused(f"certify --run {run.path}", "metrics.jsonl")


def test_anyones_weights_that_lie_are_status_1(run: Run):
    """A node with other children in the file: violations come first, and the exit status says so."""
    weights = run.weights()
    weights["W1"][:, 0] = weights["W1"][:, 0].roll(1)
    save_tensors(run.path / "weights.safetensors", weights)
    said = call(f"certify --run {run.path}", 1)
    assert said.out.splitlines()[1].startswith("violated")
    assert "violated" in said.err.splitlines()[-1]
    lied_about = ("well-trained", "stage-1", "theorem-max")
    found = verdicts(f"--run {run.path} --only mask {' '.join(lied_about)}", 1)
    assert found == {"mask": "holds"} | dict.fromkeys(lied_about, "violated")


def test_a_foreign_folder_that_is_not_as_the_contract_has_it(run: Run):
    good = run.config
    without_n = {name: value for name, value in good.items() if name != "n"}
    wrong = ({"secret": [0, 1, "a", 3]}, {"boundaries": 7, "kind": "train"}, {"K": "large"})
    for config in (without_n, *(good | change for change in wrong)):
        (run.path / "config.json").write_text(json.dumps(config))
        refused(f"certify --run {run.path}", str(run.path))
