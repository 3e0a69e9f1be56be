"""Schemas of the files `rows.json` that the page shows: rows of `compare`, and the columns that it needs of `lm compare`.

If a file does not fit, the error names the place in it and what is wrong there.
"""

from typing import Annotated, TypedDict

from msgspec import Meta, Struct

from internalize.lm.evaluation.linear_baseline import LinearComparison
from internalize.parity.experiments.ablations import AblationRow, GatesRow, SimplificationRow
from internalize.parity.experiments.curricula import CurriculumRow, LatencyRow
from internalize.storage.summaries import Amount, Count, Share, Some, Words


class ComparedRows(TypedDict):
    """The `rows.json` of `compare`."""

    rows: Annotated[list[CurriculumRow | LatencyRow | AblationRow | GatesRow | SimplificationRow], Meta(max_length=500)]


class LmMethodRow(Struct):
    """A row of `lm compare`."""

    method: Words
    seeds: Some
    solved: Count
    exact_match: Share
    exact_match_low: Share
    exact_match_high: Share
    attempts: Amount
    steps: Some
    steps_to_99: Amount | None
    steps_after_explicit: Amount | None
    against_linear: LinearComparison | None


class LmComparedRows(TypedDict):
    """The `rows.json` of `lm compare`."""

    rows: Annotated[list[LmMethodRow], Meta(min_length=1, max_length=500)]
