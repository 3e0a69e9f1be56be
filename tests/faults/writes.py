"""Writes that fail: the disk is full, has become read-only, or the folder is gone, from one call on and at every call in turn.

The command either ends with status 2 and one line that names what it could not write, or it was done already and all is
there. With the disk healthy again it goes on to the bits of a run left alone.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from internalize.commands import cli
from tests.faults.alone import Alone
from tests.faults.children import GONE, Action, Ended, Fault
from tests.faults.commands import one_line
from tests.faults.tally import Tally, share_out

FAILURES: Final[dict[Action, str]] = {"full": "full disk", "read-only": "read-only disk", "vanish": "vanished folder"}
WRITERS: Final[dict[str, int]] = {
    "train": 200,
    "train --seeds": 100,
    "solve": 100,
    "solve --seeds": 60,
    "sweep solve": 100,
    "sweep train": 60,
    "paper": 60,
    "compare": 60,
    "lm train": 100,
    "lm train adaptive": 60,
    "lm compare": 40,
    "lm eval": 40,
    "lm probe": 30,
    "lm plan": 20,
    "lm data": 20,
}
"""Faults of each command in the long version, where it has so many calls to fail."""
LONG: Final = sum(WRITERS.values())


def campaign(count: int, seed: int, folder: Path) -> Iterator[Tally]:
    """So many faults, shared out among the commands as in the long version."""
    for name, faults in share_out(count, WRITERS).items():
        yield fail(name, faults, seed, folder)


def fail(name: str, count: int, seed: int, folder: Path) -> Tally:
    """Let one command's writes fail: at every call in every way, or at so many of these."""
    alone, dice, tally = Alone.of(name, folder), random.Random(f"{name} {seed}"), Tally(f"failed writes: {name}")
    every = [Fault(action, at + 1) for at in range(alone.whole.calls) for action in FAILURES]
    chosen = sorted(dice.sample(range(len(every)), min(count, len(every))))
    for fault in (every[number] for number in chosen):
        tally.tried += 1
        out = alone.fresh(f"{fault.action}-{fault.at}")
        if wrong := _wrong(alone, out, fault):
            tally.lost.append(f"{name}, {FAILURES[fault.action]} from call {fault.at} on: {wrong}; see {out}")
        else:
            shutil.rmtree(out)
    return tally


def _wrong(alone: Alone, out: Path, fault: Fault) -> str | None:
    ended = alone.run(out, fault)
    gone = out.with_name(out.name + GONE)
    if gone.exists():  # it comes back as it was, whatever was begun in its place
        shutil.rmtree(out, ignore_errors=True)
        gone.rename(out)
    if ended.status != cli.WRONG:
        return _unless_all_is_there(alone, out, ended)
    if wrong := one_line(ended.said, out, several=alone.command.several, usual=alone.whole.said):
        return wrong
    if alone.command.file:
        out.mkdir(exist_ok=True)
    wrong = alone.wrong(out, alone.run(out))
    return f"with the disk healthy again: {wrong}" if wrong else None


def _unless_all_is_there(alone: Alone, out: Path, ended: Ended) -> str | None:
    """A fault that nobody noticed came too late to matter; tidying up may be left to the next run."""
    if ended.status != alone.whole.status:
        return f"ended with {ended.status}, saying {ended.said[-300:]!r}"
    wrong = alone.wrong(out, alone.run(out))
    return f"status {ended.status}, but {wrong}" if wrong else None
