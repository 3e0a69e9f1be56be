r"""How time and memory of `solve` grow with n.

The one dense product of a stage is \(n_t \times B\) by \(B \times k/2^t\), in all about \(n\,k\,B\) multiplications, and B is
about n ln n: that exponent is the yardstick. Memory is the largest that a process of its own ever held, torch and all.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from internalize.bench.ratios import Measurement
from internalize.bench.timing import slope, timed
from internalize.parity.algorithm1.solve import samples_of, solve
from internalize.parity.options import SolveOptions
from internalize.storage.files import Json

MEMORY_GOAL = 2.0
"""GiB."""


def growth(sizes: Sequence[int], seed: int) -> Measurement:
    """Exponent of the time of `solve` against n, k = n/2, default samples."""
    asked = [SolveOptions(n=n, k=n // 2, seed=seed) for n in sizes]

    def once(number: int) -> Json:
        expected, _ = slope(sizes, [options.n * options.k * samples_of(options) for options in asked])
        seconds = [timed(partial(solve, options)) for options in asked]
        by_clock, error = slope(sizes, [own.clock for own in seconds])
        return {
            "value": by_clock,
            "cpu": slope(sizes, [own.cpu for own in seconds])[0],
            "standard_error": error,
            "seconds": {str(n): own.clock for n, own in zip(sizes, seconds, strict=True)},
            "cpu_seconds": {str(n): own.cpu for n, own in zip(sizes, seconds, strict=True)},
            "goal": expected,
        }

    what = f"exponent of the time of solve against n = {sizes[0]} … {sizes[-1]}, k = n/2; goal: that of n·k·B"
    return Measurement("growth", what, once, at_most=True, repeats=3)


def peak_memory(n: int, seed: int, threads: int) -> Measurement:
    """Largest memory of a process that solves n, k = n/2."""

    def once(number: int) -> Json:
        with tempfile.TemporaryDirectory() as folder:
            peak, result = _in_a_process(n, seed, threads, Path(folder))
        return {"value": peak, "solve_seconds": result["seconds"], "solved": float(result["exact_recovery"])}

    what = f"peak memory of solve in a process of its own, n = {n}, k = {n // 2}"
    return Measurement(f"peak_memory_{n}", what, once, MEMORY_GOAL, at_most=True, unit="GiB", repeats=1)


def _in_a_process(n: int, seed: int, threads: int, folder: Path) -> tuple[float, dict[str, Any]]:
    """GiB at the most, and what `internalize solve` printed."""
    words = ("solve", "--n", n, "--k", n // 2, "--seed", seed, "--threads", threads, "--out", folder / "run", "--json")
    answer = folder / "answer.json"
    with answer.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "internalize", *map(str, words)], stdout=file)  # noqa: S603
        try:
            _, status, usage = os.wait4(process.pid, 0)  # the process's own, where getrusage has that of all children
        except BaseException:
            process.kill()
            process.wait()
            raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise RuntimeError(f"solve at n = {n} ended with status {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return usage.ru_maxrss * unit / 2**30, json.loads(answer.read_text(encoding="utf-8"))
