"""The outcome of a fault; a command run in this process, and what is wrong with its answer."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from internalize.commands import cli

LIMIT: Final = 30.0
"""Seconds after which a command hangs."""
_PROGRESS: Final = re.compile(r"[a-z][^|]*: [\d.e+]+/[\d.e+]+  .*")


class Outcome(NamedTuple):
    """One fault: the row of the table that counts it, and what was lost or wrong (empty: survived) with how to see it again."""

    row: str
    lost: str = ""


def outcome(row: str, asked: str, wrong: Sequence[str], *folders: Path) -> Outcome:
    """What came of something that was asked; what it has left in the folders stays only if something was wrong."""
    if wrong:
        return Outcome(row, f"{asked}: {'; '.join(wrong)}")
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(row)


@dataclass(frozen=True)
class Answer:
    """What came of a command. `bug` is the end of the traceback, or says that the command hung."""

    status: int
    out: str
    err: str
    bug: str = ""


class _TooLong(BaseException):
    """Nothing of ours catches it."""


def ask(argv: Sequence[str]) -> Answer:
    """Run a command as `internalize` does, with Python's usual warnings on standard error."""

    def ring(*_: object) -> None:
        raise _TooLong

    out, err, bug, status = io.StringIO(), io.StringIO(), "", cli.BUG
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("default")
            for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
                warnings.simplefilter("ignore", kind)
            status = cli.main(argv)
    except SystemExit as stop:  # --help
        status = int(stop.code or 0)
    except _TooLong as error:
        bug = f"no answer in {LIMIT:g} s, at {_where(error)}"
    except Exception as error:
        bug = f"{type(error).__name__}: {' '.join(str(error).split())[:150]} at {_where(error)}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return Answer(status, out.getvalue(), err.getvalue(), bug)


def _where(error: BaseException) -> str:
    """The innermost of our own lines."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}internalize{os.sep}" in frame.filename] or list(frames)
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}"


def complaints(
    argv: Sequence[str], answer: Answer, *names: str, others: Sequence[int] = (), noise: bool = False
) -> list[str]:
    """What an answer has against docs/contract.md: status, one line for a mistake that has one of `names`, one JSON object.

    ``others`` are statuses that are right beside 0, 1 and 2; with ``noise`` libraries may have said something before.
    """
    if answer.bug:
        return [answer.bug]
    found: list[str] = []
    if answer.status not in (0, 1, cli.WRONG, *others):
        found.append(f"status {answer.status}")
    if answer.status in (0, 1) and ("--json" in argv or answer.status == 1) and not answer.out:
        found.append(f"status {answer.status} without an answer")
    if "\x1b" in answer.out + answer.err:
        found.append("an escape code is printed as it is")
    if answer.status == cli.WRONG:
        *before, last = answer.err.splitlines() or [""]
        remarks = noise or all(line.startswith("internalize: ") or _PROGRESS.fullmatch(line) for line in before)
        if not last.startswith("internalize: ") or not remarks:
            found.append(f"not a line that says why: {answer.err[:300]!r}")
        names = (*names, "") if names and "" in argv else names
        shown = {word for name in names for word in (name, repr(name)[1:-1], name.lstrip("-").replace("-", "_"))}
        if names and not any((word or "''") in last for word in shown):
            found.append(f"none of {names} is named: {last[:300]!r}")
        if answer.out and "compare" not in argv[:2]:  # these tell of every run that was refused
            found.append(f"{answer.out[:60]!r} on standard output")
    if "Traceback" in answer.err:
        found.append(f"a traceback: {answer.err[-300:]!r}")
    if "--json" in argv and answer.out and "-h" not in argv and "--help" not in argv:
        try:
            if not isinstance(strict_json(answer.out), dict):
                found.append(f"standard output is no JSON object: {answer.out[:60]!r}")
        except ValueError as error:
            found.append(f"standard output is not JSON: {error}: {answer.out[:60]!r}")
    return found


def strict_json(text: str) -> Any:
    """Parse JSON; NaN and infinities, which Python takes, are a ValueError."""

    def refuse(token: str) -> None:
        raise ValueError(f"the token {token}")

    return json.loads(text, parse_constant=refuse)


def told(said: str) -> list[str]:
    """What a command said on standard error, without progress."""
    return [line for line in said.splitlines() if line.strip() and not _PROGRESS.fullmatch(line)]


def one_line(said: str, path: Path, *, several: bool = False, usual: str = "") -> str | None:
    """What is wrong with a refusal: beside `usual`, it must be one line of ours that names something below `path`.

    With `several` there may be several such lines.
    """
    lines = [line for line in told(said) if line not in told(usual)]
    if len(lines) != 1 and not (several and lines):
        return f"it said {len(lines)} lines: {' / '.join(lines[:1] + lines[-1:])[:300]!r}"
    for line in lines:
        if not line.startswith("internalize: ") or str(path) not in line:
            return f"its line does not name {path}: {line!r}"
    return None
