"""Three forms of the model, literal, block and level, are one function with one gradient, by autograd and by hand."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from internalize import Curriculum, InputError
from internalize.curriculum import Method
from internalize.parity import (
    COSINE,
    QUARTIC,
    BlockTransformer,
    CoTTransformer,
    Levels,
    LevelTransformer,
    Link,
    LiteralTransformer,
    ParityTree,
    add_link,
    add_trace,
    causal_mask,
    draw_bits,
    get_link,
    inference_input,
    level_loss,
    level_mask,
    link_faults,
    named_gates,
    named_mask,
    parity_stages,
    stage_input,
    stage_loss,
)
from internalize.parity.algorithm1.recovery import recovered_weights
from internalize.parity.certificates import World, certify
from internalize.parity.model.backward import LevelGradients
from internalize.parity.model.cot import chain_passes
from internalize.parity.model.metrics import layer_attention
from internalize.parity.model.transformer import set_weights
from internalize.parity.model.weights import full_weights
from internalize.parity.task.data import draw_sequences
from tests.strategies import randomized, seeds, trees

links = st.sampled_from([COSINE, QUARTIC])
methods = st.sampled_from(["none", "cot", "icot", "log-icot"])


def close(found: Tensor | None, expected: Tensor | None) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def random_level_model(tree: ParityTree, link: Link, seed: int) -> LevelTransformer:
    return randomized(LevelTransformer(tree.n, tree.k, link, dtype=torch.float64), seed)


def leaves(model: LevelTransformer) -> list[Tensor]:
    """Return leaves of the literal model: the level form's weights in T × T matrices."""
    return [W.detach().requires_grad_() for W in full_weights(model.parameters(), model.levels)]


def sample(tree: ParityTree, seed: int, count: int = 5) -> Tensor:
    return add_trace(tree, draw_bits(tree.n, seed, 0, count, dtype=torch.float64))


@settings(max_examples=40)
@given(trees(), links, methods, seeds)
def test_three_forms_agree(tree: ParityTree, link: Link, method, seed: int):
    """Outputs at every stage and gradients of every layer agree to 1e-12, with random weights."""
    level = random_level_model(tree, link, seed)
    block = BlockTransformer(tree.n, tree.k, link=link, dtype=torch.float64)
    set_weights(block, full_weights(level.parameters(), tree.levels))
    reference = LiteralTransformer(tree.levels, link)
    sequence = sample(tree, seed)
    for stage in parity_stages(tree.levels, Curriculum(method)):
        D = stage_input(sequence, stage)
        W = leaves(level)
        expected = reference(W, D, stage.layers)
        close(level(D, stage.layers), expected)
        close(block(D, stage.layers), expected)
        close(level_loss(level, sequence, stage), stage_loss(expected, sequence, stage))

        stage_loss(expected, sequence, stage).backward()
        block.zero_grad()
        stage_loss(block(D, stage.layers), sequence, stage).backward()
        level.zero_grad()
        level_loss(level, sequence, stage).backward()
        for layer in range(tree.L):
            nodes, keys = tree.levels.nodes(layer + 1), tree.levels.level_end[layer]
            full, level_grad, block_grad = W[layer].grad, level.W[layer].grad, block.W[layer].grad
            assert full is not None
            assert full.isfinite().all()
            columns = full[:keys, nodes.start : nodes.stop]
            if layer >= stage.layers:  # layers above the readout have the gradient None, not 0
                assert level_grad is None
                assert block_grad is None
                assert not full.any()
            else:
                close(level_grad, columns)
                close(block_grad, full)
                assert full.abs().sum() - columns.abs().sum() <= 1e-12  # 0 outside the level's block


@pytest.mark.parametrize("gates", ["paper", "ones", "cot", "drawn", "function of the states"])
@settings(max_examples=10)
@given(trees(max_k=4), links, st.sampled_from(["level", "causal"]), seeds)
def test_block_form_is_literal_for_any_mask_and_gates(gates, tree: ParityTree, link: Link, mask, seed: int):
    visible = level_mask(tree.levels) if mask == "level" else causal_mask(tree.levels)
    g = torch.rand(tree.L, tree.T, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    asked = {"drawn": g, "function of the states": lambda layer, H, Y: g[layer].expand(H.shape)}.get(gates, gates)
    if isinstance(asked, str):
        g = named_gates(gates, tree.levels)
    block = BlockTransformer(tree.n, tree.k, mask, asked, link, dtype=torch.float64)  # type: ignore[arg-type]
    randomized(block, seed)
    reference = LiteralTransformer(tree.levels, link, visible, g)
    D = inference_input(draw_bits(tree.n, seed, 0, 4, dtype=torch.float64), tree.T)
    W = [p.detach().clone().requires_grad_() for p in block.W]
    for layers in range(1, tree.L + 1):
        expected = reference(W, D, layers)
        output = block(D, layers)
        close(output, expected)
        assert output.isfinite().all()
    reference(W, D, tree.L).square().sum().backward()
    block(D).square().sum().backward()
    for p, w in zip(block.W, W, strict=True):
        close(p.grad, w.grad)


@given(trees(), links, st.integers(1, 3), seeds)
def test_runs_are_independent(tree: ParityTree, link: Link, runs: int, seed: int):
    """With a leading dimension of runs each run computes what it computes alone, with shared data and with its own."""
    together = randomized(LevelTransformer(tree.n, tree.k, link, runs=(runs,), dtype=torch.float64), seed)
    own = torch.stack([sample(tree, run) for run in range(runs)])
    for data in (own, own[0]):
        output = together(data)
        assert output.shape == own.shape
        for run in range(runs):
            alone = LevelTransformer(tree.n, tree.k, link, dtype=torch.float64)
            set_weights(alone, [W[run] for W in together.W])
            close(output[run], alone(data[run] if data is own else data))


@settings(max_examples=30)
@given(trees(), links, seeds)
def test_lemma_and_corollary(tree: ParityTree, link: Link, seed: int):
    """They hold in the certificates' world, whose stream is that of the literal model."""
    weights = random_level_model(tree, link, seed).parameters()
    world, D = World.of_weights(tree, list(weights), link, seed), sample(tree, seed)
    for X, blocks in zip(LiteralTransformer(tree.levels, link).streams(world.full(), D), world.streams(D), strict=True):
        close(X[tree.T :], blocks.flatten(0, 1))
    assert [c.verdict for c in certify(world, ["propagation", "frozen-derivative"])] == ["holds", "holds"]


@settings(max_examples=30)
@given(trees(), links, seeds)
def test_cot_model(tree: ParityTree, link: Link, seed: int):
    """One layer with gate 1 on the nodes equals the literal model, and generation by node and by level agree."""
    model = randomized(CoTTransformer(tree.n, tree.k, link, dtype=torch.float64), seed)
    gates = torch.zeros(1, tree.T, dtype=torch.float64)
    gates[:, tree.n :] = 1.0
    reference = LiteralTransformer(tree.levels, link, gates=gates)
    W = torch.nn.functional.pad(model.W.detach(), (tree.n, 0)).requires_grad_()
    D = sample(tree, seed)
    expected = reference([W], D, 1)
    close(model(D), expected)
    model(D).square().sum().backward()
    (gradient,) = torch.autograd.grad(reference([W], D, 1).square().sum(), W)
    close(model.W.grad, gradient[:, tree.n :])

    bits = D[:, : tree.n]
    by_node, by_level = model.generate(bits, "node"), model.generate(bits, "level")
    close(by_node, by_level)
    assert (len(chain_passes(tree.levels, "node")), len(chain_passes(tree.levels, "level"))) == (tree.k - 1, tree.L)
    close(model(by_node), by_node)  # the chain it writes is the chain it confirms


@given(trees(max_k=16))
def test_children_give_the_parity(tree: ParityTree):
    """Weights on the true children compute every node, hidden in one pass and written in k − 1."""
    hidden = LevelTransformer(tree.n, tree.k, dtype=torch.float64)
    written = CoTTransformer(tree.n, tree.k, dtype=torch.float64)
    set_weights(hidden, recovered_weights(tree, "level", 60.0))
    set_weights(written, recovered_weights(tree, "cot", 60.0))
    truth = sample(tree, 0, 32)
    bits = truth[:, : tree.n]
    torch.testing.assert_close(hidden(inference_input(bits, tree.T)), truth)
    torch.testing.assert_close(written.generate(bits), truth)
    for m in range(tree.n, tree.T):
        for model in (hidden, written):
            layer = tree.levels.level_of(m) - 1
            attention = layer_attention(model, layer)[:, m - tree.levels.level_end[layer]]
            assert attention[list(tree.children(m))].tolist() == pytest.approx([0.5, 0.5])


def test_nothing_is_nan_at_the_smallest_size():
    """At n = k = 2 the first position has no key, but values and gradients are finite."""
    tree = ParityTree(2, (0, 1))
    D = sample(tree, 0)
    for model in (LevelTransformer(2, 2), BlockTransformer(2, 2, "causal", "ones"), CoTTransformer(2, 2)):
        model = model.double()
        output = model(D)
        output.sum().backward()
        assert output.isfinite().all()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_gates_are_part_of_the_module():
    """Named gates follow the module to another dtype. Learned gates are parameters and get a gradient."""
    named = BlockTransformer(6, 4).to(torch.float64)
    assert isinstance(named.gates, Tensor)
    assert named.gates.dtype == torch.float64
    learned = BlockTransformer(6, 4, gates=torch.nn.Parameter(torch.full((2, 9), 0.5)))
    assert len(list(learned.parameters())) == 3
    learned(torch.ones(1, 9)).sum().backward()
    assert all(p.grad is not None for p in learned.parameters())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LevelTransformer(8, 4)(torch.zeros(1, 11), layers=3), "layers=3 is outside 0 … 2"),
        (lambda: LevelTransformer(8, 4)(torch.zeros(1, 9)), "an input of 9 positions; n=8, k=4 have 11"),
        (lambda: BlockTransformer(8, 4)(torch.zeros(1, 12)), "an input of 12 positions"),
        (lambda: CoTTransformer(8, 4)(torch.zeros(1, 12)), "an input of 12 positions"),
        (lambda: LiteralTransformer(Levels(300_000, 2)), "n=300000, k=2, B=1"),
        (lambda: named_mask("none", Levels(8, 4)), "mask 'none'"),
        (lambda: named_gates("open", Levels(8, 4)), "gates 'open'"),
        (
            lambda: LiteralTransformer(Levels(128, 64)).embed(torch.zeros(1, 191).double().expand(10**5, 191)),
            "B=100000",
        ),
        (
            lambda: LiteralTransformer(Levels(2, 2))([], torch.zeros(1, 3).double(), 1),
            "0 weight matrices for a model of 1",
        ),
    ],
)
def test_mistakes_are_named(make, words: str):
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize("link", ["cosine", "quartic"])
@pytest.mark.parametrize("method", ["log-icot", "icot", "none"])
def test_by_hand_as_by_autograd(method: Method, link: str):
    """Gradients agree at every stage, also of parts of a level, whatever other batches come in between."""
    trees = [ParityTree.draw(10, 8, seed) for seed in range(3)]
    model = randomized(LevelTransformer(10, 8, get_link(link), (3,), torch.float64))
    by_hand = LevelGradients(model)
    for number, stage in enumerate(parity_stages(trees[0].levels, Curriculum(method))):
        B = 40 + 7 * (number % 2)
        signs = torch.stack([draw_sequences(tree, 5, 0, B) for tree in trees])
        losses = by_hand(signs, stage)
        found = [w.grad for w in model.parameters()]
        model.zero_grad()
        expected = level_loss(model, signs.double().mT, stage)
        expected.sum().backward()
        torch.testing.assert_close(losses, expected.detach(), rtol=0, atol=1e-14)
        for layer, w in enumerate(model.parameters()):
            if layer >= stage.layers:
                assert found[layer] is None  # None, not 0, so that AdamW skips the layer
                assert w.grad is None
            else:
                torch.testing.assert_close(found[layer], w.grad, rtol=0, atol=1e-14)


@pytest.mark.parametrize("link", [COSINE, QUARTIC])
def test_links_satisfy_their_definition(link: Link):
    assert link_faults(link) == []
    assert get_link(link.name) is link
    a, b = torch.tensor([1.0, 1, -1, -1]), torch.tensor([1.0, -1, 1, -1])
    torch.testing.assert_close(link((a + b) / 2), a * b)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"phi": lambda t: torch.cos(torch.pi * t)}, "φ(0) = −1"),
        ({"phi": lambda t: -torch.cos(torch.pi * t / 2)}, "φ(1) = 1"),
        ({"phi": lambda t: -torch.cos(torch.pi * t) + 0.1 * torch.sin(torch.pi * t)}, "φ(−t) = φ(t)"),
        ({"slope": lambda t: torch.pi * torch.sin(torch.pi * t) + 0.01}, "φ′(0) = 0"),
        ({"phi": lambda t: 2 * t**2 - 1, "slope": lambda t: 4 * t, "c": 2.0}, "φ′(1) = 0"),
        ({"slope": lambda t: 3 * torch.sin(torch.pi * t)}, "φ′ is the derivative"),
        ({"phi": lambda t: -torch.cos(3 * torch.pi * t) * (1 + torch.sin(torch.pi * t) ** 2)}, "|φ| ≤ 1"),
        ({"c": 4.0}, "c is the curvature"),
        ({"phi": lambda t: -1 + 2 * t**6, "slope": lambda t: 12 * t**5, "c": 0.0}, "c > 0"),
        ({"phi": lambda t: t * torch.nan}, "φ(0) = −1"),
    ],
)
def test_every_broken_condition_is_named(change: dict, fault: str):
    broken = replace(COSINE, name="broken", **change)
    assert any(f.startswith(fault) for f in link_faults(broken))
    with pytest.raises(InputError, match="not a link function"):
        add_link(broken)


def test_a_user_adds_a_link():
    """A third link: the cosine plus a term that vanishes with its slope at 0 and ±1."""
    bent = Link(
        name="bent",
        phi=lambda t: -torch.cos(torch.pi * t) + 0.05 * torch.sin(torch.pi * t) ** 4,
        slope=lambda t: (
            torch.pi * torch.sin(torch.pi * t) + 0.2 * torch.pi * torch.sin(torch.pi * t) ** 3 * torch.cos(torch.pi * t)
        ),
        c=math.pi**2 / 2,
    )
    assert add_link(bent) is add_link(bent) is get_link("bent")
    assert LevelTransformer(4, 2, link=get_link("bent")).link is bent
    with pytest.raises(InputError, match="a link named 'bent' exists"):
        add_link(replace(bent, c=bent.c + 1e-9))
    with pytest.raises(InputError, match="link 'sine' is not one of"):
        get_link("sine")
