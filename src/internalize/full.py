"""`internalize paper --full`: the commands behind the stored results, run here; finished runs are reused, interrupted ones go on."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from internalize.errors import InputError
from internalize.interrupt import Interrupted
from internalize.results import STORED, Stored


def run_full(
    out: Path,
    processes: int,
    say: Callable[[str], None] = lambda line: None,
    parts: tuple[Stored, ...] = STORED,
) -> None:
    """Run every command of ours behind the parts, each in a folder below ``out``.

    Raises:
        InputError: if one was refused; the parts before it are made.
        Interrupted: after Ctrl-C or SIGTERM; the same call goes on.
    """
    for part in parts:
        if part.arguments is None:
            say(f"{part.name}: not one of ours, shown as stored ({part.command})")
            continue
        say(f"{part.name}: {part.command}")
        options = ["--jobs", str(processes), "--out", str(out / part.name), "--resume"]
        status = _run([sys.executable, "-m", "internalize", *part.arguments, *options])
        if status in (130, -signal.SIGINT, -signal.SIGTERM):
            raise Interrupted("the same command goes on")
        if status:
            raise InputError(f"`{part.command}` ended with status {status}; what it said is above")


def _run(argv: list[str]) -> int:
    """The status of a command, whose results are not printed. Told to stop, it is waited for: it saves first."""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)  # noqa: S603  (our own command, no shell)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the terminal has told the command, too
            continue
