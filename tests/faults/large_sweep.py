"""Load: a sweep of thousands of cells, killed in the middle and resumed. Memory stays flat, and the store opens at once."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from internalize.parity.experiments.phase import read_cells
from internalize.storage.sweep_store import STORE
from tests.faults.child_process import PATIENCE, Child
from tests.faults.harness import Outcome

CELLS: Final = 10_000
"""In the long version."""
_GROWTH: Final = 48 * 2**20
"""Bytes that a process may have at its end more than after a tenth of its cells: rows that wait to be a part, buffers."""
_SECONDS: Final = 1.0
"""Of CPU time, in which the long version's store has to open, and `sweep show` to be done."""


def sweep(count: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """One sweep of `count` cells."""
    out, first = folder / "cells", seed * CELLS
    argv = ["sweep", "solve", "n=4", "k=2", "samples=8", "test_samples=8", "--seeds", f"{first}:{first + count}"]
    argv += ["--jobs", "1", "--out", str(out), "--resume"]
    grown = max(_watch(argv, out, count // 2, count), _watch(argv, out, count, count))
    again = read_cells(out)
    began = time.process_time()
    cells = read_cells(out)
    opened = time.process_time() - began
    shown = Child(["sweep", "show", str(out), "--by", "n", "k"], out, small=False).wait()
    times = f"opened in {opened:.2f} s, shown in {shown.cpu_seconds:.2f} s"
    lost: list[str] = []
    if cells.height != count or cells["cell"].n_unique() != count or not cells.equals(again):
        lost.append(f"{cells.height} rows of {cells['cell'].n_unique()} cells in {out}, not {count}")
    if grown > _GROWTH:
        lost.append(f"the process of the sweep grew by {grown >> 20} MB in {out}")
    if shown.status != 0 or (count >= CELLS and max(opened, shown.cpu_seconds) > _SECONDS):
        lost.append(f"{out}: {times}, {shown.said[-300:]!r}")
    row = f"load: {count} cells, grown by {grown / 2**20:.0f} MB; {times}"
    yield from [Outcome(row, line) for line in lost] + [Outcome(row)] * (count - len(lost))


def _watch(argv: list[str], out: Path, until: int, count: int) -> int:
    """Let the sweep work until it has so many cells, and kill it unless these are all; by how much it grew after a tenth."""
    child, sizes = Child(argv, out, small=False), list[int]()
    begun, end = _height(out), time.monotonic() + 10 * PATIENCE
    while child.alive and time.monotonic() < end:
        height = _height(out)
        if height >= until and until < count:
            child.kill()
        if height - begun >= count / 10:
            sizes.append(child.memory())
        time.sleep(0.2)
    ended = child.wait()
    assert ended.status == (0 if until == count else None), ended.said
    return max(sizes, default=0) - next(iter(sizes), 0)


def _height(out: Path) -> int:
    return read_cells(out).height if (out / STORE).exists() else 0
