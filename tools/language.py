"""The tables of language models, from stored rows of `lm compare`."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

from tools.results import against_linear, row_of, stored
from tools.slots import COSTS, with_written
from tools.stalls import STALLS, by_setting

from internalize.intervals import mean_interval
from internalize.lm.evaluation.linear_baseline import LINEAR
from internalize.report import comparison_tables as columns
from internalize.report.comparison_tables import Columns
from internalize.storage.files import Json

Tables = dict[str, tuple[Columns, Sequence[columns.Row]]]


def rows_of(name: str) -> list[Json]:
    """Return the rows of a stored comparison."""
    return stored(name)["rows"]


def each_against_linear(rows: Sequence[Json]) -> list[Json]:
    """Return rows, perhaps of several comparisons, each with its difference from linear ICoT in its own comparison."""

    def comparison(row: Json) -> tuple[object, ...]:
        return tuple(row.get(key) for key in ("data", "layers", "layer_loss", "eval_every", "budget"))

    linear = {comparison(row): row["each"] for row in rows if row["method"] == LINEAR}
    return [
        {**row, "against_linear": None}
        if row["method"] == LINEAR
        else {**row, "against_linear": against_linear(row["each"], linear.get(comparison(row), ()))}
        for row in rows
    ]


def ahead(row: columns.Row) -> str:
    """Return the mean difference in exact match from linear ICoT, seed by seed, with its lower bound."""
    found = row["against_linear"]
    if found is None:
        return "–"
    least = found["exact_match_low"]
    return _signed(found["exact_match"]) + ("" if least is None else f" (≥ {_signed(least)})")


def _signed(value: float) -> str:
    """Return a number with its sign, or 0.0000 without a sign."""
    return f"{value:+.4f}" if abs(value) >= 0.00005 else "0.0000"


EQUAL: Columns = {
    **{
        name: columns.LANGUAGE[name]
        for name in ("method", "seeds", "solved", "exact match (95 % over seeds)", "stages trained")
    },
    "difference from linear ICoT (one-sided 95 %)": ahead,
    "updates": columns.LANGUAGE["all updates"],
}
WORDS: Columns = {**EQUAL, "words right": lambda row: f"{row['word_match']:.3f}"}
REMOVES = {
    "adaptive": "everything at once",
    "icot": "token by token",
    "doubling": "1, 2, 4, … tokens",
    "log-icot": "level by level",
    "log-icot tokens": "half of the remaining tokens",
}
TREE: Columns = {
    "method": EQUAL["method"],
    "hidden per stage": lambda row: (
        REMOVES.get(f"{row['method']} {row['levels']}") or REMOVES[row["method"]]  # only log-icot depends on levels
    ),
    **WORDS,
}
DEPTH: Columns = {
    "data": lambda row: f"`{row['data']}`",
    "layers": lambda row: str(row["layers"]),
    "method": lambda row: row["method"],
    "solved": lambda row: f"{row['solved']} of {row['seeds']}",
    "exact match (95 % over seeds)": columns.LANGUAGE["exact match (95 % over seeds)"],
    "updates to 99 %": columns.LANGUAGE["updates to 99 %"],
}


UPDATES: Columns = {name: columns.LANGUAGE[name] for name in columns.LANGUAGE if name != "all updates"}


LANGUAGE: dict[str, Columns] = {
    "lm-fine": UPDATES,
    "lm-parity": columns.LANGUAGE,
    "lm-parity-30": columns.LANGUAGE,
    "lm-scattered": UPDATES,
    "lm-scattered-30": UPDATES,
    "lm-multiply-scattered": EQUAL,
    "lm-multiply-3": EQUAL,
    "lm-multiply-tree": TREE,
    "lm-multiply-4": WORDS,
    "lm-multiply": EQUAL,
    "lm-depth": DEPTH,
    "lm-depth-scattered": DEPTH,
}
"""The columns of each stored comparison of language models."""


def first_evaluations(row: columns.Row) -> list[int]:
    """Return for each seed the updates before the first evaluation of a stage, summed over the stages after the
    explicit one.

    A stage can end only at an evaluation.
    """
    return [(len(each["steps"]) - 1) * row["eval_every"] for each in row["each"]]


def less_first_evaluations(row: columns.Row) -> str:
    """Return the ratio of updates after the explicit stage without first evaluations, with its 95 % interval."""
    own, linear = (
        [
            {**each, "after_explicit": each["after_explicit"] - first}
            for each, first in zip(one["each"], first_evaluations(one), strict=True)
        ]
        for one in (row, row["linear"])
    )
    return columns.over_linear({"against_linear": against_linear(own, linear)})


def share_of_first(row: columns.Row) -> float:
    """Return the share of first evaluations in the updates after the explicit stage, over all seeds."""
    return sum(first_evaluations(row)) / sum(each["after_explicit"] for each in row["each"])


RULER: Columns = {
    "replay": lambda row: row["replay"],
    "n, k": lambda row: _size(row),
    "method": lambda row: row["method"],
    "ratio to linear ICoT (95 %)": columns.over_linear,
    "without first evaluations (95 %)": less_first_evaluations,
    "share of first evaluations in linear ICoT": lambda row: f"{share_of_first(row['linear']):.0%}",
}
"""How much of the difference in updates is an artifact of how often a stage is evaluated."""
COMPARED = {"counts": ("lm-parity", "lm-parity-30"), "scattered": ("lm-scattered", "lm-scattered-30")}


def ruler() -> list[Json]:
    """Return a row for every method other than linear ICoT on parity."""
    return [
        {**row, "replay": replay, "linear": row_of(rows_of(name), LINEAR)}
        for replay, names in COMPARED.items()
        for name in names
        for row in rows_of(name)
        if row["method"] != LINEAR
    ]


def _ratio_to(method: str | None) -> Callable[[columns.Row], str]:
    """Return a column with the ratio of updates after the explicit stage to those of a method with replay of counts.

    ``None`` is the row's own method.
    """

    def cell(row: columns.Row) -> str:
        others = [other for other in row["counts"] if other["method"] == (method or row["method"])]
        return (
            columns.over_linear({"against_linear": against_linear(row["each"], others[0]["each"])}) if others else "–"
        )

    return cell


REPLAY: Columns = {
    "n, k": lambda row: _size(row),
    "method": lambda row: row["method"],
    "updates after the explicit stage": lambda row: columns.number(row["steps_after_explicit"]),
    "ratio to the method itself with replay of counts (95 %)": _ratio_to(None),
    "ratio to linear ICoT with replay of counts (95 %)": _ratio_to(LINEAR),
}
"""The effect of scattered replay."""


def replays() -> list[Json]:
    """Return a row for every method with scattered replay, which holds the rows with replay of counts."""
    names = zip(COMPARED["scattered"], COMPARED["counts"], strict=True)
    return [{**row, "counts": rows_of(counts)} for scattered, counts in names for row in rows_of(scattered)]


def _size(row: columns.Row) -> str:
    return row["data"].removeprefix("parity:n=").replace(",k=", ", ")


def at_most(row: columns.Row) -> str:
    """Return the ratio of updates after the explicit stage, and its upper bound."""
    of_seed = {each["seed"]: each["after_explicit"] for each in row["linear"]["each"]}
    pairs = [(each["after_explicit"], of_seed.get(each["seed"])) for each in row["each"]]
    logs = [math.log(one / other) for one, other in pairs if one and other]
    if len(logs) < 2:
        return "–"
    mean, low, _ = mean_interval([-value for value in logs], sides=1)
    return f"{math.exp(-mean):.2f} (≤ {math.exp(-low):.2f}; {len(logs)} seeds)"


CELLS = (
    "lm-scattered",
    "lm-scattered-30",
    "lm-multiply-scattered",
    "lm-multiply-3",
    "lm-multiply-tree",
    "lm-multiply-4",
)
NOT_WORSE: Columns = {
    "data": lambda row: f"`{row['data']}`",
    "seeds": lambda row: str(row["against_linear"]["seeds"]),
    "exact match, `adaptive`": lambda row: f"{row['both'][0]:.4f}",
    "exact match, linear": lambda row: f"{row['both'][1]:.4f}",
    "difference (one-sided 95 %)": ahead,
    "updates over linear's (one-sided 95 %)": at_most,
}
"""`adaptive` against linear ICoT in every comparison that has both, on their common seeds."""


def not_worse() -> list[Json]:
    """Return a row per comparison."""
    found: list[Json] = []
    for name in CELLS:
        own, linear = (row_of(rows_of(name), method) for method in ("adaptive", LINEAR))
        both = {each["seed"] for each in own["each"]} & {each["seed"] for each in linear["each"]}
        means = [
            math.fsum(each["exact_match"] for each in row["each"] if each["seed"] in both) / len(both)
            for row in (own, linear)
        ]
        found.append({**own, "linear": linear, "both": means})
    return found


WENT_BACK: Columns = {
    "layers": lambda row: str(row["layers"]),
    "seed": lambda row: str(row["seed"]),
    "explicit stage": lambda row: columns.number(row["steps"][0]),
    "everything at once": lambda row: columns.number(row["steps"][1]),
    "later attempts": lambda row: ", ".join(columns.number(updates) for updates in row["steps"][2:]),
    "exact match": lambda row: f"{row['exact_match']:.4f}",
}


def runs_that_went_back() -> list[Json]:
    """Return the runs at k = 16 that gave up hiding everything at once."""
    rows = [row for row in rows_of("lm-depth-scattered") if row["method"] == "adaptive"]
    return [{**each, "layers": row["layers"]} for row in rows for each in row["each"] if len(each["steps"]) > 2]


CERTIFIED: Columns = {
    "name": lambda row: f"`{row['statement']}`",
    "at most": lambda row: f"{row['bound']:g}",
    "measured, per model": lambda row: ", ".join(f"{own['measured']:.2f}" for own in row["models"]),
    "verdicts": lambda row: ", ".join(
        f"{count} {verdict}" for verdict, count in Counter(own["verdict"] for own in row["models"]).items()
    ),
}


def certified() -> list[Json]:
    """Return the certificates of several models, with a row per statement."""
    rows = rows_of("lm-certify")
    names = dict.fromkeys(row["statement"] for row in rows)
    together = [[row for row in rows if row["statement"] == name] for name in names]
    return [{**models[0], "models": models} for models in together]


def language_tables() -> Tables:
    """Return the tables of `lm compare`, by their names on the pages."""
    found: Tables = {name: (own, rows_of(name)) for name, own in LANGUAGE.items()}
    found["lm-stalls"] = (STALLS, by_setting(rows_of("lm-stalls")))
    found["lm-slot-costs"] = (COSTS, with_written(rows_of("lm-slot-costs")))
    found["lm-ruler"] = (RULER, ruler())
    found["lm-replay"] = (REPLAY, replays())
    found["lm-not-worse"] = (NOT_WORSE, not_worse())
    found["lm-went-back"] = (WENT_BACK, runs_that_went_back())
    found["lm-certify"] = (CERTIFIED, certified())
    return found
