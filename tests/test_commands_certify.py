"""`internalize certify`: the table, JSON, exit codes, run folders of either kind, and a model that lies."""

import json
from pathlib import Path

import pytest

from internalize.commands import cli
from internalize.parity.algorithm1.solve_runs import solve_kept
from internalize.parity.certificates import STATEMENTS
from internalize.parity.options import SolveOptions
from internalize.storage.files import save_tensors
from internalize.storage.runs import Run


def certificates(capsys, *argv: str) -> tuple[int, dict[str, dict]]:
    status = cli.main(["certify", "--json", *argv])
    found = json.loads(capsys.readouterr().out)["certificates"]
    return status, {certificate["statement"]: certificate for certificate in found}


def test_all_statements_on_the_worked_example(tmp_path: Path, capsys):
    """n = 8, k = 4, all inputs: every statement has a verdict, none is violated, and the record is the contract's."""
    status, found = certificates(capsys, "--n", "8", "--k", "4", "--out", str(tmp_path / "kept"))
    assert status == 0
    assert set(found) == set(STATEMENTS)
    for certificate in found.values():
        assert set(certificate) >= {"statement", "claim", "measured", "bound", "margin", "verdict", "seeds", "dtype"}
    verdicts = {name: certificate["verdict"] for name, certificate in found.items()}
    assert "violated" not in verdicts.values()
    assert [name for name, verdict in verdicts.items() if verdict != "holds"] == ["collapse"]
    assert Run(tmp_path / "kept").result["certificates"]


def test_of_a_run_the_options_are_its_own(tmp_path: Path, capsys):
    run = str(tmp_path / "run")
    assert cli.main(["solve", "--n", "8", "--k", "4", "--seed", "3", "--out", run]) == 0
    assert cli.main(["certify", "--run", run, "--only", "gating", "--out", str(tmp_path / "kept")]) == 0
    config = Run(tmp_path / "kept").config
    assert [config[name] for name in ("n", "k", "seed", "link", "epsilon")] == [8, 4, 3, "cosine", 1.0]
    capsys.readouterr()
    for argv, words in (
        (["--run", run, "--k", "8"], "k=8 beside --run, which has its own k"),
        (["--run", str(tmp_path / "kept")], "is a run of certify, which has no weights"),
    ):
        assert cli.main(["certify", *argv]) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / "weights.safetensors").unlink()
    assert cli.main(["certify", "--run", run]) == 2
    assert "is not finished, so it has no weights yet" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["short", "nothing", "words", "missing"])
def test_metrics_of_a_solve_that_do_not_say_which_samples(tmp_path: Path, capsys, damage: str):
    """Without any the statements about samples do not apply; some, or wrong ones, are damage."""
    run = tmp_path / "run"
    assert cli.main(["solve", "--n", "8", "--k", "4", "--out", str(run)]) == 0
    metrics = run / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    if damage == "short":
        del lines[1:]
    lines[0] |= {"nothing": {"stage_samples": 0}, "words": {"first_sample": "x"}}.get(damage, {})
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if damage == "missing":
        metrics.unlink()
    capsys.readouterr()
    assert cli.main(["certify", "--run", str(run), "--json"]) == (0 if damage == "missing" else 2)
    said = capsys.readouterr()
    assert damage == "missing" or ("metrics.jsonl" in said.err and said.err.count("\n") == 1)
    if damage == "missing":
        verdicts = {c["statement"]: c["verdict"] for c in json.loads(said.out)["certificates"]}
        assert "violated" not in verdicts.values()
        assert "not applicable" in verdicts.values()


def test_anyones_weights_that_lie_are_status_1(tmp_path: Path, capsys):
    """A node with other children in the file: violations come first, and the exit status says so."""
    run = Run(tmp_path / "solve")
    solve_kept(SolveOptions(n=8, k=4), run)
    weights = run.weights()
    weights["W1"][:, 0] = weights["W1"][:, 0].roll(1)
    save_tensors(run.path / "weights.safetensors", weights)
    assert cli.main(["certify", "--run", str(run.path)]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].startswith("violated")
    assert "violated" in captured.err.splitlines()[-1]
    lied_about = ("well-trained", "stage-1", "theorem-max")
    status, found = certificates(capsys, "--run", str(run.path), "--only", "mask", *lied_about)
    assert status == 1
    verdicts = {name: certificate["verdict"] for name, certificate in found.items()}
    assert verdicts == {"mask": "holds"} | dict.fromkeys(lied_about, "violated")


def test_a_foreign_folder_that_is_not_as_the_contract_has_it(tmp_path: Path, capsys):
    run = Run(tmp_path / "solve")
    solve_kept(SolveOptions(n=8, k=4), run)
    good = json.loads((run.path / "config.json").read_text())
    for change in ({"secret": [0, 1, "a", 3]}, {"boundaries": 7, "kind": "train"}, {"K": "large"}):
        (run.path / "config.json").write_text(json.dumps({**good, **change}))
        assert cli.main(["certify", "--run", str(run.path)]) == 2, change
        assert str(run.path) in capsys.readouterr().err
    del good["n"]
    (run.path / "config.json").write_text(json.dumps(good))
    assert cli.main(["certify", "--run", str(run.path)]) == 2
