"""The command line: one dataclass a command. Torch is imported by the command that needs it, not by ``--help``.

Exit status: 0 done and it holds; 1 done and it does not hold; 2 the request or its files are wrong, one line on standard
error; 130 interrupted, state saved; 70 a bug of ours, with its traceback.
"""

import contextlib
import io
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, NoReturn

import tyro

from internalize.errors import InputError
from internalize.interrupt import Interrupted
from internalize.options import TrainOptions, parse_seeds

Flag = tyro.conf.FlagCreatePairsOff
DONE, DOES_NOT_HOLD, WRONG, BUG, INTERRUPTED = 0, 1, 2, 70, 130


@dataclass(frozen=True)
class Train:
    """Train by AdamW through the stages of a curriculum; the defaults are the paper's experiment.

    Keeps a run folder with the configuration, the metrics of every evaluation and the weights. Ctrl-C saves and stops;
    --resume goes on from there, or from a kill, to the same bits.

    Examples:
      internalize train --out runs/first
      internalize train --seeds 0:20 --out runs/paper
      internalize train --n 64 --k 32 --curriculum icot --json
    """

    options: tyro.conf.OmitArgPrefixes[TrainOptions] = field(default_factory=TrainOptions)
    seed: int = 0
    """Decides the secret set and every sample."""
    seeds: str = ""
    """Several runs at once, in place of --seed: 0:20 is 0 … 19; 1,5,9 also works. Each run gets a folder in --out."""
    out: Path | None = None
    """Run folder. Without it, a new one below runs/."""
    resume: Flag[bool] = False
    """Continue the run in --out where it stopped; a finished one is shown."""
    snapshots: Flag[bool] = False
    """Keep the weights of every evaluation."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, cuda:1, …"""
    threads: int = 1
    """Threads of one process. More pay only from about n=128 and batch 2000 on, and change the last bits."""
    json: Flag[bool] = False
    """Print one JSON object on standard output."""

    def __call__(self) -> int:
        """Train, show, keep."""
        from internalize.parity.train import Progress as Report
        from internalize.parity.train import train
        from internalize.progress import Progress
        from internalize.runs import Run

        seeds = parse_seeds(self.seeds or str(self.seed))
        out = self.out or Path("runs") / f"train-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        folders = [out / f"seed-{seed}" for seed in seeds] if self.seeds else [out]
        if self.seeds and Run(out).exists:
            raise InputError(f"{out} is a run folder itself; --seeds keeps its runs in folders below --out")

        with Progress(f"train n={self.options.n} k={self.options.k} {self.options.curriculum}") as progress:

            def report(now: Report) -> None:
                if now.done == 0 and self.out is None:
                    _say(f"keeping the run in {out}")
                stage = now.metrics[0]["stage"]
                loss = sum(m["loss"] for m in now.metrics) / len(now.metrics)
                accuracy = sum(m["accuracy"] for m in now.metrics) / len(now.metrics)
                seen = f"stage {stage}/{now.stages}  loss {loss:.4g}  accuracy {accuracy:.3f}"
                progress.show(now.done, now.total, seen)

            results = train(
                self.options,
                seeds,
                [Run(folder) for folder in folders],
                device=_device(self.device, self.threads),
                snapshots=self.snapshots,
                resume=self.resume,
                report=report,
            )
        rows = [{**result, "out": str(folder)} for result, folder in zip(results, folders, strict=True)]
        if self.json:
            _print_json({"runs": rows} if self.seeds else results[0])
        else:
            columns = ("seed", "accuracy", "l2_error", "max_error", "min_child_attention", "seconds", "out")
            _print_table(rows, columns)
        return DONE


@dataclass(frozen=True)
class Paper:
    """Reproduce the paper into one page: train what is missing, reuse what is finished, draw everything.

    Trains the paper's experiment (n=30, k=16) on 20 seeds, smaller and larger trees beside it, and writes index.html, every
    figure as SVG and PDF, and every table as CSV. Interrupted, it goes on where it stopped.

    Examples:
      internalize paper
      internalize paper --out elsewhere --processes 8
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
                say=_say,
            )
        if self.json:
            _print_json(result)
        else:
            _say(f"{len(result['figures'])} figure files and the page are written in {result['seconds']} s")
            print(result["report"])  # noqa: T201
        return DONE


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
            _print_json({"runs": rows})
        else:
            _print_table(rows, self.columns)
        for row in rows:
            if row["broken"]:
                _say(f"{row['broken']}")
        return DONE


Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Paper, tyro.conf.subcommand("paper")]
    | Annotated[Runs, tyro.conf.subcommand("runs")]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. Bugs come out as exceptions."""
    try:
        command = _parse(sys.argv[1:] if argv is None else list(argv))
        return command()
    except InputError as error:
        _say(f"{error}")
        return WRONG
    except Interrupted:
        _say("interrupted; everything up to here is saved, --resume goes on")
        return INTERRUPTED
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED


def run() -> NoReturn:
    """The `internalize` command."""
    sys.excepthook = _report_bug
    sys.exit(main())


def _parse(argv: list[str]) -> Any:
    """The command that the words ask for. tyro explains mistakes in a box; the contract wants a line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                Command,  # pyright: ignore[reportArgumentType]  (a union is fine for tyro)
                prog="internalize",
                description="Internalize chain-of-thought: the curricula of the Log-ICoT paper, exact and in one command.",
                args=argv,
            )
    except SystemExit as stop:
        if stop.code != WRONG:
            raise
        raise InputError(_first_sentence(said.getvalue())) from None


def _first_sentence(box: str) -> str:
    """What tyro's box says up to its first rule, and where it points for help."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()]
    body = [line for line in lines[1:] if line]
    rules = [number for number, line in enumerate(body) if not line.strip("─")]
    message = " ".join(body[: rules[0]] if rules else body)
    message = re.sub(r"^Error parsing __tyro\S*: ", "", message).rstrip(".")  # tyro's name for what has none
    return f"{message}; see internalize --help"


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, error, trace)
    _say("this is a bug; please report it with the lines above")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(BUG)  # an exception would end in status 1, which means "done, and it does not hold"


def _say(line: str) -> None:
    print(f"internalize: {line}", file=sys.stderr, flush=True)  # noqa: T201


def _device(name: str, threads: int) -> str:
    import torch

    if threads < 1:
        raise InputError(f"threads={threads} must be at least 1")
    torch.set_num_threads(threads)
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        raise InputError(f"device={name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return name


def _condition(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"where={text!r} is not of the form name=value")
    with contextlib.suppress(ValueError):
        return name, json.loads(value)
    return name, value


def _print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value, allow_nan=False))  # noqa: T201


def _print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    width = None if sys.stdout.isatty() else 10_000  # in a file or a pipe nothing is cut off
    Console(file=sys.stdout, width=width, soft_wrap=width is not None).print(table)


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
