"""The claims table: claims hold on honest runs and fail on changed ones."""

import json
from dataclasses import replace
from typing import Any

import pytest

from internalize.errors import InputError
from internalize.parity.adamw.groups import group_runs, one_group
from internalize.parity.options import TrainOptions
from internalize.report.claims import CONCENTRATED, RETURNED, SOON, claims, paper_runs, sizes, spikes
from internalize.storage.runs import Run
from tests.tiny import OPTIONS, SEEDS, copies, rewrite_metrics, rewrite_result, tiny_runs


def lines(*values: tuple[int, int, float]) -> list[dict[str, Any]]:
    return [{"step": step, "stage": stage, "loss": loss} for step, stage, loss in values]


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        (
            lines((0, 1, 5.0), (50, 1, 0.001), (50, 2, 2.0), (75, 2, 0.03), (100, 2, 0.01), (125, 2, 0.015))
            + lines((125, 3, 1.0), (150, 3, 0.5)),
            [(2, 50, 0.001, 2.0, 50, 0.015, True, True), (3, 125, 0.015, 1.0, None, None, True, False)],
        ),
        # a return counts in its own stage only
        (
            lines((0, 1, 1.0), (0, 2, 2.0), (10, 2, 1.0), (10, 3, 0.001)),
            [(2, 0, 1.0, 2.0, None, None, True, False), (3, 10, 1.0, 0.001, None, None, False, False)],
        ),
        # exactly the threshold is not under it
        (lines((0, 1, 0.0), (0, 2, 1.0), (10, 2, RETURNED)), [(2, 0, 0.0, 1.0, None, None, True, False)]),
        # without a switch there is no spike
        ([], []),
        (lines((0, 1, 1.0)), []),
        (lines((0, 1, 1.0), (10, 1, 0.5)), []),
        # a switch without an evaluation after it has not returned
        (lines((0, 1, 0.1), (0, 2, 1.0)), [(2, 0, 0.1, 1.0, None, None, True, False)]),
        # a return that is late, and one that does not last
        (lines((0, 1, 0.1), (0, 2, 1.0), (SOON + 1, 2, 0.0)), [(2, 0, 0.1, 1.0, SOON + 1, 0.0, True, False)]),
        (
            lines((0, 1, 0.1), (0, 2, 1.0), (SOON, 2, 0.0), (SOON + 1, 2, 0.5)),
            [(2, 0, 0.1, 1.0, SOON, 0.5, True, False)],
        ),
        # a loss that falls at the switch
        (lines((0, 1, 1.0), (0, 2, 0.5), (10, 2, 0.0)), [(2, 0, 1.0, 0.5, 10, 0.0, False, True)]),
    ],
)
def test_spikes(metrics: list[dict[str, Any]], found: list[tuple[object, ...]]):
    """Each spike has the attributes in `names`, in this order."""
    names = ("stage", "step", "before", "height", "steps_to_return", "highest_after", "rises", "returns")
    assert [tuple(getattr(spike, name) for name in names) for spike in spikes(metrics)] == found


def test_a_switch_without_an_evaluation_is_refused():
    with pytest.raises(InputError, match="directly after the switch to stage 2.*steps 25 and 50"):
        spikes(lines((25, 1, 0.1), (50, 2, 0.1)))


def test_honest_runs_hold(runs):
    table = claims(runs, OPTIONS)
    assert [claim.holds for claim in table] == [True] * len(table)
    assert len(table) == 4 + 1  # accuracy, attention, stages, passes; one switch
    assert table[0].seeds == len(SEEDS)
    assert f"{len(SEEDS)} of {len(SEEDS)} seeds" in table[0].measured
    assert "2 against 3 stages" in table[3].measured
    assert "3 sequential passes" in table[4].measured


def test_numbers_in_the_table_are_those_of_the_runs(runs):
    _, attention, spike, *_ = claims(runs, OPTIONS)
    smallest = min(min(run.metrics()[-1]["child_attention"]) for run in runs)
    assert f"{smallest:.3f} over all seeds" in attention.measured
    heights = [spikes(run.metrics())[0].height for run in runs]
    assert f"spikes from {min(heights):.3g} to {max(heights):.3g}" in spike.measured


def verdicts(runs: list[Run]) -> dict[str, bool]:
    names = ("accuracy", "attention", "switch", "stages", "passes")
    return dict(zip(names, (claim.holds for claim in claims(runs, OPTIONS)), strict=True))


def test_one_seed_that_missed_one_sample_turns_accuracy(runs, tmp_path):
    doctored = copies(runs, tmp_path)
    rewrite_result(doctored[1], accuracy=0.995)
    found = verdicts(doctored)
    assert not found.pop("accuracy")
    assert not found.pop("passes")
    assert all(found.values())
    assert "2 of 3 seeds" in claims(doctored, OPTIONS)[0].measured
    assert "lowest accuracy is 99.5 %" in claims(doctored, OPTIONS)[0].measured


@pytest.mark.parametrize("fault", ["attention", "no spike", "no return"])
def test_one_seed_that_departs_turns_its_claim(runs, tmp_path, fault):
    """Attention elsewhere, no spike, or a spike without return on one seed fails exactly its claim."""
    doctored = copies(runs, tmp_path)
    metrics = doctored[2].metrics()
    begin = next(place for place, line in enumerate(metrics) if line["stage"] == 2)
    if fault == "attention":
        metrics[-1]["child_attention"][0] = CONCENTRATED - 0.01
    elif fault == "no spike":
        metrics[begin]["loss"] = metrics[begin - 1]["loss"]
    else:
        for line in metrics[begin + 1 :]:
            line["loss"] = metrics[begin]["loss"] / 2
    rewrite_metrics(doctored[2], metrics)
    found = verdicts(doctored)
    assert not found.pop("attention" if fault == "attention" else "switch")
    assert all(found.values())


def test_metrics_with_other_stages_or_layers_are_refused_by_name(runs, tmp_path):
    doctored = copies(runs, tmp_path)
    whole = doctored[0].metrics()
    for metrics in (whole[:1], [{**line, "stage": line["stage"] + 1} for line in whole]):
        rewrite_metrics(doctored[0], metrics)
        with pytest.raises(InputError, match=r"seed-0/metrics.jsonl does not have the stages 1 … 2 in this order"):
            claims(doctored, OPTIONS)
    rewrite_metrics(doctored[0], [{**line, "child_attention": [0.5]} for line in whole])
    with pytest.raises(InputError, match=r"seed-0/metrics.jsonl: child_attention has 1 layers, not 2"):
        claims(doctored, OPTIONS)


def test_sizes_has_a_row_per_setting_with_its_failures(runs, tmp_path):
    failed = replace(OPTIONS, steps=1)
    rows = sizes([*tiny_runs(tmp_path / "failed", failed, (0, 1)), *runs], OPTIONS)
    own, other = sorted(rows, key=lambda row: -row.steps)
    assert (own.steps, own.seeds, other.steps, other.seeds) == (OPTIONS.steps, 3, 1, 2)
    assert (own.solved, own.accuracy_min, own.claimed) == (3, 1.0, True)
    assert own.child_attention_min == min(run.result["min_child_attention"] for run in runs)
    assert other.solved < other.seeds
    assert not other.claimed


def test_groups_ignore_the_seed_and_nothing_else(runs):
    assert group_runs(reversed(runs)) == {OPTIONS: runs}
    assert one_group(runs) == OPTIONS


def test_runs_that_do_not_belong_together_are_refused(runs, tmp_path):
    with pytest.raises(InputError, match="no finished run has the settings"):
        paper_runs(runs, TrainOptions())
    twice = copies(runs[:1], tmp_path / "twice")
    with pytest.raises(InputError, match="are the same run, seed 0"):
        group_runs([*runs, *twice])
    (twice[0].path / "result.json").unlink()
    with pytest.raises(InputError, match="is not finished"):
        group_runs(twice)
    (config,) = (json.loads((run.path / "config.json").read_text()) for run in twice)
    (twice[0].path / "config.json").write_text(json.dumps({**config, "kind": "solve"}))
    with pytest.raises(InputError, match="kind 'solve', not 'train'"):
        group_runs(twice)
    with pytest.raises(InputError, match="no runs"):
        one_group([])
