"""Sweeps: every setting of a grid with every seed, one row each in one store, on local processes or a Ray cluster.

A cell is one setting with one seed. All of its options together identify it: whatever grid asks for it, it is computed once.
Workers hand their rows to the one process that writes, so a worker that dies costs only the cells it was computing. Cells of
`train` that differ only in the seed are trained together, ten seeds at a time. The last bits of a run depend on which seeds those
are, so the row names them.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from internalize.errors import InputError, MachineError
from internalize.parallel.runner import Runner
from internalize.parity.experiments.grid import Options
from internalize.parity.experiments.jobs import SEEDS_PER_BATCH, CellJob, cell_schema
from internalize.storage.files import Json
from internalize.storage.sweep_store import CellStore, Kind


def sweep(
    settings: Sequence[Options],
    seeds: Sequence[int],
    out: Path,
    runner: Runner,
    *,
    stop_at_failure: bool = False,
    resume: bool = False,
) -> Json:
    """Compute the cells that the store does not have, and return CONTRACT's object of `sweep`.

    Args:
        settings: all of `train` or all of `solve`.
        seeds: every setting is run with each.
        out: folder of the store.
        runner: where the cells are computed.
        stop_at_failure: of `solve`: end a run with the first stage that is not recovered. Its errors are then of a model that
            is not trained to the end.
        resume: add to a store that is there.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with every finished cell in the store.
    """
    kinds: set[Kind] = {CellJob(setting, (0,)).kind for setting in settings}
    if len(kinds) != 1:
        raise InputError(f"{len(settings)} settings of {len(kinds)} kinds; a sweep has settings of one, train or solve")
    (kind,) = kinds
    if stop_at_failure and kind == "train":
        raise InputError("stop_at_failure is for `solve`: no stage of `train` fails by itself")
    store = CellStore(out, kind, cell_schema(kind))
    asked = [CellJob(setting, (seed,), stop_at_failure) for setting in settings for seed in seeds]
    wanted = {job.rows()[0]["cell"]: job for job in asked}
    with store.locked(resume=resume) as known:
        # In an order that means nothing: the rate so far then tells the time left, and what was stopped has some of everything.
        missing = [wanted[cell] for cell in sorted(wanted.keys() - known)]
        before, total = len(wanted) - len(missing), len(wanted)
        first: tuple[float, float] | None = None

        def show(done: float, _: float, seen: str) -> None:
            nonlocal first
            now = time.monotonic()
            first = first or (done, now)  # without the time that processes take to start
            rate = (done - first[0]) / (now - first[1]) if now > first[1] else 0.0
            runner.report(before + done, total, f"{rate:.3g} cells/s  {seen.partition('  ')[2]}")

        if missing:
            how_to_continue = f"the same command with --out {out} --resume continues"
            killed = runner.run(
                _together(missing) if kind == "train" else missing,
                report=show,
                refused=lambda job, reason: store.add(job.refused(reason)),
                finished=lambda job, rows: store.add(rows),
                how_to_continue=how_to_continue,
            )
            if killed:
                lost = f"{len(killed)} jobs are not done ({killed[0].job.name}: {killed[0].reason})"
                raise MachineError(f"{lost}; the others are in the store, and {how_to_continue}")
    found = store.frame()
    status = dict(zip(found["cell"], found["status"], strict=True))
    counts = [status.get(cell) for cell in wanted]
    return {"cells": total, "done": counts.count("done"), "failed": counts.count("failed"), "store": str(out)}


def _together(jobs: Sequence[CellJob]) -> list[CellJob]:
    """Cells of one setting whose seeds are of the same ten: the same company whatever was computed before them."""
    groups: dict[tuple[Options, int], list[int]] = {}
    for job in jobs:
        groups.setdefault((job.options, job.seeds[0] // SEEDS_PER_BATCH), []).append(job.seeds[0])
    return [CellJob(options, tuple(sorted(seeds))) for (options, _), seeds in groups.items()]
