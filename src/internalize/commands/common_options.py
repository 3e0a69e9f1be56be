"""The options that commands share, each described once, and what every command does with them.

Commands inherit these classes. Where a command names an inherited option again, that is to give it another default or another
description.
"""

import inspect
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

from internalize.commands.console import Flag, default_out, print_json, print_table, say
from internalize.errors import MACHINE, WRONG, InputError, KilledReason
from internalize.random_words import check_seed, parse_seeds

if TYPE_CHECKING:
    from internalize.storage.runs import Run

CORES = os.cpu_count() or 1
Command = TypeVar("Command")
Json = dict[str, Any]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def command(cls: type[Command]) -> type[Command]:
    """Make a frozen dataclass whose own options come first in ``--help`` and inherited ones last."""
    made: Any = dataclass(frozen=True, kw_only=True)(cls)
    order = dict.fromkeys(name for base in made.__mro__ for name in inspect.get_annotations(base))
    made.__dataclass_fields__ = {name: made.__dataclass_fields__[name] for name in order}
    return made


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """What every command takes."""

    json: Flag[bool] = False
    """Print one JSON object on standard output."""

    def show(self, found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Print the JSON object, or the rows as a table."""
        if self.json:
            print_json(found)
        else:
            print_table(rows, columns)


@dataclass(frozen=True, kw_only=True)
class SeedOption(CommonOptions):
    """Of commands that draw something."""

    seed: int = 0
    """Decides everything random: the task, the samples, a new model's weights, the order of its data."""

    def __post_init__(self) -> None:
        check_seed(self.seed)


@dataclass(frozen=True, kw_only=True)
class JobsOption(CommonOptions):
    """Of commands that make many runs at a time."""

    jobs: int | None = None
    """Runs at a time, each in a process of its own."""


@dataclass(frozen=True, kw_only=True)
class ThreadsOption(CommonOptions):
    """Of commands that compute in this process."""

    threads: int = 1
    """Threads of one process. More may change the last bits of a result."""


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(ThreadsOption):
    """Of commands that can compute on a GPU."""

    device: str = "cpu"
    """Where to compute: cpu, cuda, cuda:1, mps."""


@dataclass(frozen=True, kw_only=True)
class CheckpointOption(CommonOptions):
    """Of commands that train language models."""

    checkpoint_steps: int = 200
    """Updates between checkpoints."""


@dataclass(frozen=True, kw_only=True)
class HeldOutOption(CommonOptions):
    """Of commands that read a trained language model."""

    data: str = ""
    """A file or a task, as for lm train. Default: what was held out when the model was trained."""


@dataclass(frozen=True, kw_only=True)
class KeptOption(CommonOptions):
    """Of commands whose result is written only on request."""

    out: Path | None = None
    """Folder to keep the result in. Without it, nothing is written."""

    @contextmanager
    def keeping(self, kind: str, config: Json) -> Generator[Callable[[Json], None]]:
        """Hold the folder, if there is one, and give the function that keeps a result in it.

        A folder of something else is refused on entering.
        """
        if self.out is None:
            yield lambda result: None
            return
        from internalize.storage.runs import Run, begin_runs

        run = Run(self.out)
        with begin_runs([run], kind, [config], resume=True):
            yield run.finish


@dataclass(frozen=True, kw_only=True)
class RunOptions(CommonOptions):
    """Of commands that always keep what they make, and can continue it."""

    out: Path | None = None
    """Folder for runs and results. Without it, a new one below runs/."""
    resume: Flag[bool] = False
    """Continue in --out where it stopped; what is finished is shown and not made again."""

    def folder(self, kind: str) -> Path:
        """Return --out, or a new folder."""
        if self.resume and self.out is None:
            raise InputError("--resume needs --out: the folder to continue in")
        return self.out or default_out(kind)


@dataclass(frozen=True, kw_only=True)
class SeedsOptions(RunOptions):
    """Of commands that make one run, or one per seed."""

    seeds: str = ""
    """Several runs, in place of --seed: 0:20 is 0 … 19; 1,5,9 also works. Each run gets a folder in --out."""

    def runs(self, out: Path, seed: int) -> "dict[int, Run]":
        """Return the run of every seed: ``out`` itself for --seed, a folder in it for each of --seeds."""
        from internalize.storage.runs import Run

        if not self.seeds:
            return {check_seed(seed): Run(out)}
        if seed:
            raise InputError(f"give --seed {seed} or --seeds {self.seeds}, not both")
        if Run(out).exists:
            raise InputError(f"{out} is a run folder itself; --seeds keeps its runs in folders below --out")
        return {each: Run(out / f"seed-{each}") for each in parse_seeds(self.seeds)}

    def show_runs(self, results: Sequence[Json], runs: "Mapping[int, Run]", columns: Sequence[str]) -> None:
        """Print the result, or those of --seeds with seed and folder."""
        rows = [
            {**result, "seed": seed, "out": str(run.path)}
            for result, (seed, run) in zip(results, runs.items(), strict=True)
        ]
        self.show({"runs": rows} if self.seeds else results[0], rows, ("seed", *columns, "out"))


@dataclass(frozen=True, kw_only=True)
class StudyOptions(RunOptions, JobsOption):
    """Of commands that make every setting with every seed."""

    seeds: str = "0:5"
    """0:5 is 0 … 4; 1,5,9 also works. Every setting is run with each."""

    def all_seeds(self) -> tuple[int, ...]:
        """Return the seeds of --seeds."""
        return parse_seeds(self.seeds or "0")

    def show_study(
        self, found: Json, shown: Callable[[Json], Json], columns: Sequence[str], lines: Sequence[str]
    ) -> int:
        """Print the rows and, on standard error, the lines and the runs that failed; return the exit status."""
        if self.json or found["rows"]:
            self.show(found, [shown(row) for row in found["rows"]], columns)
        for line in (*lines, *(f"{failure['run']}: {failure['reason']}" for failure in found["failed"])):
            say(line)
        if any(isinstance(failure["reason"], KilledReason) for failure in found["failed"]):
            return MACHINE
        return WRONG if found["failed"] else 0
