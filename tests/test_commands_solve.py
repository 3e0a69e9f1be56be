"""`internalize solve` and `internalize predict`: folders, JSON, exit codes, stopping, two processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from internalize import InputError
from internalize.commands import cli
from internalize.parity.algorithm1.solve_runs import solve_kept
from internalize.parity.options import SolveOptions
from internalize.parity.theory.prediction import Setting, predict
from internalize.storage.runs import Run, list_runs
from tests.tiny import stop_solving

SMALL = ["solve", "--n", "16", "--k", "8"]


def test_folder_and_json(tmp_path: Path, capsys):
    out = tmp_path / "run"
    assert cli.main([*SMALL, "--out", str(out), "--snapshots", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    run = Run(out)
    assert found == run.result
    assert found["exact_recovery"] is True
    assert found["max_error"] <= 1e-6
    assert [stage["stage"] for stage in found["stages"]] == [1, 2, 3]
    assert [(m["stage"], m["step"], m["samples"]) for m in run.metrics()] == [
        (t, t, t * found["samples_per_stage"]) for t in (1, 2, 3)
    ]
    assert {name: tuple(W.shape) for name, W in run.weights().items()} == {"W1": (16, 4), "W2": (20, 2), "W3": (22, 1)}
    assert run.config["kind"] == "solve"
    steps = dict(run.snapshots())
    assert sorted(steps) == [1, 2, 3]
    for stage in (1, 2, 3):  # before rounding, and rounded: the same but for less than half of K
        before, after = steps[stage]["step"], steps[stage][f"W{stage}"]
        assert float((before - after).abs().max()) <= found["K"] / 2
        assert bool((before != after).any())
    assert list_runs(tmp_path)["exact_recovery"].to_list() == [True]


def test_finished_runs_are_shown_and_others_refused(tmp_path: Path, capsys):
    argv = [*SMALL, "--out", str(tmp_path / "run")]
    assert cli.main(argv) == 0
    assert cli.main(argv) == 2
    assert "finished already; add --resume" in capsys.readouterr().err
    assert cli.main([*argv, "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == Run(tmp_path / "run").result
    assert cli.main([*argv, "--resume", "--K", "20"]) == 2
    assert "its K is None, not 20.0" in capsys.readouterr().err
    assert cli.main([*argv, "--seeds", "0:2"]) == 2
    assert "is a run folder itself" in capsys.readouterr().err


def test_of_several_seeds_all_are_begun_or_none(tmp_path: Path, capsys):
    small = ["solve", "--n", "8", "--k", "4"]
    assert cli.main([*small, "--seed", "2", "--samples", "700", "--out", str(tmp_path / "seed-2")]) == 0
    assert cli.main([*small, "--seeds", "0:3", "--samples", "600", "--out", str(tmp_path)]) == 2
    assert "seed-2" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["seed-2"]


def test_failure_is_status_1_and_one_line(tmp_path: Path, capsys):
    assert cli.main(["solve", "--preset", "paper", "--out", str(tmp_path / "paper"), "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["failed_stage"] == 2
    (line,) = [line for line in captured.err.splitlines() if line.startswith("internalize: seed")]
    assert "K=2 leaves each child attention 0.17 among 30 keys" in line
    assert (Run(tmp_path / "paper").config["grid"], Run(tmp_path / "paper").config["rate"]) == ("1", "paper")
    assert cli.main(["solve", "--K", "4", "--samples", "20000", "--out", str(tmp_path / "leaks")]) == 1
    line, following = capsys.readouterr().err.splitlines()[-2:]
    assert following == "internalize: next: internalize predict --n 30 --k 16"
    assert "the layers below leave a signal of 0.4" in line
    assert "K=4 leaves each child attention 0.40 among 30 keys" in line
    assert "noise" not in line
    out = str(tmp_path / "few")
    assert cli.main(["solve", "--n", "16", "--k", "8", "--samples", "100", "--seeds", "0:3", "--out", out]) == 1
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 4
    assert "of 3 seeds recovered every layer" in captured.err


def test_an_oracle_that_is_all_error_is_an_answer(tmp_path: Path, capsys):
    """Large errors within the limit: `predict` says that no number of samples is enough, `solve` fails and says why."""
    argv = ["--n", "16", "--k", "8", "--oracle", "random", "--oracle-error", "1e6"]
    assert cli.main(["predict", *argv, "--samples", "500", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["success_probability"] == 0.0
    assert found["samples_50"] is None
    assert cli.main(["solve", *argv, "--samples", "500", "--out", str(tmp_path / "run")]) == 1
    assert cli.main(["predict", "--n", "2", "--k", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["samples_99"] == 1


def test_damaged_checkpoints_and_results_of_a_solve_are_named(tmp_path: Path):
    options, run = SolveOptions(n=16, k=8), Run(tmp_path / "run")
    with pytest.raises(cli.Interrupted):
        solve_kept(options, run, on_stage=stop_solving(1))
    (path,) = (run.path / "checkpoint").glob("*.json")
    good = json.loads(path.read_text())
    records = [{**good["records"][0], "stage": "x"}]
    for change in ({"seconds": "x"}, {"records": records}, {"records": []}, {"records": 5}):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(InputError, match="checkpoint"):
            solve_kept(options, run, resume=True)
    path.write_text(json.dumps(good))
    solve_kept(options, run, resume=True)
    for damage in ({"stages": []}, {"stages": 5}, {}):
        (run.path / "result.json").write_text(json.dumps(damage))
        with pytest.raises(InputError, match="is not the result of a solve"):
            solve_kept(options, run, resume=True)


def test_torchrun_with_two_processes_is_one_process(tmp_path: Path):
    """The real launcher: the first process keeps the folder and prints, and the weights are those of one process."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    argv = [*SMALL, "--threads", "1", "--json", "--out", str(tmp_path / "two")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, "-m", "internalize", "--", *argv], capture_output=True, text=True, env=env, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    two = json.loads(done.stdout)
    assert cli.main([*SMALL, "--threads", "1", "--out", str(tmp_path / "one")]) == 0
    one = Run(tmp_path / "one")
    assert two["exact_recovery"] is True
    for name, W in one.weights().items():
        assert bool((Run(tmp_path / "two").weights()[name] == W).all())


def test_predict(tmp_path: Path, capsys):
    out = tmp_path / "prediction"
    assert cli.main(["predict", "--samples", "1810", "--json", "--out", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == predict(Setting(30, 16), 1810).to_json()
    assert found["success_probability"] == pytest.approx(0.5, abs=0.01)
    assert Run(out).result == found
    assert cli.main(["predict", "--n", "64", "--k", "32"]) == 0
    text = capsys.readouterr().out
    assert "samples per stage for 50 %" in text
    assert "P(recovered)" not in text
