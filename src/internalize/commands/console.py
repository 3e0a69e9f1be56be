"""Output of the commands: results on standard output, everything else on standard error."""

import itertools
import json
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import tyro

from internalize.errors import InputError

MAX_THREADS: Final = 1024
Flag = tyro.conf.FlagCreatePairsOff
"""A switch that can only be given or left out: there is --json, but no --no-json."""


def printable(text: str) -> str:
    """Return a text on one line, with line breaks and terminal codes escaped as in Python."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def say(line: str) -> None:
    """Print one line for the user on standard error, with unprintable characters escaped."""
    print(f"internalize: {printable(line)}", file=sys.stderr, flush=True)  # noqa: T201


def default_out(kind: str) -> Path:
    """Return a new run folder in ``runs/``, for a command without --out."""
    name = f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    named = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in itertools.count(1))
    return next(path for path in named if not path.exists())  # a process may need two within a second


def print_text(text: str) -> None:
    """Print text on standard output."""
    print(text, flush=True)  # noqa: T201


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on standard output, with finite numbers only."""
    print_text(json.dumps(value, allow_nan=False))


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], note: str = "") -> None:
    """Print rows as a table, one line per row, with titles instead of JSON keys.

    If the terminal is too narrow, columns are dropped from the end and named below the table, except paths. In a pipe
    or a file nothing is dropped.

    Args:
        rows: the rows, by column.
        columns: the columns to show, the most important ones first.
        note: the column whose text is printed below each row.
    """
    terminal = sys.stdout.isatty()
    cells = {name: [_title(name), *(format_cell(name, row.get(name)) for row in rows)] for name in columns}
    widths = {name: max(map(len, texts)) for name, texts in cells.items()}
    shown, dropped = list(columns), list[str]()
    while terminal and len(shown) > 1 and sum(widths[name] + 2 for name in shown) - 2 > terminal_columns():
        droppable = [name for name in shown[1:] if name not in _PATHS]
        if not droppable:
            break
        dropped.insert(0, droppable[-1])
        shown.remove(droppable[-1])
    lines = [_line([cells[name][0].ljust(widths[name]) for name in shown], "1" if terminal else "")]
    for number, row in enumerate(rows, start=1):
        lines.append(_line([_colored(cells[name][number], widths[name], terminal) for name in shown]))
        if row.get(note):
            wrapped = textwrap.fill(printable(str(row[note])), max(40, terminal_columns()) - 4)
            lines.append(textwrap.indent(wrapped, "    "))
    print_text("\n".join(lines))
    if dropped:
        say(f"not shown, for lack of width: {', '.join(map(_title, dropped))}; --json has everything")


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one pair per line, without values that are None. Names are JSON keys or words."""
    shown = {_title(name): format_cell(name, value) for name, value in facts.items() if value is not None}
    width = max(map(len, shown), default=0)
    print_text("\n".join(f"{name:{width}}  {value}" for name, value in shown.items()))


_PATHS: Final = ("out", "path")
_TITLES: Final = {
    "": "",
    "cpu_seconds": "CPU seconds",
    "exact_recovery": "recovered",
    "hidden": "hidden steps",
    "idle_stages": "idle stages",
    "K": "K",
    "l2_error": "L2 error",
    "latency_ms": "latency",
    "latency_ms_1000": "latency of 1000",
    "lens": "output head",
    "max_error": "largest error",
    "min_child_attention": "least attention on a child",
    "out": "folder",
    "path": "folder",
    "solved": "solved seeds",
    "stage_steps": "updates per stage",
    "steps": "updates",
    "steps_to_99": "updates to 99 %",
    "samples_to_99": "samples to 99 %",
    "seconds": "time",
    "seconds_to_99": "time to 99 %",
    "what": "variant",
    "word_match": "words right",
}
"""Titles of columns whose names are not clear enough."""
_COLORS: Final = {"violated": "31", "holds": "32", "vacuous": "33", "not applicable": "2"}


def _title(name: str) -> str:
    return _TITLES.get(name, printable(name.replace("_", " ")))


def format_cell(name: str, value: object) -> str:
    """Return a value as a table shows it: yes and no, units for times, tokens and operations, four digits."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name.startswith("seconds") or name == "GPU time":
            return _duration(value)
        if name.startswith("latency_ms"):
            return f"{value:.3g} ms"
        if name in ("tokens", "flops", "operations", "operations per answer"):
            return with_prefix(value, "" if name == "tokens" else "FLOP")
        if isinstance(value, float):
            return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(format_cell("", each) for each in cast("Sequence[object]", value))
    return printable(str(value))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def with_prefix(value: float, unit: str = "") -> str:
    """Return a large number with a prefix: 7.2 M, 1.7 TFLOP."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.4g} {unit}".rstrip()


def _colored(text: str, width: int, terminal: bool) -> str:
    color = _COLORS.get(text) if terminal else None
    return styled(text, color).ljust(width + len(styled(text, color)) - len(text)) if color else text.ljust(width)


def _line(cells: Sequence[str], style: str = "") -> str:
    return styled("  ".join(cells).rstrip(), style)


def styled(text: str, style: str | None) -> str:
    """Return the text in a style of the terminal (its ANSI number), unless the user wants none."""
    plain = not style or not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if plain else f"\033[{style}m{text}\033[0m"


def terminal_columns() -> int:
    """Return the value of COLUMNS if it is a positive number, otherwise the width of the terminal."""
    return shutil.get_terminal_size((100, 24)).columns


def use_device(name: str, threads: int | None = None, dtype: str = "float32") -> str:
    """Set torch's number of threads, and return the device. Raise an error if it cannot be used in this precision.

    `auto` is the first GPU if there is one, otherwise the CPU.
    """
    import torch

    torch.set_num_threads(check_threads(available_cores() if threads is None else threads))
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        if torch.device(name).type not in ("cpu", "cuda", "mps"):
            raise InputError(f"device={name!r} is not cpu, cuda or mps")
        torch.empty(0, device=name, dtype=getattr(torch, dtype))
    except (RuntimeError, AssertionError, TypeError) as error:  # for example, built without CUDA or no float64
        raise InputError(f"device={name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return name


def available_cores() -> int:
    """Return the default number of threads: OMP_NUM_THREADS, or one per core of this process."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and 1 <= int(asked) <= MAX_THREADS:
        return int(asked)
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def check_threads(count: int) -> int:
    """Return ``count`` if this process can start that many threads now; otherwise OpenMP would end or crash it."""
    if not 1 <= count <= MAX_THREADS:
        raise InputError(f"threads={count} is outside 1 … {MAX_THREADS}")
    done = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(count - 1):  # besides the current thread
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
