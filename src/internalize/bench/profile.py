"""The functions of a run ranked by their own CPU time, on one thread."""

import cProfile
import pstats
import time
from pathlib import Path
from typing import Any, Final, Literal

from internalize.bench.ratios import train_together
from internalize.parallel.pool import torch_threads
from internalize.parity.algorithm1.solve import solve
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.storage.files import Json

Subject = Literal["solve", "train"]
ROWS: Final = 12


def profile(subject: Subject, n: int, seed: int) -> list[Json]:
    """Return the functions that take most time, with their shares; the last row is all others."""
    recorder = cProfile.Profile(time.process_time)
    with torch_threads(1):
        if subject == "train":
            train_together(TrainOptions(), [seed])  # torch loads parts of itself with the first optimizer
            recorder.runcall(train_together, TrainOptions(), range(seed, seed + 64))
        else:
            recorder.runcall(solve, SolveOptions(n=n, k=n // 2, seed=seed))
    return _rows(pstats.Stats(recorder).stats)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType]


def _rows(stats: dict[tuple[str, int, str], tuple[Any, ...]]) -> list[Json]:
    own = sorted(((entry[2], entry[0], function) for function, entry in stats.items()), reverse=True)
    total = sum(seconds for seconds, *_ in own)
    rest = own[ROWS:]
    shown = [(_name(*function), calls, seconds) for seconds, calls, function in own[:ROWS]]
    shown.append(("all others", sum(calls for _, calls, _ in rest), sum(seconds for seconds, *_ in rest)))
    return [
        {"function": name, "calls": calls, "cpu_seconds": round(seconds, 4), "share": round(seconds / total, 4)}
        for name, calls, seconds in shown
    ]


def _name(path: str, line: int, function: str) -> str:
    """Return the names of the file and the function; for a builtin, its own description."""
    return function.strip("<>{}") if path == "~" else f"{Path(path).name}: {function}"
