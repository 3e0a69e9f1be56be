"""Summaries over seeds: means and shares with their 95 % intervals, and when a run reached 99 %."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Required, TypedDict

from filelock import FileLock
from msgspec import Meta, Struct, to_builtins

from internalize.intervals import mean_interval, wilson
from internalize.storage.files import Json, check_schema, present, read_json, write_json, writing
from internalize.storage.runs import Run

SOLVED: Final = 0.99
"""Share of right answers at which a run counts as solved."""
ROWS: Final = "rows.json"
"""File of a comparison's rows."""


Count = Annotated[int, Meta(ge=0, le=10**15)]
Some = Annotated[int, Meta(ge=1, le=10**15)]
Share = Annotated[float, Meta(ge=0, le=1)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
Words = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f]*$")]


class SizedRow(Struct, frozen=True, kw_only=True, tag_field="of"):
    """A row of `rows.json` about one size. The bounds of its fields are those that the page can draw."""

    n: Some
    k: Some

    def to_json(self) -> Json:
        """Return the row as in the file."""
        return to_builtins(self)


class SeedsRow(SizedRow, frozen=True, kw_only=True):
    """A row over several seeds, with the fields of a `SeedSummary`."""

    seeds: Some
    accuracy: Share
    accuracy_low: Share
    accuracy_high: Share
    solved: Count
    solved_low: Share
    solved_high: Share


class StoredRow(TypedDict, total=False):
    """The fields of a row of `rows.json` that say what it is about. Its study decides which others there are."""

    of: Required[str]
    n: Required[int]
    k: Required[int]
    optimizer: str
    method: str
    what: str
    by: str
    batch: int


class RowsFile(TypedDict):
    """The content of `rows.json` of `compare`."""

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
        samples: held-out samples per seed. If all seeds agree exactly, the interval is that of a share of all these
            samples.
    """
    mean, low, high = mean_interval(accuracies)
    if len(set(accuracies)) == 1:
        trials = samples * len(accuracies)
        low, high = wilson(round(mean * trials), trials)
    solved = sum(value >= SOLVED for value in accuracies)
    return SeedSummary(len(accuracies), mean, max(low, 0.0), min(high, 1.0), solved, *wilson(solved, len(accuracies)))


def first_solved(run: Run, stages: int, score: str = "accuracy") -> Json | None:
    """Return the first evaluation in the last stage that reaches `SOLVED`, or None."""
    return next((m for m in run.metrics() if m["stage"] == stages and m[score] >= SOLVED), None)


def lower_median(values: Sequence[float | None]) -> float | None:
    """Return the lower median over seeds. A seed without a value counts as infinite; an infinite median is None."""
    median = statistics.median_low(math.inf if value is None else value for value in values)
    return None if math.isinf(median) else median


def median_of(lines: Sequence[Json | None], key: str) -> float | None:
    """Return the lower median over seeds of the value under a key."""
    return lower_median([None if line is None else line[key] for line in lines])


def mean_of(lines: Sequence[Json], key: str) -> float | None:
    """Return the mean over seeds of the value under a key, or None if a seed lacks it."""
    values = [line.get(key) for line in lines]
    return None if None in values else statistics.fmean(value for value in values if value is not None)


def keep_rows(out: Path, rows: Sequence[Json]) -> None:
    """Write rows to ``out/rows.json``, where they replace those with the same subject."""
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
    """Return the values that say what a row is about."""
    rest = (row.get(key) for key in ("optimizer", "method", "what", "by", "batch"))
    return row["of"], row["n"], row["k"], *rest
