"""Run commands as real processes, interrupt them, and wait for what they do."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

ENTRY = "from internalize.commands.cli import run; run()"
"""The script of the `internalize` command."""


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until a condition holds; fail after so many seconds."""
    for _ in range(int(20 * seconds)):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"not so after {seconds} s")


def interrupt_command(argv: Sequence[str], begun: Callable[[], bool]) -> None:
    """Run a command and send it SIGINT once it has begun. It must save, say how to resume, and end with status 130."""
    process = subprocess.Popen([sys.executable, "-c", ENTRY, *argv], stderr=subprocess.PIPE, text=True)
    wait_until(begun)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.strip().splitlines()[-1] == "internalize: interrupted; progress is saved; --resume continues"


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "internalize", "--")
ACCELERATE = (
    "-m",
    "accelerate.commands.accelerate_cli",
    "launch",
    "--cpu",
    "--num_processes",
    "2",
    "-m",
    "internalize",
)


def run_on_two_processes(argv: Sequence[str], launcher: Sequence[str] = TORCHRUN) -> str:
    """Run a command on two processes of a launcher, and return its standard output."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *launcher, *argv], capture_output=True, text=True, env=environment, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
