"""`lm plan` agrees with training: chances by brute force, collated batches, real models, counted operations."""

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, LlamaConfig

from internalize.errors import InputError
from internalize.lm.evaluation.plan import plan, stage_begins
from internalize.lm.options import LM_METHODS, CurriculumOptions, LmMethod, LmTrainOptions, Replay
from internalize.lm.stages.chains import Chain
from internalize.lm.stages.lengths import expected_lengths
from internalize.lm.stages.removal import TextStages
from internalize.lm.training.flops import Gpu
from internalize.lm.training.internalization import Internalization
from internalize.lm.training.models import make_model
from tests.asking import ask, call

SLOT = 0
TINY = LmTrainOptions(
    data="parity:n=8,k=4", method="log-icot", layers=1, width=8, heads=2, batch=4, eval_examples=4, test_examples=4
)


def chain(prompt: int, units: tuple[int, ...], levels: tuple[int, ...] | None = None, answer: int = 2) -> Chain:
    return Chain((1,) * prompt, tuple((2,) * unit for unit in units), levels, (3,) * answer)


DIFFERENT = [
    chain(3, (1, 2, 1)),
    chain(5, (2, 1, 3, 1, 2)),
    chain(2, (), answer=4),
    chain(3, (4,)),
    chain(3, (1, 2, 1)),
]
CHANCES = [(a, (i + 0.5) / 60, 0.5, 0.9) for a in (0.2, 0.7) for i in range(60)]
"""Half of the examples replay. 60 cells hold whole multiples of 1/1 … 1/6, so the choice of a stage or count is
exact.
"""
SMOOTHED = [(a, b, (j + 0.5) / 32, c) for a, b, _, c in CHANCES for j in range(32)]
"""For λ = ln 2 the offset o has chance 2^-(o+1), so cells of 1/32 are exact up to the end of these chains."""
LEVELED = [chain(3, (1, 1, 2), (1, 1, 2)), chain(2, (3, 1, 1, 1), (1, 2, 2, 3))]


def brute_force(stages: TextStages, chains: list[Chain], chances: list[tuple[float, ...]], *, smooth: bool) -> Any:
    drawn = [[stages.training(c, stage, chance, smooth=smooth) for c in chains for chance in chances]
             for stage in range(stages.count)]  # fmt: skip
    lengths = np.array([[len(row.tokens) for row in rows] for rows in drawn], dtype=float)
    return np.stack([lengths.mean(1), (lengths**2).mean(1)])


@pytest.mark.parametrize("replay_of", ["stages", "counts"])
@pytest.mark.parametrize("removal", ["pad", "delete"])
@pytest.mark.parametrize("method", LM_METHODS)
@pytest.mark.parametrize(
    ("chains", "seen"),
    [(DIFFERENT, DIFFERENT), (LEVELED, LEVELED), (DIFFERENT[1:2], DIFFERENT[:1])],
    ids=["different", "leveled", "longer than those measured"],
)
def test_expected_lengths_are_those_of_every_chance(
    chains: list[Chain], seen: list[Chain], method: LmMethod, removal: Any, replay_of: Any
):
    options = CurriculumOptions(method=method, removal=removal, replay=0.5, replay_of=replay_of)
    stages = TextStages.measure(options, seen, SLOT)
    found = expected_lengths(stages, chains)
    np.testing.assert_allclose(found, brute_force(stages, chains, CHANCES, smooth=True), rtol=1e-12)


@pytest.mark.parametrize("removal", ["pad", "delete"])
@pytest.mark.parametrize("chains", [DIFFERENT, LEVELED], ids=["different", "leveled"])
def test_expected_lengths_of_scattered_replay(chains: list[Chain], removal: Any):
    # With any chance in 0 … 1, all numbers of hidden units are equally likely, and so are the sets of each number.
    options = CurriculumOptions(removal=removal, replay=1.0, replay_of="scattered")
    stages = TextStages.measure(options, chains, SLOT)
    expected = np.zeros(2)
    for c in chains:
        units = len(c.units)
        for gone in product((False, True), repeat=units):
            length = len(stages.scattered(c, gone).tokens)
            share = 1 / ((units + 1) * math.comb(units, sum(gone)) * len(chains))
            expected += share * np.array([length, length**2])
    np.testing.assert_allclose(expected_lengths(stages, chains)[:, 1:], expected[:, None].repeat(stages.last, 1))


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"method": method, "removal": removal, "replay_of": replay_of}
            for method in LM_METHODS
            if method != "cot"
            for removal in ("pad", "delete")
            for replay_of in ("stages", "counts")
        ),
        *({"method": method, "removal": "delete", "side": "right", "cutoff": 3} for method in ("icot", "icot-steps")),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_expected_lengths_with_smoothing(options: dict[str, Any]):
    curriculum = CurriculumOptions(**options, smoothing=math.log(2))
    stages = TextStages.measure(curriculum, DIFFERENT, SLOT)
    few = [DIFFERENT[0], DIFFERENT[1], DIFFERENT[3]]
    for smooth, chances, rtol in ((True, SMOOTHED, 1e-9), (False, CHANCES, 1e-12)):
        expected = brute_force(stages, few, chances, smooth=smooth)
        np.testing.assert_allclose(expected_lengths(stages, few, smooth=smooth), expected, rtol=rtol)


@given(
    st.sampled_from(LM_METHODS),
    st.sampled_from(["pad", "delete"]),
    st.lists(st.lists(st.integers(1, 4), max_size=5), min_size=1, max_size=3),
    st.none() | st.integers(0, 3),
)
def test_without_chance_the_expectation_is_the_length(method: LmMethod, removal: Any, units: Any, slots: int | None):
    options = CurriculumOptions(method=method, removal=removal, replay=0.0, slots=slots if removal == "pad" else None)
    chains = [chain(2, tuple(lengths)) for lengths in units]
    stages = TextStages.measure(options, chains, SLOT)
    chances = [(0.5, 0.5, 0.5, 0.5)]
    np.testing.assert_allclose(expected_lengths(stages, chains), brute_force(stages, chains, chances, smooth=True))


def read_tokens(work: Internalization, begin: int, updates: int) -> list[int]:
    """Count the tokens of each collated update as the Trainer does, by the attention mask."""
    batch = work.options.batch
    positions = (range(update * batch, (update + 1) * batch) for update in range(begin, begin + updates))
    return [int(work.collator(some)["attention_mask"].sum()) for some in positions]


@pytest.mark.parametrize("removal", ["pad", "delete"])
@pytest.mark.parametrize("method", [method for method in LM_METHODS if method != "adaptive"])
def test_tokens_are_those_of_collated_batches(method: LmMethod, removal: Any):
    options = replace(TINY, removal=removal, replay=0.0, advance="steps", stage_steps=3, first_steps=2)
    planned = plan(options, [method]).methods[0]
    work = Internalization(replace(options, method=method))
    begin = 0
    for stage in planned.stages:
        assert stage.hidden == work.stages.hidden[stage.stage - 1]
        assert read_tokens(work, begin, stage.steps) == [stage.tokens_per_update] * stage.steps
        begin += stage.steps
    assert planned.steps == begin
    assert planned.tokens == sum(read_tokens(work, 0, begin))


@pytest.mark.parametrize("replay_of", get_args(Replay))
def test_tokens_of_collated_batches_with_replay_and_smoothing(tmp_path: Path, replay_of: Any):
    lines = [f"{i} {'x ' * (i % 5)}||{'<<1+1=2>> ' * (1 + i % 4)}#### {i}" for i in range(90)]
    file = tmp_path / "data.txt"
    file.write_text("\n".join(lines) + "\n")
    options = replace(TINY, data=str(file), batch=72, eval_examples=9, test_examples=9, levels="steps")
    options = replace(options, removal="delete", replay_of=replay_of, smoothing=1.0)
    options = replace(options, advance="epochs", stages_per_epoch=0.05, first_epochs=10)
    planned = plan(options, ["log-icot"]).methods[0]  # 72 examples remain for training, so an update is an epoch
    work = Internalization(replace(options, method="log-icot"))
    assert [stage.steps for stage in planned.stages] == [30, 20, 20]
    assert [stage.slots for stage in planned.stages] == [0, 0, 0]
    begin = 0
    for stage in planned.stages:
        assert sum(read_tokens(work, begin, stage.steps)) == pytest.approx(stage.tokens, rel=0.01)
        begin += stage.steps
    early = read_tokens(work, 0, 10)
    assert set(early) == {early[0]}  # without smoothing yet: the same examples in another order
    assert planned.stages[0].tokens < 30 * early[0]


def test_published_multiplication_has_46_removals():
    planned = plan(replace(TINY, data="multiply:digits=4", removal="delete"), ["icot", "log-icot"])
    icot, log = planned.methods
    assert [stage.hidden for stage in icot.stages] == list(range(47))
    assert icot.unit == "token"
    assert planned.written.generated_tokens == 46 + 10  # the chain; ####, eight digits and the end
    assert icot.answer.generated_tokens == log.answer.generated_tokens == 10
    assert icot.ratio_to_icot == 1
    assert log.ratio_to_icot == log.flops / icot.flops < 0.1


def test_steps_by_accuracy_are_the_most_that_a_stage_may_take():
    options = replace(TINY, advance="accuracy", steps=100, stage_steps=12, eval_every=5)
    begins = stage_begins(options, 3, None)
    work = Internalization(options)
    for done in range(5, 200, 5):  # as the callback does, with accuracy 0
        work.schedule.advance(done, 0.0)
    assert begins[: work.stages.count] == work.schedule.begins
    planned = plan(options, ["log-icot"]).methods[0]
    assert planned.upper_bound
    assert planned.reason is not None
    assert "upper bound" in planned.reason
    assert [stage.steps for stage in planned.stages] == list(np.diff(begins[: work.stages.count + 1]))
    by_steps = plan(options, ["log-icot"], by="steps").methods[0]
    assert by_steps.steps == sum(stage.steps for stage in by_steps.stages) == 100


@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 40), st.integers(1, 9))
def test_no_stage_by_accuracy_ends_later_than_planned(stages: int, first: int, each: int, every: int):
    options = replace(TINY, advance="accuracy", first_steps=first, stage_steps=each, eval_every=every)
    begins = stage_begins(options, stages, None)
    lengths = np.diff(begins)
    assert len(lengths) == stages
    assert first <= lengths[0] <= first + every + 2
    assert all(each <= length <= each + every + 2 for length in lengths[1:])


@pytest.mark.parametrize("by", ["stages", "steps"])
def test_adaptive_is_planned_as_everything_at_once(by: Any):
    options = replace(TINY, method="icot-steps", data="parity:n=8,k=8", patience=70, cutoff=1)
    at_once, adaptive = plan(options, ["icot-steps", "adaptive"], by=by).methods
    assert [stage.stage for stage in adaptive.stages] == [1, 7]  # of the stages that it may be subdivided into
    assert [replace(s, stage=i + 1) for i, s in enumerate(adaptive.stages)] == list(at_once.stages)
    assert (adaptive.tokens, adaptive.flops, adaptive.steps) == (at_once.tokens, at_once.flops, at_once.steps)
    assert adaptive.upper_bound == (by == "steps")
    assert adaptive.reason is not None
    assert "everything hidden at once" in adaptive.reason
    assert "patience=70" in adaptive.reason
    assert "at worst into 7 of one step each" in adaptive.reason


def test_stages_that_are_not_reached():
    options = replace(TINY, advance="steps", stage_steps=10, steps=15)
    planned = plan(options, ["icot-steps"], by="steps").methods[0]
    assert [stage.steps for stage in planned.stages] == [10, 5, 0]
    assert planned.stages[2].tokens == planned.stages[2].flops == 0
    assert planned.reason == "steps=15 ends before stage 3 of 3 begins, which is after 20"
    assert not planned.upper_bound
    whole = plan(options, ["icot-steps"]).methods[0]
    assert [stage.steps for stage in whole.stages] == [10, 10, 10]
    assert whole.reason is None
    assert plan(replace(options, stop_at=0.9), ["icot-steps"]).methods[0].upper_bound


def test_plan_has_the_size_of_the_model_that_is_trained(tmp_path: Path):
    """Of a model folder only the config and the tokenizer are read."""
    planned, work = plan(TINY, ["log-icot"]), Internalization(TINY)
    model = make_model(TINY, work.config, 0)
    assert planned.size.parameters == sum(p.numel() for p in model.parameters())
    work.save(tmp_path / "model", model)
    (tmp_path / "model" / "model.safetensors").unlink()
    from_folder = plan(replace(TINY, model=str(tmp_path / "model")), ["log-icot"])
    assert (from_folder.size, from_folder.methods) == (planned.size, planned.methods)


def test_answers_are_prompts_of_the_last_stage_and_what_follows():
    for method in LM_METHODS:
        planned = plan(TINY, [method])
        work = Internalization(replace(TINY, method=method))
        some = work.text.chains(work.leveled([work.source.train(0)]))[0]
        prompt = work.stages.prompt(some, work.stages.last)
        row = work.stages.training(some, work.stages.last, (0.9, 0.9, 0.9, 0.9))
        answer = planned.methods[0].answer
        assert answer.given_tokens == len(prompt.tokens)
        assert answer.given_tokens + answer.generated_tokens == len(row.tokens)


def test_no_memory_is_taken_for_a_large_model(tmp_path: Path):
    config = LlamaConfig(num_hidden_layers=2)  # the layers of a 7-billion-parameter model
    config.save_pretrained(tmp_path)
    options = f"--data parity:n=8,k=4 --model {tmp_path / 'config.json'} --batch 4 --eval-examples 4 --test-examples 4"
    found = ask(f"lm plan {options} --out {tmp_path / 'kept'}")
    assert found == json.loads((tmp_path / "kept" / "plan.json").read_text())
    assert [row["method"] for row in found["methods"]] == ["icot", "icot-steps", "log-icot", "adaptive"]
    assert found["size"]["body"] == 2 * (4 * 4096**2 + 3 * 4096 * 11008)
    for row in found["methods"]:
        assert row["gpu_hours"] == pytest.approx(row["flops"] / 312e12 / 0.4 / 3600)
        assert row["tokens"] == sum(stage["tokens"] for stage in row["stages"])


def test_tables():
    command = (
        "lm plan --data parity:n=8,k=4 --layers 1 --width 8 --heads 2 --batch 4 --eval-examples 4 --test-examples 4"
    )
    shown = call(command)
    expected = ["method", "icot", "icot-steps", "log-icot", "adaptive"]
    assert [line.split()[0] for line in shown.out.splitlines()[:5]] == expected
    assert "icot, icot-steps, log-icot: an upper bound" in shown.err
    assert "adaptive" not in call(f"{command} --advance steps").out  # which adaptive does not allow
    one = ask(f"{command} --methods cot")
    assert {"stages", "tokens", "flops", "steps", "gpu_hours"} <= one.keys()
    assert one["stages"] == one["methods"][0]["stages"]
    lines = call(f"{command} --methods log-icot").out.splitlines()
    assert lines[0].startswith("stage  hidden steps")
    assert lines[1].startswith("1 ")


@pytest.mark.parametrize(
    ("changed", "arguments", "message"),
    [
        ({}, {"methods": []}, "methods is empty"),
        ({}, {"methods": ["fast"]}, "method='fast' is not one of"),
        ({}, {"by": "hours"}, "by='hours' is neither"),
        ({"method": "icot", "cutoff": 3}, {"methods": ["log-icot"]}, "side and cutoff belong to icot"),
        ({"advance": "epochs"}, {}, "advance=epochs needs data with an end"),
        ({"data": "nowhere.txt"}, {}, "neither a file nor a task"),
        ({"model": "nowhere/config.json"}, {}, "cannot be loaded"),
    ],
)
def test_refusals(changed: dict[str, Any], arguments: dict[str, Any], message: str):
    asked: dict[str, Any] = {"methods": ["log-icot"], **arguments}
    with pytest.raises(InputError, match=message):
        plan(replace(TINY, **changed), **asked)


@pytest.mark.parametrize(
    ("flops", "utilization", "message"),
    [(0.0, 0.4, "gpu_flops=0.0"), (math.inf, 0.4, "gpu_flops=inf"), (1.0, 0.0, "utilization=0.0"), (1.0, 1.1, "1.1")],
)
def test_impossible_gpus(flops: float, utilization: float, message: str):
    with pytest.raises(InputError, match=message):
        Gpu(flops, utilization)


def test_models_that_cannot_be_planned(tmp_path: Path):
    from transformers import T5Config

    T5Config(num_layers=1).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="cannot be built"):
        plan(replace(TINY, model=str(tmp_path / "config.json")), ["log-icot"])
    GPT2Config(n_positions=4).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="4 positions, but the longest example needs"):
        plan(replace(TINY, model=str(tmp_path / "config.json")), ["log-icot"])


def test_cutoff_is_for_the_methods_that_have_one():
    icot, log = plan(replace(TINY, method="icot", cutoff=1), ["icot", "log-icot"]).methods
    assert [stage.hidden for stage in icot.stages] == [0, 2]
    assert log.stages[-1].hidden == 2
