"""What commands print and how: results on standard output, everything else on standard error."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tyro

from internalize.errors import InputError

Flag = tyro.conf.FlagCreatePairsOff
"""A switch that is either given or not: --json, and no --no-json."""


def say(line: str) -> None:
    """One line to the user, on standard error."""
    print(f"internalize: {line}", file=sys.stderr, flush=True)  # noqa: T201


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output, finite numbers only."""
    print(json.dumps(value, allow_nan=False))  # noqa: T201


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Rows on standard output, one line each; in a pipe or a file nothing is cut off."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    width = None if sys.stdout.isatty() else 10_000
    Console(file=sys.stdout, width=width, soft_wrap=width is not None).print(table)


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def use_device(name: str, threads: int) -> str:
    """Make torch use that many threads, and return the device if it can be used here."""
    import torch

    if threads < 1:
        raise InputError(f"threads={threads} must be at least 1")
    torch.set_num_threads(threads)
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        raise InputError(f"device={name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return name
