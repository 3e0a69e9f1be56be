"""Why a stage has not got on: each reason where it holds, and the next one where it does not."""

from typing import Any

import pytest

from internalize.cli import main
from internalize.lm.account import ABOVE, READ, accounts, read_from
from internalize.lm.kept import open_kept
from internalize.lm.probe import probe
from internalize.lm.train import train
from internalize.runs import Run
from tests.test_lm_probe import OPTIONS

MADE_OF = [[], [], [1, 2]]
"""Two steps of the question's bits, and the answer of both."""
LAYERS = 3
OWN = {1: 0, 2: 2}


def rows(
    stage: int,
    hidden: int,
    read: tuple[int | None, int | None, int | None],
    pull: tuple[float, float] | None = (1.0, 1.0),
    others: float | None = 1.0,
) -> list[dict[str, Any]]:
    """Of a model whose steps are read from the given layers on."""
    return [
        {
            "stage": stage,
            "hidden": hidden,
            "layer": layer,
            "step": step,
            "shown": float(step > hidden),
            "chance": 0.5,
            "probe": 1.0 if first is not None and layer >= first else 0.5,
            "child_pull": list(pull) if pull and layer else None,
            "other_pull": others if layer else None,
        }
        for step, first in enumerate(read, 1)
        for layer in range(LAYERS + 1)
    ]


def reasons(found: dict[str, Any]) -> dict[int, str]:
    return {each["step"]: each["reason"] for each in found["missing"]}


def test_nothing_is_missing_and_something_is_new():
    _, second = accounts(rows(1, 0, (1, 1, 1)) + rows(1, 2, (1, 1, None)) + rows(2, 2, (1, 1, 3)), OWN, MADE_OF)
    assert second == {"stage": 2, "hidden": 2, "steps": 3, "found": [3], "collapsed": False, "missing": []}


@pytest.mark.parametrize(
    ("before", "now", "pull", "expected"),
    [
        # In the model before both steps were there.
        ((1, 1, None), (1, None, None), (9.0, 9.0), {2: "lost", 3: "waiting"}),
        # They were not, and what they are made of is in the question: nothing to wait for.
        ((1, None, None), (1, None, None), (1.0, 9.0), {2: "faint", 3: "waiting"}),
        ((1, None, None), (1, None, None), (9.0, 9.0), {2: "pulled", 3: "waiting"}),
        # The answer has both of its steps, one of them where no layer is left; and one layer below.
        ((1, 1, None), (1, LAYERS, None), (9.0, 9.0), {3: "late"}),
        ((1, 1, None), (1, LAYERS - 1, None), (9.0, 9.0), {3: "pulled"}),
        # One child alone would not do.
        ((1, 1, None), (1, 1, None), (9.0, ABOVE - 0.1), {3: "faint"}),
        ((1, 1, None), (1, 1, None), (9.0, ABOVE), {3: "pulled"}),
    ],
)
def test_reasons(before: Any, now: Any, pull: Any, expected: dict[int, str]):
    found = accounts(rows(1, 0, (1, 1, 1)) + rows(1, 2, before) + rows(2, 2, now, pull), OWN, MADE_OF)
    assert reasons(found[-1]) == expected
    assert not found[-1]["collapsed"]


def test_collapsed_is_all_that_was_read():
    some, all_ = (
        accounts(rows(1, 2, (1, 1, None)) + rows(2, 2, now), OWN, MADE_OF)[-1]
        for now in ((1, None, None), (None, None, None))
    )
    assert (some["collapsed"], all_["collapsed"]) == (False, True)
    assert reasons(all_) == {1: "lost", 2: "lost", 3: "waiting"}


def test_a_step_that_is_shown_need_not_be_read():
    (found,) = accounts(rows(1, 0, (None, None, None), (9.0, 9.0)), OWN, MADE_OF)
    assert reasons(found)[3] == "waiting"  # its steps are to be written, and the model cannot
    shown = rows(2, 2, (1, LAYERS, None), (9.0, 9.0))
    for row in shown:
        row["shown"] = float(row["step"] != 1)
    (found,) = accounts(shown, OWN, MADE_OF)
    assert reasons(found) == {3: "pulled"}  # the step that is read late stands in the text


def test_layers_at_which_a_child_is_not_there_yet_do_not_count():
    given = rows(2, 2, (1, 2, None), (1.0, 1.0))
    for row in given:
        if row["step"] == 3 and row["layer"] in (1, 2):
            row["child_pull"] = [9.0, 9.0]
    assert reasons(accounts(given, OWN, MADE_OF)[0]) == {3: "faint"}


def test_where_children_are_not_known():
    before, now = rows(1, 2, (1, 1, None), None), rows(2, 2, (1, None, None), None)
    assert reasons(accounts(before + now, OWN)[-1]) == {2: "lost", 3: "unknown"}
    assert reasons(accounts(rows(2, 2, (1, 1, None), None), OWN, MADE_OF)[-1]) == {3: "unknown"}


def test_only_a_stages_own_budget_is_accounted_for():
    assert accounts(rows(2, 1, (None, None, None)), OWN, MADE_OF) == []


def test_read_is_a_part_of_the_way_from_chance():
    layers = [{"layer": n, "chance": 0.25, "probe": p} for n, p in enumerate((0.25, 0.25 + 0.75 * READ - 0.01))]
    assert read_from(layers) is None
    assert read_from([*layers, {"layer": 2, "chance": 0.25, "probe": 0.25 + 0.75 * READ}]) == 2


def test_accounts_of_a_run(tmp_path: Any, capsys: pytest.CaptureFixture[str]):
    run = Run(tmp_path / "run")
    train(OPTIONS, 0, run)
    found = probe(open_kept(run.path, examples=256))["accounts"]
    assert [(each["stage"], each["hidden"], each["steps"]) for each in found] == [(1, 0, 3), (2, 1, 3), (3, 2, 3)]
    for each in found:
        assert {missing["reason"] for missing in each["missing"]} <= {"lost", "waiting", "late", "pulled", "faint"}
    assert main(["lm", "probe", str(run.path), "--examples", "256"]) == 0
    printed = capsys.readouterr().out
    assert all(f"stage {each['stage']}, {each['hidden']} hidden, 3 steps with the answer" in printed for each in found)
    assert main(["lm", "probe", str(run.path), "--examples", "256", "--hidden", "1", "--json"]) == 0
    assert '"accounts": [{"stage": 2' in capsys.readouterr().out.replace("\n", "").replace("  ", "")
