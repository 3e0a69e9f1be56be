"""Ctrl-C saves. kill -9 is in tests/faults."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from internalize.storage.runs import Run


def test_ctrl_c_saves_and_says_so(tmp_path: Path):
    """The real command in a real process: SIGINT, status 130, one line, and a checkpoint to go on from."""
    argv = [sys.executable, "-c", "from internalize.commands.cli import run; run()"]
    options = "--n 12 --k 8 --steps 3000 --eval-samples 100 --batch 100 --eval-every 7"
    argv += f"train {options} --out {tmp_path / 'stopped'} --resume".split()
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
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
    for _ in range(2400):
        if path.exists() and path.stat().st_size:
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} did not appear in 120 s")
