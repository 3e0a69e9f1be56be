"""`internalize runs`."""

import contextlib
import json as jsonlib
from dataclasses import dataclass
from pathlib import Path

import tyro

from internalize.console import Flag, print_json, print_table, say
from internalize.errors import InputError


@dataclass(frozen=True)
class Runs:
    """List the runs in or below a folder, with their options and results.

    Examples:
      internalize runs
      internalize runs report/runs --where n=30 curriculum=log-icot
      internalize runs --columns path accuracy --json
    """

    root: tyro.conf.Positional[Path] = Path("runs")
    """Folder to look in."""
    where: tuple[str, ...] = ()
    """Keep the runs with these values, each as name=value."""
    columns: tuple[str, ...] = ("kind", "n", "k", "curriculum", "seed", "finished", "accuracy", "path")
    """What to show of each run."""
    json: Flag[bool] = False
    """Print one JSON object with all columns on standard output."""

    def __call__(self) -> int:
        """Read and print."""
        from internalize.runs import list_runs

        if not self.root.is_dir():
            raise InputError(f"{self.root} is not a folder; name the one that holds the runs")
        rows = list_runs(self.root, **dict(_condition(text) for text in self.where)).to_dicts()
        if self.json:
            print_json({"runs": rows})
        else:
            print_table(rows, self.columns)
        for row in rows:
            if row["broken"]:
                say(f"{row['broken']}")
        return 0


def _condition(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"where={text!r} is not of the form name=value")
    with contextlib.suppress(ValueError):
        return name, jsonlib.loads(value)
    return name, value
