"""A command asked in this process: its status, both of its outputs, and what it left behind."""

import contextlib
import io
import json
import os
import re
import resource
import signal
import tempfile
import traceback
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final
from unittest import mock

from internalize.commands import cli

LIMIT: Final = 30.0
"""Seconds after which a command hangs."""
_MEMORY: Final = 6 * 2**30
"""Bytes that a command may take beyond what this process has: what asks for more must be refused, not tried."""


_REMARK: Final = re.compile(r"internalize: |[a-z][^|]*: [\d.]+/[\d.]+  ")
"""What may come before the line that says why: what a user should know, and progress."""


class _TooLong(BaseException):
    """Nothing of ours catches it."""


@dataclass(frozen=True)
class Answer:
    """What came of a command. ``bug`` has the end of the traceback of what came out of it, or says that nothing did."""

    status: int
    out: str
    err: str
    bug: str = ""


def ask(argv: Sequence[str], limit: float = LIMIT) -> Answer:
    """Run a command as `internalize` does, with Python's usual warnings on standard error."""
    out, err, bug, status = io.StringIO(), io.StringIO(), "", cli.BUG
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
        _alarm(limit),
    ):
        warnings.simplefilter("default")
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        try:
            status = cli.main(argv)
        except SystemExit as stop:  # --help
            status = int(stop.code or 0)
        except _TooLong as error:
            bug = f"no answer in {limit:g} s, at {_where(error)}"
        except Exception as error:
            bug = f"{type(error).__name__}: {' '.join(str(error).split())[:150]} at {_where(error)}"
    return Answer(status, out.getvalue(), err.getvalue(), bug)


def complaints(argv: Sequence[str], answer: Answer, *names: str) -> list[str]:
    """What an answer has against docs/contract.md: status, one line for a mistake that has one of ``names``, one JSON object."""
    if answer.bug:
        return [answer.bug]
    found: list[str] = []
    if answer.status not in (0, 1, cli.WRONG):
        found.append(f"status {answer.status}")
    several = "compare" in argv[:2]  # tell of every run that was refused
    if answer.status == cli.WRONG:
        *before, last = answer.err.splitlines() or [""]
        if not last.startswith("internalize: ") or not all(map(_REMARK.match, before)):
            found.append(f"not a line that says why: {answer.err[:300]!r}")
        names = (*names, "") if names and "" in argv else names
        shown = {word for name in names for word in (name, repr(name)[1:-1], name.lstrip("-").replace("-", "_"))}
        if names and not any((word or "''") in last for word in shown):
            found.append(f"none of {names} is named: {last[:300]!r}")
        if answer.out and not several:
            found.append(f"{answer.out[:60]!r} on standard output")
    if "Traceback" in answer.err:
        found.append(f"a traceback: {answer.err[-300:]!r}")
    if "--json" in argv and answer.out and "-h" not in argv and "--help" not in argv:
        found += _json_complaints(answer.out)
    return found


def tree(*folders: Path) -> dict[str, str]:
    """Every file below the folders, each with what tells that it was written to. Locks say nothing."""
    found: dict[str, str] = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if path.name != ".lock":
                known = path.lstat()
                found[str(path)] = f"{known.st_mode} {known.st_ino}" + (
                    "" if path.is_dir() else f" {known.st_size} {known.st_mtime_ns}"
                )
    return found


@contextlib.contextmanager
def rooms(folder: Path) -> Generator[tuple[Path, Path, Path]]:
    """A working directory, a HOME and a folder for temporary files of one's own, and an end to memory."""
    own = folder / "cwd", folder / "home", folder / "tmp"
    for room in own:
        room.mkdir(parents=True, exist_ok=True)
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    with (
        contextlib.chdir(own[0]),
        mock.patch.dict(os.environ, {"HOME": str(own[1]), "TMPDIR": str(own[2]), "HF_HUB_OFFLINE": "1"}),
        mock.patch("huggingface_hub.constants.HF_HUB_OFFLINE", new=True),  # it may have been read already
        mock.patch.object(tempfile, "tempdir", str(own[2])),
    ):
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MEMORY, before[1]))
        try:
            yield own
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)


def _json_complaints(text: str) -> list[str]:
    def refuse(token: str) -> None:
        raise ValueError(f"the token {token}")

    try:
        value = json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return [f"standard output is not JSON: {error}: {text[:60]!r}"]
    return [] if isinstance(value, dict) else [f"standard output is no JSON object: {text[:60]!r}"]


@contextlib.contextmanager
def _alarm(seconds: float) -> Generator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _where(error: BaseException) -> str:
    """The innermost of our own lines."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}internalize{os.sep}" in frame.filename] or list(frames)
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}"
