"""`--method adaptive`: which stages it tries, how it returns to the good weights, and resumed runs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from internalize.curriculum import Curriculum, subdivide
from internalize.errors import InputError
from internalize.lm.evaluation.comparison import compare
from internalize.lm.options import ScheduleOptions
from internalize.lm.stages.schedule import Attempt, Best, Schedule
from internalize.lm.training.callback import StageCallback, restore_weights, trained_weights
from internalize.lm.training.models import PromptSpec
from internalize.lm.training.train import train
from internalize.lm.training.trainer_checkpoints import GOOD, whole_checkpoints
from internalize.storage.files import load_tensors
from internalize.storage.runs import Run
from tests.asking import ask
from tests.lm_runs import TINY, assert_same_weights, content

OPTIONS = ScheduleOptions(patience=6, stage_steps=9, first_steps=20, threshold=0.9)
TARGETS = (0, 8, 12, 14)  # of Log-ICoT on a parity with k = 16
NOT_AT_ONCE = {(0, 14): 0.5}
"""Accuracy of hiding 14 steps after stage 0 was good."""


def completed(targets: Sequence[int], accuracy: Callable[[Schedule], float]) -> Schedule:
    """Return the schedule after every stage has passed or used its updates, with an evaluation after every update."""
    schedule = Schedule(OPTIONS, targets[-1] + 1, None, targets)
    for done in range(1, 10_000):
        schedule.advance(done, accuracy(schedule))
        if schedule.good == targets[-1]:
            return schedule
    raise AssertionError("it does not come to its end")


def advanced(
    course: Sequence[float] | Callable[[int], float],
    targets: Sequence[int] = (0, 4, 8),
    *,
    chance: float = 0.0,
    updates: int = 60,
    attempts: int | None = None,
    **changes: Any,
) -> Schedule:
    """Return the schedule after these accuracies, one per update or by stage, or after so many attempts."""
    schedule = Schedule(replace(OPTIONS, **changes), targets[-1] + 1, None, targets, chance)
    for done in range(1, 1 + (updates if callable(course) else len(course))):
        schedule.advance(done, course(schedule.attempts[-1].stage) if callable(course) else course[done - 1])
        if len(schedule.attempts) == attempts:
            break
    return schedule


def tried(schedule: Schedule) -> list[int]:
    return [attempt.stage for attempt in schedule.attempts]


@pytest.mark.parametrize(
    ("accuracies", "stages"),
    [
        ({}, [0, 14]),
        ({0: 0.5}, [0, 14]),  # the explicit stage cannot remove less, so it uses its updates
        (NOT_AT_ONCE, [0, 14, 8, 12, 14]),
        ({**NOT_AT_ONCE, 8: 0.5}, [0, 14, 8, 4, 8, 6, 8, 7, 8, 12, 14]),
        ({**NOT_AT_ONCE, 8: 0.5, 4: 0.5, 2: 0.74}, [0, 14, 8, 4, 2, 1, 8, 5, 8, 7, 8, 12, 14]),
        ({14: 0.5, 13: 0.9}, [0, 14, 8, 12, 14, 13, 14]),
        ({**NOT_AT_ONCE, 12: 0.5, 10: 0.0}, [0, 14, 8, 12, 10, 9, 12, 11, 12, 14]),
    ],
)
def test_attempts(accuracies: dict[Any, float], stages: list[int]):
    """The attempts, if accuracy depends on the number of hidden steps and, with all hidden, on the last good stage."""
    after: list[int] = []

    def accuracy(schedule: Schedule) -> float:
        stage = schedule.attempts[-1].stage
        after.append(stage)
        late = stage == 14 and after.count(14) > 30  # the last stage ends by accuracy only
        return 1.0 if late else accuracies.get(stage, accuracies.get((schedule.good, stage), 1.0))

    assert tried(completed(TARGETS, accuracy)) == stages


def test_how_long_attempts_last():
    schedule = completed(TARGETS, lambda now: float(now.good >= 7 or now.attempts[-1].stage not in (8, 14)))
    assert schedule.attempts[:4] == [Attempt(0, 0), Attempt(2, 14), Attempt(8, 8), Attempt(14, 4)]
    assert schedule.attempts[4:6] == [Attempt(16, 8), Attempt(22, 6)]
    assert [update for update in range(99) if schedule.goes_back(update)] == [8, 14, 22, 30]
    never = advanced([0.0] * 199, (0, 2))
    # 20 updates of the first stage, then patience, then all that a single step may use; the last is a single step, too
    assert never.attempts == [Attempt(0, 0), Attempt(20, 2), Attempt(26, 1), Attempt(35, 2)]
    assert never.good == 1


def test_progress_renews_patience():
    """An attempt continues while its errors drop. Once they have not for `patience` updates, it is given up."""
    course = [1.0, *(0.1 + 0.02 * step for step in range(20)), *([0.5, 0.46] * 10)]
    schedule = advanced(course, stage_steps=1000, attempts=3)
    # a tenth fewer errors each: 0.12, 0.22, 0.30, 0.38 and 0.46; 0.514 would be next
    last_gain = next(done for done, accuracy in enumerate(course, start=1) if done > 1 and accuracy > 0.45)
    assert schedule.attempts == [Attempt(0, 0), Attempt(2, 8), Attempt(last_gain + OPTIONS.patience, 4)]
    assert schedule.best == (0.0, None, schedule.attempts[-1].begins)


def test_falling_loss_is_progress():
    """An attempt whose loss now and then drops by a tenth continues. Once it stops dropping, patience begins to run."""
    schedule = Schedule(replace(OPTIONS, stage_steps=1000), 9, None, (0, 4, 8))
    schedule.advance(1, 1.0, 0.1)
    losses = [2 * 0.95**step for step in range(40)] + [0.26] * 20
    for done, loss in enumerate(losses, start=3):
        schedule.advance(done, 0.0, loss)
        if len(schedule.attempts) == 3:
            break
    # of 0.95, 0.9025, 0.857, … every third is a tenth below the last one counted
    last_gain = 3 + max(step for step in range(0, 40, 3) if losses[step] > 0.26)
    assert schedule.attempts[1:] == [Attempt(2, 8), Attempt(last_gain + OPTIONS.patience, 4)]
    assert Best(0.5, None, 7).after(9, 0.5, 0.85) == (0.5, 0.85, 7)
    assert Best(0.5, 1.0, 7).after(9, 0.6, 0.95) == (0.6, 1.0, 9)
    assert Best(0.5, 1.0, 7).after(9, 0.5, 0.85) == (0.5, 0.85, 9)
    assert Best(0.5, 1.0, 7).after(9, 0.54, 0.95) == (0.5, 1.0, 7)


def test_nothing_is_given_up_at_its_first_evaluation():
    """If evaluations are rarer than patience lasts, progress still takes two evaluations of an attempt to judge."""
    schedule = Schedule(replace(OPTIONS, stage_steps=1000), 9, None, (0, 4, 8))
    for done in range(1, 60, 2 * OPTIONS.patience):
        schedule.advance(done, float(done == 1), 0.5)
    # evaluated at 1, 13, 25, …: each attempt is given up at its second evaluation
    assert schedule.attempts[1:4] == [Attempt(2, 8), Attempt(26, 4), Attempt(50, 2)]


def test_a_nearly_good_stage_passes():
    """When its updates are used up, a stage that is nearly as good as the last one passes, as in Log-ICoT."""
    for course, then in (
        ([0.95, 0.96, 0.94, 0.957, 0.962, 0.95, 0.966, 0.96], 8),
        ([0.1 * step for step in range(8)], 2),
    ):
        schedule = advanced([1.0, *[0.0] * OPTIONS.patience, 0.0, *course], threshold=0.99)
        assert schedule.attempts == [Attempt(0, 0), Attempt(2, 8), Attempt(8, 4), Attempt(17, then)]


def test_patience_beyond_the_updates_of_a_stage():
    schedule = advanced([1.0, *[0.0] * 63], (0, 2), patience=50)
    # the last stage may use any number of updates, so patience ends it; the other one uses all that a stage may
    assert schedule.attempts == [Attempt(0, 0), Attempt(2, 2), Attempt(52, 1), Attempt(61, 2)]
    lasts = advanced([1.0, *[0.8] * 97], (0, 2), patience=50)
    assert lasts.attempts == [Attempt(0, 0), Attempt(2, 2)]  # nearly there, and no stage comes after it


@pytest.mark.parametrize(("explicit", "then"), [(0.5, Attempt(35, 8)), (0.6, Attempt(33, 2))])
def test_a_stage_is_judged_by_the_one_before(explicit: float, then: Attempt):
    """A stage is judged by the accuracy of the stage before it: 0.4 is nearly all of 0.5, but not of 0.6."""
    schedule = advanced(lambda stage: {0: explicit, 8: 0.05}.get(stage, 0.4), updates=35)
    assert schedule.attempts[:4] == [Attempt(0, 0), Attempt(20, 8), Attempt(26, 4), then]


@pytest.mark.parametrize("explicit", [0.0, 0.48, 0.52])
def test_an_explicit_stage_at_chance_is_no_measure(explicit: float):
    """If the explicit stage ends at chance, a later stage at chance has not nearly reached it."""
    schedule = advanced(lambda stage: 0.5 if stage else explicit, chance=0.5, updates=59)
    assert tried(schedule)[:4] == [0, 8, 4, 2]


@given(st.integers(1, 60), st.lists(st.integers(1, 3), max_size=20), st.data())
def test_any_course(length: int, levels: list[int], data: st.DataObject):
    """Whatever the accuracies, the schedule ends, removes at least one step, and stays above the last good stage."""
    known = sorted(levels) or None
    own = Curriculum("log-icot").stages(len(levels) + 1 if known else length, known)
    targets = subdivide([[len(stage.hidden) for stage in own]])
    outcomes = iter(data.draw(st.lists(st.floats(0, 1), max_size=200)))
    goods: list[int] = []

    def accuracy(schedule: Schedule) -> float:
        stage = schedule.attempts[-1].stage
        next_target = min(target for target in targets if target > schedule.good)
        at_once = schedule.good == 0 and stage == targets[-1]
        assert schedule.good < stage <= next_target or at_once
        assert stage - schedule.good == 1 or schedule.may_go_back
        goods.append(schedule.good)
        return next(outcomes, 1.0)

    schedule = completed(targets, accuracy)
    assert goods == sorted(goods)
    assert tried(schedule)[-1] == targets[-1]
    assert all(stage in range(targets[-1] + 1) for stage in tried(schedule))
    of_updates = [schedule.stage(update) for update in range(schedule.attempts[-1].begins + 1)]
    assert len(set(of_updates)) == len(set(tried(schedule)))


@given(st.integers(1, 40))
def test_best_and_worst_course(length: int):
    """If everything passes, all is hidden at once. If only single steps pass, the stages are those of linear ICoT."""
    log = [len(stage.hidden) for stage in Curriculum("log-icot").stages(length)]
    targets = subdivide([log])
    assert tried(completed(targets, lambda schedule: 1.0)) == sorted({0, length - 1})
    at_once = length - 1
    after = completed(targets, lambda now: float(now.good > 0 or now.attempts[-1].stage < at_once or len(log) < 3))
    assert tried(after) == ([0, at_once, *log[1:]] if len(log) > 2 else log)
    worst = completed(targets, lambda now: float(now.attempts[-1].stage - now.good == 1))
    passed = [a for a, b in zip(tried(worst), [*tried(worst)[1:], length], strict=True) if b > a]
    assert passed == list(range(length))


# Runs with made-up accuracy: removals of at most two steps pass. Stages hide 0 … 6 steps, those of Log-ICoT 0, 4 and 6.

RUN = replace(
    TINY, method="adaptive", data="parity:n=8,k=8", advance="accuracy", eval_every=2, patience=4, steps=22, batch=4
)
GOES_BACK = (7, 11)
"""Updates that begin at earlier weights: six hidden from 3 on, given up after 6; then four hidden, given up after
10.
"""


@pytest.fixture
def made_up_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    def right(self: StageCallback, model: Any, stage: int, args: Any, examples: Sequence[Any]) -> int:
        return len(examples) if stage - self.schedule.good <= 2 else 0

    monkeypatch.setattr(StageCallback, "_right", right)
    monkeypatch.setattr(StageCallback, "held_out_loss", lambda *_: 1.0)


Watch = Callable[[int, Any, torch.optim.Optimizer], None]


def watch_updates(monkeypatch: pytest.MonkeyPatch, before: Watch, after: Watch) -> None:
    """Call functions before and after what the callback does at the beginning of every update."""
    event = StageCallback.on_step_begin

    def watched(self: StageCallback, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        before(state.global_step, kwargs["model"], kwargs["optimizer"])
        event(self, args, state, control, **kwargs)
        after(state.global_step, kwargs["model"], kwargs["optimizer"])

    monkeypatch.setattr(StageCallback, "on_step_begin", watched)


@pytest.mark.usefixtures("made_up_accuracy")
def test_returns_to_the_good_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    came: dict[int, dict[str, torch.Tensor]] = {}
    went: dict[int, tuple[dict[str, torch.Tensor], int]] = {}

    def before(update: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        came[update] = trained_weights(model)

    def after(update: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        went[update] = trained_weights(model), len(optimizer.state)

    watch_updates(monkeypatch, before, after)
    run = Run(tmp_path / "run")
    result = train(RUN, 0, run)
    assert [s["hidden"] for s in result["stages"]] == [0, 6, 4, 2, 4, 6]
    assert [s["steps"] for s in result["stages"]] == [3, 4, 4, 2, 2, 7]
    assert [s["passed"] for s in result["stages"]] == [True, False, False, True, True, True]
    assert [(m["step"], m["hidden"]) for m in run.metrics()][:6] == [(2, 0), (4, 6), (6, 6), (8, 4), (10, 4), (12, 2)]
    for update, (new, states) in went.items():
        same = all(torch.equal(weight, new[name]) for name, weight in came[update].items())
        assert same == (update not in GOES_BACK)
        assert (states == 0) == (update in (0, *GOES_BACK))
    for update in GOES_BACK:
        torch.testing.assert_close(went[update][0], came[2], rtol=0, atol=0)


@pytest.mark.usefixtures("made_up_accuracy")
@pytest.mark.parametrize(
    ("changes", "moments"), [({}, (6, 7, 8)), ({"lora_rank": 2, "accumulate": 2}, (6,))], ids=["all", "lora"]
)
def test_killed_around_a_step_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, Any], moments: tuple[int, ...]
):
    """A run that is killed when a stage has been given up, before or after it returns, ends bit-for-bit identical."""
    options = replace(RUN, steps=12, **changes)
    train(options, 0, Run(tmp_path / "left-alone"))
    for moment in moments:
        out = tmp_path / f"killed-{moment}"

        def kill(update: int, model: Any, optimizer: torch.optim.Optimizer, moment: int = moment) -> None:
            if update == moment:
                raise KeyboardInterrupt

        with monkeypatch.context() as broken:
            watch_updates(broken, kill, lambda *_: None)
            with pytest.raises(KeyboardInterrupt):
                train(options, 0, Run(out), checkpoint_steps=1)
        kept = load_tensors(whole_checkpoints(out / "checkpoint")[-1] / GOOD)
        assert all("lora" in name for name in kept) == ("lora_rank" in changes)
        train(options, 0, Run(out), resume=True, checkpoint_steps=1)
        assert content(Run(out)) == content(Run(tmp_path / "left-alone"))


@pytest.mark.usefixtures("made_up_accuracy")
@pytest.mark.parametrize(("method", "kept"), [("log-icot", range(0)), ("adaptive", range(2, 14))])
def test_good_weights_are_kept_only_where_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: Any, kept: Sequence[int]
):
    """Only checkpoints after which training may have to return contain the good weights."""
    found: list[int] = []

    def look(update: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        if (tmp_path / "run" / "checkpoint" / f"checkpoint-{update}" / GOOD).exists():
            found.append(update)

    watch_updates(monkeypatch, look, lambda *_: None)
    train(replace(RUN, method=method, steps=14), 0, Run(tmp_path / "run"), checkpoint_steps=1)
    assert found == list(kept)


def test_loss_is_measured_where_a_stage_may_be_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The held-out loss is in the metrics where a stage may be given up. If it is nan, training ends."""
    monkeypatch.setattr(StageCallback, "_right", lambda *given: len(given[-1]))
    run = Run(tmp_path / "run")
    train(replace(RUN, steps=8, threshold=1.0), 0, run)
    explicit, first, *others = run.metrics()
    assert (explicit["stage"], first["stage"]) == (1, 7)
    assert 0.5 < first["held_out_loss"] < 4  # of six tokens
    assert not any(
        "held_out_loss" in line for line in (explicit, *others)
    )  # the explicit stage cannot go back, the others passed
    monkeypatch.setattr(StageCallback, "held_out_loss", lambda *_: float("nan"))
    with pytest.raises(InputError, match="the loss is nan after 4 updates"):
        train(replace(RUN, steps=8, threshold=1.0), 0)


def test_same_bits_as_all_at_once_if_nothing_stalls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(StageCallback, "_right", lambda *given: len(given[-1]))
    for method, cutoff in (("icot-steps", 1), ("adaptive", None)):
        train(replace(RUN, method=method, cutoff=cutoff, steps=8), 0, Run(tmp_path / method))
    assert_same_weights(tmp_path / "icot-steps", tmp_path / "adaptive")


def test_restore_weights_changes_what_is_trained_only():
    below, above = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    model = torch.nn.Sequential(below.requires_grad_(False), above)
    kept = trained_weights(model)
    assert list(kept) == ["1.weight", "1.bias"]
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)
    frozen = below.weight.clone()
    restore_weights(model, kept)
    torch.testing.assert_close(trained_weights(model), kept, rtol=0, atol=0)
    torch.testing.assert_close(below.weight, frozen, rtol=0, atol=0)


def test_compared_and_asked(tmp_path: Path):
    """`lm compare` has a row for adaptive, and `lm eval` can show any number of steps to its model."""
    options = replace(RUN, threshold=1.0, first_steps=4, stage_steps=4, steps=16, budgets="never")
    rows = compare(options, ["log-icot", "adaptive"], [0], ["steps", "tokens"], out=tmp_path)
    log, adaptive = (row.to_json() for row in rows[:2])
    assert (log["stages"], log["attempts"], log["reached"]) == (3, 3, 1)
    records = Run(tmp_path / "steps" / "adaptive" / "seed-0").result["stages"]
    assert [record["hidden"] for record in records] == [0, 6, 4, 2]
    assert (adaptive["stages"], adaptive["attempts"], adaptive["reached"]) == (7, 4, 0)  # it was given up
    config = Path(log["runs"][0]) / "model" / "internalize.json"
    written = json.loads(config.read_text())
    assert written.pop("targets") == [0, 1, 2]
    config.write_text(json.dumps(written))
    assert PromptSpec.read(config.parent).targets == (0, 1, 2)  # as in models of earlier versions
    for wrong in ([], [0, 1], [1, 2], [0, 2, 1], [0, 3]):
        config.write_text(json.dumps({**written, "targets": wrong}))
        with pytest.raises(InputError, match="do not increase from 0 to 2"):
            PromptSpec.read(config.parent)
    stages = ask(f"lm eval --model {adaptive['runs'][0]} --examples 8 --stages all")["stages"]
    assert [row["hidden"] for row in stages] == list(range(7))
