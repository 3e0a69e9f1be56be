"""`internalize sweep`."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from internalize.commands.common_options import CommonOptions, StudyOptions, command
from internalize.commands.console import Flag, say
from internalize.parity.experiments.grid import Kind, parse_grid


@command
class _Cells(StudyOptions):
    TITLE: ClassVar = "Sweep"

    grid: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="[OPTION=VALUE,... ...]")]] = ()
    """Options with values: n=16,32 k=n/2 (for solve also samples=0.5x,1x,2x). Other options keep their defaults."""
    seeds: str = "0:10"
    backend: Literal["processes", "ray"] = "processes"
    """Run in processes of this machine, or on a Ray cluster (needs the extra `ray`)."""
    address: str | None = None
    """For --backend ray: address of the cluster. Default: a cluster on this machine that ends with the sweep."""
    jobs: int | None = None
    """Number of cells (for train, sets of ten cells) at a time, on one thread each. Default: the number of cores, or of
    the cluster's CPUs."""
    resume: Flag[bool] = False
    """Add missing cells to the store in --out, whatever grid it was made with. Finished cells are not recomputed."""
    kind: ClassVar[Kind]

    def __call__(self) -> int:
        """Compute the missing cells and show their numbers."""
        seeds, out = self.all_seeds(), self.folder("sweep")
        grid = parse_grid(self.kind, self.grid)
        if grid.left_out:
            count = len(grid.left_out)
            say(f"{count} of {count + len(grid.settings)} combinations are impossible and left out: {grid.left_out[0]}")

        from internalize.commands.progress import ProgressDisplay
        from internalize.parallel.runner import Runner
        from internalize.parity.experiments.sweep import sweep

        with ProgressDisplay(f"sweep {self.kind}") as progress:
            runner = Runner(self.jobs, self.backend, self.address, report=progress.show)
            self.announce(out, "cells")
            stop = isinstance(self, SweepSolve) and self.stop_at_failure
            found = sweep(grid.settings, seeds, out, runner, stop_at_failure=stop, resume=self.resume)
        found["left_out"] = len(grid.left_out) * len(seeds)
        self.show_facts(found, found)
        if found["failed"]:
            say(f"{found['failed']} cells failed; `internalize sweep show {out} --group-by status reason` says why")
        else:
            self.suggest("sweep show", out)
        return 1 if found["failed"] else 0


@command
class SweepSolve(_Cells):
    """Run Algorithm 1 at every setting of a grid, with every seed.

    Each run is a row of one store, which opens as Parquet: polars.read_parquet("OUT/cells/*.parquet"). After Ctrl-C or
    a kill, --resume continues. With a larger grid, --resume computes only the new cells.

    Examples:
      internalize sweep solve n=16,32,64 k=n/2 samples=0.5x,0.7x,1x,1.4x,2x --seeds 0:50 --out runs/phase
      internalize sweep solve K=4,8,16 grid=1,K --seeds 0:20 --stop-at-failure
    """

    stop_at_failure: Flag[bool] = False
    """End a run at the first stage that is not recovered. This is faster if only success matters."""
    kind: ClassVar[Kind] = "solve"


@command
class SweepTrain(_Cells):
    """Run AdamW at every setting of a grid, with every seed.

    Seeds are trained ten at a time. Each run is a row of one store, which opens as Parquet:
    polars.read_parquet("OUT/cells/*.parquet"). After Ctrl-C or a kill, --resume continues. With a larger grid, --resume
    computes only the new cells.

    Examples:
      internalize sweep train curriculum=log-icot,icot lr=0.1,0.03 --seeds 0:20 --out runs/rates
      internalize sweep train n=16,32,64 k=2,4,8,16 curriculum=none,icot,log-icot steps=200
    """

    kind: ClassVar[Kind] = "train"


@command
class SweepShow(CommonOptions):
    """Show the success rates of a sweep, or its phase diagram.

    Rates have 95 % intervals (Wilson's). A cell of solve succeeds if every layer is recovered; a cell of train
    succeeds if 99 % of the answers are right.

    Examples:
      internalize sweep show runs/phase --group-by n samples
      internalize sweep show runs/phase --group-by n samples --figure docs/figures
    """

    TITLE: ClassVar = "Table"

    store: tyro.conf.Positional[Path]
    """Folder of the sweep."""
    group_by: tuple[str, ...] = ()
    """Columns to group by. Default: the options with several values."""
    where: tuple[str, ...] = ()
    """Keep only cells with these values, each as name=value."""
    figure: Path | None = None
    """Folder for a phase diagram, with the first two columns of --group-by as axes and a panel per value of a third."""

    def __call__(self) -> int:
        """Read the store, count and draw."""
        from internalize.parity.experiments.phase import keep_where, phase_of, read_cells, success_rates, varied

        cells = keep_where(read_cells(self.store), self.where)
        by = self.group_by or tuple(varied(cells))
        if self.figure is None:
            found: dict[str, Any] = {"by": list(by), "rows": success_rates(cells, by)}
        else:
            from internalize.report.figures.phase import draw_phase

            found = phase_of(cells, by)
            drawing = draw_phase(**found)
            found["figure"] = str(drawing.save(self.figure))
            say(drawing.caption)
        rows = [{**row, "95 %": f"{row['low']:.3f} … {row['high']:.3f}"} for row in found["rows"]]
        self.show(found, rows, (*by, "cells", "successes", "failed", "rate", "95 %"))
        if self.figure is None and len(by) > 1:
            self.suggest("sweep show", self.store, "--group-by", *by, "--figure", "figures")
        else:
            self.suggest("paper")
        return 0
