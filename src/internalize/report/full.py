"""`internalize paper --full`: the commands behind the stored results. Finished runs are reused, interrupted ones go on."""

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from internalize.errors import BUG, InputError
from internalize.parallel.interrupt import Interrupted, Interruptible
from internalize.report.stored import STORED


def run_full(out: Path, processes: int, say: Callable[[str], None] = lambda line: None) -> None:
    """Run every command of ours behind the stored results, each in a folder below ``out``.

    Raises:
        InputError: if one was refused; those before it are made.
        Interrupted: after Ctrl-C or SIGTERM; the same call goes on.
    """
    for part in STORED:
        if part.arguments is None:
            say(f"{part.name}: not one of ours, shown as stored ({part.command})")
            continue
        say(f"{part.name}: {part.command}")
        options = ["--jobs", str(processes), "--out", str(out / part.name), "--resume"]
        status = _run([sys.executable, "-m", "internalize", *part.arguments, *options])
        if status == BUG:
            raise RuntimeError(f"`{part.command}` ended with a bug of ours; what it said is above")
        if status:
            raise InputError(f"`{part.command}` ended with status {status}; what it said is above")


def _run(argv: list[str]) -> int:
    """The status of a command, whose results are not printed. Told to stop, the command is told, and waited for: it saves first."""
    with Interruptible() as interrupt, subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:  # noqa: S603  (ours)
        told = False
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
            if interrupt.requested and not told:
                told = True
                process.terminate()
    if interrupt.requested:
        raise Interrupted("the same command goes on")
    return process.returncode
