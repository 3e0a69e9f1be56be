"""relaxed.py: without learned parts it is the paper's model, each part follows its formula, and all can be trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from internalize import InputError
from internalize.parallel.interrupt import Interrupted
from internalize.parity import (
    BlockTransformer,
    LevelTransformer,
    ParityTree,
    add_trace,
    draw_bits,
    inference_input,
    paper_gates,
    stage_input,
    stage_loss,
)
from internalize.parity.adamw.ensemble import Training, make_model
from internalize.parity.adamw.train import check_finished, train
from internalize.parity.model.loss import supervised_level_loss
from internalize.parity.model.metrics import gate_distance, infer, measure
from internalize.parity.model.relaxed import RelaxedTransformer
from internalize.parity.model.transformer import set_weights
from internalize.parity.model.weights import full_weights, level_parts
from internalize.parity.options import ParityModelOptions, TrainOptions
from internalize.storage.runs import Run
from tests.tiny import stop_training

TREE = ParityTree.draw(8, 8, 3)
LEARNED: dict[str, dict[str, Any]] = {
    "gates": {"gates": "learned"},
    "input gates": {"gates": "input"},
    "value": {"value": "learned"},
    "residual": {"output": "residual"},
    "streams": {"output": "streams"},
    "mlp": {"link": "mlp"},
    "fitted mlp": {"link": "mlp-fitted"},
    "all": {"gates": "input", "value": "learned", "output": "streams", "link": "mlp", "mask": "causal"},
}
ABLATED: dict[str, dict[str, Any]] = {
    "ones": {"gates": "ones"},
    "cot gates": {"gates": "cot"},
    "causal": {"mask": "causal"},
    "hidden": {"tokens": "hidden"},
}


def relaxed(seeds: tuple[int, ...] = (0,), **parts: Any) -> RelaxedTransformer:
    """Return a model with unstructured attention, the same in every run and for all parts."""
    model = RelaxedTransformer(ParityModelOptions(n=8, k=8, **parts), seeds, torch.float64)
    generator = torch.Generator().manual_seed(1)
    for W in model.W:
        W.data.copy_(torch.randn(TREE.T, TREE.T, generator=generator, dtype=torch.float64))
    return model


def sequences(count: int = 20) -> Tensor:
    return add_trace(TREE, draw_bits(8, 0, 0, count, dtype=torch.float64))[None]


def test_with_nothing_learned_it_is_the_level_form():
    """Values and gradients agree at every stage, for the loss with shown and with hidden tokens."""
    block, sequence = relaxed(), sequences()
    level = LevelTransformer(8, 8, runs=(1,), dtype=torch.float64)
    set_weights(level, level_parts([W[0] for W in block.W], TREE.levels))
    for stage in Training(TrainOptions(n=8, k=8, steps=1, curriculum="icot"), [0]).stages:
        shown = stage_input(sequence, stage)
        hidden = inference_input(sequence[..., :8], TREE.T)
        expected = stage_loss(level(shown, stage.layers), sequence, stage)
        gradients = torch.autograd.grad(expected, list(level.W)[: stage.layers])
        for loss in (
            stage_loss(block(shown, stage.layers), sequence, stage),
            supervised_level_loss(block(hidden, stage.layers), sequence, stage, TREE.levels),
        ):
            torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
            found = [W[0] for W in torch.autograd.grad(loss, list(block.W)[: stage.layers])]
            # Where the level form has no weights the gradient is 0.
            wanted = full_weights([W[0] for W in gradients], TREE.levels)
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("parts", [{"gates": "learned"}, {"gates": "input"}])
def test_gates_at_the_prescribed_values(parts: dict[str, Any]):
    model, prescribed = relaxed(**parts), relaxed()
    wanted = paper_gates(TREE.levels)
    with torch.no_grad():
        for layer in range(3):
            model.named_weights()[f"gate{layer + 1}"].copy_((2 * wanted[layer] - 1) * 50)
    torch.testing.assert_close(model(sequences()), prescribed(sequences()))
    gates = model.gate_values()
    assert gates is not None
    (distance,) = gate_distance(gates, TREE.levels)
    assert set(distance) == {"inputs", "written", "below", "above"}
    assert max(distance.values()) < 1e-12


def test_gate_distance_by_hand():
    """Gates: half open at an input, closed where a node is written, open where one is kept and where one is free."""
    gates = paper_gates(TREE.levels)[None]
    gates[0, 0, 0] = 0.5
    gates[0, 1, 12] = 0.0  # layer 1 writes level 2, which is 12, 13
    gates[0, 1, 8] = 1.0  # level 1 is 8 … 11
    gates[0, 0, 14] = 1.0  # the root, before its layer
    (found,) = gate_distance(gates, TREE.levels)
    assert found == pytest.approx({"inputs": 0.5 / 24, "written": 1 / 7, "below": 1 / (4 + 6), "above": 1 / (3 + 1)})


def test_input_gates_and_values_by_hand():
    """One layer at k = 2, written out."""
    model = RelaxedTransformer(ParityModelOptions(n=3, k=2, gates="input", value="learned"), [0], torch.float64)
    for name, number in {"gate1": 0.3, "gate_state1": -0.7, "gate_update1": 0.9, "value1": 1.3}.items():
        torch.nn.init.constant_(model.named_weights()[name], number)
    D = torch.tensor([[[1.0, -1.0, 1.0, 0.5]]], dtype=torch.float64)
    y = float(-torch.cos(torch.tensor(torch.pi * 1.3 / 3)))
    g = 1 / (1 + float(torch.exp(torch.tensor(-(0.3 - 0.7 * 0.5 + 0.9 * y)))))
    assert float(model(D)[0, 0, 3].detach()) == pytest.approx(g * y + (1 - g) * 0.5, abs=1e-6)


def test_a_residual_stream_is_the_shift_where_tokens_are_hidden():
    """Adding to 0 is overwriting. Shown tokens are added to."""
    residual, shift = relaxed(output="residual"), relaxed()
    hidden = inference_input(sequences()[..., :8], TREE.T)
    torch.testing.assert_close(residual(hidden), shift(hidden))
    assert float((residual(sequences()) - shift(sequences())).detach().abs().max()) > 0.1
    torch.testing.assert_close(relaxed(output="streams")(hidden), shift(hidden))  # four equal streams, averaged


def test_streams_by_hand():
    """Two layers of four streams, written out as a loop."""
    model = relaxed(output="streams")
    generator = torch.Generator().manual_seed(9)
    weights = model.named_weights()
    with torch.no_grad():
        for name in weights:
            if not name.startswith("W"):
                weights[name].add_(torch.randn(weights[name].shape, generator=generator, dtype=torch.float64) * 0.3)
    D = sequences(4)
    X, gates = [D[0].clone() for _ in range(4)], paper_gates(TREE.levels)
    for layer in (1, 2):
        read, write, mix, output = (weights[f"{name}{layer}"][0] for name in ("read", "write", "mix", "output"))
        H = sum((read[s] * X[s] for s in range(4)), torch.zeros_like(X[0]))
        Y = gates[layer - 1] * model.link(H @ model.attention(layer - 1)[0])
        X = [sum((mix[s, r] * X[r] for r in range(4)), torch.zeros_like(H)) + write[s] * Y for s in range(4)]
    torch.testing.assert_close(model(D, 2)[0], sum((output[s] * X[s] for s in range(4)), torch.zeros_like(X[0])))


def test_block_form_is_read_level_by_level():
    """infer() reads each level after its own layer: with open gates later layers overwrite it."""
    model = relaxed(gates="ones")
    bits = sequences()[..., :8]
    by_layer = BlockTransformer.readouts(model, inference_input(bits, TREE.T))
    found = infer(model, bits)
    for level, nodes in enumerate(map(TREE.levels.span, range(4))):
        assert torch.equal(found[..., nodes], by_layer[level][..., nodes])
    assert not torch.equal(found[..., 8:12], by_layer[-1][..., 8:12])
    assert "gate_distance" not in measure(model.requires_grad_(False), [TREE], sequences())[0]


@pytest.mark.parametrize("name", [*LEARNED, *ABLATED])
def test_every_part_trains_resumes_and_is_checked(name: str, tmp_path: Path):
    """A resumed run is bit-for-bit identical to an uninterrupted one, and all that is learned moves in its stage."""
    options = TrainOptions(n=8, k=4, steps=20, batch=50, eval_every=5, eval_samples=50, **(LEARNED | ABLATED)[name])
    alone, stopped = Run(tmp_path / "alone"), Run(tmp_path / "stopped")
    train(options, [4], [alone])
    with pytest.raises(Interrupted):
        train(options, [4], [stopped], report=stop_training(25))
    train(options, [4], [stopped], resume=True)
    weights, start = alone.weights(), make_model(options, [4])
    torch.testing.assert_close(stopped.weights(), weights, rtol=0, atol=0)
    if isinstance(start, RelaxedTransformer):
        still = {key for key, tensor in weights.items() if torch.equal(tensor, start.named_weights()[key][0])}
        # At the root, the only position read there, the last layer mixes zeros.
        assert still == ({"mix2"} if name in ("residual", "streams") else set())
    assert [m["step"] for m in stopped.metrics()] == [m["step"] for m in alone.metrics()]
    assert alone.config["supervised_tokens"] == ("hidden" if name in LEARNED or name == "hidden" else "shown")
    check_finished(alone)
    alone.save_weights({**weights, "W1_full": weights["W1_full"][1:]})
    with pytest.raises(InputError, match=r"W1_full has shape \(10, 11\), but the options require \(11, 11\)"):
        check_finished(alone)


@pytest.mark.parametrize("gates", ["learned", "input"])
def test_the_gradient_of_the_penalty(gates: Any):
    """Its gradient by hand: λ times the gates of all layers that run, at all positions, averaged over samples."""
    options = TrainOptions(n=8, k=4, batch=20, steps=2, gates=gates, gate_penalty=0.5, dtype="float64")
    free, priced = Training(replace(options, gate_penalty=0.0), [0]), Training(options, [0])
    for training in (free, priced):
        training.stage = 1
        training.update()  # leaves its gradients behind
    for layer in (1, 2):
        one, other = (training.parameters[f"gate{layer}"].grad for training in (free, priced))
        assert one is not None
        assert other is not None
        g = torch.sigmoid(torch.tensor(-2.0, dtype=torch.float64))  # u = v = 0 at the start
        torch.testing.assert_close(other - one, torch.full_like(one, 0.5 * float(g * (1 - g))))


def test_later_layers_have_no_optimizer_state():
    """A part of a layer that does not run has no gradient, so its counters start with its stage."""
    training = Training(TrainOptions(n=8, k=4, steps=2, batch=20, **LEARNED["all"]), [0])
    training.update()
    for name, parameter in training.parameters.items():
        layer = next(int(c) for c in name if c.isdigit())
        assert (parameter in training.optimizer.state) == (layer == 1), name


def test_a_network_begins_from_its_runs_seed():
    alone, together = relaxed((5,), link="mlp"), relaxed((4, 5), link="mlp")
    for name, weight in alone.named_weights().items():
        assert torch.equal(weight[0], together.named_weights()[name][1]), name
    one, other = (together.named_weights()["mlp1_weight"][run] for run in (0, 1))
    assert not torch.equal(one, other)


def test_a_fitted_network_is_nearly_the_link():
    model = relaxed((0, 1, 2), link="mlp-fitted")
    z = torch.linspace(-1, 1, 41, dtype=torch.float64).expand(3, 1, 41)
    for network in model.mlp:
        assert float((network(z) - model.link(z)).detach().abs().max()) < 0.05


@pytest.mark.parametrize(
    ("changes", "solved"),
    [
        ({"gates": "ones"}, False),  # the inputs' states collapse to near −1
        ({"mask": "causal"}, True),  # as good as the paper's mask
        ({"gates": "learned", "tokens": "shown"}, False),  # the loss falls, but gates keep the answer that they see
        ({"gates": "learned"}, True),
        ({"gates": "learned", "mask": "causal"}, True),
    ],
    ids=str,
)
def test_what_can_be_trained(changes: dict[str, Any], solved: bool, tmp_path: Path):
    """At n = 16, k = 8 a variant is solved or at chance. Learned gates that matter become the prescribed ones."""
    run = Run(tmp_path / "run")
    (result,) = train(TrainOptions(n=16, k=8, steps=200, eval_every=200, **changes), [0], [run])
    assert result["accuracy"] == 1.0 if solved else result["accuracy"] < 0.7
    assert not solved or result["min_child_attention"] > 0.4
    if solved and "gates" in changes:
        distance = run.metrics()[-1]["gate_distance"]
        assert (distance["inputs"] < 0.02, distance["written"] < 0.05, distance["below"] < 0.02) == (True, True, True)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TrainOptions(gates="open"), "gates='open' is not one of paper, ones, cot, learned, input"),  # type: ignore[arg-type]
        (lambda: TrainOptions(curriculum="cot", gates="ones"), "curriculum=cot is its own one-layer model"),
        (lambda: TrainOptions(gate_bias=float("nan")), "gate_bias=nan is outside"),
        (lambda: TrainOptions(gate_penalty=-1), "gate_penalty=-1"),
        (lambda: TrainOptions(threshold=0), "threshold=0"),
    ],
)
def test_mistakes_are_named(make, words: str):
    with pytest.raises(InputError, match=words):
        make()
