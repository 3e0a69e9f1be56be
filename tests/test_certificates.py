"""Certificates on sound models, second derivations of what they measure, and models to which they do not apply."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from internalize.certificate import Finding
from internalize.curriculum import Method
from internalize.errors import InputError
from internalize.parity.adamw.train import train
from internalize.parity.algorithm1.recovery import recovered_weights
from internalize.parity.algorithm1.solve import solve
from internalize.parity.algorithm1.solve_runs import solve_kept
from internalize.parity.certificates import (
    STATEMENTS,
    Certificate,
    World,
    barrier,
    certify,
    collapse,
    concentration,
    sensitivity,
    theorem,
    training,
)
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.parity.task.tree import ParityTree
from internalize.storage.runs import Run
from tests.mutants import sound_world


def zero_world(n: int, secret: tuple[int, ...]) -> tuple[World, list[torch.Tensor]]:
    """Return the paper's model with weights 0, and these weights in block form, ready for autograd."""
    tree = ParityTree(n, secret)
    world = World.of_weights(tree, recovered_weights(tree, "level", 0.0))
    return world, [w.requires_grad_() for w in recovered_weights(tree, "block", 0.0)]


def by_name(certificates: list[Certificate]) -> dict[str, Certificate]:
    return {certificate.statement: certificate for certificate in certificates}


VACUOUS = {(8, 4): {"collapse"}, (30, 16): {"collapse"}, (128, 64): set[str]()}
"""The statements that are vacuous at each size."""


@pytest.mark.parametrize("size", [(8, 4), (30, 16), pytest.param((128, 64), marks=pytest.mark.slow)], ids=str)
def test_every_statement_holds_for_algorithm_1(size: tuple[int, int]):
    found = certify(sound_world(*size))
    assert [certificate.statement for certificate in found] == list(STATEMENTS)
    vacuous = {certificate.statement for certificate in found if certificate.verdict == "vacuous"}
    assert vacuous == VACUOUS[size]
    # At n = 30 and 128 the defaults take fewer samples than the theorem requires, so it does not apply.
    silent = {certificate.statement for certificate in found if certificate.verdict == "not applicable"}
    assert silent == ({"skipped-level"} if size == (8, 4) else {"theorem-probability"})
    assert {c.verdict for c in found if c.statement not in vacuous | silent} == {"holds"}, found
    for certificate in found:
        json.dumps(certificate.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    "options",
    [
        *(SolveOptions(n=n, k=k) for n, k in [(2, 2), (3, 2), (4, 4), (6, 4), (8, 8), (16, 2)]),
        SolveOptions(n=16, k=8, link="quartic", seed=3),
        SolveOptions(n=12, k=4, grid="1"),
        SolveOptions(n=16, k=8, oracle="random", oracle_error=0.01),
    ],
    ids=lambda options: f"{options.n}-{options.k}-{options.link}-{options.grid}-{options.oracle}",
)
def test_nothing_is_violated_at_the_smallest_sizes_nor_with_other_settings(options: SolveOptions):
    names = [name for name in STATEMENTS if name != "barrier" or options.n < 12 or options.k == 2]  # it is slow
    assert not [found for found in certify(World.of_solve(options), names) if found.verdict == "violated"]


def test_the_theorems_probability_holds_with_the_samples_that_it_asks_for():
    names = ["theorem-oracle", "theorem-probability"]
    found = certify(World.of_solve(SolveOptions(n=30, k=16, samples=27_000)), names)
    assert [certificate.verdict for certificate in found] == ["holds", "holds"]


def test_the_paper_verbatim_is_vacuous_or_violated_at_n_30():
    names = ["well-trained", "theorem-max", "theorem-probability"]
    found = by_name(certify(World.of_solve(SolveOptions(n=30, k=16, preset="paper")), names))
    assert found["theorem-max"].verdict == "vacuous"
    assert found["theorem-probability"].verdict == "violated"
    assert found["well-trained"].verdict == "violated"
    assert "10^29" in (found["theorem-max"].reason or "")


# -- run folders and given weights -------------------------------------------------------------------------------


def test_an_adamw_run_is_judged_by_what_applies_to_it(runs: list[Run]):
    found = by_name(certify(World.of_run(runs[0])))
    for name in ("stage-1", "inductive-step", "theorem-max", "theorem-probability", "frozen-weights", "fresh-samples"):
        assert found[name].verdict == "not applicable"
        assert found[name].reason
    assert "Algorithm 1" in (found["theorem-max"].reason or "")
    for name in ("mask", "gating", "propagation", "hidden-states", "recursion", "sensitivity", "evaluation"):
        assert found[name].verdict == "holds"
    # The definition requires children that tie to δ ≤ 1/(9 C_2) = 0.0225; AdamW stops before that.
    assert found["well-trained"].verdict == "violated"


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_solve_run_is_judged_by_its_folder(tmp_path: Path, snapshots: bool):
    run = Run(tmp_path / "run")
    solve_kept(SolveOptions(n=8, k=4), run, snapshots=snapshots)
    found = by_name(certify(World.of_run(Run.open(run.path))))
    assert found["stage-1"].verdict == found["inductive-step"].verdict == found["theorem-max"].verdict == "holds"
    assert found["frozen-weights"].verdict == ("holds" if snapshots else "not applicable")
    assert found["stage-order"].verdict == ("holds" if snapshots else "not applicable")


def test_weights_of_other_sizes_are_refused():
    tree = ParityTree(4, (0, 1))
    with pytest.raises(InputError, match=r"\(3, 1\)"):
        World.of_weights(tree, [torch.zeros(3, 1)])


def test_only_keeps_the_order_of_the_paper():
    assert [c.statement for c in certify(sound_world(8, 4), ["link", "mask"])] == ["mask", "link"]


@pytest.mark.parametrize(
    ("finding", "verdict"),
    [
        (Finding(1.0, 1.0), "holds"),
        (Finding(1.1, 1.0), "violated"),
        (Finding(math.nan, 1.0), "violated"),
        (Finding(0.5, 1.0, vacuous=True), "vacuous"),
        (Finding(1.5, 1.0, vacuous=True), "violated"),
        (Finding(None, None, "why"), "not applicable"),
    ],
)
def test_verdicts(finding: Finding, verdict: str):
    assert finding.verdict == verdict


def test_infinities_become_null():
    found = Certificate("link", "claim", math.inf, 0.0, -math.inf, "violated", (0,), "float64")
    assert found.to_json()["measured"] is None
    assert found.to_json()["margin"] is None
    json.dumps(found.to_json(), allow_nan=False)


def test_worlds_that_are_too_large_are_refused():
    tree = ParityTree.draw(1023, 2, 0)
    with pytest.raises(InputError, match="1024 positions"):
        certify(World.of_weights(tree, [torch.zeros(1023, 1)]))


@pytest.mark.parametrize("curriculum", ["none", "icot"])
def test_other_curricula_are_not_judged_by_the_papers(tmp_path: Path, curriculum: Method):
    options = TrainOptions(n=8, k=4, steps=20, batch=50, eval_samples=50, curriculum=curriculum)
    train(options, (0,), [Run(tmp_path / "run")])
    found = by_name(certify(World.of_run(Run.open(tmp_path / "run"))))
    assert {found[name].verdict for name in ("curriculum", "loss", "frozen-gradient")} == {"not applicable"}
    assert found["propagation"].verdict == "holds"
    assert found["hidden-states"].verdict in ("holds", "vacuous")  # vacuous if 20 steps leave errors of 1 or more


# -- second derivations of what is measured --------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [(0, 1), (1, 2, 4, 5), (0, 1, 2, 3, 4, 5, 6, 7)], ids=str)
def test_trivial_tuples_by_enumeration(secret: tuple[int, ...]):
    world, _ = zero_world(8, secret)
    tree = world.tree
    sets = [frozenset({j}) for j in range(8)]
    for m in range(8, tree.T):
        sets.append(sets[tree.children(m)[0]] ^ sets[tree.children(m)[1]])
    M = tree.T - 1
    count = sum(not a ^ b ^ c ^ d for a, b, c, d in itertools.product(sets[:M], repeat=4))
    upper = sum(len(found) >= 4 for found in sets[:M])
    assert count == 3 * M**2 - 2 * M + 48 * upper
    assert certify(world, ["trivial-tuples"])[0].verdict == "holds"


def test_the_largest_correlation_by_enumeration():
    world = replace(sound_world(8, 4), ranges=((0, 40),))
    sequence = world.sequence(world.draw(0, 40, "train"))
    everything = world.sequence(world.test_bits)
    worst = 0.0
    for order in range(1, 5):
        for positions in itertools.combinations(range(world.levels.T), order):
            if not bool((everything[:, positions].prod(dim=1) == 1).all()):
                worst = max(worst, abs(float(sequence[:, positions].prod(dim=1).mean())))
    assert concentration.concentration(world).measured == pytest.approx(worst, abs=1e-6)


@pytest.mark.parametrize("stage", [0, 1])
def test_the_gradient_of_a_stage_is_the_one_of_its_loss(stage: int):
    world = replace(sound_world(8, 4), ranges=((0, 50), (50, 50)))
    W = [w if layer < stage else torch.zeros_like(w) for layer, w in enumerate(world.weights)]
    full = [w.requires_grad_() for w in world.full(W)]
    sequence = world.sequence(world.draw(stage * 50, 50, "train"))
    now = world.stages[stage]
    world.loss(world.output(world.stage_input(sequence, now), now.layers, full), sequence, now).backward()
    nodes = world.levels.nodes(stage + 1)
    gradient = full[stage].grad
    assert gradient is not None
    found = training._gradient_at_zero(world, stage)
    torch.testing.assert_close(found, gradient[:, nodes.start : nodes.stop], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    "options",
    [
        SolveOptions(n=8, k=4, samples=1198),
        SolveOptions(n=16, k=8, link="quartic", samples=3600, seed=3),
        SolveOptions(n=16, k=8, mask="causal", samples=3600),
        SolveOptions(n=12, k=4, grid="1", samples=20_000),
        SolveOptions(n=8, k=4, K=4, samples=20_000),
    ],
    ids=str,
)
def test_the_tolerated_error_is_where_an_adversary_begins_to_succeed(options: SolveOptions):
    """An oracle that knows the algorithm breaks a stage with a little more than the bound, and with less it does not."""
    (found,) = certify(World.of_solve(options), ["theorem-oracle"])
    assert found.bound is not None
    assert found.bound > 0
    for factor, recovered in ((0.999, True), (1.001, False)):
        error = replace(options, oracle="adversarial", oracle_error=factor * found.bound)
        assert solve(error).exact_recovery is recovered


def test_trained_layers_may_limit_the_tolerated_error():
    """With a small amplitude the bound of freezing leaves less than the margin does; with a smaller one, nothing."""
    world = World.of_solve(SolveOptions(n=8, k=4, K=8, samples=20_000))
    step, limit = training.step_of(world, 1), training.trained_gradient_limit(world, 1)
    assert theorem.oracle(world).bound == step.unit / 2 / step.rate - limit
    softer = World.of_solve(SolveOptions(n=8, k=4, K=4, samples=20_000))
    assert training.trained_gradient_limit(softer, 1) > step.unit / 2 / step.rate
    assert theorem.oracle(softer).verdict == "holds"


def test_gradients_of_all_layers_are_those_of_the_loss():
    """Autograd in chunks under any gates agrees with the product at weights 0, and with the loss of one batch."""
    world = replace(sound_world(8, 4), ranges=((0, 50), (50, 50)))
    first, second = training.gradients_by_autograd(world, 1)
    nodes = world.levels.span(2)
    torch.testing.assert_close(second[:, nodes], training._gradient_at_zero(world, 1), rtol=1e-9, atol=1e-14)
    W = [w.clone().requires_grad_() for w in training._before(world, 1)]
    sequence, now = world.sequence(world.draw(50, 50, "train")), world.stages[1]
    world.loss(world.output(world.stage_input(sequence, now), now.layers, W), sequence, now).backward()
    torch.testing.assert_close(first, W[0].grad, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(("N", "p"), [(500, 1 / 8), (2396, 2.0**-8), (30_000, 2.0**-30)])
def test_chance_is_bounded_by_the_binomial(N: int, p: float):
    """The chance of more equal samples than allowed, from the binomial law itself, is at most 10^-6 over all distances."""
    allowed = training.most_by_chance(N, p)
    ways = (math.lgamma(N + 1) - math.lgamma(k + 1) - math.lgamma(N - k + 1) for k in range(N + 1))
    logs = [way + k * math.log(p) + (N - k) * math.log1p(-p) for k, way in enumerate(ways)]
    above = math.fsum(math.exp(log) for log in logs[allowed + 1 :])
    assert 1e-6 / N**2 / 1e6 < above <= 1e-6 / N**2


@pytest.mark.parametrize("bits", [3, 8])
def test_the_most_repeated_distance_by_comparing_all_pairs(bits: int):
    base = sound_world(8, 4)
    world = replace(base, draw=lambda start, count, stream: base.draw(start % 7 + start // 11, count, stream))
    ranges = [(0, 60), (100, 45)]
    rows = torch.cat([world.draw(start, count, "train")[:, :bits] for start, count in ranges]).tolist()
    places = [place for start, count in ranges for place in range(start, start + count)]
    counts: dict[int, int] = {}
    for (i, a), (j, b) in itertools.combinations(zip(places, rows, strict=True), 2):
        counts[j - i] = counts.get(j - i, 0) + (a == b)
    repeated, distance = training._most_repeated(world, ranges, bits)
    assert (repeated, counts[distance]) == (max(counts.values()), max(counts.values()))


def test_the_noise_under_collapse_by_autograd():
    """The gradient of the second layer under open gates, from the model and the loss of the level alone."""
    world = sound_world(8, 4)
    gates = torch.ones_like(world.gates)
    opened = replace(world, gates=gates)
    W = [*world.full(recovered_weights(world.tree, "level", 50.0))]
    W[1] = torch.zeros_like(W[1]).requires_grad_()
    sequence, root = world.sequence(world.test_bits), world.levels.T - 1
    output = opened.output(opened.stage_input(sequence, world.stages[1]), 2, W)
    ((output - sequence)[:, root].square().mean() / 2).backward()
    gradient = W[1].grad
    assert gradient is not None
    keys = world.levels.level_end[1]
    signal = 2 * world.link.c / keys**2
    R = gradient[:keys, root].clone()
    R[list(world.tree.children(root))] += signal
    ratio, spread = collapse._noise(world, gates[0])
    assert spread == pytest.approx(float(R.max() - R.min()), rel=1e-9)
    assert ratio == pytest.approx(spread / signal, rel=1e-9)


def test_the_estimated_norm_is_near_the_exact_one(monkeypatch: pytest.MonkeyPatch):
    world = sound_world(30, 16)
    exact = sensitivity.bounded_gradient(world)
    monkeypatch.setattr(sensitivity, "_ROWS", 1)
    estimated = sensitivity.bounded_gradient(world)
    assert estimated.measured == pytest.approx(exact.measured, rel=0.3)
    assert estimated.measured != exact.measured


def test_the_barriers_variance_is_that_of_fourier_coefficients():
    """Var_S of the gradient is that of E[p_S ∇f], because E[f ∇f] does not depend on S."""
    world, _ = zero_world(5, (0, 2))
    W = [w.requires_grad_() for w in world.generic(1.0)]
    bits = world.test_bits
    roots = world.output(world.inference_input(bits), 1, W)[:, -1]
    rows = torch.stack([torch.autograd.grad(root, W, retain_graph=True)[0].flatten() for root in roots])
    coefficients = torch.stack(
        [(bits[:, list(S)].prod(dim=1, keepdim=True) * rows).mean(dim=0) for S in itertools.combinations(range(5), 2)]
    )
    variance = float(coefficients.var(dim=0, correction=0).sum())
    square = float(rows.square().sum(dim=1).mean())
    found = barrier._enumerated(world, W)
    assert found.measured == pytest.approx(variance, rel=1e-9)
    assert found.bound == pytest.approx(square / 10, rel=1e-6)


@pytest.mark.parametrize(("n", "k"), [(3, 2), (8, 4), (7, 4), (4, 4), (9, 2)])
def test_the_barrier_at_zero_by_symmetry_is_the_enumerated_one(n: int, k: int):
    world, W = zero_world(n, tuple(range(k)))
    enumerated, exact = barrier._enumerated(world, W), barrier._by_symmetry(world, W)
    assert exact is not None
    assert exact.measured == pytest.approx(enumerated.measured, rel=1e-9, abs=1e-30)
    assert exact.bound == pytest.approx(enumerated.bound, rel=1e-9)


def test_a_model_that_is_not_symmetric_is_not_treated_as_one():
    world, W = zero_world(8, (0, 1, 2, 3))
    visible = world.visible.clone()
    visible[0, 8:] = False
    assert barrier._by_symmetry(replace(world, visible=visible), W) is None


def test_a_model_that_computes_nan_is_violated_everywhere():
    """No maximum overlooks a NaN: every statement that runs the model is violated."""
    sound = sound_world(8, 4)
    broken = replace(sound, softmax=lambda logits, visible: sound.softmax(logits, visible) * math.nan)
    verdicts = {c.statement: c.verdict for c in certify(broken)}
    others = {"mask", "link", "gating", "curriculum", "concentration", "trivial-tuples", "fresh-samples"}
    others |= {"skipped-level", "skipped-levels"}
    assert {name for name, verdict in verdicts.items() if verdict == "violated"} == STATEMENTS.keys() - others


def test_fresh_samples_are_those_that_were_drawn(monkeypatch: pytest.MonkeyPatch):
    """An algorithm that takes the samples of every stage from the beginning of the stream is caught."""
    from internalize.parity.algorithm1 import solve as algorithm

    def from_the_beginning(instance, **changes):
        return replace(instance, **{**changes, **({"start": 0} if "start" in changes else {})})

    monkeypatch.setattr(algorithm, "replace", from_the_beginning)
    (found,) = certify(World.of_solve(SolveOptions(n=8, k=4, seed=5)), ["fresh-samples"])
    assert found.verdict == "violated"
