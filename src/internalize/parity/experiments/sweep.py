"""Sweeps: every setting of a grid with every seed, a row each in one store, on local processes or a Ray cluster.

A cell is one setting with one seed. Its options, all of them, tell it apart: whatever grid asks for it, it is computed once.
Who computes hands its rows to the one process that writes, so that a worker's death costs the cells it was at and nothing else.
Cells of `train` that differ in the seed only are trained together, those of ten seeds in a row; the last bits of a run depend
on its company, which is why the row names it.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, get_origin

from internalize.errors import InputError
from internalize.intervals import wilson
from internalize.parallel.interrupt import Interrupted, Interruptible
from internalize.parallel.pool import Report, ReportProgress, torch_threads
from internalize.parity.experiments.grid import Kind, Options, option_types
from internalize.parity.experiments.jobs import SEEDS_PER_BATCH
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.storage.conditions import condition, is_value
from internalize.storage.summaries import SOLVED
from internalize.storage.sweep_store import CellStore, Json, Schema, kind_of

if TYPE_CHECKING:
    import polars as pl

_RESULTS: Final[dict[Kind, dict[str, type]]] = {
    "solve": {
        "exact_recovery": bool,
        "accuracy": float,
        "l2_error": float,
        "max_error": float,
        "samples_per_stage": int,
        "K_used": float,
        "steps": int,
        "failed_stage": int,
        "idle_stages": int,
        "seconds": float,
    },
    "train": {
        "accuracy": float,
        "l2_error": float,
        "max_error": float,
        "min_child_attention": float,
        "steps_made": int,
        "samples": int,
        "together": str,
        "seconds": float,
    },
}
"""What a cell's result adds to its options, which stay as they were asked for: the steps that `train` made in all, and the K
that `solve` took, have names of their own."""


@dataclass(frozen=True)
class CellJob:
    """Cells that are computed together: one of `solve`, or seeds of one setting of `train`."""

    options: Options
    seeds: tuple[int, ...]
    stop_at_failure: bool = False

    @property
    def kind(self) -> Kind:
        """Whose options these are."""
        return "solve" if isinstance(self.options, SolveOptions) else "train"

    @property
    def name(self) -> str:
        """Size and seeds."""
        first, last = self.seeds[0], self.seeds[-1]
        return f"n={self.options.n} k={self.options.k} seed {first}" + (f" … {last}" if last != first else "")

    @property
    def size(self) -> int:
        """Cells."""
        return len(self.seeds)

    def rows(self) -> list[Json]:
        """What is known of each cell before it is computed."""
        flat = flat_options(self.options)
        if self.kind == "solve":
            flat["stop_at_failure"] = self.stop_at_failure
        rows = [{**flat, "seed": seed} for seed in self.seeds]
        return [{"cell": _digest(self.kind, row), **row} for row in rows]

    def run(self, seen: ReportProgress) -> list[Json]:
        """Compute the cells. Asked to stop, it does so at the next stage or evaluation, and there is nothing to keep."""

        def go_on(text: str) -> None:
            seen(0, text)
            if interrupt.requested:
                raise Interrupted

        with torch_threads(1), Interruptible() as interrupt:
            if isinstance(self.options, SolveOptions):
                results = [self._solve(self.options, seed, go_on) for seed in self.seeds]
            else:
                results = _train(self.options, self.seeds, go_on)
        return [
            {**row, "status": "done", "reason": None, **result}
            for row, result in zip(self.rows(), results, strict=True)
        ]

    def refused(self, reason: str) -> list[Json]:
        """The rows of cells that cannot be computed."""
        return [{**row, "status": "failed", "reason": reason} for row in self.rows()]

    def _solve(self, options: SolveOptions, seed: int, go_on: Callable[[str], None]) -> Json:
        from internalize.parity.algorithm1.solve import solve

        found = solve(
            replace(options, seed=seed),
            stop_at_failure=self.stop_at_failure,
            on_stage=lambda solving: go_on(f"stage {len(solving.records)}"),
        ).to_json()
        return {name: found[name] for name in found if name not in ("stages", "K", "grid")} | {"K_used": found["K"]}


def _train(options: TrainOptions, seeds: Sequence[int], go_on: Callable[[str], None]) -> list[Json]:
    from internalize.parity.adamw.train import train

    try:
        results = train(
            options, seeds, report=lambda now: go_on(f"stage {now.metrics[0]['stage']}, step {now.done}/{now.total}")
        )
    except InputError:
        if len(seeds) == 1:
            raise
        # One that diverges must not take the others with it.
        alone: list[Json] = []
        for seed in seeds:
            try:
                alone += _train(options, [seed], go_on)
            except InputError as error:
                alone.append({"status": "failed", "reason": str(error)})
        return alone
    company = " ".join(map(str, seeds))
    return [{"together": company, "steps_made": result.pop("steps"), **result} for result in results]


def flat_options(options: Options) -> Json:
    """The options of a cell as columns: a list is written as the grid's words have it."""
    kinds = option_types("solve" if isinstance(options, SolveOptions) else "train")
    values = {name: value for name, value in asdict(options).items() if name in kinds}
    for name, value in values.items():
        if get_origin(kinds[name]) is tuple:
            values[name] = "+".join(map(str, value))
        elif kinds[name] is float and value is not None:
            values[name] = float(value)  # 20 and 20.0 are one cell
    return values


@cache
def cell_schema(kind: Kind) -> Schema:
    """The columns of a kind's cells."""
    options = {name: wanted if wanted in (int, float) else str for name, wanted in option_types(kind).items()}
    extra = {"stop_at_failure": bool} if kind == "solve" else {}
    return {"cell": str, "status": str, "reason": str, **options, **extra, "seed": int, **_RESULTS[kind]}


def _digest(kind: Kind, row: Json) -> str:
    content = json.dumps({"kind": kind, **row}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


class Pool(Protocol):
    """Who computes: `workers.run_all` with its number of processes, or `cluster.run_on_ray` with its address."""

    def __call__(
        self,
        jobs: Sequence[CellJob],
        *,
        report: Report,
        refused: Callable[[CellJob, str], None],
        finished: Callable[[CellJob, Any], None],
        how_to_go_on: str,
    ) -> None:
        """Run the jobs; `finished` and `refused` are called in this process."""
        ...


def sweep(
    settings: Sequence[Options],
    seeds: Sequence[int],
    out: Path,
    pool: Pool,
    *,
    stop_at_failure: bool = False,
    resume: bool = False,
    report: Report = lambda done, total, seen: None,
) -> Json:
    """Compute the cells that the store does not have, and return CONTRACT's object of `sweep`.

    Args:
        settings: all of `train` or all of `solve`.
        seeds: every setting is run with each.
        out: folder of the store.
        pool: who computes.
        stop_at_failure: of `solve`: end a run with the first stage that is not recovered. Its errors are then of a model that
            is not trained to the end.
        resume: add to a store that is there.
        report: called with cells done, cells in all, and what was seen last.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with every finished cell in the store.
    """
    kinds = {CellJob(setting, (0,)).kind for setting in settings}
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

        def told(done: float, _: float, seen: str) -> None:
            nonlocal first
            now = time.monotonic()
            first = first or (done, now)  # without the time that processes take to start
            rate = (done - first[0]) / (now - first[1]) if now > first[1] else 0.0
            report(before + done, total, f"{rate:.3g} cells/s  {seen.partition('  ')[2]}")

        if missing:
            pool(
                _together(missing) if kind == "train" else missing,
                report=told,
                refused=lambda job, reason: store.add(job.refused(reason)),
                finished=lambda job, rows: store.add(rows),
                how_to_go_on=f"the same command with --out {out} --resume goes on",
            )
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


# Reading


def read_cells(out: Path) -> "pl.DataFrame":
    """The cells of a sweep as a frame, with `success`: every layer recovered, or 99 % of the answers right."""
    import polars as pl

    kind = kind_of(out)
    if kind not in _RESULTS:
        raise InputError(f"{out} holds a sweep of {kind!r}, which is neither train nor solve")
    frame = CellStore(out, kind, cell_schema(kind)).frame()
    success = pl.col("exact_recovery") if kind == "solve" else pl.col("accuracy") >= SOLVED
    return frame.with_columns(success.alias("success"))


def keep_where(cells: "pl.DataFrame", conditions: Sequence[str]) -> "pl.DataFrame":
    """The cells with these values, each condition as ``name=value``."""
    import polars as pl

    for name, value in map(condition, conditions):
        if name not in cells.columns:
            raise InputError(
                f"where={name}={value}: the cells have no such column; they have {', '.join(cells.columns)}"
            )
        cells = cells.filter(pl.Series([is_value(found, value) for found in cells[name]], dtype=pl.Boolean))
    return cells


def varied(cells: "pl.DataFrame") -> list[str]:
    """The options with more than one value among the cells."""
    kind: Kind = "solve" if "exact_recovery" in cells.columns else "train"
    names = (*option_types(kind), "stop_at_failure")
    return [name for name in names if name in cells.columns and cells[name].n_unique() > 1]


def check_columns(cells: "pl.DataFrame", by: Sequence[str]) -> None:
    """Refuse names that are no columns of the cells, or one of them twice."""
    for name in by:
        if name not in cells.columns:
            raise InputError(f"by={name!r}: the cells have no such column; they have {', '.join(cells.columns)}")
    if len(set(by)) != len(by):
        raise InputError(f"by={' '.join(by)!r} names a column twice")


def success_rates(cells: "pl.DataFrame", by: Sequence[str]) -> list[Json]:
    """Share of successes for each combination of these columns' values, with Wilson's interval; failed cells apart."""
    check_columns(cells, by)
    if "stop_at_failure" in varied(cells) and "stop_at_failure" not in by:
        raise InputError("cells with and without stop_at_failure would count the same seeds twice; choose by --where")
    rows: list[Json] = []
    for values, group in groupby(
        cells.sort(list(by)).iter_rows(named=True), key=lambda row: [row[name] for name in by]
    ):
        own = list(group)
        done = [row["success"] for row in own if row["status"] == "done"]
        share: Json = {"rate": None, "low": None, "high": None}
        if done:
            low, high = wilson(sum(done), len(done))
            share = {"rate": sum(done) / len(done), "low": low, "high": high}
        counts = {"cells": len(own), "successes": sum(done), "failed": len(own) - len(done)}
        rows.append({**dict(zip(by, values, strict=True)), **counts, **share})
    return rows
