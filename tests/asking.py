"""Run commands in the tests' own process and return what they print."""

import contextlib
import io
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from internalize.commands import cli


@dataclass(frozen=True)
class Said:
    """What a command printed."""

    out: str
    err: str


def call(words: str | Sequence[str], status: int = 0) -> Said:
    """Run a command, given without the name of the program, that must end with this status."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = cli.main(shlex.split(words) if isinstance(words, str) else words)
    assert found == status, (words, err.getvalue())
    return Said(out.getvalue(), err.getvalue())


def ask(words: str | Sequence[str], status: int = 0) -> Any:
    """Run a command with --json and return the object that it prints."""
    return json.loads(call(f"{words} --json" if isinstance(words, str) else [*words, "--json"], status).out)


def refused(words: str | Sequence[str], *parts: str, alone: bool = True) -> None:
    """Run a command that must be refused: status 2, nothing on standard output, and one line that contains these parts.

    With `alone=False` other lines, such as progress, may stand before that line.
    """
    said = call(words, cli.WRONG)
    *before, line = said.err.strip().splitlines()
    assert line.startswith("internalize: ")
    assert not (alone and before), before
    assert "Traceback" not in said.err
    assert said.out == ""
    for part in parts:
        assert part in line, line
