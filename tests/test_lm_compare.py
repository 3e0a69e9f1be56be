"""`lm compare`: derived schedules, equal tokens, and comparisons that are interrupted, partly refused and resumed."""

import json
import re
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from internalize.commands.lm_compare import LmCompare
from internalize.commands.lm_plan import PlanOptions
from internalize.errors import InputError
from internalize.lm import Internalization
from internalize.lm.evaluation.comparison import (
    MethodCost,
    StageCosts,
    TooFewSteps,
    compare,
    measure_costs,
    plan_settings,
)
from internalize.lm.options import LmMethod
from internalize.lm.stages.schedule import Schedule
from internalize.lm.training.flops import model_size
from internalize.parallel.interrupt import Interrupted
from internalize.storage.runs import Run
from tests.lm_runs import TINY as BASE
from tests.tiny import finish_times

TINY = replace(
    BASE, width=8, steps=40, batch=4, stage_steps=1000, removal="delete", warmup=2, eval_every=20, eval_examples=4,
    test_examples=8, budgets="never",
)  # fmt: skip
PARITY = replace(TINY, data="parity:n=16,k=8", removal="pad", steps=1200, batch=128)


def test_golden_schedules():
    """Of 1 200 updates 300 are explicit, and 600 are shared by the removals: 6 of icot, 2 of log-icot."""
    methods = ("none", "cot", "icot", "icot-steps", "log-icot", "pause")
    found = plan_settings(measure_costs(PARITY, methods), ("steps", "tokens"), PARITY.steps)
    derived = {s.method: (s.stages, s.stage_steps) for s in found if s.budget == "steps"}
    removing = {"icot": (7, 100), "icot-steps": (7, 100), "log-icot": (3, 300)}
    assert derived == dict.fromkeys(("none", "cot", "pause"), (1, None)) | removing
    assert {s.options.first_steps for s in found if s.stages > 1} == {300}
    # A parity's padded sequence has 17 + 6 + 3 tokens at every stage, so but for none, equal tokens are equal updates.
    assert {(s.method, s.options.steps, str(s.folder)) for s in found if s.budget == "tokens"} == {
        ("none", 1560, "tokens/none"),
        *((method, 1200, f"steps/{method}") for method in methods[1:]),
    }
    (alone,) = plan_settings(measure_costs(replace(PARITY, first_steps=60), ["icot"]), ["tokens"], 1200)
    assert (alone.options.first_steps, alone.stage_steps, str(alone.folder)) == (60, 126, "tokens/icot")


@st.composite
def costs(draw: st.DrawFn, advance: Any = "steps") -> MethodCost:
    """Draw any schedule on chains of any lengths."""
    stages = draw(st.integers(1, 12))
    lengths = tuple(draw(st.lists(st.integers(1, 60), min_size=stages, max_size=stages)))
    method = draw(st.sampled_from(["icot", "log-icot"]))
    first = draw(st.none() | st.integers(1, 60))
    return MethodCost(
        replace(TINY, method=method, advance=advance, first_steps=first),
        tuple(range(stages)),
        {budget: StageCosts(lengths, lengths) for budget in ("tokens", "flops")},
        None,
    )


@given(st.lists(costs(), min_size=1, max_size=4), st.integers(1, 400))
def test_every_curriculum_ends_within_the_budget(some: list[MethodCost], steps: int):
    """If steps are too few, the number in the message is enough, and one less is not."""
    try:
        found = plan_settings(some, ("steps", "tokens"), steps)
    except TooFewSteps:
        raise
    except InputError as error:
        enough = int(re.findall(r"at least --steps (\d+)", str(error))[0])
        assert enough > steps
        found = plan_settings(some, ("steps", "tokens"), enough)
        with pytest.raises(InputError, match="are too few for the"):
            plan_settings(some, ("steps", "tokens"), enough - 1)
    for setting in found:
        begins = Schedule(setting.options, setting.stages, None).begins
        left = setting.options.steps - (setting.options.first_steps or 0)
        if setting.stages > 1:
            assert setting.options.steps - begins[-1] >= left / 3


@given(costs(), costs(), st.integers(100, 2000), st.sampled_from(["tokens", "flops"]))
def test_equal_costs(one: MethodCost, other: MethodCost, steps: int, budget: Any):
    """Expected costs agree up to one update: its own cost, and that of stages that begin one update later."""
    try:
        total = one.total(budget, steps, steps)
        found = other.steps(budget, total, steps)
    except TooFewSteps:
        return
    each = other.each[budget].smoothed
    moved = sum(abs(b - a) * stage for stage, (a, b) in enumerate(pairwise(each), 1))
    assert abs(other.total(budget, found, steps) - total) <= TINY.batch * (max(each) + moved)


def test_equal_operations():
    """Without a chain, sequences are shorter, and attention saves more than the tokens do."""
    methods: tuple[LmMethod, ...] = ("cot", "none")
    options = replace(PARITY, layers=2)
    costs = measure_costs(options, methods)
    for cost, method in zip(costs, methods, strict=True):
        work = Internalization(replace(options, method=method))
        (length,) = {len(row.tokens) for row in work.collator.sequences(range(50))}
        flops = model_size(work.options, work.config).training_flops(length, length**2)
        assert cost.each["tokens"].smoothed == (length,)
        assert cost.each["flops"].smoothed == pytest.approx((flops,))
    found = {s.method: s.options.steps for s in plan_settings(costs, ["flops"], 1000)}
    tokens = {s.method: s.options.steps for s in plan_settings(costs, ["tokens"], 1000)}
    assert found["cot"] == tokens["cot"] == 1000
    ratio = costs[0].each["flops"].smoothed[0] / costs[1].each["flops"].smoothed[0]
    assert found["none"] == pytest.approx(1000 * ratio, abs=1)
    assert found["none"] > tokens["none"]


def test_scaled_where_accuracy_or_epochs_decide():
    base = replace(TINY, method="icot", advance="accuracy", stage_steps=100, steps=1000)
    lengths = StageCosts((10.0, 20.0, 30.0), (10.0, 20.0, 30.0))
    cost = MethodCost(base, (0, 1, 2), {"tokens": lengths}, None)
    assert cost.options(1000, 1000) == base
    half = cost.options(500, 1000)
    assert (half.steps, half.stage_steps, half.first_steps) == (500, 50, None)
    # a stage begins one update after an evaluation
    assert cost.total("tokens", 1000, 1000) == 4 * (501 * 10 + 100 * 20 + 399 * 30)
    epochs = replace(base, advance="epochs", stages_per_epoch=4.0, first_epochs=0.5, smoothing=1.0)
    cost = MethodCost(epochs, (0, 1, 2), {"tokens": StageCosts((10.0, 20.0, 30.0), (7.0, 5.0, 3.0))}, 400)
    assert cost.total("tokens", 1000, 1000) == 4 * (200 * 10 + 100 * 7 + 100 * 5 + 600 * 3)
    half = cost.options(500, 1000)
    assert (half.stages_per_epoch, half.first_epochs) == (8.0, 0.25)


def test_compare_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A run whose folder is in use is named, and the others are trained. --resume trains only the missing one."""
    out = tmp_path / "out"
    methods = ("log-icot", "cot", "none")
    options = PlanOptions(**vars(replace(TINY, method="icot")))
    command = LmCompare(options=options, methods=methods, seeds="3", jobs=1, out=out, json=True)
    with Run(out / "tokens" / "none" / "seed-3").locked():
        assert command() == 2
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert [(row["budget"], row["method"]) for row in found["rows"]] == [
        *(("steps", method) for method in methods),
        ("tokens", "log-icot"),
        ("tokens", "cot"),
    ]
    (failed,) = found["failed"]
    assert failed["run"] == str(out / "tokens" / "none" / "seed-3")
    assert "in use by another process" in failed["reason"]
    assert f"internalize: {failed['run']}: {failed['reason']}" in said.err
    assert re.search(r"lm compare parity:n=6,k=4: (\d+)/\1  5/5 runs", said.err)
    before = finish_times(out)
    assert len(before) == 4

    with pytest.raises(InputError, match="this run is already finished; add --resume"):
        command()
    with pytest.raises(InputError, match="seed-3 holds another run: its lr is 0.001, not 0.01"):
        replace(command, options=replace(options, lr=0.01), resume=True)()

    left = next(iter(before)) / "checkpoint"  # as after a kill between writing the result and tidying
    (left / "checkpoint-3").mkdir(parents=True)
    assert replace(command, resume=True, json=False)() == 0
    assert not left.exists()
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 7
    assert table[1].split()[:2] == ["steps", "log-icot"]
    after = finish_times(out)
    assert len(after) == 5
    assert before.items() <= after.items()
    stored = json.loads((out / "rows.json").read_text())["rows"]
    rows: dict[Any, Any] = {(row["budget"], row["method"]): row for row in stored}
    assert rows["tokens", "log-icot"]["runs"] == rows["steps", "log-icot"]["runs"]
    assert {rows["steps", method]["steps"] for method in methods} == {40}
    assert rows["steps", "log-icot"]["stage_steps"] == 20
    assert rows["steps", "cot"]["tokens_per_answer"] >= rows["steps", "cot"]["stages"]
    target = rows["tokens", "log-icot"]["tokens"]
    for method in methods:
        assert abs(rows["tokens", method]["tokens"] / target - 1) < 0.02
    assert rows["tokens", "cot"]["steps"] < 40 < rows["tokens", "none"]["steps"]


def test_stopped_and_continued(tmp_path: Path):
    """Ctrl-C between two evaluations saves the run and says how to resume, and the same command then continues it."""
    out, long = tmp_path / "out", replace(TINY, eval_every=2)

    def again(report: Any = lambda *_: None) -> Any:
        return compare(long, ["cot"], range(2), ["steps"], out=out, resume=True, report=report)

    with pytest.raises(Interrupted, match=f"the same command with --out {out} --resume continues"):
        again(lambda done, total, seen: signal.raise_signal(signal.SIGINT) if done == 42 else None)
    before = finish_times(out)
    assert [path.name for path in before] == ["seed-0"]
    assert [path.name for path in (out / "steps/cot/seed-1/checkpoint").iterdir()] == ["checkpoint-3"]
    (row,) = again()
    assert len(row.runs) == 2
    assert before.items() <= finish_times(out).items()
    assert [m["step"] for m in Run(out / "steps/cot/seed-1").metrics()] == list(range(2, 41, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["log-icot", "magic"]}, "method='magic' is not one of none, cot"),
        ({"budgets": []}, "nothing to compare"),
        ({"budgets": ["seconds"]}, "budget='seconds' is not one of steps, tokens"),
        ({"seeds": (0, 0)}, "seeds=(0, 0) have a seed twice"),
        ({"seeds": (-1,)}, "seed=-1 is outside"),
        ({"jobs": 0}, "jobs=0 is outside 1"),
        ({"options": replace(TINY, stage_steps=5)}, "stage_steps=5: with --advance steps a comparison derives it"),
        (
            {"options": replace(TINY, steps=3)},
            "steps=3: 3 updates are too few for the 3 stages of icot; give at least --steps 4",
        ),
        (
            {"options": replace(TINY, steps=30, first_steps=30)},
            "steps=30: 30 updates are too few for the 3 stages of icot; give at least --steps 33",
        ),
    ],
)
def test_refusals(tmp_path: Path, changes: dict[str, Any], message: str):
    asked: dict[str, Any] = {"options": TINY, "methods": ["cot", "icot"], "budgets": ["steps"]}
    with pytest.raises(InputError, match=re.escape(message)):
        compare(**{**asked, **changes}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_not_into_a_run(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="is a run folder itself"):
        compare(TINY, out=tmp_path)
