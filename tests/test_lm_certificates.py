"""`lm certify`: second derivations, a lie for each statement, models to which it does not apply, the command."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from internalize.certificate import Certificate
from internalize.errors import InputError
from internalize.lm.certificates import STATEMENTS, LmWorld, certify
from internalize.lm.probe.probe import probe
from internalize.lm.probe.probed_models import ProbedModels
from internalize.lm.training.models import make_model
from internalize.lm.training.train import train
from internalize.storage.runs import Run
from tests.asking import call
from tests.lm_runs import TINY, untrained

OPTIONS = replace(
    TINY,
    data="parity:n=12,k=4",
    method="icot-steps",
    layers=3,
    width=64,
    heads=4,
    batch=48,
    lr=3e-3,
    steps=800,
    advance="accuracy",
    stage_steps=400,
    warmup=10,
    eval_every=10,
    eval_examples=96,
    layer_loss=1.0,
    stop_at=0.98,
    consolidate=60,
    keep_stages=True,
    budgets="never",
)
"""Trained in seconds. The three stages hide 0, 1 and 2 steps."""
NODES = ("child-attention", "child-mass", "hidden-nodes", "frozen-nodes")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("certify") / "run")
    assert train(OPTIONS, 0, run)["exact_match"] > 0.9
    return run


@pytest.fixture(scope="module")
def world(run: Run) -> LmWorld:
    return LmWorld.of_folder(run.path, 1024)


@dataclass(frozen=True)
class Changed(ProbedModels):
    """Models changed by a function `lie` of the stage and the model."""

    lie: Callable[[int, Any], Any] = lambda stage, model: model

    def model(self, stage: int) -> Any:
        found = super().model(stage)
        with torch.no_grad():
            return self.lie(stage, found) or found


def changed(world: LmWorld, lie: Callable[[int, Any], Any]) -> LmWorld:
    """Return a world whose models are changed by this function."""
    return LmWorld(Changed(**vars(world.kept), lie=lie), world.task)


def instead(world: LmWorld, **measured: Any) -> LmWorld:
    """Return a copy of the world in which some measured values are replaced."""
    other = LmWorld(world.kept, world.task)
    other.__dict__.update({**world.__dict__, **measured})
    return other


def only(world: LmWorld, name: str) -> Certificate:
    (found,) = certify(world, [name])
    return found


def test_a_trained_model(world: LmWorld):
    seen: list[tuple[int, int, str]] = []
    found = {each.statement: each for each in certify(world, report=lambda *done: seen.append(done))}
    assert list(found) == list(STATEMENTS) == [*NODES, "answer"]
    assert seen == [(i + 1, 5, name) for i, name in enumerate(STATEMENTS)]
    for name in ("hidden-nodes", "frozen-nodes", "answer"):
        assert found[name].verdict == "holds", found[name]
    for each in found.values():
        assert each.measured is not None
        assert each.bound is not None
        assert 0 <= each.measured <= 1
        assert each.margin == each.bound - each.measured
        assert (each.seeds, each.dtype) == ((0,), "float32")
        assert each.claim.startswith("after ")  # no statement is the paper's own
        assert each.reason


def test_levels_layers_and_places(world: LmWorld):
    assert world.levels == [1, 1, 2]
    assert [list(world.usable(node)) for node in range(3)] == [[1, 2], [1, 2], [2, 3]]
    (a, b), (c, d), root = world.task.children
    assert root == (12, 13)
    assert [sorted(world.leaves(node)) for node in range(3)] == [[a, b], [c, d], [a, b, c, d]]
    slots = {12: (13, 12, b), 13: (14, 13, d)}  # 12 bits and a separator, then the slots
    assert world.places == {a: (a,), b: (b,), c: (c,), d: (d,), **slots}
    rows = [row.tokens for row in world.sequences.rows]
    assert {row[13] for row in rows} == {row[14] for row in rows} == {world.kept.text.slot}


def test_errors_are_those_of_lm_probe(world: LmWorld):
    rows = [row for row in probe(replace(world.kept, asked=[3]))["rows"] if row["step"] <= 2]
    best = [max(r["probe"] for r in rows if r["step"] == step and r["layer"] in (1, 2)) for step in (1, 2)]
    assert only(world, "hidden-nodes").measured == pytest.approx(1 - min(best))


def test_attention_is_the_models_own(world: LmWorld):
    """Attention is derived a second time from the model's own outputs, by loops."""
    model = world.kept.model(3)
    model.set_attn_implementation("eager")
    rows = torch.tensor([row.tokens for row in world.sequences.rows[:512]])
    with torch.no_grad():
        layers = [layer.mean(0) for layer in model(rows, output_attentions=True).attentions]  # heads × queries × keys
    keys, weaker = rows.shape[1], list[float]()
    for node, children in enumerate(world.task.children):
        query, best = (12, 13, 15)[node], [[0.0] * keys, [0.0] * keys]
        for layer in world.usable(node):
            for one, child in zip(best, children, strict=True):
                for place in world.places[child]:
                    if (child, place, layer - 1) in world.held:
                        one[place] = max(one[place], layers[layer - 1][:, query, place].max().item())
        weaker.append(max(min(best[0][p], best[1][q]) for p in range(keys) for q in range(keys) if p != q))
    assert only(world, "child-attention").measured == pytest.approx(max(0, 0.5 - min(weaker)), abs=1e-5)


def looking(world: LmWorld, at: dict[int, dict[int, float]], layers: tuple[int, ...] = (1, 2, 3)) -> LmWorld:
    """Return a world whose model has this attention: for each node the share of each key, in one of two heads.

    Every place holds everything that it may hold.
    """
    every = [torch.zeros(3, 2, 18) for _ in range(3)]
    for node, shares in at.items():
        for place, share in shares.items():
            for layer in layers:
                every[layer - 1][node, 1, place] = share
    held = {(child, place, layer) for child, places in world.places.items() for place in places for layer in range(3)}
    return instead(world, attention=every, held=held)


def test_attention_to_the_children(world: LmWorld):
    (a, b), (c, d), _ = world.task.children
    halves = {0: {a: 0.5, b: 0.5}, 1: {c: 0.5, d: 0.5}, 2: {12: 0.5, 13: 0.5}}
    for shares in (halves, halves | {2: {13: 0.5, 14: 0.5}}, halves | {2: {b: 0.5, d: 0.5}}):
        for name in ("child-attention", "child-mass"):
            found = only(looking(world, shares), name)
            assert (found.verdict, found.measured) == ("holds", 0)
    lies = {
        "other bits": halves | {0: {c: 0.5, d: 0.5}},
        "one child": halves | {2: {12: 1.0}},
        "one place for both": halves | {2: {13: 0.5}},
        "too little": halves | {1: {c: 0.24, d: 0.24}},
    }
    for lie, shares in lies.items():
        assert only(looking(world, shares), "child-attention").verdict == "violated", lie
    for lie in ("other bits", "too little"):
        assert only(looking(world, lies[lie]), "child-mass").verdict == "violated", lie
    too_early = only(looking(world, halves, layers=(1,)), "child-attention")  # no step is computed before layer 1
    assert (too_early.verdict, too_early.measured) == ("violated", 0.5)
    assert "the answer has 0.000" in (too_early.reason or "")
    nothing_there = instead(looking(world, halves), held={each for each in world.held if each[0] < 12})
    assert only(nothing_there, "child-attention").measured == 0.5


def uniform(stage: int, model: Any) -> None:
    """Set queries and keys to 0."""
    for block in model.transformer.h:
        block.attn.c_attn.weight[:, : 2 * OPTIONS.width] = 0
        block.attn.c_attn.bias[: 2 * OPTIONS.width] = 0


def untrained_last(stage: int, model: Any) -> Any:
    """Replace the model of the last stage by an untrained one."""
    return make_model(OPTIONS, model.config, 7).eval() if stage == 3 else None


def contrary(stage: int, model: Any) -> None:
    """Negate what the head reads."""
    model.transformer.ln_f.weight.neg_()
    model.transformer.ln_f.bias.neg_()


def with_nan(stage: int, model: Any) -> None:
    """Put a nan into a layer."""
    model.transformer.h[1].mlp.c_fc.bias[0] = float("nan")


@pytest.mark.parametrize(
    ("name", "lie"),
    [
        ("child-attention", uniform),
        ("child-mass", uniform),
        ("frozen-nodes", untrained_last),
        ("answer", contrary),
        ("answer", untrained_last),
    ],
)
def test_lies(world: LmWorld, name: str, lie: Callable[[int, Any], Any]):
    found = only(changed(world, lie), name)
    assert found.verdict == "violated", found


def test_a_model_without_numbers(world: LmWorld):
    found = certify(changed(world, with_nan))
    assert {(each.verdict, each.to_json()["measured"]) for each in found} == {("violated", None)}


def test_a_lie_about_the_nodes(world: LmWorld):
    """With the steps of another question the model, whose input is the same, does not hold the nodes."""
    examples = world.kept.examples
    others = [replace(e, steps=o.steps) for e, o in zip(examples, examples[1:] + examples[:1], strict=True)]
    lying = LmWorld(replace(world.kept, examples=others), world.task)
    found = only(lying, "hidden-nodes")
    assert found.verdict == "violated"
    assert found.measured is not None
    assert found.measured > 0.3
    assert only(lying, "answer") == only(world, "answer")


def test_states_that_give_everything_away_are_vacuous(world: LmWorld):
    """If the parity of any two bits can be read from the states, the statement is vacuous."""
    bits = torch.tensor([[1.0 - 2 * int(word) for word in e.question.split()] for e in world.kept.examples])
    products = (bits[:, :, None] * bits[:, None]).flatten(1)
    states = products[:, None].expand(-1, 16, -1)
    found = only(instead(world, readings=replace(world.readings, states=[states] * 4)), "hidden-nodes")
    assert (found.verdict, found.measured) == ("vacuous", 0)


def fresh(folder: Path, **more: Any) -> LmWorld:
    """Write an untrained model and return its world."""
    return LmWorld.of_folder(untrained(folder / "model", **{"data": "parity:n=8,k=4", "layers": 2, **more}), 128)


@pytest.mark.parametrize(
    ("more", "reasons"),
    [
        ({"layers": 2}, {}),
        ({"method": "cot"}, dict.fromkeys(STATEMENTS, "the last stage of cot shows 2 steps")),
        ({"removal": "delete"}, dict.fromkeys(("child-attention", "child-mass"), "deleted steps leave no slots")),
        ({"layers": 1}, dict.fromkeys(NODES, "1 layers are fewer than the 2 levels of the tree")),
        ({"data": "parity:n=8,k=2"}, {"hidden-nodes": "k=2 has no hidden nodes"}),
    ],
    ids=lambda value: " ".join(map(str, value.values())),
)
def test_what_does_not_apply(tmp_path: Path, more: dict[str, Any], reasons: dict[str, str]):
    reasons = {"frozen-nodes": "the stages were not kept", **reasons}
    found = {each.statement: each for each in certify(fresh(tmp_path, **more))}
    assert {name for name, each in found.items() if each.verdict == "not applicable"} == reasons.keys()
    for name, reason in reasons.items():
        assert reason in (found[name].reason or "")


@pytest.mark.parametrize("data", ["multiply:digits=2", "parity:n=8,k=4,chain=running"])
def test_data_without_a_tree(data: str, tmp_path: Path):
    with pytest.raises(InputError, match="other data have no tree to certify"):
        fresh(tmp_path, data=data)


def verdicts(table: str) -> list[list[str]]:
    """Return the verdict and statement of each row. The reason below a row is indented."""
    return [line.split()[:2] for line in table.splitlines()[1:] if not line.startswith(" ")]


def test_command(run: Run, tmp_path: Path):
    command = f"lm certify {run.path} --examples 512 --only answer hidden-nodes"
    said = call(f"{command} --json --out {tmp_path / 'out'}")
    result = json.loads(said.out)
    assert result == Run(tmp_path / "out").result
    assert (result["data"], result["examples"]) == ("parity:n=12,k=4,seed=0", 512)
    assert [each["statement"] for each in result["certificates"]] == ["hidden-nodes", "answer"]
    assert "lm certify: 2/2" in said.err
    said = call(command)
    assert verdicts(said.out) == [["holds", "hidden-nodes"], ["holds", "answer"]]
    assert said.err.splitlines()[-2] == "internalize: 2 holds"


def test_a_violation_is_status_1(tmp_path: Path):
    fresh(tmp_path)
    said = call(f"lm certify {tmp_path / 'model'} --examples 64 --only answer frozen-nodes", 1)
    assert [found[0] for found in verdicts(said.out)] == ["violated", "not"]
    assert said.err.splitlines()[-2] == "internalize: 1 violated, 1 not applicable"


def test_a_run_without_stages_is_judged_by_its_model(run: Run, tmp_path: Path):
    for name in ("config.json", "model"):
        (tmp_path / name).symlink_to(run.path / name)
    said = call(f"lm certify {tmp_path} --examples 256 --only answer frozen-nodes")
    assert "    the stages were not kept" in said.out  # below its row
