"""`internalize paper`."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from internalize.console import Flag, print_json, print_text, say
from internalize.errors import InputError


@dataclass(frozen=True)
class Paper:
    """Reproduce the paper into one page: train what is missing, reuse what is finished, draw everything.

    Trains the paper's experiment (n=30, k=16) on 20 seeds, smaller and larger trees beside it, and writes index.html, every
    figure as SVG and PDF, and every table as CSV. Interrupted, it goes on where it stopped.

    For example:

      $ internalize paper
      $ internalize paper --out elsewhere --processes 8
    """

    out: Path = Path("report")
    """Folder of the page; the runs are kept in its folder runs/."""
    seed: int = 0
    """The first seed; each experiment takes the following ones."""
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Trainings at a time, one thread each."""
    json: Flag[bool] = False
    """Print one JSON object on standard output."""

    def __call__(self) -> int:
        """Train, draw, write."""
        from internalize.counter import check_seed
        from internalize.paper import reproduce
        from internalize.progress import Progress

        if self.processes < 1:
            raise InputError(f"processes={self.processes} must be at least 1")
        with Progress("paper") as progress:
            result = reproduce(
                self.out,
                first_seed=check_seed(self.seed),
                processes=self.processes,
                report=progress.show,
                say=say,
            )
        if self.json:
            print_json(result)
        else:
            say(f"{len(result['figures'])} figure files and the page are written in {result['seconds']} s")
            print_text(result["report"])
        if not result["holds"]:
            say("not every claim of the paper holds on these runs; the page says which")
        return 0 if result["holds"] else 1
