"""`lm compare` trains a first stage that methods share once, and every run is what it would be alone."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from internalize.lm.evaluation.comparison import compare, measure_costs, plan_settings
from internalize.lm.evaluation.jobs import LmJobOutcome
from internalize.lm.options import LmMethod, LmTrainOptions
from internalize.lm.training.first_stage import SharedStage
from internalize.lm.training.train import train
from internalize.storage.runs import Run, find_runs
from tests.lm_runs import TINY, content
from tests.test_lm_compare import TINY as STEPS

METHODS: tuple[LmMethod, ...] = ("icot", "log-icot", "adaptive")
ACCURACY = replace(
    TINY,
    advance="accuracy",
    first_steps=12,
    stage_steps=9,
    patience=4,
    eval_every=3,
    budgets="stages",
    keep_stages=True,
)
"""The first stage ends after 12 updates, and the attempts after it stall."""


class Killed(BaseException):
    """An error in place of kill -9, which nothing handles."""


@cache
def alone(options: LmTrainOptions, methods: tuple[LmMethod, ...]) -> dict[str, Any]:
    """Train every method in a run that shares nothing, once for all tests."""
    with tempfile.TemporaryDirectory() as out:
        for setting in plan_settings(measure_costs(options, methods), ["steps"], options.steps):
            train(setting.options, 0, Run(Path(out) / setting.method))
        return {method: content(Run(Path(out) / method)) for method in methods}


def assert_as_alone(options: LmTrainOptions, methods: tuple[LmMethod, ...], out: Path) -> None:
    found = {method: content(Run(out / "steps" / method / "seed-0")) for method in methods}
    assert found == alone(options, methods)


def share(
    options: LmTrainOptions, methods: Sequence[LmMethod], out: Path, **more: Any
) -> tuple[list[LmJobOutcome], list[str]]:
    outcomes: list[LmJobOutcome] = []
    said: list[str] = []
    compare(options, methods, [0], ["steps"], out=out, finished=outcomes.append, say=said.append, **more)
    return outcomes, [line for line in said if "first stage" in line]


@pytest.mark.parametrize(
    ("options", "methods", "first"),
    [
        (ACCURACY, METHODS, 12),
        (STEPS, ("log-icot", "doubling", "icot-steps"), 10),
        pytest.param(replace(ACCURACY, smoothing=1.0), METHODS[1:], 12, marks=pytest.mark.slow),
    ],
)
def test_shared_and_alone(tmp_path: Path, options: LmTrainOptions, methods: tuple[LmMethod, ...], first: int):
    """Weights, metrics and results are bit-for-bit identical to those of runs alone, with fewer updates."""
    outcomes, said = share(options, methods, tmp_path / "shared")
    assert_as_alone(options, methods, tmp_path / "shared")
    shared = [0, *[first] * (len(methods) - 1)]
    assert [outcome.shared for outcome in outcomes] == shared
    assert [outcome.trained for outcome in outcomes] == [options.steps - updates for updates in shared]
    assert said == []
    runs = find_runs(tmp_path / "shared")
    assert len(runs) == len(methods)
    left = {path.name for run in runs for path in run.path.iterdir()}
    assert left <= {"config.json", "env.json", "metrics.jsonl", "result.json", "model", "stages", ".lock"}


def write_data(path: Path) -> str:
    """Write examples whose third step does not use the two before it, so that log-icot moves it to the front."""
    examples = (
        f"{a} {b}||<<{a}+{b}={a + b}>> <<{a + b}+1={a + b + 1}>> <<100+{a}={100 + a}>> #### {b}"
        for a in range(9)
        for b in range(9, 18)
    )
    path.write_text("".join(f"{line}\n" for line in examples))
    return str(path)


def test_not_shared(tmp_path: Path):
    """A method that orders the steps differently trains its own first stage, and the user is told."""
    options = replace(STEPS, data=write_data(tmp_path / "data.txt"))
    methods = ("icot", "log-icot", "icot-steps")
    outcomes, said = share(options, methods, tmp_path / "shared")
    assert_as_alone(options, methods, tmp_path / "shared")
    assert [outcome.shared for outcome in outcomes] == [0, 0, 10]
    (line,) = said
    assert line.startswith("steps/log-icot/seed-0 trained a first stage of its own: its training batches")


def test_other_numbers_of_updates(tmp_path: Path):
    said: list[str] = []
    compare(STEPS, ["log-icot", "icot"], [0], out=tmp_path, say=said.append)
    assert said[1:] == ["no first stage is shared by tokens/icot/seed-0: other runs have other numbers of updates"]


def after(call: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, killed at the end of this call."""
    calls = 0

    def killed(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        found = function(*args, **named)
        if calls == call:
            raise Killed
        return found

    return killed


@pytest.mark.parametrize(
    ("owner", "name", "call", "trained"),
    [
        (shutil, "copytree", 1, [24, 12]),  # the owner has neither kept its first stage nor a checkpoint
        (SharedStage, "keep", 1, [12, 12]),  # it has kept it, and continues from there
        (shutil, "copytree", 2, [12]),  # the other run has copied a part of it
        (SharedStage, "take_over", 2, [12]),  # it has copied all of it and not resumed
        (SharedStage, "drop", 1, []),  # the first stage is not removed
    ],
)
def test_killed_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, trained: list[int]
):
    methods = ("icot", "adaptive")
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, after(call, getattr(owner, name)))
        with pytest.raises(Killed):
            share(ACCURACY, methods, tmp_path / "shared")
    outcomes, said = share(ACCURACY, methods, tmp_path / "shared", resume=True)
    assert_as_alone(ACCURACY, methods, tmp_path / "shared")
    assert [outcome.trained for outcome in outcomes] == trained
    assert said == []
    assert not list(tmp_path.glob("shared/*/*/*/*first-stage*"))


def test_the_owner_is_refused(tmp_path: Path):
    """The other run trains its own first stage, and the user is told."""
    with Run(tmp_path / "steps/icot/seed-0").locked():
        outcomes, said = share(ACCURACY, METHODS[:2], tmp_path, refused=lambda folder, reason: None)
    assert [outcome.trained for outcome in outcomes] == [24]
    assert said == [
        f"steps/log-icot/seed-0 trained a first stage of its own: {tmp_path}/steps/icot/seed-0 has no first stage to continue from"
    ]


def test_a_damaged_first_stage_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patched:
        patched.setattr(SharedStage, "take_over", after(2, SharedStage.take_over))
        with pytest.raises(Killed):
            share(ACCURACY, METHODS[:2], tmp_path / "shared")
    kept = tmp_path / "shared/steps/icot/seed-0/first-stage"
    (kept / "optimizer.pt").write_bytes(b"")
    shutil.rmtree(tmp_path / "shared/steps/log-icot/seed-0/checkpoint")
    outcomes, said = share(ACCURACY, METHODS[:2], tmp_path / "shared", resume=True)
    assert [outcome.trained for outcome in outcomes] == [24]
    assert len(said) == 1
    assert "optimizer.pt is damaged or missing" in said[0]
    assert_as_alone(ACCURACY, METHODS[:2], tmp_path / "shared")


def test_a_comparison_that_shared_nothing_so_far(tmp_path: Path):
    """The finished run of an earlier version has kept nothing, and the others share among themselves."""
    costs = plan_settings(measure_costs(ACCURACY, METHODS), ["steps"], ACCURACY.steps)
    train(costs[0].options, 0, Run(tmp_path / "shared/steps/icot/seed-0"))
    outcomes, said = share(ACCURACY, METHODS, tmp_path / "shared", resume=True)
    assert [(outcome.trained, outcome.shared) for outcome in outcomes] == [(24, 0), (12, 12)]
    assert said == []
    assert_as_alone(ACCURACY, METHODS, tmp_path / "shared")


@pytest.mark.slow
def test_two_processes(tmp_path: Path):
    """The other runs wait for the first stage only, not for its whole run."""
    outcomes, said = share(ACCURACY, METHODS, tmp_path / "shared", jobs=2)
    assert sorted(outcome.shared for outcome in outcomes) == [0, 12, 12]
    assert said == []
    assert_as_alone(ACCURACY, METHODS, tmp_path / "shared")
