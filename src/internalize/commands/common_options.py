"""The options that commands share, each described once, and what every command does with them.

Commands inherit these classes. A command repeats an inherited option only to change its default or its description.
"""

import inspect
import shlex
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

from internalize.commands.console import Flag, default_out, print_facts, print_json, print_table, say
from internalize.errors import MACHINE, WRONG, InputError, KilledReason
from internalize.random_words import check_seed, parse_seeds
from internalize.storage.files import Json, refuse_link

if TYPE_CHECKING:
    from internalize.storage.runs import Run

Command = TypeVar("Command")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def command(cls: type[Command]) -> type[Command]:
    """Turn a class into a frozen dataclass whose own options come first in ``--help`` and inherited ones last."""
    made: Any = dataclass(frozen=True, kw_only=True)(cls)
    order = dict.fromkeys(name for base in made.__mro__ for name in inspect.get_annotations(base))
    made.__dataclass_fields__ = {name: made.__dataclass_fields__[name] for name in order}
    return made


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """Options of every command."""

    TITLE: ClassVar = "Run"

    json: Flag[bool] = False
    """Print one JSON object instead of a table."""

    def show(
        self, found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], columns: Sequence[str], note: str = ""
    ) -> None:
        """Print the JSON object, or the rows as a table with the column ``note`` below each row."""
        if self.json:
            print_json(found)
        else:
            print_table(rows, columns, note)

    def show_facts(self, found: Mapping[str, Any], facts: Mapping[str, object]) -> None:
        """Print the JSON object, or names and values."""
        if self.json:
            print_json(found)
        else:
            print_facts(facts)

    def suggest(self, command: str, *words: object) -> None:
        """Suggest the next command on standard error, except with --json. The words are quoted for a shell."""
        if not self.json:
            say(f"next: internalize {' '.join([command, *(shlex.quote(str(word)) for word in words)])}")


@dataclass(frozen=True, kw_only=True)
class SeedOption(CommonOptions):
    """Option of commands that draw random numbers."""

    seed: int = 0
    """Random seed of the task, the samples, a new model's weights and the order of its data."""

    def __post_init__(self) -> None:
        check_seed(self.seed)


@dataclass(frozen=True, kw_only=True)
class JobsOption(CommonOptions):
    """Option of commands that make many runs."""

    jobs: int | None = None
    """Number of runs at a time, each in its own process. Default: one per core."""


@dataclass(frozen=True, kw_only=True)
class ThreadsOption(CommonOptions):
    """Option of commands that compute in their own process."""

    threads: int | None = None
    """Threads per process. Results are bit-for-bit reproducible for a fixed number. Default: one per core."""


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(ThreadsOption):
    """Options of commands that can compute on a GPU."""

    device: str = "auto"
    """Where to compute: cpu, cuda, cuda:1, mps. auto: the first GPU if there is one, otherwise the CPU."""


@dataclass(frozen=True, kw_only=True)
class CheckpointOption(CommonOptions):
    """Option of commands that train language models."""

    checkpoint_steps: int = 200
    """Updates between checkpoints, from which --resume continues."""


@dataclass(frozen=True, kw_only=True)
class HeldOutOption(CommonOptions):
    """Option of commands that read a trained language model."""

    data: str = ""
    """File or task to take questions from, as for `lm train`. Default: those held out when the model was trained."""


@dataclass(frozen=True, kw_only=True)
class KeptOption(CommonOptions):
    """Option of commands that write their result only with --out."""

    out: Path | None = None
    """Folder for the result. Default: nothing is written."""

    @contextmanager
    def keeping(self, kind: str, config: Json) -> Generator[Callable[[Json], None]]:
        """Lock the folder, if there is one, and yield the function that writes a result to it.

        Raise an error at once if the folder holds something else.
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
    """Options of commands that always keep their result and can continue it."""

    out: Path | None = None
    """Folder for runs and results. Default: a new folder in runs/."""
    resume: Flag[bool] = False
    """Continue in --out after an interruption. Finished work is shown, not repeated."""

    def folder(self, kind: str) -> Path:
        """Return --out, or a new folder."""
        if self.resume and self.out is None:
            raise InputError("--resume needs --out: the folder to continue in")
        return self.out or default_out(kind)

    def announce(self, out: Path, what: str) -> None:
        """Say where the results are kept if --out is not given."""
        if self.out is None:
            say(f"keeping the {what} in {out}")


@dataclass(frozen=True, kw_only=True)
class SeedsOptions(RunOptions):
    """Options of commands that make one run, or one per seed."""

    seeds: str = ""
    """Make several runs instead of one: 0:20 for seeds 0 to 19, or 1,5,9. Each run has its own folder in --out."""

    def runs(self, out: Path, seed: int) -> "dict[int, Run]":
        """Return the run of every seed: ``out`` itself for --seed, a folder in ``out`` for each of --seeds."""
        from internalize.storage.runs import Run

        if not self.seeds:
            return {check_seed(seed): Run(out)}
        if seed:
            raise InputError(f"give --seed {seed} or --seeds {self.seeds}, not both")
        if Run(out).exists:
            raise InputError(f"{out} is a run folder itself; --seeds keeps its runs in folders below --out")
        runs = {each: Run(out / f"seed-{each}") for each in parse_seeds(self.seeds)}
        for run in runs.values():
            refuse_link(run.path, out)
        return runs

    def show_runs(self, results: Sequence[Json], runs: "Mapping[int, Run]", columns: Sequence[str]) -> None:
        """Print the result, or with --seeds a row per run with its seed and folder."""
        rows = [
            {**result, "seed": seed, "out": str(run.path)}
            for result, (seed, run) in zip(results, runs.items(), strict=True)
        ]
        self.show({"runs": rows} if self.seeds else results[0], rows, ("seed", *columns, "out"))


@dataclass(frozen=True, kw_only=True)
class StudyOptions(RunOptions, JobsOption):
    """Options of commands that run every setting with every seed."""

    seeds: str = "0:5"
    """Seeds to run every setting with: 0:5 for seeds 0 to 4, or 1,5,9."""

    def all_seeds(self) -> tuple[int, ...]:
        """Return the seeds of --seeds."""
        return parse_seeds(self.seeds or "0")

    def show_study(
        self, found: Json, shown: Callable[[Json], Json], columns: Sequence[str], lines: Sequence[str]
    ) -> int:
        """Print the rows and, on standard error, the lines and the failed runs. Return the exit status."""
        if self.json or found["rows"]:
            self.show(found, [shown(row) for row in found["rows"]], columns)
        for line in (*lines, *(f"{failure['run']}: {failure['reason']}" for failure in found["failed"])):
            say(line)
        if any(isinstance(failure["reason"], KilledReason) for failure in found["failed"]):
            return MACHINE
        if found["failed"]:
            return WRONG
        self.suggest("runs", found["out"])
        return 0
