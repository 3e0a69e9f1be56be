"""Accounts of why a stage makes no progress: each reason where it holds, and the next one where it does not."""

from collections.abc import Callable
from typing import Any

import pytest

from internalize.lm.probe.stalls import ABOVE, READ, accounts, read_from

MADE_OF = [[], [], [1, 2]]
"""The children of each step: two steps made of the question's bits, and the answer made of both."""
LAYERS = 3
OWN = {1: 0, 2: 2}
BEFORE = {2: 1}


def rows(
    stage: int,
    hidden: int,
    read: tuple[int | None, int | None, int | None],
    pull: tuple[float, float] | None = (1.0, 1.0),
    others: float | None = 1.0,
) -> list[dict[str, Any]]:
    """Return the rows of a model whose steps are read from the given layers on."""
    return [
        {
            "stage": stage,
            "hidden": hidden,
            "layer": layer,
            "step": step,
            "shown": float(step > hidden),
            "chance": 0.5,
            "probe": 1.0 if first is not None and layer >= first else 0.5,
            "child_attention": [0.1, 0.1] if layer else None,
            "child_pull": list(pull) if pull and layer else None,
            "other_pull": others if pull and layer else None,
        }
        for step, first in enumerate(read, 1)
        for layer in range(LAYERS + 1)
    ]


def reasons(found: dict[str, Any]) -> dict[int, str]:
    return {each["step"]: each["reason"] for each in found["missing"]}


def test_nothing_is_missing_and_something_is_new():
    given = rows(1, 0, (1, 1, 1)) + rows(1, 2, (1, 1, None)) + rows(2, 2, (1, 1, 3))
    _, second = accounts(given, OWN, BEFORE, MADE_OF)
    assert second == {"stage": 2, "hidden": 2, "steps": 3, "found": [3], "collapsed": False, "missing": []}


@pytest.mark.parametrize(
    ("before", "now", "pull", "expected"),
    [
        # Both steps were in the model before.
        ((1, 1, None), (1, None, None), (9.0, 9.0), {2: "lost", 3: "waiting"}),
        # Step 2 was not, and it is made of the question's bits: nothing to wait for.
        ((1, None, None), (1, None, None), (1.0, 9.0), {2: "faint", 3: "waiting"}),
        ((1, None, None), (1, None, None), (9.0, 9.0), {2: "pulled", 3: "waiting"}),
        # The answer has both steps: one of them where no layer is left, or one layer below.
        ((1, 1, None), (1, LAYERS, None), (9.0, 9.0), {3: "late"}),
        ((1, 1, None), (1, LAYERS - 1, None), (9.0, 9.0), {3: "pulled"}),
        # Both children have to be pulled.
        ((1, 1, None), (1, 1, None), (9.0, ABOVE - 0.1), {3: "faint"}),
        ((1, 1, None), (1, 1, None), (9.0, ABOVE), {3: "pulled"}),
    ],
)
def test_reasons(before: Any, now: Any, pull: Any, expected: dict[int, str]):
    given = rows(1, 0, (1, 1, 1)) + rows(1, 2, before) + rows(2, 2, now, pull)
    found = accounts(given, OWN, BEFORE, MADE_OF)
    assert reasons(found[-1]) == expected
    assert not found[-1]["collapsed"]
    for each in found[-1]["missing"]:
        assert (each["probe"], each["probe_before"]) == (0.5, 0.5 if before[each["step"] - 1] is None else 1.0)


@pytest.mark.parametrize(
    ("pull", "others", "reason"),
    [
        ((2 * ABOVE - 0.1, 9.0), 2.0, "faint"),
        ((2 * ABOVE, 9.0), 2.0, "pulled"),
        ((-1.0, -1.5), -1.0, "faint"),  # neither child is pulled, and other keys even less
        ((0.1, 0.1), 0.0, "faint"),  # noise has a pull of 1
        ((ABOVE, ABOVE), -5.0, "pulled"),
    ],
)
def test_pull_is_over_that_of_others_and_over_noise(pull: tuple[float, float], others: float, reason: str):
    (found,) = accounts(rows(2, 2, (1, 1, None), pull, others), OWN, BEFORE, MADE_OF)
    (missing,) = found["missing"]
    assert (missing["reason"], missing["pull"], missing["other_pull"]) == (reason, min(pull), others)


def test_collapsed_means_that_every_read_step_is_lost():
    some, all_ = (
        accounts(rows(1, 2, (1, 1, None)) + rows(2, 2, now), OWN, BEFORE, MADE_OF)[-1]
        for now in ((1, None, None), (None, None, None))
    )
    assert (some["collapsed"], all_["collapsed"]) == (False, True)
    assert reasons(all_) == {1: "lost", 2: "lost", 3: "waiting"}


def test_without_the_model_before_nothing_is_said_about_it():
    now = rows(2, 2, (1, None, None), (9.0, 9.0))
    for before in ({}, BEFORE):  # unknown; or known, but not read with as many steps hidden
        (found,) = accounts(now, OWN, before, MADE_OF)
        assert (found["found"], found["collapsed"]) == (None, None)
        assert reasons(found) == {2: "pulled", 3: "waiting"}
        assert found["missing"][0]["probe_before"] is None


def test_the_model_before_is_the_one_that_the_stage_began_with():
    """Stages that were tried and given up do not count."""
    own = {1: 0, 2: 1, 3: 2}
    given = rows(1, 2, (1, 1, None)) + rows(2, 2, (None, None, None)) + rows(3, 2, (1, None, None))
    (found,) = (each for each in accounts(given, own, {2: 1, 3: 1}, MADE_OF) if each["stage"] == 3)
    assert reasons(found)[2] == "lost"
    (found,) = (each for each in accounts(given, own, {2: 1, 3: 2}, MADE_OF) if each["stage"] == 3)
    assert (reasons(found)[2], found["found"]) == ("faint", [1])


@pytest.mark.parametrize(
    ("read", "pull", "change", "expected"),
    [
        # A shown step that the model cannot write is no reason to wait. Step 2 is hidden and read too late.
        ((None, LAYERS, None), (9.0, 9.0), lambda row: {"shown": float(row["step"] != 2)}, {1: "pulled", 3: "late"}),
        ((None, LAYERS, None), (9.0, 9.0), lambda row: {"shown": 1.0}, {1: "pulled", 3: "pulled"}),
        # Layers below a child do not count.
        (
            (1, 2, None),
            (1.0, 1.0),
            lambda row: {"child_pull": [9.0, 9.0]} if 0 < row["layer"] < 3 else {},
            {3: "faint"},
        ),
        # Without pulls in the remaining layers the step is late, too.
        ((1, LAYERS - 1, None), None, lambda row: {}, {3: "late"}),
        # The places of the children are unknown.
        ((1, 1, None), None, lambda row: {"child_attention": None}, {3: "unknown"}),
    ],
)
def test_one_model(read: Any, pull: Any, change: Callable[[Any], dict[str, Any]], expected: dict[int, str]):
    (found,) = accounts([row | change(row) for row in rows(2, 2, read, pull)], OWN, BEFORE, MADE_OF)
    assert reasons(found) == expected


def test_where_children_are_not_known():
    before, now = rows(1, 2, (1, 1, None), None), rows(2, 2, (1, None, None), None)
    assert reasons(accounts(before + now, OWN, BEFORE)[-1]) == {2: "lost", 3: "unknown"}
    without = [row for row in rows(2, 2, (1, 1, None)) if row["step"] != 2]  # its token never differs
    assert reasons(accounts(without, OWN, BEFORE, MADE_OF)[-1]) == {3: "unknown"}


def test_only_a_stages_own_budget_is_accounted_for():
    assert accounts(rows(2, 1, (None, None, None)), OWN, BEFORE, MADE_OF) == []


def test_read_is_a_part_of_the_way_from_chance():
    layers = [{"layer": n, "chance": 0.25, "probe": p} for n, p in enumerate((0.25, 0.25 + 0.75 * READ - 0.01))]
    assert read_from(layers) is None
    assert read_from([*layers, {"layer": 2, "chance": 0.25, "probe": 0.25 + 0.75 * READ}]) == 2
