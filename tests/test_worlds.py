"""Trees with more children and ragged trees: the same model, moments, prediction and Algorithm 1 as for the paper's tree."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from internalize import Curriculum, InputError
from internalize.parity import (
    BlockTransformer,
    Levels,
    LevelTransformer,
    LiteralTransformer,
    ParityTree,
    Setting,
    SolveOptions,
    TrainOptions,
    add_trace,
    draw_bits,
    get_link,
    parity_stages,
    predict,
    stage_gradient,
    stage_input,
    stage_loss,
    train,
)
from internalize.parity.algorithm1.counting import counted_gradient
from internalize.parity.algorithm1.recovery import recovered_weights
from internalize.parity.algorithm1.solve import setting_of, solve
from internalize.parity.algorithm1.streaming import Samples, all_gradients, gradient_at_zero, true_values
from internalize.parity.certificates import World, certify
from internalize.parity.model.sparse import SparseModel
from internalize.parity.model.transformer import set_weights
from internalize.parity.model.weights import full_weights
from internalize.parity.task.data import draw_sequences
from internalize.parity.theory.freezing import frozen_gradient_bounds, off_child_mass, trained_gradient_bounds
from internalize.parity.theory.population import Forest, Path, population

RAGGED = [(2, k) for k in (3, 5, 6, 7, 10, 11, 12, 20)]
WIDE = [(3, 3), (3, 9), (3, 5), (3, 7), (4, 4), (4, 16), (4, 7), (5, 9)]
SHAPES = RAGGED + WIDE


def a_tree(arity: int, k: int, spare: int = 2, seed: int = 1) -> ParityTree:
    return ParityTree.draw(k + spare, k, seed, arity)


@pytest.mark.parametrize(("arity", "k"), SHAPES)
def test_every_item_is_used_once_and_as_early_as_possible(arity: int, k: int):
    tree = a_tree(arity, k)
    levels = tree.levels
    assert tree.T - tree.n == (k - 1) // (arity - 1)
    used = sorted(child for m in range(tree.n, tree.T) for child in tree.children(m))
    assert used == sorted([*tree.secret, *range(tree.n, tree.root)])
    assert math.ceil(round(math.log(k, arity), 9)) == levels.L  # the least height that k leaves allow
    for m in range(tree.n, tree.T):
        assert len(tree.children(m)) == arity
        below = [levels.level_of(child) for child in tree.children(m)]
        assert max(below) == levels.level_of(m) - 1
        assert all(tree.parent(child) == m for child in tree.children(m))
    assert levels.complete is (k in (arity, arity**2))


def test_the_papers_tree_is_unchanged():
    tree = ParityTree(12, (0, 1, 2, 3, 4, 5, 6, 7))
    assert [tree.layer_children(layer) for layer in range(3)] == [
        ((0, 1), (2, 3), (4, 5), (6, 7)),
        ((12, 13), (14, 15)),
        ((16, 17),),
    ]


@pytest.mark.parametrize("arity", [2, 3, 4, 5, 6])
def test_the_link_multiplies(arity: int):
    """φ_r has the product and slope 0 at the mean of any r bits, the parity of r, and its derivative and c."""
    link = get_link("cosine", arity)
    bits = torch.tensor(list(itertools.product([1.0, -1.0], repeat=arity)), dtype=torch.float64)
    torch.testing.assert_close(link(bits.mean(1)), bits.prod(1), rtol=0, atol=1e-12)
    assert float(link.slope(bits.mean(1)).abs().max()) < 1e-12
    t = torch.linspace(-1, 1, 101, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(link(-t), (-1) ** arity * link(t), rtol=0, atol=1e-12)
    (slope,) = torch.autograd.grad(link(t).sum(), t)
    torch.testing.assert_close(slope, link.slope(t.detach()), rtol=0, atol=1e-12)
    at = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    derivative = link(at)
    for _ in range(arity):
        (derivative,) = torch.autograd.grad(derivative.sum(), at, create_graph=True)
    assert derivative.tolist() == pytest.approx([math.factorial(arity) * link.c])


def test_the_signal_of_stage_one_by_hand():
    r"""The closed form (πr/2) sin^{r−1} w cos^{n−r+1} w for a child's label part, here by enumeration."""
    for arity, n in [(2, 9), (3, 9), (4, 10), (5, 10)]:
        link, w = get_link("cosine", arity), math.pi * arity / (2 * n)
        bits = torch.tensor(list(itertools.product([1.0, -1.0], repeat=n)), dtype=torch.float64)
        found = float((bits[:, : arity - 1].prod(1) * link.slope(bits.mean(1))).mean())
        wanted = math.pi * arity / 2 * math.sin(w) ** (arity - 1) * math.cos(w) ** (n - arity + 1)
        assert found == pytest.approx(wanted, abs=1e-12)


def shape_of(tree: ParityTree, m: int) -> Any:
    """Return the tree below a position as nested tuples."""
    if m < tree.n:
        return ()
    return tuple(sorted((shape_of(tree, child) for child in tree.children(m)), key=repr))


def named(forest: Forest, path: Path) -> tuple[Any, ...]:
    """Return a path with nested tuples in place of the numbers of shapes."""
    known: list[Any] = [()]
    for family in forest.families:
        known.append(tuple(sorted((known[shape] for shape in family), key=repr)))
    return tuple(known[shape] for shape in path)


def relation(tree: ParityTree, stage: int, j: int, m: int) -> tuple[str, tuple[Any, ...]]:
    """Return the kind of key j for node m and its path, by walking up the tree from j."""
    if j < tree.n and j not in tree.secret:
        return "irrelevant", ()
    path, end = [j], tree.levels.level_end[stage]
    while (above := tree.parent(path[0])) is not None and above < end:
        path.insert(0, above)
    kind = "outside" if above != m else "inside" if path[1:] else "child"
    return kind, tuple(shape_of(tree, place) for place in path)


@pytest.mark.parametrize(
    ("arity", "k", "n"),
    [(2, 3, 5), (2, 5, 7), (2, 6, 8), (2, 7, 7), (2, 10, 12), (2, 11, 11), (2, 12, 12),
     (3, 3, 6), (3, 9, 11), (3, 5, 8), (3, 7, 9), (3, 11, 12), (4, 4, 9), (4, 7, 10), (4, 10, 12), (5, 5, 9)],
)  # fmt: skip
def test_moments_of_every_input(arity: int, k: int, n: int):
    """Every entry of every stage: mean, variance and third moment; and the covariance of siblings."""
    tree, link = ParityTree.draw(n, k, n, arity), get_link("cosine", arity)
    bits = torch.tensor(list(itertools.product([1.0, -1.0], repeat=n)), dtype=torch.float64)
    sequence = add_trace(tree, bits)
    for stage, exact in enumerate(population(tree.levels, link)):
        forest, M = Forest.of(tree.levels, stage), exact.keys
        kinds = [named(forest, (shape,))[0] for shape in forest.columns]
        number = {(key.column, key.kind, named(forest, key.path)): place for place, key in enumerate(exact.classes)}
        counts = [0] * len(exact.classes)
        z = sequence[:, :M].mean(1, keepdim=True)
        part = link.slope(z) * (sequence[:, :M] - z) / M
        for m in tree.levels.nodes(stage + 1):
            column = kinds.index(shape_of(tree, m))
            gradients = (link(z) - sequence[:, [m]]) * part
            mean = gradients.mean(0)
            found = torch.stack([mean, gradients.var(0, correction=0), (gradients - mean).pow(3).mean(0)])
            places = [number[column, *relation(tree, stage, j, m)] for j in range(M)]
            for place in places:
                counts[place] += 1
            wanted = np.stack([exact.mean[places], exact.variance[places], exact.third[places]])
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
            shared = (link(z) * part).var(0, correction=0)
            np.testing.assert_allclose(shared, exact.shared[places], rtol=0, atol=1e-12)
            pairs = list(itertools.combinations(tree.children(m), 2))
            together = [(gradients[:, a] * gradients[:, b]).mean() - mean[a] * mean[b] for a, b in pairs]
            assert abs(float(sum(together)) / len(pairs) - exact.sibling[column]) < 1e-12
        assert counts == [key.count * exact.columns[key.column] for key in exact.classes]


@pytest.mark.parametrize(("arity", "k"), [(2, 6), (2, 5), (3, 9), (3, 5), (4, 7)])
def test_all_forms_are_the_literal_model(arity: int, k: int):
    """Level form, block form and the model as printed: values and gradients at every stage, in float64."""
    tree, link = a_tree(arity, k, 1), get_link("cosine", arity)
    generator = torch.Generator().manual_seed(k)
    level = LevelTransformer(tree.n, k, link, dtype=torch.float64)
    W = [torch.randn(w.shape, generator=generator, dtype=torch.float64) for w in level.W]
    set_weights(level, W)
    full = [w.requires_grad_() for w in full_weights(W, tree.levels)]
    block = set_weights(BlockTransformer(tree.n, k, link=link, dtype=torch.float64), full)
    literal = LiteralTransformer(tree.levels, link)
    sequence = add_trace(tree, draw_bits(tree.n, 2, 0, 6, dtype=torch.float64))
    for stage in parity_stages(tree.levels, Curriculum("log-icot")):
        D = stage_input(sequence, stage)
        printed = literal(full, D, stage.layers)
        torch.testing.assert_close(level(D, stage.layers), printed, rtol=0, atol=1e-12)
        torch.testing.assert_close(block(D, stage.layers), printed, rtol=0, atol=1e-12)
        losses = [stage_loss(output, sequence, stage) for output in (level(D, stage.layers), printed)]
        used = stage.layers
        fast = torch.autograd.grad(losses[0], list(level.parameters())[:used])
        slow = torch.autograd.grad(losses[1], full[:used])
        for layer, (a, b) in enumerate(zip(fast, slow, strict=True)):
            part = b[: tree.levels.level_end[layer], tree.levels.span(layer + 1)]
            torch.testing.assert_close(a, part, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("arity", "k"), SHAPES)
def test_right_weights_compute_the_answer(arity: int, k: int):
    tree, link = a_tree(arity, k, 3), get_link("cosine", arity)
    bits = draw_bits(tree.n, 0, 0, 200, dtype=torch.float64)
    model = SparseModel(tree.levels, recovered_weights(tree, "level", 40.0), link, like=bits)
    truth = bits[:, list(tree.secret)].prod(1)
    torch.testing.assert_close(model(bits), truth, rtol=0, atol=1e-9)
    sequence = add_trace(tree, bits)
    assert torch.equal(sequence[:, -1], truth)
    assert torch.equal(draw_sequences(tree, 0, 0, 200).T.double(), sequence)
    for level in range(1, tree.L + 1):
        assert torch.equal(true_values(tree, bits.T, level).T, sequence[:, tree.levels.span(level)])


@pytest.mark.parametrize(("arity", "k"), [(2, 6), (2, 11), (3, 9), (3, 7), (4, 16), (4, 10), (5, 9)])
def test_counting_is_the_product(arity: int, k: int):
    tree, link = a_tree(arity, k, 9), get_link("cosine", arity)
    samples = Samples(tree, 0, 3, 2000, dtype=torch.float64)
    for stage in range(tree.L):
        below = recovered_weights(tree, "level", 200.0)[:stage]
        wanted = gradient_at_zero(samples, below, link)
        torch.testing.assert_close(counted_gradient(samples, stage, link), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("arity", "k", "K"), [(2, 6, 7.0), (3, 9, 8.0), (4, 7, 9.0)])
def test_frozen_layers_stay_within_the_bounds(arity: int, k: int, K: float):
    tree, link = a_tree(arity, k, 2), get_link("cosine", arity)
    samples = [Samples(tree, 0, index, 1, dtype=torch.float64) for index in range(40)]
    masses = [off_child_mass(end, K, arity) for end in tree.levels.level_end]
    for trained in range(1, tree.L + 1):
        W = [w if layer < trained else 0 * w for layer, w in enumerate(recovered_weights(tree, "level", K))]
        for stage, of in [(trained, frozen_gradient_bounds), (trained - 1, trained_gradient_bounds)]:
            if stage == tree.L:
                continue
            alone = [all_gradients(sample, W, link, stage) for sample in samples]
            largest = [max(float(g.abs().max()) for g in layer) for layer in zip(*alone, strict=True)]
            for bound, found in zip(of(tree.levels, link, masses[:trained]), largest, strict=False):
                assert found <= bound < 1e4 * found


@pytest.mark.parametrize(
    "options",
    [
        *(SolveOptions(n=k + 6, k=k, seed=k) for k in (3, 5, 6, 10, 11, 12, 20)),
        SolveOptions(n=12, k=9, arity=3),
        SolveOptions(n=12, k=7, arity=3, noise=0.1),
        SolveOptions(n=10, k=4, arity=4),
        SolveOptions(n=16, k=6, curriculum="icot"),
        SolveOptions(n=16, k=6, curriculum="cot"),
        SolveOptions(n=16, k=6, curriculum="cot", transfer=True),
        SolveOptions(n=12, k=9, arity=3, curriculum="cot"),
        SolveOptions(n=16, k=6, mask="causal"),
        SolveOptions(n=12, k=5, arity=3, dtype="float64"),
    ],
    ids=str,
)
def test_defaults_recover_every_layer(options: SolveOptions):
    result = solve(options)
    assert result.solved, result.reason
    assert result.max_error <= 1e-6


@pytest.mark.parametrize(("arity", "k", "n"), [(2, 6, 16), (3, 9, 12)])
def test_computing_everything_changes_nothing(arity: int, k: int, n: int):
    for seed in range(3):
        options = SolveOptions(n=n, k=k, arity=arity, seed=seed)
        needed, everything = solve(options), solve(replace(options, update="all"))
        torch.testing.assert_close(needed.weights, everything.weights, rtol=0, atol=0)


def test_a_copy_of_a_node_breaks_the_tie():
    """Why short branches are attached directly: a copy has its original's gradient, so three keys tie as children."""
    tree, link = ParityTree(8, (0, 1, 2, 3, 4, 5)), get_link("cosine")
    sequence = add_trace(tree, draw_bits(8, 0, 0, 4000, dtype=torch.float64))
    waiting = tree.children(tree.root)[0]  # a node of level 1 that the root uses
    keys = torch.cat([sequence[:, : tree.root], sequence[:, [waiting]]], dim=1)  # and its copy at level 2
    z = keys.mean(1, keepdim=True)
    gradient = ((link(z) - sequence[:, [tree.root]]) * link.slope(z) * (keys - z)).mean(0)
    three = torch.topk(-gradient, 3).indices.tolist()
    assert sorted(three) == sorted([*tree.children(tree.root), tree.root])
    assert float(gradient[waiting]) == float(gradient[-1])


@pytest.mark.parametrize(
    ("options", "seeds"),
    [
        (SolveOptions(n=16, k=6), 80),
        (SolveOptions(n=20, k=12), 80),
        (SolveOptions(n=16, k=9, arity=3), 80),
        (SolveOptions(n=12, k=4, arity=4), 80),
    ],
    ids=str,
)
def test_half_of_the_runs_succeed_where_predicted(options: SolveOptions, seeds: int):
    """The share is 50 % within 3.5 binomial standard errors."""
    options = replace(options, samples=setting_of(options).samples_for(0.5), test_samples=1)
    runs = [solve(replace(options, seed=seed), stop_at_failure=True) for seed in range(seeds)]
    assert abs(sum(run.exact_recovery for run in runs) / seeds - 0.5) < 3.5 * 0.5 / math.sqrt(seeds)


def test_two_children_need_the_fewest_samples():
    """At n = 128, k = 64 the trees of 2, 4 and 8 are complete: stages fall from 6 to 3 to 2, samples rise by powers of n."""
    needed: dict[int, float] = {}
    for arity in (2, 4, 8):
        setting = Setting(128, 64, arity)
        needed[arity] = setting.samples_for(0.5) or math.inf
        assert round(math.log(64, arity)) == setting.levels.L
        leading = max(
            16 * g.keys ** (2 * arity - 3) * (math.pi * arity / 2) ** (4 - 2 * arity) * math.log(g.keys * g.nodes)
            for g in setting.gradients
        )
        assert needed[arity] == pytest.approx(leading, rel=0.75)
    assert needed[2] * 1000 < needed[4]
    assert needed[4] * 1e6 < needed[8] < math.inf


def test_the_limit_is_that_of_the_world():
    paper = predict(Setting(128, 64)).limit_factor
    assert paper == 48
    assert predict(Setting(128, 64, noise=0.25)).limit_factor == 4 * paper
    assert predict(Setting(16, 8, modulus=3)).limit_factor == paper / 4
    assert predict(Setting(12, 6, arity=2)).limit_factor == paper
    for setting in (Setting(16, 4, arity=4), Setting(16, 8, noise=0.01, noisy="carried")):
        assert "limit_factor" not in predict(setting).to_json()


def test_leading_orders_of_the_samples():
    """The variance and the signal approach the orders that the module derives, for even and odd r."""
    for arity in (3, 4):
        errors = []
        for n in (256, 1024, 4096):
            exact, link = stage_gradient(Levels(n, arity, arity), 0, get_link("cosine", arity)), math.pi * arity / 2
            variance = link**2 / n**2 if arity % 2 else 2 * link**4 / n**3
            errors.append((abs(exact.signal - 1), abs(exact.variance[-1] / variance - 1)))
        for a, b in itertools.pairwise(errors):
            assert b[0] < 0.3 * a[0]
            assert b[1] < 0.4 * a[1]


@pytest.mark.parametrize("options", [TrainOptions(n=9, k=6, steps=200, eval_every=100),
                                     TrainOptions(n=9, k=5, arity=3, steps=200, eval_every=100)])  # fmt: skip
def test_adamw_learns_these_trees(options: TrainOptions):
    (result,) = train(options, [0])
    assert result["accuracy"] == 1.0


@pytest.mark.parametrize(("arity", "k", "n"), [(2, 6, 10), (3, 9, 11), (4, 4, 10)])
def test_certificates_and_a_lie(arity: int, k: int, n: int):
    """No statement is violated, those about two children or complete trees say so, and a wrong link is found out."""
    world = World.of_solve(SolveOptions(n=n, k=k, arity=arity))
    names = ("well-trained", "stage-1", "inductive-step", "hidden-states", "theorem-max", "trivial-tuples", "link")
    honest = {found.statement: found.verdict for found in certify(world, names)}
    assert "violated" not in honest.values()
    assert honest["trivial-tuples"] == "not applicable"
    liar = replace(world, link=replace(world.link, phi=lambda t: 0.9 * world.link.phi(t)))
    lies = {found.statement: found.verdict for found in certify(liar, names)}
    assert all(lies[name] == "violated" for name in ("well-trained", "theorem-max", "link"))
    moved = (world.weights[0].roll(1, dims=0), *world.weights[1:])
    assert certify(replace(world, weights=moved), ["well-trained"])[0].verdict == "violated"


def test_what_these_trees_do_not_have():
    with pytest.raises(InputError, match="link='quartic' is for nodes with 2 children"):
        Setting(12, 9, 3, link="quartic")
    with pytest.raises(InputError, match="arity=3: the networks in place of the link"):
        TrainOptions(n=12, k=9, arity=3, link="mlp")
    with pytest.raises(InputError, match="the nodes of the tree have 2 children, but the options have 3"):
        solve(SolveOptions(n=12, k=9, arity=3), ParityTree.draw(12, 9, 0))
