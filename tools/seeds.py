"""Merge stored rows of `lm compare` with further seeds: runs that were made elsewhere or later with the same options.

A row holds the result of each seed, so its summary can be recomputed. Means that are stored only per row (tokens,
seconds) are weighted by the number of seeds.
"""

import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tools.results import against_linear

from internalize.commands.cli import parse
from internalize.lm.evaluation.linear_baseline import LINEAR
from internalize.lm.options import with_method
from internalize.storage.summaries import lower_median, mean_of, over_seeds

Row = dict[str, Any]
_MEANS = ("tokens", "tokens_per_answer", "seconds")


def with_more_seeds(rows: Iterable[Row], more: Iterable[Row], questions: int) -> list[Row]:
    """Return the rows with those on the same subject merged, each compared with linear ICoT.

    Args:
        rows: the stored rows.
        more: further rows of the same comparison. Rows of new methods come last.
        questions: the number of questions that each seed was tested with.
    """
    found = list(rows)
    for row in more:
        place = next((i for i, other in enumerate(found) if _subject(other) == _subject(row)), None)
        if place is None:
            found.append(row)
        else:
            found[place] = _together(found[place], row, questions)
    return each_against_linear(found)


def each_against_linear(rows: Sequence[Row]) -> list[Row]:
    """Return rows, perhaps of several comparisons, each with its difference from linear ICoT in its own comparison."""
    linear = {_comparison(row): row["each"] for row in rows if row["method"] == LINEAR}
    return [
        {**row, "against_linear": None}
        if row["method"] == LINEAR
        else {**row, "against_linear": against_linear(row["each"], linear.get(_comparison(row), ()))}
        for row in rows
    ]


def check_options(command: str, configs: Iterable[Mapping[str, Any]]) -> None:
    """Raise an error if a run's options are not those of the stored command, so that it is of another comparison."""
    asked = parse(shlex.split(command)[1:]).options
    for config in configs:
        wanted = with_method(asked, config["method"]).as_json()
        if wrong := sorted(key for key, value in wanted.items() if config.get(key) != value):
            raise SystemExit(
                f"{config['method']}, seed {config['seed']}: differs from the stored command in {', '.join(wrong)}"
            )


def _comparison(row: Row) -> tuple[object, ...]:
    return tuple(row.get(key) for key in ("data", "layers", "layer_loss", "eval_every", "budget"))


def _subject(row: Row) -> tuple[object, ...]:
    return (*_comparison(row), row["method"], row.get("levels"))


def _together(one: Row, other: Row, questions: int) -> Row:
    each = sorted([*one["each"], *other["each"]], key=lambda run: run["seed"])
    seeds = [run["seed"] for run in each]
    if len(set(seeds)) < len(seeds):
        raise SystemExit(f"{one['method']}: a seed is given twice: {seeds}")
    if one["stages"] != other["stages"] or one["stage_steps"] != other["stage_steps"]:
        raise SystemExit(f"{one['method']}: {one['stages']} and {other['stages']} stages are not of one comparison")
    exact = over_seeds([run["exact_match"] for run in each], questions)
    solved = [None if run["after_explicit"] is None else run["explicit"] + run["after_explicit"] for run in each]
    if one["stages"] == 1:  # for a single stage, updates to 99 % are stored only per row
        if one["steps_to_99"] is not None or other["steps_to_99"] is not None:
            raise SystemExit(f"{one['method']}: updates to 99 % are not stored per seed")
        solved = [None] * len(each)
    weights = [one["seeds"], other["seeds"]]
    return {
        **one,
        "seeds": len(each),
        "exact_match": exact.accuracy,
        "exact_match_low": exact.accuracy_low,
        "exact_match_high": exact.accuracy_high,
        "word_match": mean_of(each, "word_match"),
        "solved": exact.solved,
        "reached": one["reached"] + other["reached"],
        "attempts": statistics.fmean(len(run["steps"]) for run in each),
        "steps": round(statistics.fmean(sum(run["steps"]) for run in each)),
        **{key: statistics.fmean([one[key], other[key]], weights) for key in _MEANS},
        "steps_to_99": lower_median(solved),
        "steps_after_explicit": lower_median([run["after_explicit"] for run in each]),
        "each": each,
    }
