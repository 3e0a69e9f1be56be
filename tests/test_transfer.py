"""One stage for all levels: the columns of explicit CoT as layers, hidden loss; and random initial weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from internalize import Curriculum
from internalize.parity.adamw.ensemble import Training
from internalize.parity.algorithm1.recovery import quantize
from internalize.parity.algorithm1.solve import setting_of, solve
from internalize.parity.algorithm1.streaming import Samples
from internalize.parity.algorithm1.weight_layouts import model_of, stages_of
from internalize.parity.model.backward import LevelGradients
from internalize.parity.model.cot import CoTTransformer
from internalize.parity.model.link import get_link
from internalize.parity.model.loss import stage_loss
from internalize.parity.model.sparse import SparseModel
from internalize.parity.model.transformer import LevelTransformer, set_weights
from internalize.parity.model.weights import columns_as_layers
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.parity.task.data import add_trace, draw_bits, stage_input
from internalize.parity.task.stages import parity_stages
from internalize.parity.task.tree import ParityTree
from internalize.storage.runs import Run
from tests.asking import ask, refused


@pytest.mark.parametrize("link", ["cosine", "quartic"])
@pytest.mark.parametrize(("n", "k"), [(2, 2), (9, 8), (30, 16)])
def test_layers_compute_what_the_chain_writes(n: int, k: int, link: str):
    """The claim of `columns_as_layers`, for random weights, which solve nothing."""
    generator = torch.Generator().manual_seed(n)
    chain = CoTTransformer(n, k, get_link(link), dtype=torch.float64)
    W = 3 * torch.randn(chain.W.shape, generator=generator, dtype=torch.float64)
    set_weights(chain, [W])
    layers = LevelTransformer(n, k, get_link(link), dtype=torch.float64)
    set_weights(layers, columns_as_layers(W, layers.levels))
    bits = draw_bits(n, 0, 0, 50, dtype=torch.float64)
    torch.testing.assert_close(layers.states(bits), chain.generate(bits, by="level"), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("n", "k"), [(30, 16), (70, 32)])
def test_one_step_on_the_chain_answers_without_it(n: int, k: int):
    found = solve(SolveOptions(n=n, k=k, curriculum="cot", transfer=True, test_samples=500))
    assert (found.exact_recovery, found.accuracy, found.steps) == (True, 1.0, 1)
    assert found.max_error < 1e-6
    assert len(found.weights) == k.bit_length() - 1


def test_a_transferred_run_is_a_model_without_a_chain(tmp_path: Path):
    """Its folder holds layers, resumes, and is certified like any other; statements on Algorithm 1's stages are not."""
    out = tmp_path / "run"
    first = ask(f"solve --n 8 --k 4 --curriculum cot --transfer --snapshots --out {out}")
    assert set(Run(out).weights()) == {"W1", "W2"}
    assert ask(f"solve --n 8 --k 4 --curriculum cot --transfer --snapshots --out {out} --resume") == first
    found = ask(f"certify --run {out} --only well-trained gating evaluation theorem-max")["certificates"]
    assert {c["verdict"] for c in found if c["statement"] != "theorem-max"} == {"holds"}
    assert {c["verdict"] for c in found if c["statement"] == "theorem-max"} == {"not applicable"}
    refused(f"solve --transfer --out {tmp_path}/no", "transfer belongs to --curriculum cot")


def test_random_initial_weights(tmp_path: Path):
    """A seed's weights do not depend on other seeds, have the requested size, and 0 is the start of before."""
    options = TrainOptions(n=12, k=8, init_std=0.1)
    both, alone = Training(options, (3, 4)), Training(options, (4,))
    for name in ("W1", "W2", "W3"):
        assert torch.equal(both.weights(1)[name], alone.weights(0)[name])
        assert not torch.equal(both.weights(0)[name], both.weights(1)[name])
    every = torch.cat([w.flatten() for w in Training(TrainOptions(n=64, k=32, init_std=0.1), (0,)).weights(0).values()])
    assert 0.095 < float(every.std()) < 0.105
    assert not any(bool(w.any()) for w in Training(TrainOptions(n=12, k=8), (0,)).weights(0).values())
    refused(f"train --init-std -1 --out {tmp_path}/no", "init_std=-1")


def test_all_levels_in_one_stage_if_hidden_nodes_keep_their_loss(tmp_path: Path):
    out = tmp_path / "run"
    found = ask(
        f"train --n 16 --k 8 --curriculum none --hidden-loss --steps 300 --lr 0.03 --eval-samples 500 --out {out}"
    )
    assert found["accuracy"] > 0.99
    assert min(Run(out).metrics()[-1]["level_accuracy"]) > 0.99
    (judged,) = ask(f"certify --run {out} --only symmetry")["certificates"]
    assert judged["verdict"] == "not applicable"  # every node has a loss
    refused(f"train --curriculum cot --hidden-loss --out {tmp_path}/no", "hidden_loss needs the paper's model")


def test_gradients_with_hidden_loss_are_those_of_the_printed_loss():
    tree = ParityTree.draw(9, 8, 1)
    sequence = add_trace(tree, draw_bits(9, 1, 0, 40, dtype=torch.float64)).unsqueeze(0)
    generator = torch.Generator().manual_seed(1)
    for stage in parity_stages(tree.levels, Curriculum(), hidden_loss=True):
        model = LevelTransformer(9, 8, runs=(1,), dtype=torch.float64)
        set_weights(model, [torch.randn(w.shape, generator=generator, dtype=torch.float64) for w in model.W])
        loss = stage_loss(model(stage_input(sequence, stage), stage.layers), sequence, stage).sum()
        wanted = torch.autograd.grad(loss, list(model.W)[: stage.layers])
        losses = LevelGradients(model)(sequence.mT.contiguous(), stage)
        torch.testing.assert_close(losses.sum(), loss.detach())
        for w, gradient in zip(model.W, wanted, strict=False):
            torch.testing.assert_close(w.grad, gradient)


@pytest.mark.parametrize(("n", "k", "seed"), [(12, 4, 0), (16, 8, 1), (30, 16, 0), (30, 16, 1)])
def test_algorithm_with_hidden_loss_takes_a_step_per_level(n: int, k: int, seed: int):
    """One stage, whose input and loss never change, and log2 k steps; each recovers the next layer."""
    options = SolveOptions(n=n, k=k, seed=seed, curriculum="none", hidden_loss=True, test_samples=500)
    assert len({(stage.hidden, stage.supervised, stage.layers) for stage in stages_of(options)}) == 1
    after: list[list[bool]] = []
    model = model_of(options, ParityTree.draw(n, k, seed), setting_of(options))
    found = solve(
        options, on_stage=lambda now: after.append([model.recovered(now.weights, x) for x in range(len(now.weights))])
    )
    assert (found.solved, found.steps) == (True, k.bit_length() - 1)
    assert found.max_error < 1e-6
    assert after == [[layer <= step for layer in range(found.steps)] for step in range(found.steps)]
    assert not solve(replace(options, hidden_loss=False)).solved


def test_hidden_loss_gradients_are_those_of_the_whole_chain():
    """Every layer up to the one in training, against the loss of the printed model; higher layers do not move."""
    options = SolveOptions(n=9, k=8, curriculum="none", hidden_loss=True, dtype="float64")
    tree = ParityTree.draw(9, 8, 2)
    generator = torch.Generator().manual_seed(2)
    W = [torch.randn(w.shape, generator=generator, dtype=torch.float64) for w in LevelTransformer(9, 8).W]
    samples = Samples(tree, 2, 0, 40, chunk=7, dtype=torch.float64)
    sequence = add_trace(tree, draw_bits(9, 2, 0, 40, dtype=torch.float64))
    for step, stage in enumerate(stages_of(options)):
        model = set_weights(LevelTransformer(9, 8, dtype=torch.float64), W)
        loss = stage_loss(model(stage_input(sequence, stage), stage.layers), sequence, stage)
        wanted = torch.autograd.grad(loss, list(model.W))
        found = model_of(options, tree, setting_of(options)).gradients(samples, W, stage, None)
        for layer in range(3):
            expected = wanted[layer] if layer <= step else torch.zeros_like(W[layer])
            torch.testing.assert_close(found[layer], expected)


@pytest.mark.parametrize(("n", "k"), [(16, 8), (30, 16)])
def test_layers_that_all_move_at_once_lose_their_children(n: int, k: int):
    """The first step puts level 1 at least K above level 2 in every column of layer 3, so children get no weight."""
    options = SolveOptions(n=n, k=k, curriculum="none", hidden_loss=True)
    tree, setting = ParityTree.draw(n, k, 0), setting_of(options)
    last = stages_of(options)[-1]  # moves all layers
    W = [torch.zeros(w.shape, dtype=torch.float64) for w in LevelTransformer(n, k).W]
    gradients = model_of(options, tree, setting).gradients(Samples(tree, 0, 0, 8000), W, last, None)
    K = setting.amplitude
    step = quantize(-K * setting.unit_rates[2] * gradients[2], K)
    lowest, children = step[tree.levels.span(1)], step[tree.levels.span(2)]
    assert bool((lowest.amin(dim=0) >= children.amax(dim=0) + K).all())
    upper = gradients[1][n:]  # one step cannot tell the children of level 2 apart
    assert float((upper - upper.mean(dim=0)).abs().max()) < 1e-7


def test_hidden_loss_of_algorithm_1_from_the_command_line(tmp_path: Path):
    out, words = tmp_path / "run", "solve --n 12 --k 4 --curriculum none --hidden-loss --snapshots"
    first = ask(f"{words} --out {out}")
    assert (first["exact_recovery"], first["steps"]) == (True, 2)
    assert Run(out).config["hidden_loss"] is True
    assert ask(f"{words} --out {out} --resume") == first
    certified = {c["statement"]: c["verdict"] for c in ask(f"certify --run {out}", status=0)["certificates"]}
    assert (certified["well-trained"], certified["theorem-max"]) == ("holds", "not applicable")
    failed = ask(f"solve --n 16 --k 8 --curriculum none --hidden-loss --samples 20 --out {tmp_path}/few", status=1)
    assert "the noise of B=20 samples" in failed["reason"]
    assert "log-icot" in failed["reason"]
    refused(f"solve --hidden-loss --out {tmp_path}/no", "hidden_loss needs --curriculum none")
    refused(f"solve --curriculum none --hidden-loss --mask causal --out {tmp_path}/no", "hidden_loss needs")


def test_training_on_the_chain_ends_with_layers_if_transferred(tmp_path: Path):
    """The run is that of explicit CoT in everything but its final weights, which answer in one pass with its errors."""
    words = "train --n 12 --k 8 --curriculum cot --steps 60 --eval-samples 300 --seed 1"
    plain, moved = ask(f"{words} --out {tmp_path}/cot"), ask(f"{words} --transfer --snapshots --out {tmp_path}/run")
    same = ("accuracy", "l2_error", "max_error", "min_child_attention", "steps")
    assert [moved[name] for name in same] == [plain[name] for name in same]
    assert moved["accuracy"] > 0.99
    run = Run(tmp_path / "run")
    assert {name: tuple(w.shape) for name, w in run.weights().items()} == {"W1": (12, 4), "W2": (16, 2), "W3": (18, 1)}
    for _, snapshot in run.snapshots():
        assert set(snapshot) == {"W1", "W2", "W3"}
    bits = draw_bits(12, 1, 0, 300, "validation")
    truth = add_trace(ParityTree.draw(12, 8, 1), bits)[:, -1]
    error = SparseModel.of(run)(bits) - truth
    assert float(error.square().mean()) == pytest.approx(plain["l2_error"], abs=1e-6)
    assert ask(f"{words} --transfer --out {tmp_path}/run --resume") == moved
    judged = ask(f"certify --run {tmp_path}/run --only gating curriculum")["certificates"]
    assert {c["statement"]: c["verdict"] for c in judged} == {"gating": "holds", "curriculum": "not applicable"}
    refused(f"train --transfer --out {tmp_path}/no", "transfer belongs to --curriculum cot")


def test_transfer_and_hidden_loss_are_compared_like_curricula(tmp_path: Path):
    words = "--sizes 8,4 --methods log-icot transfer hidden-loss --seeds 0:2 --lr 0.1 --steps 40 --batch 100"
    found = ask(f"compare {words} --eval-samples 200 --repeats 1 --jobs 1 --out {tmp_path}/out")
    rows = {(row["optimizer"], row["method"]): row for row in found["rows"]}
    assert len(rows) == 6
    assert {row["solved"] for row in rows.values()} == {2}
    assert {row["passes"] for row in rows.values()} == {1}
    assert {method: rows["adamw", method]["stages"] for _, method in rows} == {
        "log-icot": 2,
        "transfer": 1,
        "hidden-loss": 1,
    }
    assert {method: rows["algorithm-1", method]["steps_to_99"] for _, method in rows} == {
        "log-icot": 2,
        "transfer": 1,
        "hidden-loss": 2,
    }
    equal = {row["budget_samples"] for (optimizer, _), row in rows.items() if optimizer == "algorithm-1"}
    assert len(equal) == 1
