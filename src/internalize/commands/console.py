"""What commands print and how: results on standard output, everything else on standard error."""

import io
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro

from internalize.errors import InputError

Flag = tyro.conf.FlagCreatePairsOff
"""A switch that is either given or not: --json, and no --no-json."""


def say(line: str) -> None:
    """One line to the user, on standard error."""
    print(f"internalize: {line}", file=sys.stderr, flush=True)  # noqa: T201


def default_out(kind: str) -> Path:
    """A new run folder below ``runs/``, for a command that was given none."""
    name = f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    named = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in itertools.count(1))
    return next(path for path in named if not path.exists())  # a process may ask twice in a second


def print_text(text: str) -> None:
    """Text on standard output."""
    print(text, flush=True)  # noqa: T201


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output, finite numbers only."""
    print_text(json.dumps(value, allow_nan=False))


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Rows on standard output, one line each; in a pipe or a file nothing is cut off."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(_cell(row.get(column))) for column in columns))  # Text: [x] in a path is no markup
    width = None if sys.stdout.isatty() else 10_000
    laid_out = io.StringIO()
    Console(file=laid_out, width=width).print(table)
    print_text("\n".join(line.rstrip() for line in laid_out.getvalue().splitlines()))


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def use_device(name: str, threads: int, dtype: str = "float32") -> str:
    """Make torch use that many threads, and return the device if it can be used here, in that precision."""
    import torch

    torch.set_num_threads(check_threads(threads))
    try:
        if torch.device(name).type not in ("cpu", "cuda", "mps"):
            raise InputError(f"device={name!r} is not cpu, cuda or mps")
        torch.empty(0, device=name, dtype=getattr(torch, dtype))
    except (RuntimeError, AssertionError, TypeError) as error:  # built without CUDA; a device that has no float64
        raise InputError(f"device={name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return name


def check_threads(count: int) -> int:
    """Return ``count`` if this process can compute with that many threads now. OpenMP would end the process, or crash, if not."""
    if not 1 <= count <= 1024:
        raise InputError(f"threads={count} is outside 1 … 1024")
    done = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(count - 1):  # this one is there
            thread = threading.Thread(target=done.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        raise InputError(f"threads={count}: the machine lets this process start {len(started)} more threads") from None
    finally:
        done.set()
        for thread in started:
            thread.join()
    return count
