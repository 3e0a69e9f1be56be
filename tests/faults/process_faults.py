"""Faults of a command in a process of its own: killed, a disk that fails, a second process on the same folder."""

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from filelock import FileLock, Timeout

from internalize.commands import cli
from internalize.errors import MACHINE
from internalize.parity.experiments.phase import read_cells
from internalize.storage.sweep_store import STORE
from tests.faults.child_process import GONE, Action, Ended, Fault
from tests.faults.harness import LIMIT, Outcome, complaints, one_line
from tests.faults.small_commands import Undisturbed

FAILURES: Final[dict[Action, str]] = {"full": "full disk", "read-only": "read-only disk", "vanish": "vanished folder"}
_IN_A_ROW: Final = 5
"""Kills of one run, after which it is left alone."""


class Trial(NamedTuple):
    """A run with its faults, in words, and what was wrong at its end."""

    out: Path
    faults: list[str]
    wrong: str | None


def on_command(kind: str, name: str, count: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Let one command meet `count` faults of a kind of `KINDS`."""
    row, trials = KINDS[kind]
    row = f"{row}: {name}"
    for out, faults, wrong in trials(Undisturbed(name, folder), count, random.Random(f"{name} {seed}")):
        lost = [f"{name}, {', '.join(faults)}: {wrong}; see {out}"] if wrong else []
        yield from [Outcome(row, line) for line in lost] + [Outcome(row)] * (len(faults) - len(lost))
        if not wrong:
            shutil.rmtree(out)


# Kills


def _kills(command: Undisturbed, count: int, dice: random.Random) -> Iterator[Trial]:
    """kill -9: half of the times at a random moment of the run, half inside of a call that writes, which is then half done.

    A run is killed and resumed, killed again and resumed, until it comes to its end; that end must have the bits of an
    undisturbed run. Of a sweep every cell that was in the store before a kill must be there after it, with the seconds it took
    then: it was neither lost nor computed again.
    """
    tried = 0
    while tried < count:
        out = command.fresh(f"killed-{tried}")
        moments: list[str] = []
        wrong = _until_the_end(command, out, dice, moments, min(_IN_A_ROW, count - tried))
        tried += len(moments)
        yield Trial(out, moments, wrong)


def _until_the_end(command: Undisturbed, out: Path, dice: random.Random, moments: list[str], most: int) -> str | None:
    cells: dict[str, Any] = {}
    while True:
        ended = command.run(out) if len(moments) == most else _killed(command, out, dice, moments)
        known = {row["cell"]: row for row in read_cells(out).to_dicts()} if (out / STORE).exists() else {}
        if lost := [cell for cell, row in cells.items() if known.get(cell) != row]:
            return f"cell {lost[0]} was lost or computed again"
        cells = known
        if ended.status is not None:
            return command.wrong(out, ended)


def _killed(command: Undisturbed, out: Path, dice: random.Random, moments: list[str]) -> Ended:
    """Killed, if it has not ended before."""
    if dice.random() < 0.5:
        fault = Fault("kill", dice.randint(1, command.ended.calls))
        ended, moment = command.run(out, fault), f"killed at call {fault.at}"
    else:
        seconds = dice.uniform(0, command.ended.seconds)
        ended, moment = command.begin(out).wait(seconds), f"killed after {seconds:.3f} s"
    if ended.status is None:
        moments.append(moment)
    return ended


# Failed writes


def _failed_writes(command: Undisturbed, count: int, dice: random.Random) -> Iterator[Trial]:
    """The disk is full, has become read-only, or the folder is gone, from one call on: `count` of all calls and ways.

    The command either ends with status 2 and one line that names what it could not write, or it was done already and all is
    there. With the disk healthy again it goes on to the bits of an undisturbed run.
    """
    every = [Fault(action, at + 1) for at in range(command.ended.calls) for action in FAILURES]
    for number in sorted(dice.sample(range(len(every)), min(count, len(every)))):
        fault = every[number]
        out = command.fresh(f"{fault.action}-{fault.at}")
        yield Trial(out, [f"{FAILURES[fault.action]} from call {fault.at} on"], _wrong_after(fault, command, out))


def _wrong_after(fault: Fault, command: Undisturbed, out: Path) -> str | None:
    ended = command.run(out, fault)
    gone = out.with_name(out.name + GONE)
    if gone.exists():  # it comes back as it was, whatever was begun in its place
        shutil.rmtree(out, ignore_errors=True)
        gone.rename(out)
    if ended.status == cli.WRONG:
        when = "with the disk healthy again:"
        if wrong := one_line(ended.said, out, several=command.command.several, usual=command.ended.said):
            return wrong
        if command.command.file:
            out.mkdir(exist_ok=True)
    elif ended.status == command.ended.status:
        when = f"status {ended.status}, but"  # nobody noticed: it came too late to matter; tidying up may be left to the next run
    else:
        return f"ended with {ended.status}, saying {ended.said[-300:]!r}"
    wrong = command.wrong(out, command.run(out))
    return f"{when} {wrong}" if wrong else None


# Two processes


def _two_processes(command: Undisturbed, count: int, dice: random.Random) -> Iterator[Trial]:
    """Two processes on one folder: the first is stopped at a call that writes, and the same command is begun once more.

    Where the first holds a lock, the second refuses with one line and changes nothing that is not its own; the first then goes
    on to the bits of an undisturbed run. Every other time the first is killed instead: its lock does not stay.
    """
    for number in range(count):
        fault = Fault("stop", dice.randint(1, command.ended.calls))
        out = command.fresh(f"met-{number}")
        first = command.begin(out, fault)
        while not (stopped := first.wait_until_stopped()) and fault.at > 1:
            first.kill()  # a sweep flushes by the clock: a quicker one makes fewer calls
            first.wait()
            fault = Fault("stop", dice.randint(1, fault.at - 1))
            out = command.fresh(out.name)
            first = command.begin(out, fault)
        wrong = _wrong_of_second(command, out) if stopped else "it never came to its first call"
        if wrong or number % 2:
            first.kill()
            first.wait()
        else:
            first.go_on()
        if not wrong:
            wrong = command.wrong(out, command.run(out) if number % 2 else first.wait())
        yield Trial(out, [f"the first stopped at call {fault.at}"], wrong)


def _wrong_of_second(command: Undisturbed, out: Path) -> str | None:
    """What the second does wrong while the first has stopped."""
    held, before = _held(out), _files(out)
    second = command.run(out)
    if not held and second.status == command.ended.status:
        return None  # the first has not begun yet, or is past its runs; what they come to shows when both have ended
    if second.status != cli.WRONG:
        return f"the second ended with {second.status}, saying {second.said[-300:]!r}"
    if "in use by another process" not in second.said:
        return f"the second said {second.said[-300:]!r}"
    if wrong := one_line(second.said, out, several=command.command.several):
        return f"of the second, {wrong}"
    if not command.command.several and _files(out) != before:
        return "the second changed something"
    return None


def _held(out: Path) -> bool:
    """Whether somebody holds a run of the folder that is not finished."""
    for path in out.rglob(".lock"):
        if (path.parent / "result.json").exists():
            continue
        try:
            with FileLock(path, timeout=0):
                pass
        except Timeout:
            return True
    return False


def _files(out: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


# Killed workers


def _killed_workers(command: Undisturbed, count: int, dice: random.Random) -> Iterator[Trial]:
    """kill -9 of a process that a command has started, at a random moment; every other time of one after another.

    A job whose process was killed is begun again. What is lost nevertheless is named with the signal, in a status for that, and
    the same command then goes on to the bits of an undisturbed run.
    """
    for number in range(count):
        out = command.fresh(f"worker-{number}")
        child, moments = command.begin(out), list[str]()
        end = time.monotonic() + LIMIT + 5 * command.ended.seconds
        while child.alive and time.monotonic() < end and (number % 2 or not moments):
            time.sleep(dice.uniform(0, 1 if number % 2 else command.ended.seconds))
            if workers := child.workers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(dice.choice(workers), signal.SIGKILL)
                    moments.append(f"{child.age:.2f} s")
        ended = child.wait(max(0.0, end - time.monotonic()))
        yield Trial(
            out, [f"a worker killed after {', '.join(moments) or 'its end'}"], _wrong_without(command, out, ended)
        )


def _wrong_without(command: Undisturbed, out: Path, ended: Ended) -> str | None:
    if ended.status == command.ended.status:
        return command.wrong(out, ended)
    if wrong := complaints(command.argv(out), ended.answer, others=(MACHINE,)):
        return "; ".join(wrong)
    if ended.status != MACHINE or "killed by SIGKILL" not in ended.said:
        return f"ended with {ended.status}, saying {ended.said[-300:]!r}"
    wrong = command.wrong(out, command.run(out))
    return f"ended with {MACHINE}; then {wrong}" if wrong else None


KINDS: Final[dict[str, tuple[str, Callable[[Undisturbed, int, random.Random], Iterator[Trial]]]]] = {
    "kills": ("kill -9", _kills),
    "writes": ("failed writes", _failed_writes),
    "together": ("two processes", _two_processes),
    "workers": ("killed workers", _killed_workers),
}
