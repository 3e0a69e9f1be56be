"""`internalize paper`."""

import contextlib
import io
from pathlib import Path

from internalize.commands.common_options import CORES, JobsOption, SeedOption, command
from internalize.commands.console import Flag, print_json, print_text, say
from internalize.errors import MACHINE, InputError, MachineError
from internalize.report.reproduce import FULL


@command
class Paper(JobsOption, SeedOption):
    """Reproduce the paper into one page: make what is missing, reuse what is finished, draw everything.

    Trains the paper's experiment (n=30, k=16) on 20 seeds and smaller and larger trees beside it, runs Algorithm 1, checks every
    statement, and writes index.html, every figure as SVG and PDF, and every table as CSV. What takes hours (comparisons,
    ablations, learned gates, language models) is shown from stored results, with their command and date; --full runs those
    commands first. Interrupted, it goes on where it stopped.

    For example:

      $ internalize paper
      $ internalize paper --out elsewhere --jobs 8
      $ internalize paper --full
    """

    out: Path = Path("report")
    """Folder of the page; the runs are kept in its folder runs/, those of --full in full/."""
    full: Flag[bool] = False
    """Also make what is else shown from stored results. Takes hours; finished runs are reused."""
    seed: int = 0
    """The first seed of what is made without --full; each experiment takes the following ones."""
    jobs: int = CORES

    def __call__(self) -> int:
        """Train, draw, write."""
        from internalize.commands.progress import ProgressDisplay
        from internalize.report.reproduce import reproduce

        if self.jobs < 1:
            raise InputError(f"jobs={self.jobs} must be at least 1")
        if self.full:
            _run_stored_commands(self.out / FULL, self.jobs)
        with ProgressDisplay("paper") as progress:
            result = reproduce(self.out, first_seed=self.seed, processes=self.jobs, report=progress.show, say=say)
        if self.json:
            print_json(result)
        else:
            say(f"{len(result['figures'])} figure files and the page are written in {result['seconds']} s")
            print_text(result["report"])
        if not result["holds"]:
            say("not every claim of the paper holds on these runs; the page says which")
        return 0 if result["holds"] else 1


def _run_stored_commands(out: Path, jobs: int) -> None:
    """Run our commands behind the stored results, each in a folder below ``out``; finished runs are reused."""
    from internalize.commands.cli import parse
    from internalize.parallel.interrupt import Interrupted
    from internalize.report.stored import STORED

    for part in STORED:
        if part.arguments is None:
            say(f"{part.name}: not a command of ours, shown as stored ({part.command})")
            continue
        say(f"{part.name}: {part.command}")
        command = parse([*part.arguments, "--jobs", str(jobs), "--out", str(out / part.name), "--resume"])
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                status = command()
        except Interrupted:
            raise Interrupted("the same command goes on") from None
        if status:
            kind = MachineError if status == MACHINE else InputError
            raise kind(f"`{part.command}` ended with status {status}; the lines above say why")
