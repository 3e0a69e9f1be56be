"""`solve` and `predict`: folders, JSON, statuses, interruption, two processes; other curricula, masks, gates, grids."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from internalize import Curriculum, InputError
from internalize.commands import cli
from internalize.parity import (
    LiteralTransformer,
    ParityTree,
    add_trace,
    draw_bits,
    get_link,
    named_gates,
    named_mask,
    parity_stages,
    stage_input,
    stage_loss,
)
from internalize.parity.algorithm1 import weight_layouts
from internalize.parity.algorithm1.recovery import quantize
from internalize.parity.algorithm1.solve import SolveState, samples_of, setting_of, solve
from internalize.parity.algorithm1.solve_runs import solve_kept
from internalize.parity.algorithm1.streaming import Samples, gradient_at_zero
from internalize.parity.algorithm1.weight_layouts import BlockModel, CotModel, stages_of
from internalize.parity.model.weights import level_parts
from internalize.parity.options import FixedGates, Mask, SolveOptions
from internalize.parity.theory.prediction import Setting, predict
from internalize.storage.runs import Run, list_runs
from tests.asking import ask, call, refused
from tests.processes import run_on_two_processes
from tests.tiny import stop_solving

SMALL = "solve --n 16 --k 8"


def test_folder_and_json(tmp_path: Path):
    run = Run(tmp_path / "run")
    found = ask(f"{SMALL} --out {run.path} --snapshots")
    assert found == run.result
    assert " ".join(found) == (
        "exact_recovery accuracy l2_error max_error samples_per_stage K grid steps seconds failed_stage stages reason "
        "idle_stages"
    )
    assert " ".join(found["stages"][0]) == "stage signal_min signal_mean noise_max margin recovered idle"
    assert [{name: m[name] for name in found["stages"][0]} for m in run.metrics()] == found["stages"]
    assert found["exact_recovery"] is True
    assert found["max_error"] <= 1e-6
    wanted = [(t, t, t * found["samples_per_stage"]) for t in (1, 2, 3)]
    assert [(m["stage"], m["step"], m["samples"]) for m in run.metrics()] == wanted
    assert {name: tuple(W.shape) for name, W in run.weights().items()} == {"W1": (16, 4), "W2": (20, 2), "W3": (22, 1)}
    assert run.config["kind"] == "solve"
    steps = dict(run.snapshots())
    assert sorted(steps) == [1, 2, 3]
    for stage in (1, 2, 3):  # before rounding, and rounded: the same but for less than half of K
        before, after = steps[stage]["step"], steps[stage][f"W{stage}"]
        assert float((before - after).abs().max()) <= found["K"] / 2
        assert bool((before != after).any())
    assert list_runs(tmp_path)["exact_recovery"].to_list() == [True]


def test_of_several_seeds_all_are_begun_or_none(tmp_path: Path):
    call(f"solve --n 8 --k 4 --seed 2 --samples 700 --out {tmp_path / 'seed-2'}")
    refused(f"solve --n 8 --k 4 --seeds 0:3 --samples 600 --out {tmp_path}", "seed-2")
    assert [path.name for path in tmp_path.iterdir()] == ["seed-2"]


def test_failure_is_status_1_and_one_line(tmp_path: Path):
    said = call(f"solve --preset paper --out {tmp_path / 'paper'} --json", 1)
    assert json.loads(said.out)["failed_stage"] == 2
    (line,) = [line for line in said.err.splitlines() if line.startswith("internalize: seed")]
    assert "K=2 leaves each child attention 0.17 among 30 keys" in line
    assert (Run(tmp_path / "paper").config["grid"], Run(tmp_path / "paper").config["rate"]) == ("1", "paper")
    line, following = call(f"solve --K 4 --samples 20000 --out {tmp_path / 'leaks'}", 1).err.splitlines()[-2:]
    assert following == "internalize: next: internalize predict --n 30 --k 16"
    assert "the layers below leave a signal of 0.4" in line
    assert "K=4 leaves each child attention 0.40 among 30 keys" in line
    assert "noise" not in line
    said = call(f"{SMALL} --samples 100 --seeds 0:3 --out {tmp_path / 'few'}", 1)
    assert len(said.out.splitlines()) == 4
    assert "of 3 seeds recovered every layer" in said.err


def test_large_oracle_errors_are_answered(tmp_path: Path):
    """`predict` says that no number of samples is enough, and `solve` fails and says why."""
    asked = "--n 16 --k 8 --oracle random --oracle-error 1e6 --samples 500"
    found = ask(f"predict {asked}")
    assert (found["success_probability"], found["samples_50"]) == (0.0, None)
    call(f"solve {asked} --out {tmp_path / 'run'}", 1)
    assert ask("predict --n 2 --k 2")["samples_99"] == 1


def test_damaged_checkpoints_and_results_of_a_solve_are_named(tmp_path: Path):
    options, run = SolveOptions(n=16, k=8), Run(tmp_path / "run")
    with pytest.raises(cli.Interrupted):
        solve_kept(options, run, on_stage=stop_solving(1))
    (path,) = (run.path / "checkpoint").glob("*.json")
    good = json.loads(path.read_text())
    records = [{**good["records"][0], "stage": "x"}]
    for change in ({"seconds": "x"}, {"records": records}, {"records": []}, {"records": 5}):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(InputError, match="checkpoint"):
            solve_kept(options, run, resume=True)
    path.write_text(json.dumps(good))
    solve_kept(options, run, resume=True)
    for damage in ({"stages": []}, {"stages": 5}, {}):
        (run.path / "result.json").write_text(json.dumps(damage))
        with pytest.raises(InputError, match=r"result.json: "):
            solve_kept(options, run, resume=True)


def test_two_processes_are_one(tmp_path: Path):
    """Under the real launcher the first process keeps the folder and prints, and the weights are those of one process."""
    two, one = Run(tmp_path / "two"), Run(tmp_path / "one")
    printed = run_on_two_processes(f"{SMALL} --threads 1 --json --out {two.path}".split())
    assert json.loads(printed)["exact_recovery"] is True
    call(f"{SMALL} --threads 1 --out {one.path}")
    torch.testing.assert_close(two.weights(), one.weights(), rtol=0, atol=0)


def test_predict(tmp_path: Path):
    found = ask(f"predict --samples 1810 --out {tmp_path / 'prediction'}")
    assert found == predict(Setting(30, 16), 1810).to_json() == Run(tmp_path / "prediction").result
    assert found["success_probability"] == pytest.approx(0.5, abs=0.01)
    text = call("predict --n 64 --k 32").out
    assert "samples per stage for 50 %" in text
    assert "P(recovered)" not in text


def test_the_first_stage_of_a_level_trains_it_and_the_others_are_idle():
    """Each layer is the rounded step on the samples of its level's first stage, and no later stage moves it."""
    options = SolveOptions(n=30, k=16, seed=2, curriculum="icot")
    result = solve(options)
    tree, setting, B = ParityTree.draw(30, 16, 2), setting_of(options), samples_of(options)
    assert result.solved
    assert (result.steps, result.idle_stages) == (15, 11)
    firsts = [number for number, record in enumerate(result.stages) if not record.idle]
    assert firsts == [0, 8, 12, 14]
    for layer, number in enumerate(firsts):
        samples = Samples(tree, 2, number * B, B)
        gradient = gradient_at_zero(samples, result.weights[:layer], get_link("cosine"))
        wanted = quantize(-setting.amplitude * setting.unit_rates[layer] * gradient, setting.amplitude)
        torch.testing.assert_close(result.weights[layer], wanted, rtol=0, atol=0)
    assert torch.equal(result.weights[0], solve(replace(options, curriculum="log-icot")).weights[0])
    assert solve(SolveOptions(n=30, k=16)).idle_stages == 0


@pytest.mark.parametrize(("n", "k"), [(16, 8), (30, 16)])
def test_explicit_cot_recovers_every_column_in_one_step(n: int, k: int):
    result = solve(SolveOptions(n=n, k=k, curriculum="cot"))
    assert result.solved
    assert result.max_error <= 1e-6
    assert (result.steps, len(result.weights), result.weights[0].shape) == (1, 1, (n + k - 1, k - 1))
    tree = ParityTree.draw(n, k, 0)
    for column, m in enumerate(range(n, tree.T)):
        assert set(result.weights[0][:, column].topk(2).indices.tolist()) == set(tree.children(m))


def test_without_a_chain_it_is_chance():
    result = solve(SolveOptions(n=16, k=8, curriculum="none"))
    assert result.steps == result.failed_stage == 1
    assert not result.exact_recovery
    assert abs(result.accuracy - 0.5) < 0.03
    assert "Proposition 1" in (result.reason or "")
    assert "the defaults (log-icot, level mask, paper gates, grid K" in (result.reason or "")
    assert solve(SolveOptions(n=16, k=2, curriculum="none")).solved  # k = 2 has no chain


@pytest.mark.parametrize("options", [SolveOptions(n=16, k=8), SolveOptions(n=16, k=8, curriculum="icot", samples=600)])
def test_block_form_of_the_papers_model_is_the_fast_path(options: SolveOptions, monkeypatch: pytest.MonkeyPatch):
    fast = solve(options)
    monkeypatch.setattr(weight_layouts, "form_of", lambda options: "block")
    general = solve(options)
    assert general.weights[0].shape == (23, 23)
    tree = ParityTree.draw(16, 8, 0)
    parts = level_parts(general.weights, tree.levels)
    torch.testing.assert_close(parts, list(fast.weights), rtol=0, atol=0)
    assert [W.count_nonzero() for W in general.weights] == [W.count_nonzero() for W in parts]
    assert general.exact_recovery == fast.exact_recovery
    assert general.idle_stages == fast.idle_stages
    for one, other in zip(general.stages, fast.stages, strict=True):
        assert one.recovered == other.recovered
        if not one.idle:
            assert one.margin == pytest.approx(other.margin, abs=1e-5)


@pytest.mark.parametrize(("mask", "gates"), [("causal", "paper"), ("level", "ones"), ("causal", "cot")])
def test_gradients_in_block_form_are_the_literal_models(mask: Mask, gates: FixedGates):
    options = SolveOptions(n=8, k=4, dtype="float64", mask=mask, gates=gates)
    tree = ParityTree.draw(8, 4, 0)
    model = BlockModel(tree, setting_of(options), options)
    literal = LiteralTransformer(
        tree.levels, visible=named_mask(mask, tree.levels), gates=named_gates(gates, tree.levels)
    )
    generator = torch.Generator().manual_seed(1)
    W = [torch.randn(w.shape, generator=generator, dtype=torch.float64) for w in model.start()]
    sequence = add_trace(tree, draw_bits(8, 0, 0, 30, dtype=torch.float64))
    for stage in parity_stages(tree.levels, Curriculum("log-icot")):
        leaves = [w.clone().requires_grad_() for w in W]
        stage_loss(literal(leaves, stage_input(sequence, stage), stage.layers), sequence, stage).backward()
        found = model.gradients(Samples(tree, 0, 0, 30, chunk=7, dtype=torch.float64), W, stage, None)
        for gradient, leaf in zip(found, leaves, strict=True):
            wanted = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-13)


def test_the_causal_mask_does_no_harm():
    options = SolveOptions(n=16, k=8, mask="causal")
    result = solve(options)
    assert result.solved
    assert result.max_error <= 1e-6
    model, W = BlockModel(ParityTree.draw(16, 8, 0), setting_of(options), options), list(result.weights)
    assert model.recovered(W, 0)
    W[0] = W[0].clone()
    W[0][17, 16] = 100.0  # a key that the first node does not see
    assert model.recovered(W, 0)
    W[0][16, 17] = 100.0  # a key of its own level, which the second node sees
    assert not model.recovered(W, 0)


@pytest.mark.parametrize(
    ("gates", "why"), [("ones", "Lemma 1"), ("cot", "including those that earlier layers computed")]
)
def test_other_gates_fail_and_say_why(gates: FixedGates, why: str):
    for seed in range(2):
        result = solve(SolveOptions(n=16, k=8, gates=gates, seed=seed))
        assert result.stages[0].recovered  # the first layer is still recovered
        assert not result.exact_recovery
        assert result.accuracy < 0.7
        assert why in (result.reason or "")
    few = solve(SolveOptions(n=16, k=8, gates=gates, samples=50))
    assert few.failed_stage == 1
    assert "the noise of B=50 samples" in (few.reason or "")  # the samples fail before the gates do


def test_without_rounding_nothing_is_exact():
    rounded, result = solve(SolveOptions(n=16, k=8)), solve(SolveOptions(n=16, k=8, grid="none"))
    assert result.samples_per_stage == rounded.samples_per_stage
    assert (result.exact_recovery, result.failed_stage) == (False, 1)
    assert "grid=none does not round" in (result.reason or "")
    kept: list[SolveState] = []
    solve(SolveOptions(n=16, k=4, grid="none"), on_stage=kept.append)
    assert torch.equal(kept[0].weights[0], kept[0].step)
    assert not torch.equal(kept[1].weights[0], kept[0].weights[0])  # without rounding every layer moves on


def test_explicit_cot_has_a_rate_per_column():
    options = SolveOptions(n=16, k=8, curriculum="cot")
    model = CotModel(ParityTree.draw(16, 8, 0), setting_of(options), options)
    rates = model.rate(stages_of(options)[0]) / model.setting.amplitude
    wanted = [model.setting.unit_rates[level] for level in (0, 0, 0, 0, 1, 1, 2)]
    assert rates.tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("changes", "names", "stop"),
    [
        ({}, ["W1", "W2", "W3"], 2),
        ({"curriculum": "icot"}, ["W1", "W2", "W3"], 5),
        ({"mask": "causal"}, ["W1_full", "W2_full", "W3_full"], 2),
        ({"gates": "ones", "curriculum": "icot"}, ["W1_full", "W2_full", "W3_full"], 3),
        ({"curriculum": "cot"}, ["W"], 1),
    ],
    ids=str,
)
def test_stopped_and_continued(tmp_path: Path, changes: dict, names: list[str], stop: int):
    """Ctrl-C saves the finished stages. The resumed run is bit-for-bit identical to an uninterrupted one."""
    options, run = SolveOptions(n=16, k=8, seed=4, samples=1000, **changes), Run(tmp_path / "run")
    with pytest.raises(cli.Interrupted):
        solve_kept(options, run, on_stage=stop_solving(stop), snapshots=True)
    assert run.checkpoint_steps() == {stop}
    again, alone = solve_kept(options, run, resume=True, snapshots=True), solve(options)
    torch.testing.assert_close(again.weights, alone.weights, rtol=0, atol=0)
    assert again.stages == alone.stages
    assert again.idle_stages == alone.idle_stages
    assert sorted(run.weights()) == names
    assert len(list(run.snapshots())) == alone.steps
    assert [m["step"] for m in run.metrics()] == list(range(1, alone.steps + 1))
    assert run.config["mask"] == options.mask
    assert run.config["gates"] == ("cot" if options.curriculum == "cot" else options.gates)
    assert solve_kept(options, run, resume=True).to_json() == again.to_json()
