"""Each method compared with linear ICoT on the same seed: the same task, initial weights and explicit stage."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from internalize.intervals import mean_interval
from internalize.storage.files import Json
from internalize.storage.runs import Run
from internalize.storage.summaries import first_solved

LINEAR: Final = "icot"


def explicit_updates(run: Run, stages: int) -> Json:
    """Return a run's updates in the explicit stage and after it.

    ``explicit`` counts the updates of the first stage up to its last evaluation. ``after_explicit`` counts those from there to
    99 % with the whole chain hidden; it is None if the run did not get there. Both are None for a run with a single stage.
    """
    if stages == 1:
        return {"explicit": None, "after_explicit": None}
    explicit = max((int(metrics["step"]) for metrics in run.metrics() if metrics["stage"] == 1), default=0)
    solved = first_solved(run, stages, "exact_match")
    return {"explicit": explicit, "after_explicit": None if solved is None else int(solved["step"]) - explicit}


def add_linear_comparison(rows: Sequence[Json]) -> list[Json]:
    """Return the rows, each compared with linear ICoT at the same budget, if there is such a row."""
    linear = {row["budget"]: row for row in rows if row["method"] == LINEAR}
    return [
        {**row, "against_linear": compare_with_linear(row["each"], linear[row["budget"]]["each"])}
        if row["method"] != LINEAR and row["budget"] in linear
        else {**row, "against_linear": None}
        for row in rows
    ]


def compare_with_linear(own: Sequence[Mapping[str, Any]], linear: Sequence[Mapping[str, Any]]) -> Json | None:
    """Compare a method with linear ICoT over the seeds that both have. Return None if there are none.

    Returns:
        ``seeds``; ``exact_match``, the mean difference, and ``exact_match_low``, its one-sided lower bound at 95 %;
        ``ratio``, of the updates after the explicit stage, the geometric mean over the ``ratio_seeds`` on which both got to
        99 %, with its 95 % interval ``ratio_low`` … ``ratio_high``. Values that need more seeds are None.
    """
    of_seed = {each["seed"]: each for each in linear}
    pairs = [(each, of_seed[each["seed"]]) for each in own if each["seed"] in of_seed]
    if not pairs:
        return None
    mean, low, _ = mean_interval([one["exact_match"] - other["exact_match"] for one, other in pairs], sides=1)
    updates = [(one["after_explicit"], other["after_explicit"]) for one, other in pairs]
    logs = [math.log(one / other) for one, other in updates if one and other]
    ratio, *between = (math.exp(value) for value in mean_interval(logs)) if logs else (None, None, None)
    return {
        "seeds": len(pairs),
        "exact_match": mean,
        "exact_match_low": low if len(pairs) > 1 else None,
        "ratio_seeds": len(logs),
        "ratio": ratio,
        "ratio_low": between[0] if len(logs) > 1 else None,
        "ratio_high": between[1] if len(logs) > 1 else None,
    }
