"""Numbers on language models, computed from stored results. Pages name these functions (tools/numbers.py)."""

import math
import re
from collections.abc import Iterable
from typing import Any

from tools.language import ruler, runs_that_went_back, share_of_first
from tools.results import row_of, stored

from internalize.intervals import mean_interval
from internalize.lm.data.source import open_source
from internalize.lm.options import LmTrainOptions
from internalize.storage.files import Json


def _span(values: Iterable[Any]) -> list[Any]:
    """Return the smallest and the largest value."""
    found = list(values)
    return [min(found), max(found)]


def _of_method(name: str, method: str, *more: str) -> Json:
    return row_of(stored(name)["rows"], method, *more)


def _right(name: str, method: str) -> dict[int, float]:
    """Return exact match by seed, with the same levels as linear ICoT."""
    row = _of_method(name, method, _of_method(name, "icot")["levels"])
    return {each["seed"]: each["exact_match"] for each in row["each"]}


def _leads(name: str, method: str) -> dict[int, float]:
    """Return the difference of a method from linear ICoT in exact match, by seed."""
    linear = _right(name, "icot")
    return {seed: own - linear[seed] for seed, own in _right(name, method).items()}


def lead(name: str, method: str) -> list[float]:
    """Return the smallest and the largest difference from linear ICoT in exact match."""
    return _span(_leads(name, method).values())


def mean_of_seeds(name: str, method: str, count: int) -> float:
    """Return the mean exact match of seeds 0 to count - 1."""
    return math.fsum(_right(name, method)[seed] for seed in range(count)) / count


def size(name: str) -> Json:
    """Return n and k of a comparison on parity."""
    return dict(zip("nk", re.findall(r"\d+", stored(name)["rows"][0]["data"]), strict=True))


def first_evaluation_share() -> list[float]:
    return _span([share_of_first(row["linear"]) for row in ruler()])


def removals() -> Json:
    """Return the number of linear ICoT's stages between first and last in lm-fine, and of those that end at once."""
    linear = _of_method("lm-fine", "icot")
    between = [updates for each in linear["each"] for updates in each["steps"][1:-1]]
    return {"all": len(between), "quick": sum(updates <= linear["eval_every"] for updates in between)}


def stage_updates(method: str, first: int, last: int) -> list[int]:
    """Return the smallest and largest sum of updates in stages ``first`` to ``last``, from 1, over seeds at n = 30."""
    return _span([sum(each["steps"][first - 1 : last]) for each in _of_method("lm-parity-30", method)["each"]])


def last_stage(method: str) -> list[int]:
    """Return the same for the last stage, without consolidation."""
    last = _of_method("lm-parity-30", method)["stages"]
    return [updates - LmTrainOptions().consolidate for updates in stage_updates(method, last, last)]


def linears_stages() -> Json:
    """Return numbers on linear ICoT's stages between first and last at n = 30.

    That is how many there are, how many pass within two evaluations, and the updates of the others.
    """
    found = _of_method("lm-parity-30", "icot")
    updates, twice = [each["steps"][1:-1] for each in found["each"]], 2 * found["eval_every"]
    quick = [sum(own <= twice for own in run) for run in updates]
    slow = [own for run in updates for own in run if own > twice]
    return {"all": len(updates[0]), "mean": sum(quick) / len(quick), "quick": _span(quick), "slow": _span(slow)}


def first_evaluations(method: str) -> Json:
    """Return the number of removals at n = 30, and the updates before their first evaluations."""
    row = _of_method("lm-parity-30", method)
    return {"removals": row["stages"] - 1, "updates": (row["stages"] - 1) * row["eval_every"]}


def different(task: str) -> int:
    """Return the number of different questions in the test of seed 0."""
    data = {"parity": "parity:n=16,k=8", "multiply": "multiply:digits=2"}[task]
    return len({example.question for example in open_source(data, 0).test(LmTrainOptions().test_examples)})


def _stalled(reason: str) -> list[Json]:
    """Return runs without replay and hidden loss: all, those that end at chance, or those by a reason at level 2."""
    alone = [r for r in stored("lm-stalls")["rows"] if not (r["replay"] or r["hidden_loss"])]
    wrong = [r for r in alone if r["exact_match"] < 0.6]
    of = {"all": alone, "chance": wrong}
    return of.get(reason) or [r for r in wrong if {m["reason"] for m in r["account"]["missing"]} == {reason, "waiting"}]


def stalled_count(reason: str) -> int:
    return len(_stalled(reason))


def stalled_updates() -> list[int]:
    return _span([run["steps"][-1] for run in _stalled("chance")])


def missing(reason: str, key: str) -> list[float]:
    """Return the smallest and largest value under a key among the steps that are missing for a reason."""
    return _span([m[key] for r in _stalled(reason) for m in r["account"]["missing"] if m["reason"] == reason])


def went_back() -> Json:
    """Return how many runs at k = 16 gave up hiding everything at once, and how many of them are solved."""
    runs = runs_that_went_back()
    return {"runs": len(runs), "solved": sum(run["exact_match"] >= 0.99 for run in runs)}


def after_going_back(layers: int, seed: int) -> int:
    return sum(row_of(runs_that_went_back(), f"layers={layers}", f"seed={seed}")["steps"][2:])


def last_updates() -> list[int]:
    """Return the smallest and largest updates of Log-ICoT's last stage at 3 × 3."""
    return _span([each["steps"][-1] for each in _of_method("lm-multiply-3", "log-icot")["each"]])


def linears_last() -> list[int]:
    """Return the smallest and largest number of stages that linear ICoT reached at 3 × 3."""
    return _span([len(each["steps"]) for each in _of_method("lm-multiply-3", "icot")["each"]])


def adaptive_on_tree() -> Json:
    own = _leads("lm-multiply-tree", "adaptive")
    (behind,) = (seed for seed, lead in own.items() if lead < 0)
    fives = [mean_interval([own[seed] for seed in five], sides=1)[1] for five in (range(5), range(5, 10))]
    return {"ahead": len(own) - 1, "seed": behind, "behind": -own[behind], "at-least": fives}


def linear_done() -> int:
    """Return the only seed on which linear ICoT reached its last stage on the tree."""
    linear = _of_method("lm-multiply-tree", "icot")
    (done,) = (each["seed"] for each in linear["each"] if len(each["steps"]) == linear["stages"])
    return done


def hard_tokens() -> list[int]:
    """Return the smallest and largest updates of linear ICoT's second and third removal together, on the tree."""
    return _span([sum(each["steps"][2:4]) for each in _of_method("lm-multiply-tree", "icot")["each"]])


def hidden_at_four() -> Json:
    """Return the number of tokens at 4 × 4, and of those that linear ICoT has hidden."""
    row = _of_method("lm-multiply-4", "icot")
    return {"all": row["stages"] - 1, "linear": len(row["each"][0]["steps"]) - 1}


def generation_speed() -> list[float]:
    """Return the smallest and largest median speed-up of batched generation."""
    return _span([row["median"] for row in stored("lm-generation")["rows"]])


def attention_models() -> Json:
    """Return how many models were certified, and on how many of them both statements about attention hold."""
    about = [row for row in stored("lm-certify")["rows"] if row["statement"] in ("child-attention", "child-mass")]
    models = {row["model"] for row in about}
    return {"all": len(models), "carried": len(models - {row["model"] for row in about if row["verdict"] != "holds"})}
