"""Sweeps: every setting of a grid with every seed, one row each in one store, on local processes or a Ray cluster.

A cell is one setting with one seed. Its options identify it, so it is computed once even if several grids contain
it. Workers send their rows to the one process that writes, so a worker that dies loses only the cells it was
computing. Cells of `train` that differ only in the seed are trained together, ten seeds at a time. The last bits of
a run depend on which seeds these are, so the row names them.
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
    """Compute the cells that the store lacks, and return the contract's object of `sweep`.

    Args:
        settings: settings of `train` or of `solve`, not both.
        seeds: every setting runs with each of them.
        out: folder of the store.
        runner: computes the cells.
        stop_at_failure: for `solve`: stop a run after the first stage that is not recovered. Its errors are then
            those of a partly trained model.
        resume: add to an existing store.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with every finished cell in the store.
    """
    kinds: set[Kind] = {CellJob(setting, (0,)).kind for setting in settings}
    if len(kinds) != 1:
        raise InputError(f"{len(settings)} settings of {len(kinds)} kinds; a sweep has one kind, train or solve")
    (kind,) = kinds
    if stop_at_failure and kind == "train":
        raise InputError("stop_at_failure is for `solve`; a stage of `train` cannot fail")
    store = CellStore(out, kind, cell_schema(kind))
    cells = [CellJob(setting, (seed,), stop_at_failure) for setting in settings for seed in seeds]
    wanted = {job.rows()[0]["cell"]: job for job in cells}
    with store.locked(resume=resume) as known:
        # The digests are in random order, so the rate so far predicts the time left, and a stopped sweep has cells of
        # every setting.
        missing = [wanted[cell] for cell in sorted(wanted.keys() - known)]
        before, total = len(wanted) - len(missing), len(wanted)
        first: tuple[float, float] | None = None

        def show(done: float, _: float, seen: str) -> None:
            nonlocal first
            now = time.monotonic()
            first = first or (done, now)  # excludes the time that processes take to start
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
                lost = f"{len(killed)} jobs did not finish ({killed[0].job.name}: {killed[0].reason})"
                raise MachineError(f"{lost}; the others are in the store, and {how_to_continue}")
    found = store.frame()
    status = dict(zip(found["cell"], found["status"], strict=True))
    counts = [status.get(cell) for cell in wanted]
    return {"cells": total, "done": counts.count("done"), "failed": counts.count("failed"), "store": str(out)}


def _together(jobs: Sequence[CellJob]) -> list[CellJob]:
    """Group cells of one setting by tens of seeds, whichever cells were computed before."""
    groups: dict[tuple[Options, int], list[int]] = {}
    for job in jobs:
        groups.setdefault((job.options, job.seeds[0] // SEEDS_PER_BATCH), []).append(job.seeds[0])
    return [CellJob(options, tuple(sorted(seeds))) for (options, _), seeds in groups.items()]
