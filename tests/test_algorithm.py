"""algorithm.py, streaming.py and the bound of freezing.py: Algorithm 1 solves, freezes, fails and says why."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from internalize import InputError
from internalize.parity import (
    COSINE,
    QUARTIC,
    Levels,
    LevelTransformer,
    Link,
    ParityTree,
    add_trace,
    draw_bits,
)
from internalize.parity.algorithm1.recovery import recovered_columns, recovered_weights
from internalize.parity.algorithm1.solve import SolveResult, setting_of, solve
from internalize.parity.algorithm1.streaming import Samples, all_gradients, answers, gradient_at_zero, true_values
from internalize.parity.model.sparse import SparseModel, level_writes
from internalize.parity.options import SolveOptions
from internalize.parity.theory.freezing import frozen_gradient_bounds, off_child_mass
from internalize.parity.theory.prediction import theorem_log10_n

LINKS = [COSINE, QUARTIC]


def trained(tree: ParityTree, layers: int, K: float) -> list[Tensor]:
    """Recovered weights in the first layers, 0 in the others."""
    return [w if layer < layers else w.zero_() for layer, w in enumerate(recovered_weights(tree, "level", K))]


def assert_same_weights(a: SolveResult, b: SolveResult) -> None:
    assert len(a.weights) == len(b.weights)
    for first, second in zip(a.weights, b.weights, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


# ---------------------------------------------------------------- solving


@pytest.mark.parametrize(("n", "k"), [(16, 8), (16, 16), (30, 16), (64, 32)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_defaults_recover_every_layer(n: int, k: int, seed: int):
    result = solve(SolveOptions(n=n, k=k, seed=seed))
    assert result.exact_recovery
    assert result.accuracy == 1.0
    assert result.max_error <= 1e-6
    assert result.failed_stage is result.reason is None
    assert [record.stage for record in result.stages] == list(range(1, Levels(n, k).L + 1))
    for record in result.stages:
        assert record.recovered
        assert record.margin > 0
        assert 0.6 < record.signal_min <= record.signal_mean < 1.4
    tree = ParityTree.draw(n, k, seed)
    for layer, W in enumerate(result.weights):
        children = set(tree.layer_children(layer)[0])
        assert set(W[:, 0].topk(2).indices.tolist()) == children


@pytest.mark.parametrize("options", [SolveOptions(link="quartic"), SolveOptions(grid="1"), SolveOptions(rate="paper")])
def test_other_settings_recover_too(options: SolveOptions):
    result = solve(options)
    assert result.solved
    assert result.max_error <= 1e-6
    if options.grid == "1":
        assert all(bool((W.round() == W).all()) for W in result.weights)
        assert result.samples_per_stage > 50 * solve(SolveOptions()).samples_per_stage


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8])
def test_the_smallest_problems(n: int):
    """Non-children at −K, on a rounding boundary (n = 6) or below; two bits, where there is nothing to learn."""
    for k in (2, 4, 8):
        if k <= n:
            results = [solve(SolveOptions(n=n, k=k, seed=seed, test_samples=100)) for seed in range(5)]
            assert all(result.solved for result in results)
    if n == 2:
        assert not solve(SolveOptions(n=2, k=2)).weights[0].any()


def test_output_is_the_contracts(capsys: pytest.CaptureFixture[str]):
    seen = []
    result = solve(SolveOptions(n=16, k=4), on_stage=seen.append)
    found = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert set(found) == {
        *("exact_recovery", "accuracy", "l2_error", "max_error", "samples_per_stage", "K", "grid", "steps", "seconds"),
        *("failed_stage", "stages", "reason", "idle_stages"),
    }
    assert set(found["stages"][0]) == {"stage", "signal_min", "signal_mean", "noise_max", "margin", "recovered", "idle"}
    assert [vars(solving.records[-1]) for solving in seen] == found["stages"]
    assert capsys.readouterr().out == ""


def test_memory_does_not_change_the_weights():
    """Chunks of 1 000, of 7 777 and the whole: the same sums, so the same weights; float64 as well."""
    options = SolveOptions(n=30, k=16, seed=3)
    whole = solve(options)
    assert_same_weights(whole, solve(replace(options, chunk=1000)))
    assert_same_weights(whole, solve(replace(options, chunk=7777)))
    assert_same_weights(whole, solve(replace(options, dtype="float64")))


# ---------------------------------------------------------------- failing


def test_the_papers_constants_fail_and_say_why():
    for seed in range(3):
        result = solve(SolveOptions(n=30, k=16, seed=seed, preset="paper"))
        assert (result.K, result.grid, result.samples_per_stage) == (2, "1", 27_000)
        assert not result.solved
        assert result.accuracy < 0.6
        assert result.reason is not None
        assert "\n" not in result.reason
        assert "K=2 leaves each child attention 0.17 among 30 keys" in result.reason
        assert f"beyond n = 10^{theorem_log10_n(1.0):.0f}" in result.reason
        assert "the defaults (grid K, calibrated rate, K=12) would succeed with" in result.reason


def test_too_few_samples_fail_and_say_how_many_it_takes():
    result = solve(SolveOptions(samples=300))
    assert result.failed_stage is not None
    assert not result.solved
    enough = setting_of(SolveOptions()).samples_for(0.01)
    assert result.reason is not None
    assert f"samples={enough} would succeed with probability 0.99" in result.reason
    assert result.stages[result.failed_stage - 1].margin < 0
    assert result.steps == 4  # Algorithm 1 goes on; stopping is asked for
    assert solve(SolveOptions(samples=300), stop_at_failure=True).steps == result.failed_stage


def test_margin_is_negative_exactly_if_not_recovered():
    signs = set()
    for seed in range(40):
        for record in solve(SolveOptions(n=16, k=8, seed=seed, samples=550, test_samples=1)).stages:
            assert (record.margin > 0) is record.recovered
            signs.add(record.recovered)
    assert signs == {True, False}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "samples=0 is outside 1"),
        ({"chunk": 0}, "chunk=0 is outside 1"),
        ({"epsilon": 0.0}, "epsilon=0.0 is outside"),
        ({"seed": -1}, "seed=-1 is outside"),
        ({"preset": "paper", "K": 3.0}, "the paper's preset sets both from epsilon"),
        ({"K": 0.0}, "K=0.0 is outside"),
        ({"n": 12, "k": 12}, "k=12 is not a power of two"),
    ],
)
def test_refusals(change: dict, message: str):
    with pytest.raises(InputError, match=message):
        solve(replace(SolveOptions(), **change))


def test_a_tree_of_ones_own():
    tree = ParityTree(12, (0, 3, 5, 11), (11, 0, 5, 3))
    result = solve(SolveOptions(n=12, k=4), tree)
    assert result.solved
    assert all(
        bool(recovered_columns(W, tree.layer_children(layer), result.K).all()) for layer, W in enumerate(result.weights)
    )
    with pytest.raises(InputError, match="a tree of n=12, k=4 for a request of n=13, k=4"):
        solve(SolveOptions(n=13, k=4), tree)


def test_refuses_to_choose_samples_where_none_suffice():
    with pytest.raises(InputError, match="stage 1 fails with any number of samples on the grid K.*signal 0.492"):
        solve(SolveOptions(n=8, k=4, rate="paper"))


# ---------------------------------------------------------------- freezing


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
@pytest.mark.parametrize("K", [3.0, 6.0, 10.0])
def test_bound_of_the_frozen_gradient(link: Link, K: float):
    """The proof's bound against autograd on single samples, every stage and layer: never exceeded, and not idle.

    It is a bound for the worst sample, and of one layer's worst weight it takes the worst of every factor.
    """
    tree = ParityTree.draw(16, 16, seed=4)
    samples = [Samples(tree, 0, index, 1, dtype=torch.float64) for index in range(60)]
    for stage in range(1, tree.L):
        W = trained(tree, stage, K)
        masses = [off_child_mass(tree.levels.level_end[layer], K) for layer in range(stage)]
        bounds = frozen_gradient_bounds(tree.levels, link, masses)
        alone = [all_gradients(sample, W, link, stage) for sample in samples]
        assert len(bounds) == stage
        for layer, bound in enumerate(bounds):
            largest = max(float(gradients[layer].abs().max()) for gradients in alone)
            assert largest <= bound
            assert bound < 100 * largest or K < 6  # with flat softmaxes the drifts are bounded by 2 and nothing better


@pytest.mark.parametrize(
    "options",
    [
        SolveOptions(n=16, k=16, seed=1),
        SolveOptions(n=30, k=16, seed=2),
        SolveOptions(n=20, k=8, seed=2, grid="1", samples=60_000),
        SolveOptions(n=16, k=8, seed=5, link="quartic"),
        SolveOptions(n=16, k=8, seed=6, samples=450),
        SolveOptions(n=16, k=8, seed=6, K=1.0, samples=3000),
        SolveOptions(n=16, k=8, seed=7, oracle="random", oracle_error=0.02, samples=4000),
    ],
)
def test_computing_everything_changes_nothing(options: SolveOptions):
    """``needed`` skips what a bound proves idle; failed stages and small K prove nothing and are computed."""
    assert_same_weights(solve(options), solve(replace(options, update="all")))


def test_a_small_amplitude_does_not_freeze():
    """A liar's check: with K = 1 trained layers do move, and the bound must not claim that they cannot."""
    tree = ParityTree.draw(8, 8, seed=0)
    options = SolveOptions(n=8, k=8, K=1.0, grid="1", samples=4000, update="all")
    setting = setting_of(options)
    masses = [off_child_mass(8, 1.0)]
    (bound,) = frozen_gradient_bounds(tree.levels, COSINE, masses)
    assert setting.unit_rates[1] * bound > 0.5


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_gradient_at_zero_is_autograds(link: Link):
    for tree in (ParityTree.draw(11, 8, seed=1), ParityTree(9, (0, 1, 2, 3, 4, 5, 7, 8), (8, 0, 5, 2, 1, 7, 3, 4))):
        samples = Samples(tree, 5, 17, 300, chunk=77, dtype=torch.float64)
        for stage in range(tree.L):
            W = trained(tree, stage, 2.0)
            fast, general = gradient_at_zero(samples, W[:stage], link), all_gradients(samples, W, link, stage)[stage]
            torch.testing.assert_close(fast, general, rtol=0, atol=1e-14)


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.5])
def test_sparse_and_dense_layers_are_the_model(noise: float):
    """Quantised weights with no, few and many exceptional keys give the states of the level form."""
    tree = ParityTree.draw(20, 16, seed=2)
    generator = torch.Generator().manual_seed(1)
    W = trained(tree, tree.L, 6.0)
    for w in W:
        w -= 6.0 * (torch.rand(w.shape, generator=generator, dtype=torch.float64) < noise)
    model = LevelTransformer(20, 16, dtype=torch.float64)
    with torch.no_grad():
        for parameter, w in zip(model.parameters(), W, strict=True):
            parameter.copy_(w)
    bits = draw_bits(20, 3, 0, 50, dtype=torch.float64)
    sparse = SparseModel(tree.levels, level_writes(tree.levels, W), COSINE, like=bits)
    assert any(columns.dense is None for _, columns in sparse._writes) is (noise < 0.5)
    torch.testing.assert_close(sparse.states(bits.T), model.states(bits).detach().T, rtol=0, atol=1e-13)
    samples = Samples(tree, 3, 0, 50, "train", dtype=torch.float64)
    found, truth = answers(samples, W, COSINE)
    torch.testing.assert_close(found, model.states(bits).detach()[:, -1], rtol=0, atol=1e-13)
    torch.testing.assert_close(truth, add_trace(tree, bits)[:, -1])


def test_true_values_are_the_trace():
    tree = ParityTree(9, (0, 1, 2, 3, 4, 5, 7, 8), (8, 0, 5, 2, 1, 7, 3, 4))
    bits = draw_bits(9, 0, 0, 64)
    trace = add_trace(tree, bits)
    for level in range(1, tree.L + 1):
        nodes = tree.levels.nodes(level)
        torch.testing.assert_close(true_values(tree, bits.T, level), trace[:, nodes.start : nodes.stop].T)


# ---------------------------------------------------------------- oracle


def largest_adversarial(options: SolveOptions) -> float:
    return min(0.5 / rate for rate in setting_of(options).unit_rates)


def test_an_adversary_needs_far_less_than_chance():
    """A norm that breaks every run when aimed is harmless when spread over all weights."""
    base = SolveOptions(n=16, k=8, samples=20_000, test_samples=10)
    norm = largest_adversarial(base)
    for seed in range(5):
        aimed = replace(base, seed=seed, oracle="adversarial", oracle_error=norm)
        assert not solve(aimed).exact_recovery
        assert solve(replace(aimed, oracle="random")).exact_recovery
        assert solve(replace(aimed, oracle_error=0.1 * norm)).exact_recovery


def test_the_oracles_error_has_its_norm():
    from internalize.parity.algorithm1.solve import _random_errors

    options = SolveOptions(n=16, k=8, oracle="random", oracle_error=0.3)
    W = trained(ParityTree.draw(16, 8, 0), 0, 1.0)
    draws = [_random_errors(options, W, stage) for stage in range(3)]
    for draw in draws:
        assert [e.shape for e in draw] == [w.shape for w in W]
        assert math.sqrt(sum(float(e.square().sum()) for e in draw)) == pytest.approx(0.3)
    assert float((draws[0][0] * draws[1][0]).sum()) < 0.1 * float(draws[0][0].square().sum())


# ---------------------------------------------------------------- predicted against measured


def success_rate(options: SolveOptions, seeds: range) -> float:
    runs = [solve(replace(options, seed=seed, test_samples=1), stop_at_failure=True) for seed in seeds]
    return sum(run.exact_recovery for run in runs) / len(runs)


CASES = [
    SolveOptions(n=16, k=8),
    SolveOptions(n=32, k=8),
    SolveOptions(n=16, k=16),
    SolveOptions(n=16, k=8, link="quartic"),
    SolveOptions(n=16, k=8, grid="1", K=8.0),
    SolveOptions(n=16, k=8, rate="paper"),
]


@pytest.mark.parametrize("options", CASES, ids=lambda o: f"{o.n}-{o.k}-{o.link}-{o.grid}-{o.rate}")
def test_half_of_the_runs_succeed_where_predicted(options: SolveOptions):
    """80 seeds at the predicted 50 %: within 3.5 binomial standard errors, a half to 0.2; nothing is fitted."""
    samples = setting_of(options).samples_for(0.5)
    assert abs(success_rate(replace(options, samples=samples), range(80)) - 0.5) < 3.5 * 0.5 / math.sqrt(80)


def test_oracle_error_is_predicted():
    """50 seeds where the model says 50 %, random and adversarial, with B the default."""
    for oracle in ("random", "adversarial"):
        base = SolveOptions(n=16, k=8, samples=3650, oracle=oracle, oracle_error=1e-3)
        low, high = 0.0, 1.0
        while high - low > 1e-6:
            middle = (low + high) / 2
            success = setting_of(replace(base, oracle_error=middle)).log_success(3650)
            low, high = (middle, high) if success > math.log(0.5) else (low, middle)
        rate = success_rate(replace(base, oracle_error=low), range(50))
        assert abs(rate - 0.5) < 3.5 * 0.5 / math.sqrt(50)


@pytest.mark.slow
@pytest.mark.parametrize("n", [16, 32, 64, 128, 256])
def test_half_of_the_runs_succeed_up_to_256(n: int):
    options = SolveOptions(n=n, k=n // 2)
    samples, seeds = setting_of(options).samples_for(0.5), 200 if n <= 64 else 50
    assert abs(success_rate(replace(options, samples=samples), range(seeds)) - 0.5) < 3.5 * 0.5 / math.sqrt(seeds)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k", "seeds"), [(30, 16, 50), (128, 64, 10), (256, 128, 10)])
def test_defaults_on_many_seeds(n: int, k: int, seeds: int):
    for seed in range(seeds):
        result = solve(SolveOptions(n=n, k=k, seed=seed))
        assert result.solved
        assert result.max_error <= 1e-6


# ---------------------------------------------------------------- several processes


def _work(rank: int, world: int, folder: str, options: SolveOptions) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    try:
        result = solve(options)
        save_file({str(layer): W for layer, W in enumerate(result.weights)}, f"{folder}/{rank}.safetensors")
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "options",
    [
        SolveOptions(n=30, k=16, seed=8),
        SolveOptions(n=16, k=8, samples=777, update="all"),
        SolveOptions(n=16, k=8, samples=777, mask="causal"),
    ],
)
def test_two_processes_are_one(tmp_path: Path, options: SolveOptions):
    alone = solve(options)
    spawn(_work, args=(2, str(tmp_path), options), nprocs=2)
    for rank in range(2):
        together = load_file(tmp_path / f"{rank}.safetensors")
        for layer, W in enumerate(alone.weights):
            torch.testing.assert_close(together[str(layer)], W, rtol=0, atol=0)
