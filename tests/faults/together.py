"""Two processes on one folder: the first is stopped at a call that writes, and the same command is begun once more.

Where the first holds a lock, the second refuses with one line and changes nothing that is not its own; the first then goes on
to the bits of a run left alone. Every other time the first is killed instead: its lock does not stay.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from internalize.commands import cli
from tests.faults.alone import Alone
from tests.faults.children import Fault
from tests.faults.commands import one_line
from tests.faults.tally import Tally, share_out

MEETINGS: Final[dict[str, int]] = {
    "train": 30,
    "train --seeds": 30,
    "solve": 30,
    "sweep solve": 30,
    "sweep train": 20,
    "paper": 20,
    "compare": 10,
    "lm train": 20,
    "lm compare": 10,
}
"""Of each command in the long version."""
LONG: Final = sum(MEETINGS.values())


def campaign(count: int, seed: int, folder: Path) -> Iterator[Tally]:
    """So many meetings, shared out among the commands as in the long version."""
    for name, meetings in share_out(count, MEETINGS).items():
        yield meet(name, meetings, seed, folder)


def meet(name: str, count: int, seed: int, folder: Path) -> Tally:
    """Let two processes of one command meet so many times."""
    alone, dice, tally = Alone.of(name, folder), random.Random(f"{name} {seed}"), Tally(f"two processes: {name}")
    for number in range(count):
        fault = Fault("stop", dice.randint(1, alone.whole.calls))
        out = alone.fresh(f"met-{number}")
        first = alone.begin(out, fault)
        while not (stopped := first.wait_until_stopped()) and fault.at > 1:
            first.kill()  # a sweep flushes by the clock: a quicker one makes fewer calls
            first.wait()
            fault = Fault("stop", dice.randint(1, fault.at - 1))
            out = alone.fresh(out.name)
            first = alone.begin(out, fault)
        wrong = _meet(alone, out) if stopped else "it never came to its first call"
        if wrong is None and number % 2:
            first.kill()
            first.wait()
            wrong = alone.wrong(out, alone.run(out))
        elif wrong is None:
            first.go_on()
            wrong = alone.wrong(out, first.wait())
        tally.tried += 1
        if wrong:
            first.kill()
            first.wait()
            tally.lost.append(f"{name}, the first stopped at call {fault.at}: {wrong}; see {out}")
        else:
            shutil.rmtree(out)
    return tally


def _meet(alone: Alone, out: Path) -> str | None:
    """What the second does wrong while the first has stopped."""
    held, before = _held(out), _files(out)
    second = alone.run(out)
    if not held and second.status == alone.whole.status:
        return None  # the first has not begun yet, or is past its runs; what they come to shows when both have ended
    if second.status != cli.WRONG:
        return f"the second ended with {second.status}, saying {second.said[-300:]!r}"
    if "in use by another process" not in second.said:
        return f"the second said {second.said[-300:]!r}"
    if wrong := one_line(second.said, out, several=alone.command.several):
        return f"of the second, {wrong}"
    if not alone.command.several and _files(out) != before:
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
