"""Schemas of the results of `compare` and `lm compare`: the columns that the page shows, within bounds that it can
draw.

Rows have more columns than these. If a result does not fit, the error names the place in the file and what is wrong
there.
"""

from typing import Annotated, Literal, TypedDict

from msgspec import UNSET, Meta, Struct, UnsetType

from internalize.curriculum import Method
from internalize.lm.evaluation.linear_baseline import LinearComparison
from internalize.parity.experiments.curricula import Optimizer

Count = Annotated[int, Meta(ge=0, le=10**15)]
Some = Annotated[int, Meta(ge=1, le=10**15)]
Share = Annotated[float, Meta(ge=0, le=1)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
Milliseconds = Annotated[float, Meta(gt=0, le=1e15)]
Words = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f]*$")]


class _Sized(Struct, tag_field="of"):
    n: Some
    k: Some


class _OverSeeds(_Sized):
    seeds: Some
    solved: Count
    accuracy: Share
    accuracy_low: Share
    accuracy_high: Share


class Curricula(_OverSeeds, tag="curricula"):
    """A row of `compare`."""

    method: Method
    optimizer: Optimizer
    lr: Amount | None
    stages: Count
    idle_stages: Amount | None
    passes: Count
    steps_to_99: Amount | None
    samples_to_99: Amount | None
    seconds_to_99: Amount | None
    latency_ms: Milliseconds
    latency_ms_1000: Milliseconds


class StoredLatency(_Sized, tag="latency"):
    """A row of `compare --study latency`."""

    by: Literal["node", "level", "direct"]
    batch: Some
    repeats: Some
    latency_ms: Milliseconds
    latency_ms_low: Milliseconds
    latency_ms_high: Milliseconds


class _Turned(Struct):
    statement: Words


class _GateDistance(Struct):
    inputs: Share
    written: Share
    below: Share


class Ablations(_OverSeeds, tag="ablations"):
    """A row of `compare --study ablations`. Rows of gates and simplifications have the same columns."""

    n: Annotated[int, Meta(ge=1, le=1024)]  # a model of this size is built to draw it
    what: Words
    optimizer: Optimizer
    breaks_at: dict[Words, Count]
    level_accuracy: Annotated[list[Share], Meta(min_length=1, max_length=64)]
    turned: list[_Turned] | UnsetType | None = UNSET
    gate_distance: _GateDistance | UnsetType = UNSET
    answer_scale: list[Annotated[float, Meta(ge=-1e15, le=1e15)]] | UnsetType = UNSET


class Gates(Ablations, tag="gates"):
    """A row of `compare --study gates`."""


class Simplifications(Ablations, tag="simplifications"):
    """A row of `compare --study simplifications`."""


class ComparedRows(TypedDict):
    """The `rows.json` of `compare`."""

    rows: Annotated[list[Curricula | StoredLatency | Ablations | Gates | Simplifications], Meta(max_length=500)]


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
