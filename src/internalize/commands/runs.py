"""`internalize runs`."""

from pathlib import Path
from typing import ClassVar

import tyro

from internalize.commands.common_options import CommonOptions, command
from internalize.commands.console import say
from internalize.errors import InputError
from internalize.storage.conditions import condition, is_value

_NEXT = {"train": "certify --run", "solve": "certify --run", "lm-train": "lm eval --stages all --chain --model"}
"""The command that continues with a finished run, by its kind."""
_USUAL = ("kind", "n", "k", "curriculum", "seed", "finished", "accuracy", "path")


@command
class Runs(CommonOptions):
    """List the runs in a folder, with their options and results.

    Examples:
      internalize runs
      internalize runs report/runs --where n=30 curriculum=log-icot
      internalize runs --columns path accuracy
    """

    TITLE: ClassVar = "Table"

    root: tyro.conf.Positional[Path] = Path("runs")
    """Folder that holds the runs, at any depth."""
    where: tuple[str, ...] = ()
    """Keep only runs with these values, each as name=value."""
    columns: tuple[str, ...] = _USUAL
    """Columns to show."""

    def __call__(self) -> int:
        """Read and show the runs."""
        from internalize.storage.runs import list_runs

        if not self.root.is_dir():
            raise InputError(f"{self.root} is not a folder; name the one that holds the runs")
        frame = list_runs(self.root)
        conditions = [condition(text) for text in self.where]
        known = {*frame.columns, *_USUAL}
        for name in (*(name for name, _ in conditions), *self.columns):
            if frame.height and name not in known:
                raise InputError(f"no run has {name!r}; there are {', '.join(frame.columns)}")
        rows = [row for row in frame.to_dicts() if all(is_value(row.get(name), value) for name, value in conditions)]
        self.show({"runs": rows}, rows, self.columns)
        for row in rows:
            if row["broken"]:
                say(row["broken"])
        for row in rows:
            if row["finished"] and row["kind"] in _NEXT:
                self.suggest(_NEXT[row["kind"]], row["path"])
                break
        return 0
