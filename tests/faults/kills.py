"""kill -9: half of the times at a random moment of the run, half inside of a call that writes, which is then half done.

A run is killed and resumed, killed again and resumed, until it comes to its end; that end must have the bits of a run left
alone. Of a sweep every cell that was in the store before a kill must be there after it, with the seconds it took then: it was
neither lost nor computed again.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from internalize.parity.experiments.phase import read_cells
from internalize.storage.sweep_store import STORE
from tests.faults.alone import Alone
from tests.faults.children import Ended, Fault
from tests.faults.tally import Tally, share_out

KILLS: Final[dict[str, int]] = {
    "train": 120,
    "train --seeds": 80,
    "solve": 120,
    "solve --seeds": 80,
    "sweep solve": 120,
    "sweep train": 80,
    "sweep solve --jobs 2": 10,
    "paper": 200,
    "lm train": 100,
    "lm train adaptive": 100,
    "compare": 20,
    "lm compare": 20,
}
"""Of each command in the long version."""
LONG: Final = sum(KILLS.values())
_IN_A_ROW: Final = 5
"""Kills of one run, after which it is left alone."""


def campaign(count: int, seed: int, folder: Path) -> Iterator[Tally]:
    """So many kills, shared out among the commands as in the long version."""
    for name, kills in share_out(count, KILLS).items():
        yield kill(name, kills, seed, folder)


def kill(name: str, kills: int, seed: int, folder: Path) -> Tally:
    """Kill one command so many times."""
    alone, dice, tally = Alone.of(name, folder), random.Random(f"{name} {seed}"), Tally(f"kill -9: {name}")
    while tally.tried < kills:
        out = alone.fresh(f"killed-{tally.tried}")
        moments: list[str] = []
        wrong = _until_the_end(alone, out, dice, moments, min(_IN_A_ROW, kills - tally.tried))
        tally.tried += len(moments)
        if wrong:
            tally.lost.append(f"{name}: {wrong}; killed {', '.join(moments)}; see {out}")
        else:
            shutil.rmtree(out)
    return tally


def _until_the_end(alone: Alone, out: Path, dice: random.Random, moments: list[str], most: int) -> str | None:
    cells: dict[str, Any] = {}
    while True:
        ended = alone.run(out) if len(moments) == most else _killed(alone, out, dice, moments)
        known = _cells(out)
        if lost := [cell for cell, row in cells.items() if known.get(cell) != row]:
            return f"cell {lost[0]} was lost or computed again"
        cells = known
        if ended.status is not None:
            return alone.wrong(out, ended)


def _killed(alone: Alone, out: Path, dice: random.Random, moments: list[str]) -> Ended:
    """Killed, if it has not ended before."""
    if dice.random() < 0.5:
        fault = Fault("kill", dice.randint(1, alone.whole.calls))
        ended, moment = alone.run(out, fault), f"at call {fault.at}"
    else:
        seconds = dice.uniform(0, alone.whole.seconds)
        ended, moment = alone.begin(out).wait(seconds), f"after {seconds:.3f} s"
    if ended.status is None:
        moments.append(moment)
    return ended


def _cells(out: Path) -> dict[str, Any]:
    """The cells of a sweep, by name."""
    return {row["cell"]: row for row in read_cells(out).to_dicts()} if (out / STORE).exists() else {}
