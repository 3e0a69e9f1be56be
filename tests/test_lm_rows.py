"""Rows of `lm compare` from finished runs, and each method against linear ICoT."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from internalize.intervals import mean_interval, wilson
from internalize.lm import Example, Internalization, of_examples
from internalize.lm.evaluation.comparison import ComparisonRow, MethodSetting, _row, add_linear_comparison
from internalize.lm.evaluation.linear_baseline import LinearComparison, SeedRow
from internalize.lm.training.models import make_model
from internalize.storage.files import write_json
from internalize.storage.runs import Run
from tests.lm_runs import TINY


def finished(path: Path, exact: float, evaluations: list[tuple[int, int, float]], stages: int = 2) -> None:
    run = Run(path)
    path.mkdir(parents=True)
    for step, stage, accuracy in evaluations:
        run.append_metrics({"step": step, "stage": stage, "exact_match": accuracy})
    records = [{"stage": stage + 1, "steps": 10 + stage} for stage in range(stages)]
    result = {"exact_match": exact, "word_match": (1 + exact) / 2, "examples": 200, "stages": records, "steps": 40}
    run.finish({**result, "tokens": 1001, "flops": 2e9, "tokens_per_answer": 3.0, "seconds": 2.0})


def found_row(setting: MethodSetting, seeds: tuple[int, ...], out: Path) -> dict[str, Any]:
    row = _row(setting, seeds, out)
    assert row is not None
    return row.to_json()


def test_row_of_finished_runs(tmp_path: Path):
    setting = MethodSetting("log-icot", "steps", replace(TINY, stage_steps=7), 2, Path("steps/log-icot"))
    folder = tmp_path / setting.folder
    assert _row(setting, (0, 1), tmp_path) is None
    finished(folder / "seed-0", 1.0, [(10, 1, 1.0), (20, 2, 0.98), (30, 2, 0.99), (40, 2, 1.0)])
    row = found_row(setting, (0, 1), tmp_path)
    assert (row["exact_match_low"], row["exact_match_high"]) == wilson(200, 200)
    finished(folder / "seed-1", 0.98, [(10, 1, 1.0), (20, 2, 0.5)])
    finished(folder / "seed-2", 0.5, [(10, 1, 0.5)], stages=1)
    row = found_row(setting, (0, 1, 2), tmp_path)
    mean, low, _ = mean_interval([1.0, 0.98, 0.5])
    each = [
        {"seed": seed, "exact_match": exact, "word_match": (1 + exact) / 2, "explicit": 10, "after_explicit": after,
         "steps": steps}
        for seed, exact, after, steps in ((0, 1.0, 20, [10, 11]), (1, 0.98, None, [10, 11]), (2, 0.5, None, [10]))
    ]  # fmt: skip
    costs = {"stage_steps": 7, "steps": 40, "tokens": 1001, "flops": 2e9, "tokens_per_answer": 3.0, "seconds": 2.0}
    solved = {"solved": 1, "reached": 2, "steps_to_99": None, "steps_after_explicit": None}  # one of three
    assert row == costs | solved | {
        "method": "log-icot", "budget": "steps", "seeds": 3, "stages": 2, "attempts": pytest.approx(5 / 3),
        "exact_match": mean, "exact_match_low": low, "exact_match_high": 1.0,
        "word_match": pytest.approx((1 + mean) / 2), "each": each, "against_linear": None,
        "runs": [str(folder / f"seed-{seed}") for seed in range(3)],
    }  # fmt: skip
    pair = found_row(setting, (0, 1), tmp_path)
    assert (pair["steps_to_99"], pair["steps_after_explicit"]) == (30, 20)  # half of the seeds
    finished(folder / "seed-3", 1.0, [(10, 1, 1.0), (20, 2, 0.98), (30, 2, 0.99), (40, 2, 1.0)])
    alike = found_row(setting, (0, 3), tmp_path)
    assert (alike["exact_match_low"], alike["exact_match_high"]) == wilson(400, 400)  # an interval even without spread


def test_a_stage_that_was_given_up_is_not_reached(tmp_path: Path):
    setting = MethodSetting("adaptive", "steps", TINY, 3, Path("steps/adaptive"))
    folder = tmp_path / setting.folder / "seed-0"
    finished(folder, 0.5, [(10, 1, 1.0), (20, 3, 0.5), (30, 2, 0.9)])
    for order, reached in (([1, 3, 2], 0), ([1, 3, 2, 3], 1)):
        write_json(folder / "result.json", {**Run(folder).result, "stages": [{"stage": s, "steps": 9} for s in order]})
        row = found_row(setting, (0,), tmp_path)
        assert (row["reached"], row["attempts"]) == (reached, len(order))


def test_stages_are_those_of_each_run(tmp_path: Path):
    """If a seed holds out the longest chain of a file, its run has one stage less than the comparison."""
    setting = MethodSetting("icot-steps", "steps", replace(TINY, method="icot-steps"), 3, Path("steps/icot-steps"))
    folder = tmp_path / setting.folder / "seed-0"
    finished(folder, 1.0, [(10, 1, 1.0), (20, 2, 1.0)])
    source = of_examples([Example(f"{n}", ("1",), "1") for n in range(40)], 0)
    work = Internalization(setting.options, source=source)
    assert work.stages.count == 2
    row = found_row(setting, (0,), tmp_path)
    assert (row["reached"], row["each"][0]["after_explicit"]) == (0, None)
    work.save(folder / "model", make_model(setting.options, work.config, 0))
    row = found_row(setting, (0,), tmp_path)
    assert (row["reached"], row["each"][0]["after_explicit"], row["steps_to_99"]) == (1, 10, 20)


def test_against_linear():
    """Differences have a one-sided bound, ratios use logarithms, and only seeds of both methods count."""

    def row(method: Any, budget: Any, *each: tuple[int, float, int | None]) -> ComparisonRow:
        own = [SeedRow(seed=s, exact_match=e, explicit=1, after_explicit=after, steps=[]) for s, e, after in each]
        return ComparisonRow(MethodSetting(method, budget, TINY, 2, Path()), [], [], own)

    rows = [
        row("log-icot", "steps", (0, 1.0, 50), (1, 0.9, 100), (2, 1.0, None), (7, 1.0, 1)),
        row("icot", "steps", (0, 1.0, 100), (1, 0.6, 100), (2, 0.9, 40)),
        row("none", "tokens", (0, 0.5, None)),
        row("pause", "steps", (9, 0.5, None)),
        row("cot", "steps", (0, 1.0, None)),
    ]
    log, linear, elsewhere, no_seed, alone = (each.against_linear for each in add_linear_comparison(rows))
    assert linear is elsewhere is no_seed is None
    assert log is not None
    differences = np.array([0.0, 0.3, 0.1])
    low = differences.mean() - 2.9200 * differences.std(ddof=1) / math.sqrt(3)  # t at 95 % with two degrees of freedom
    assert (log.seeds, log.ratio_seeds) == (3, 2)
    assert log.exact_match == pytest.approx(differences.mean())
    assert log.exact_match_low == pytest.approx(low)
    assert log.ratio == pytest.approx(math.sqrt(0.5))  # of 1/2 and 1
    spread = 12.7062 * math.log(2) / 2
    assert log.ratio_low == pytest.approx(math.sqrt(0.5) * math.exp(-spread))
    assert log.ratio_high == pytest.approx(math.sqrt(0.5) * math.exp(spread))
    assert alone == LinearComparison(1, 0.0, None, 0, None, None, None)
