"""Commands in the tests' own process: what they print, and what they refuse."""

import contextlib
import io
import json
import shlex
from dataclasses import dataclass
from typing import Any

from internalize.commands import cli


@dataclass(frozen=True)
class Said:
    """What a command printed."""

    out: str
    err: str


def call(words: str, status: int = 0) -> Said:
    """Run a command, given as a line without its program, that must end with this status."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = cli.main(shlex.split(words))
    assert found == status, (words, err.getvalue())
    return Said(out.getvalue(), err.getvalue())


def ask(words: str, status: int = 0) -> Any:
    """Run a command with --json and return the object that it prints."""
    return json.loads(call(f"{words} --json", status).out)


def refused(words: str, *parts: str) -> None:
    """Run a command that must be refused: status 2, no answer, and one line in which these words are."""
    said = call(words, cli.WRONG)
    (line,) = said.err.splitlines()
    assert line.startswith("internalize: ")
    assert said.out == ""
    for part in parts:
        assert part in line, line
