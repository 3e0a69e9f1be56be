"""`internalize sweep`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from internalize.commands.common_options import CommonOptions, StudyOptions, command
from internalize.commands.console import Flag, say
from internalize.parity.experiments.grid import Kind, parse_grid


@command
class _Cells(StudyOptions):
    grid: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="[OPTION=VALUE,... ...]")]] = ()
    """Options, each with its values: n=16,32 k=n/2 (of solve also samples=0.5x,1x,2x). Options that are not named have
    their defaults."""
    seeds: str = "0:10"
    backend: Literal["processes", "ray"] = "processes"
    """Who computes: processes of this machine, or a Ray cluster (needs the extra `ray`)."""
    address: str | None = None
    """For --backend ray: address of the cluster. Default: a cluster of this machine alone, that ends with the sweep."""
    jobs: int | None = None
    """Cells (of train: sets of ten) at once, on one thread each. Default: as many as there are cores, or CPUs of the cluster."""
    resume: Flag[bool] = False
    """Add to the store in --out what it has not, whatever grid it was made with; finished cells are not computed again."""
    kind: ClassVar[Kind]

    def __call__(self) -> int:
        """Compute what is missing, and count."""
        seeds, out = self.all_seeds(), self.folder("sweep")
        grid = parse_grid(self.kind, self.grid)
        if grid.left_out:
            count = len(grid.left_out)
            say(
                f"{count} of {count + len(grid.settings)} combinations are not possible, and left out: {grid.left_out[0]}"
            )

        from internalize.commands.progress import ProgressDisplay
        from internalize.parallel.runner import Runner
        from internalize.parity.experiments.sweep import sweep

        with ProgressDisplay(f"sweep {self.kind}") as progress:
            runner = Runner(self.jobs, self.backend, self.address, report=progress.show)
            if self.out is None:
                say(f"keeping the cells in {out}")
            stop = isinstance(self, SweepSolve) and self.stop_at_failure
            found = sweep(grid.settings, seeds, out, runner, stop_at_failure=stop, resume=self.resume)
        found["left_out"] = len(grid.left_out) * len(seeds)
        self.show(found, [found], tuple(found))
        if found["failed"]:
            say(
                f"{found['failed']} cells were refused; `internalize sweep show {out} --group-by status reason` says why"
            )
        return 1 if found["failed"] else 0


@command
class SweepSolve(_Cells):
    """Algorithm 1 at every setting of a grid with every seed.

    For example:

      $ internalize sweep solve n=16,32,64 k=n/2 samples=0.5x,0.7x,1x,1.4x,2x --seeds 0:50 --out runs/phase
      $ internalize sweep solve K=4,8,16 grid=1,K --seeds 0:20 --stop-at-failure
    """

    stop_at_failure: Flag[bool] = False
    """End a run with the first stage that is not recovered: quicker, where only success matters."""
    kind: ClassVar[Kind] = "solve"


@command
class SweepTrain(_Cells):
    """AdamW through the stages of a curriculum at every setting of a grid with every seed; seeds are trained ten at a time.

    For example:

      $ internalize sweep train curriculum=log-icot,icot lr=0.1,0.03 --seeds 0:20 --out runs/rates
      $ internalize sweep train n=16,32,64 k=2,4,8,16 curriculum=none,icot,log-icot steps=200
    """

    kind: ClassVar[Kind] = "train"


@command
class SweepShow(CommonOptions):
    """What a sweep found: the share of successes by some options, with 95 % intervals (Wilson's), and as a phase diagram.

    A cell of solve succeeds if every layer is recovered, one of train if 99 % of the answers are right.

    For example:

      $ internalize sweep show runs/phase --group-by n samples
      $ internalize sweep show runs/phase --group-by n samples --figure docs/figures
    """

    store: tyro.conf.Positional[Path]
    """Folder of the store."""
    group_by: tuple[str, ...] = ()
    """Columns. Default: the options with several values."""
    where: tuple[str, ...] = ()
    """Only the cells with these values, each as name=value."""
    figure: Path | None = None
    """Also draw the phase diagram into this folder: the first of --group-by across, the second upwards, a panel for each value of a
    third."""

    def __call__(self) -> int:
        """Read, count, draw."""
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
        self.show(found, found["rows"], (*by, "cells", "successes", "failed", "rate", "low", "high"))
        return 0


Which = (
    Annotated[SweepSolve, tyro.conf.subcommand("solve")]
    | Annotated[SweepTrain, tyro.conf.subcommand("train")]
    | Annotated[SweepShow, tyro.conf.subcommand("show")]
)


@dataclass(frozen=True)
class Sweep:
    """Thousands of runs: every setting of a grid with every seed, a row each in one store, on processes or a Ray cluster.

    Finished cells are never computed again: a sweep that was stopped or killed goes on with --resume, and one with a
    larger grid computes what is new in it. The store opens as Parquet: polars.read_parquet("OUT/cells/*.parquet").
    """

    command: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[Which]]

    def __call__(self) -> int:
        """What the subcommand does."""
        return self.command()
