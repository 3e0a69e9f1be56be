"""kill -9 and Ctrl-C at random moments: a resumed run ends with the same bits as one that was left alone."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from internalize.runs import Run

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "internalize.parity.train",
        "internalize.parity.algorithm",
        "internalize.sweep",
        "internalize.cli",
        "internalize.lm.train",
        "polars",
        "torch._dynamo",
    ]
)  # AdamW imports the last


def solve_command(out: Path, *more: str) -> list[str]:
    return ["solve", "--n", "64", "--k", "64", "--chunk", "500", "--snapshots", "--threads", "1",
            "--out", str(out), "--resume", *more]  # fmt: skip


def command(out: Path, *more: str) -> list[str]:
    return ["train", "--n", "12", "--k", "8", "--steps", "120", "--eval-samples", "100", "--batch", "100",
            "--eval-every", "7", "--out", str(out), "--resume", *more]  # fmt: skip


def in_child(argv: list[str]) -> None:
    """The command in a process of its own, with checkpoints, and parts of a sweep's store, much more often than anybody needs."""
    import torch

    from internalize import cells, cli
    from internalize.parity import train

    torch.set_num_threads(1)
    train.CHECKPOINT_SECONDS, cells.ROWS_A_PART = 0.01, 7
    sys.stderr = sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    sys.exit(cli.main(argv))


def killed(argv: list[str], seconds: float) -> bool:
    """Run for that long, then kill -9. Whether it was still running."""
    process = CONTEXT.Process(target=in_child, args=(argv,))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def content(run: Run) -> tuple:
    metrics = [{key: value for key, value in line.items() if key != "seconds"} for line in run.metrics()]
    return (run.path / "weights.safetensors").read_bytes(), metrics


@pytest.mark.parametrize(
    ("command", "seeds", "kills"), [(command, "", 20), (command, "0:3", 10), (solve_command, "", 6)]
)
def test_killed_at_random_moments(tmp_path: Path, command, seeds: str, kills: int):
    more = ("--seeds", seeds) if seeds else ()
    killed(command(tmp_path / "warm-up", *more), 300)  # starts the server that later processes fork from
    began = time.monotonic()
    assert not killed(command(tmp_path / "left-alone", *more), 300)
    whole = time.monotonic() - began
    moments = random.Random(0)
    count = 0
    attempt = 0
    while count < kills:
        attempt += 1
        out = tmp_path / f"killed-{attempt}"
        while killed(command(out, *more), moments.uniform(0.05, whole)):
            count += 1
        for folder in sorted(path.parent for path in (tmp_path / "left-alone").rglob("config.json")):
            again = Run(out / folder.relative_to(tmp_path / "left-alone"))
            assert content(again) == content(Run(folder))
            places = [(m["stage"], m["step"]) for m in again.metrics()]
            assert len(set(places)) == len(places)
            assert not list(again.path.glob("**/*.tmp"))


def test_ctrl_c_saves_and_says_so(tmp_path: Path):
    """The real command in a real process: SIGINT, status 130, one line, and a checkpoint to go on from."""
    argv = [sys.executable, "-c", "from internalize.cli import run; run()"]
    more = ("--steps", "3000")
    process = subprocess.Popen([*argv, *command(tmp_path / "stopped", *more)], stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "stopped" / "metrics.jsonl")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.strip().splitlines()[-1] == "internalize: interrupted, and saved up to here; --resume goes on"
    stopped = Run(tmp_path / "stopped")
    assert not stopped.finished
    assert stopped.checkpoint_steps()
    assert stopped.metrics()


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists() and path.stat().st_size:
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} did not appear in 30 s")
