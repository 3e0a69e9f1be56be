"""Timing of repeats, and summaries over repeats.

A ratio compares two times of one repeat, measured directly one after the other. Their order alternates between repeats.
Wall time is what a user waits for. CPU time, over all threads of this process, is least disturbed by other processes.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from internalize.storage.files import Json

Work = Callable[[], object]

_LEAST: Final = 0.05
"""Least duration of a timing in seconds; faster work is repeated until it lasts that long."""


@dataclass(frozen=True)
class Seconds:
    """Wall time (``clock``) and CPU time."""

    clock: float
    cpu: float

    def __mul__(self, factor: float) -> "Seconds":
        return Seconds(self.clock * factor, self.cpu * factor)

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.clock + other.clock, self.cpu + other.cpu)


def timed(work: Work, times: int = 1) -> Seconds:
    """Return the mean time of ``times`` calls of ``work`` in a row."""
    gc.collect()
    clock, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        work()
    return Seconds(time.perf_counter() - clock, time.process_time() - cpu) * (1 / times)


def repeatedly(work: Work) -> Callable[[], Seconds]:
    """Return a timer that repeats fast ``work`` often enough. A first call finds how often, and warms it up."""
    times = max(1, math.ceil(_LEAST / max(timed(work).clock, 1e-9)))
    return lambda: timed(work, times)


def one_over_other(number: int, one: Callable[[], Seconds], other: Callable[[], Seconds], names: Sequence[str]) -> Json:
    """Measure one repeat of a ratio: its value in wall time and in CPU time, and the seconds of both sides."""
    if number % 2:
        second, first = other(), one()
    else:
        first, second = one(), other()
    return {
        "value": first.clock / second.clock,
        "cpu": first.cpu / second.cpu,
        "seconds": dict(zip(names, (first.clock, second.clock), strict=True)),
        "cpu_seconds": dict(zip(names, (first.cpu, second.cpu), strict=True)),
    }


def over_repeats(repeats: Sequence[Mapping[str, Any]]) -> Json:
    """Summarize repeats: median, smallest and largest value, the same for CPU time, and medians of seconds.

    Keys that some repeat lacks are left out.
    """
    keys = _shared(repeats)
    found: Json = _spread("", [repeat["value"] for repeat in repeats])
    found["repeats"] = len(repeats)
    if "cpu" in keys:
        found |= _spread("cpu_", [repeat["cpu"] for repeat in repeats])
    for key in keys:
        if key in ("seconds", "cpu_seconds"):
            parts = [repeat[key] for repeat in repeats]
            found[key] = {name: rounded(statistics.median(part[name] for part in parts)) for name in _shared(parts)}
        elif key not in ("value", "cpu"):
            found[key] = rounded(statistics.median(repeat[key] for repeat in repeats))
    return found


def _shared(objects: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that all objects have."""
    return [key for key in objects[0] if all(key in each for each in objects)]


def _spread(prefix: str, values: Sequence[float]) -> Json:
    named = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {prefix + name: rounded(value) for name, value in named.items()}


def rounded(value: float) -> float:
    """Round to four significant digits, since more would be noise."""
    return float(f"{value:.4g}")


def slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return the exponent of y against x, by least squares of the logarithms, and its standard error."""
    logs = [math.log(value) for value in x], [math.log(value) for value in y]
    found = statistics.linear_regression(*logs)
    left = [b - found.slope * a - found.intercept for a, b in zip(*logs, strict=True)]
    spread = sum((a - statistics.fmean(logs[0])) ** 2 for a in logs[0])
    freedom = max(len(x) - 2, 1)
    return found.slope, math.sqrt(sum(own**2 for own in left) / freedom / spread)
