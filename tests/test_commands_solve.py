"""`internalize solve` and `internalize predict`: folders, JSON, exit codes, stopping, two processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from internalize import InputError
from internalize.commands import cli
from internalize.parity.algorithm1.solve_runs import solve_kept
from internalize.parity.options import SolveOptions
from internalize.parity.theory.prediction import Setting, predict
from internalize.storage.runs import Run, list_runs
from tests.asking import ask, call, refused
from tests.tiny import stop_solving

SMALL = "solve --n 16 --k 8"


def test_folder_and_json(tmp_path: Path):
    run = Run(tmp_path / "run")
    found = ask(f"{SMALL} --out {run.path} --snapshots")
    assert found == run.result
    assert " ".join(found) == (
        "exact_recovery accuracy l2_error max_error samples_per_stage K grid steps seconds failed_stage stages reason "
        "idle_stages"
    )
    assert " ".join(found["stages"][0]) == "stage signal_min signal_mean noise_max margin recovered idle"
    assert [{name: m[name] for name in found["stages"][0]} for m in run.metrics()] == found["stages"]
    assert found["exact_recovery"] is True
    assert found["max_error"] <= 1e-6
    wanted = [(t, t, t * found["samples_per_stage"]) for t in (1, 2, 3)]
    assert [(m["stage"], m["step"], m["samples"]) for m in run.metrics()] == wanted
    assert {name: tuple(W.shape) for name, W in run.weights().items()} == {"W1": (16, 4), "W2": (20, 2), "W3": (22, 1)}
    assert run.config["kind"] == "solve"
    steps = dict(run.snapshots())
    assert sorted(steps) == [1, 2, 3]
    for stage in (1, 2, 3):  # before rounding, and rounded: the same but for less than half of K
        before, after = steps[stage]["step"], steps[stage][f"W{stage}"]
        assert float((before - after).abs().max()) <= found["K"] / 2
        assert bool((before != after).any())
    assert list_runs(tmp_path)["exact_recovery"].to_list() == [True]


def test_finished_runs_are_shown_and_others_refused(tmp_path: Path):
    command = f"{SMALL} --out {tmp_path / 'run'}"
    call(command)
    refused(command, "finished already; add --resume")
    assert ask(f"{command} --resume") == Run(tmp_path / "run").result
    refused(f"{command} --resume --K 20", "its K is None, not 20.0")
    refused(f"{command} --seeds 0:2", "is a run folder itself")


def test_of_several_seeds_all_are_begun_or_none(tmp_path: Path):
    call(f"solve --n 8 --k 4 --seed 2 --samples 700 --out {tmp_path / 'seed-2'}")
    refused(f"solve --n 8 --k 4 --seeds 0:3 --samples 600 --out {tmp_path}", "seed-2")
    assert [path.name for path in tmp_path.iterdir()] == ["seed-2"]


def test_failure_is_status_1_and_one_line(tmp_path: Path):
    said = call(f"solve --preset paper --out {tmp_path / 'paper'} --json", 1)
    assert json.loads(said.out)["failed_stage"] == 2
    (line,) = [line for line in said.err.splitlines() if line.startswith("internalize: seed")]
    assert "K=2 leaves each child attention 0.17 among 30 keys" in line
    assert (Run(tmp_path / "paper").config["grid"], Run(tmp_path / "paper").config["rate"]) == ("1", "paper")
    line, following = call(f"solve --K 4 --samples 20000 --out {tmp_path / 'leaks'}", 1).err.splitlines()[-2:]
    assert following == "internalize: next: internalize predict --n 30 --k 16"
    assert "the layers below leave a signal of 0.4" in line
    assert "K=4 leaves each child attention 0.40 among 30 keys" in line
    assert "noise" not in line
    said = call(f"{SMALL} --samples 100 --seeds 0:3 --out {tmp_path / 'few'}", 1)
    assert len(said.out.splitlines()) == 4
    assert "of 3 seeds recovered every layer" in said.err


def test_an_oracle_that_is_all_error_is_an_answer(tmp_path: Path):
    """Large errors within the limit: `predict` says that no number of samples is enough, `solve` fails and says why."""
    asked = "--n 16 --k 8 --oracle random --oracle-error 1e6 --samples 500"
    found = ask(f"predict {asked}")
    assert (found["success_probability"], found["samples_50"]) == (0.0, None)
    call(f"solve {asked} --out {tmp_path / 'run'}", 1)
    assert ask("predict --n 2 --k 2")["samples_99"] == 1


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
    two, one = Run(tmp_path / "two"), Run(tmp_path / "one")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "internalize", "--"]
    command += f"{SMALL} --threads 1 --json --out {two.path}".split()
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["exact_recovery"] is True
    call(f"{SMALL} --threads 1 --out {one.path}")
    torch.testing.assert_close(two.weights(), one.weights(), rtol=0, atol=0)


def test_predict(tmp_path: Path):
    found = ask(f"predict --samples 1810 --out {tmp_path / 'prediction'}")
    assert found == predict(Setting(30, 16), 1810).to_json() == Run(tmp_path / "prediction").result
    assert found["success_probability"] == pytest.approx(0.5, abs=0.01)
    text = call("predict --n 64 --k 32").out
    assert "samples per stage for 50 %" in text
    assert "P(recovered)" not in text
