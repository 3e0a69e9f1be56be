"""Each method compared with linear ICoT on the same seed: the same task, initial weights and explicit stage."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from internalize.intervals import mean_interval
from internalize.storage.runs import Run
from internalize.storage.summaries import first_solved

LINEAR: Final = "icot"


@dataclass(frozen=True, kw_only=True)
class SeedRow:
    """The result of one seed of a method."""

    seed: int
    exact_match: float
    word_match: float | None = None
    """None for runs from before it was measured."""
    explicit: int | None
    """Updates of the first stage up to its last evaluation; None for a run with a single stage."""
    after_explicit: int | None
    """Updates from there to 99 % with the whole chain hidden; None if the run has one stage or did not reach it."""
    steps: list[int]
    """Updates of each stage."""


def seed_row(seed: int, run: Run, stages: int) -> SeedRow:
    """Return the result of a finished run."""
    result, explicit, after = run.result, None, None
    if stages > 1:
        explicit = max((int(metrics["step"]) for metrics in run.metrics() if metrics["stage"] == 1), default=0)
        solved = first_solved(run, stages, "exact_match")
        after = None if solved is None else int(solved["step"]) - explicit
    return SeedRow(
        seed=seed,
        exact_match=result["exact_match"],
        word_match=result.get("word_match"),
        explicit=explicit,
        after_explicit=after,
        steps=[stage["steps"] for stage in result["stages"]],
    )


@dataclass(frozen=True)
class LinearComparison:
    """A method compared with linear ICoT on the seeds that both have. Values that need more seeds are None."""

    seeds: int
    exact_match: float
    """The mean difference of exact match."""
    exact_match_low: float | None
    """The one-sided lower bound of this difference at 95 %."""
    ratio_seeds: int
    """Number of seeds on which both reached 99 %."""
    ratio: float | None
    """The ratio of updates after the explicit stage: the geometric mean over these seeds, then its 95 % interval."""
    ratio_low: float | None
    ratio_high: float | None


def compare_with_linear(own: Sequence[SeedRow], linear: Sequence[SeedRow]) -> LinearComparison | None:
    """Compare a method with linear ICoT on the seeds that both have. Return None if there are none."""
    of_seed = {each.seed: each for each in linear}
    pairs = [(each, of_seed[each.seed]) for each in own if each.seed in of_seed]
    if not pairs:
        return None
    mean, low, _ = mean_interval([one.exact_match - other.exact_match for one, other in pairs], sides=1)
    updates = [(one.after_explicit, other.after_explicit) for one, other in pairs]
    logs = [math.log(one / other) for one, other in updates if one and other]
    ratio, *between = (math.exp(value) for value in mean_interval(logs)) if logs else (None, None, None)
    if len(logs) < 2:
        between = (None, None)
    return LinearComparison(len(pairs), mean, low if len(pairs) > 1 else None, len(logs), ratio, *between)
