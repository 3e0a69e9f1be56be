"""What several seeds came to: means and shares with their 95 % intervals, and what it took to get to 99 %."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Required, TypedDict

from filelock import FileLock

from internalize.intervals import mean_interval, wilson
from internalize.storage.files import Json, check_schema, present, read_json, write_json, writing
from internalize.storage.runs import Run

SOLVED: Final = 0.99
"""Share of right answers from which on a run counts as solved."""
ROWS: Final = "rows.json"


class StoredRow(TypedDict, total=False):
    """What a row of `rows.json` is about. Its study decides what else is there."""

    of: Required[str]
    n: Required[int]
    k: Required[int]
    optimizer: str
    method: str
    what: str
    by: str
    batch: int


class RowsFile(TypedDict):
    """What `rows.json` of `compare` holds."""

    rows: list[StoredRow]


@dataclass(frozen=True)
class SeedSummary:
    """Accuracy and number of solved seeds, with 95 % intervals."""

    seeds: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    solved: int
    solved_low: float
    solved_high: float


def over_seeds(accuracies: Sequence[float], samples: int) -> SeedSummary:
    """Summarize the accuracies of some seeds.

    Args:
        accuracies: one per seed.
        samples: held-out samples of each seed. Where all seeds agree exactly the interval is about these, at these seeds.
    """
    mean, low, high = mean_interval(accuracies)
    if len(set(accuracies)) == 1:
        trials = samples * len(accuracies)
        low, high = wilson(round(mean * trials), trials)
    solved = sum(value >= SOLVED for value in accuracies)
    return SeedSummary(len(accuracies), mean, max(low, 0.0), min(high, 1.0), solved, *wilson(solved, len(accuracies)))


def flat(row: object) -> Json:
    """The fields of a row as one JSON object, those of its summary over the seeds among them."""
    found: Json = {}
    for name, value in vars(row).items():
        found |= vars(value) if isinstance(value, SeedSummary) else {name: value}
    return found


def first_solved(run: Run, stages: int, score: str = "accuracy") -> Json | None:
    """The first evaluation in the last stage that is good enough; None if there was none."""
    return next((m for m in run.metrics() if m["stage"] == stages and m[score] >= SOLVED), None)


def lower_median(values: Sequence[float | None]) -> float | None:
    """The lower median over seeds, those without a value above all others: None where fewer than half have one."""
    median = statistics.median_low(math.inf if value is None else value for value in values)
    return None if math.isinf(median) else median


def median_of(lines: Sequence[Json | None], key: str) -> float | None:
    """The lower median of what the seeds' lines say under this key."""
    return lower_median([None if line is None else line[key] for line in lines])


def mean_of(lines: Sequence[Json], key: str) -> float | None:
    """The mean of what the seeds' lines say under this key; None if one does not say."""
    values = [line.get(key) for line in lines]
    return None if None in values else statistics.fmean(value for value in values if value is not None)


def keep_rows(out: Path, rows: Sequence[Json]) -> None:
    """Write rows to ``out/rows.json``, in the place of those with the same subject."""
    path = out / ROWS
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    own = {_subject(row) for row in rows}
    with writing(path), FileLock(out / f".{ROWS}.lock"):  # two comparisons may share a folder
        found: Json = read_json(path) if present(path) else {"rows": []}
        check_schema(found, RowsFile, f"{path} is not of `internalize compare`; choose another --out")
        others: list[Json] = [row for row in found["rows"] if _subject(row) not in own]
        write_json(path, {"rows": [*others, *rows]})


def _subject(row: Json) -> tuple[object, ...]:
    """What a row is about."""
    rest = (row.get(key) for key in ("optimizer", "method", "what", "by", "batch"))
    return row["of"], row["n"], row["k"], *rest
