"""`internalize paper`."""

import contextlib
import io
from pathlib import Path
from typing import ClassVar

from internalize.commands.common_options import JobsOption, SeedOption, command
from internalize.commands.console import Flag, available_cores, print_json, print_text, say
from internalize.errors import MACHINE, InputError, MachineError
from internalize.report.reproduce import FULL


@command
class Paper(JobsOption, SeedOption):
    """Reproduce the paper into one page, report/index.html.

    Trains the paper's experiment (n=30, k=16) on 20 seeds, with smaller and larger trees beside it, runs Algorithm 1,
    checks every statement, and draws every figure. The folder also has each figure as SVG and PDF and each table as
    CSV. Comparisons, ablations, learned gates and language models take hours; they are shown from stored results with
    their command and date, or recomputed first with --full. Finished runs are reused; run the command again to
    continue after an interruption. The exit status is 1 if a claim does not hold.

    Examples:
      internalize paper
      internalize paper --out elsewhere --jobs 8
      internalize paper --full
    """

    TITLE: ClassVar = "Report"

    out: Path = Path("report")
    """Folder of the page. Its runs are in runs/, those of --full in full/."""
    full: Flag[bool] = False
    """Recompute the stored results, too. This takes hours."""
    seed: int = 0
    """First random seed of each experiment, which also uses the following ones. Stored results keep their own."""

    def __call__(self) -> int:
        """Train, draw and write the page."""
        from internalize.commands.progress import ProgressDisplay
        from internalize.report.reproduce import reproduce

        jobs = available_cores() if self.jobs is None else self.jobs
        if jobs < 1:
            raise InputError(f"jobs={jobs} must be at least 1")
        if self.full:
            _run_stored_commands(self.out / FULL, jobs)
        with ProgressDisplay("paper") as progress:
            result = reproduce(self.out, first_seed=self.seed, processes=jobs, report=progress.show, say=say)
        if self.json:
            print_json(result)
        else:
            say(f"{len(result['figures'])} figure files and the page are written in {result['seconds']} s")
            print_text(result["report"])
            self.suggest("runs", self.out / "runs")
        if not result["holds"]:
            say("not every claim of the paper holds on these runs; the page says which")
        return 0 if result["holds"] else 1


def _run_stored_commands(out: Path, jobs: int) -> None:
    """Run the commands behind the stored results, each in a folder of ``out``. Finished runs are reused."""
    from internalize.commands.cli import parse
    from internalize.parallel.interrupt import Interrupted
    from internalize.report.stored import STORED

    for part in STORED:
        if part.arguments is None:
            say(f"{part.name}: shown as stored, because `{part.command}` is not a command of this package")
            continue
        say(f"{part.name}: {part.command}")
        command = parse([*part.arguments, "--jobs", str(jobs), "--out", str(out / part.name), "--resume"])
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                status = command()
        except Interrupted:
            raise Interrupted("the same command continues") from None
        if status:
            kind = MachineError if status == MACHINE else InputError
            raise kind(f"`{part.command}` ended with status {status}; the lines above say why")
