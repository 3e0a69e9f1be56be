"""parity/task: trees and stages; samples are the same in any portions; traces are products."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from internalize import Curriculum, InputError
from internalize.parity import Levels, ParityTree, add_trace, draw_bits, inference_input, parity_stages, stage_input
from internalize.parity.task.data import draw_sequences
from internalize.random_words import words
from tests.strategies import seeds, trees


def test_worked_example():
    """Figure 4: n = 8, k = 4, the paper's b_1 b_3 b_9 ≡ 1, nodes b_9, b_10 and the root b_11 (here minus one)."""
    tree = ParityTree(8, (0, 2, 4, 7))
    assert (tree.k, tree.L, tree.T, tree.root) == (4, 2, 11, 10)
    assert tree.levels.level_end == (8, 10, 11)
    assert [tree.levels.level_of(m) for m in range(11)] == [0] * 8 + [1, 1, 2]
    assert [tree.children(m) for m in (8, 9, 10)] == [(0, 2), (4, 7), (8, 9)]
    assert [tree.parent(m) for m in range(11)] == [8, None, 8, None, 9, None, None, 9, 10, 10, None]
    stages = parity_stages(tree.levels, Curriculum("log-icot"))
    assert [(s.hidden, s.supervised, s.layers) for s in stages] == [((), (8, 9, 10), 1), ((8, 9), (10,), 2)]


def test_paper_sizes():
    """n_ℓ = n + k(1 − 2^{−(ℓ−1)}) of the experiment n = 30, k = 16, and its stages' boundaries."""
    levels = Levels(30, 16)
    assert levels.level_end == (30, 38, 42, 44, 45)
    stages = parity_stages(levels, Curriculum("log-icot"))
    assert [len(s.hidden) for s in stages] == [0, 8, 12, 14]
    assert [s.layers for s in stages] == [1, 2, 3, 4]
    icot = parity_stages(levels, Curriculum("icot"))
    assert len(icot) == 15
    assert [s.layers for s in icot] == [1] * 8 + [2] * 4 + [3] * 2 + [4]


@given(trees(max_k=32))
def test_family(tree: ParityTree):
    """Parents and children are inverse, children are one level below, and every leaf is reached once."""
    below: dict[int, list[int]] = {j: [j] for j in range(tree.n)}
    for m in range(tree.n, tree.T):
        first, second = tree.children(m)
        assert first < second < m
        assert tree.parent(first) == tree.parent(second) == m
        assert {tree.levels.level_of(c) for c in (first, second)} == {tree.levels.level_of(m) - 1}
        below[m] = below[first] + below[second]
    assert sorted(below[tree.root]) == list(tree.secret)
    assert [j for j in range(tree.T) if tree.parent(j) is None] == [
        *(j for j in range(tree.n) if j not in tree.secret),
        tree.root,
    ]
    if tree.pairing == tree.secret:
        leaves = [leaf for layer_pair in tree.layer_children(0) for leaf in layer_pair]
        assert leaves == list(tree.secret)
    assert sum(len(tree.levels.nodes(level)) for level in range(tree.L + 1)) == tree.T


@given(st.integers(1, 6), st.integers(0, 20), seeds)
def test_draw(L: int, spare: int, seed: int):
    tree = ParityTree.draw(2**L + spare, 2**L, seed)
    assert tree == ParityTree.draw(2**L + spare, 2**L, seed)
    assert len(set(tree.secret)) == 2**L


def test_draw_is_uniform():
    """Each bit of 8 is in the secret of 4 half of the time: 2 000 seeds, 5 standard deviations."""
    drawn = [ParityTree.draw(8, 4, seed).secret for seed in range(2000)]
    for j in range(8):
        assert abs(sum(j in secret for secret in drawn) - 1000) < 5 * (2000 / 4) ** 0.5
    assert len(set(drawn)) == 70


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Levels(30, 1), "k=1 must be at least 2: a node has 2 children"),
        (lambda: Levels(30, 4, 3), "k=4 must be 1 more than a multiple of 2 and at least 3: a node has 3 children"),
        (lambda: Levels(30, 4, 1), "arity=1 is less than 2"),
        (lambda: Levels(30, -4), "k=-4"),
        (lambda: ParityTree(4, (0, 4)), "from 0 … 3"),
        (lambda: ParityTree(4, (1, 1)), "2 different positions"),
        (lambda: ParityTree(4, (0, 1), (0, 2)), "not an order of secret"),
        (lambda: ParityTree(4, (0, 1)).children(3), "position 3 has no children; nodes are 4 … 4"),
        (lambda: ParityTree(4, (0, 1)).parent(5), "position 5 is outside 0 … 4"),
        (lambda: ParityTree.draw(4, 2, 2**63), "seed=9223372036854775808"),
    ],
)
def test_mistakes_are_named(make, words: str):
    with pytest.raises(InputError, match=words):
        make()


def test_stream_is_pinned():
    """The bits never change between versions, because published results depend on them."""
    assert [hex(w) for w in words(0, "train", 0, 2)] == ["0xd037f8c3f9a1d176", "0xc057419b4c210765"]
    drawn = draw_bits(8, seed=7, start=3, count=2)
    assert drawn.tolist() == [[1, 1, -1, 1, -1, 1, -1, 1], [1, 1, 1, -1, 1, 1, -1, 1]]


@given(st.integers(1, 300), seeds, st.integers(0, 10**12), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_chunks_make_no_difference(n: int, seed: int, start: int, portions: list[int]):
    whole = draw_bits(n, seed, start, sum(portions))
    ends = np.cumsum([start, *portions]).tolist()
    parts = [draw_bits(n, seed, a, b - a) for a, b in pairwise(ends)]
    assert torch.equal(whole, torch.cat(parts))


def test_bits_are_fair_and_independent():
    """Means and pair correlations of 100 bits over 20 000 samples, across seeds and streams: within 5.5 deviations."""
    drawn = torch.cat([draw_bits(50, 0, 0, 20_000), draw_bits(25, 1, 0, 20_000),
                       draw_bits(25, 0, 0, 20_000, stream="validation")], dim=1)  # fmt: skip
    correlation = drawn.T @ drawn / 20_000 - torch.eye(100)
    assert correlation.abs().max() < 5.5 / 20_000**0.5
    assert drawn.mean(0).abs().max() < 5.5 / 20_000**0.5


@given(trees(max_k=16), seeds)
def test_trace(tree: ParityTree, seed: int):
    bits = draw_bits(tree.n, seed, 0, 16)
    sequence = add_trace(tree, bits)
    assert torch.equal(sequence[:, : tree.n], bits)
    for m in range(tree.n, tree.T):
        first, second = tree.children(m)
        assert torch.equal(sequence[:, m], sequence[:, first] * sequence[:, second])
    assert torch.equal(sequence[:, tree.root], bits[:, list(tree.secret)].prod(dim=1))


@given(trees(max_k=16), st.sampled_from(["none", "cot", "icot", "log-icot"]))
def test_padding(tree: ParityTree, method):
    sequence = add_trace(tree, draw_bits(tree.n, 0, 0, 4))
    for stage in parity_stages(tree.levels, Curriculum(method)):
        padded = stage_input(sequence, stage)
        for position in range(tree.T):
            expected = 0 * sequence[:, position] if position in stage.hidden else sequence[:, position]
            assert torch.equal(padded[:, position], expected)
    shown = inference_input(sequence[:, : tree.n], tree.T)
    assert torch.equal(shown[:, : tree.n], sequence[:, : tree.n])
    assert shown.shape == sequence.shape
    assert not shown[:, tree.n :].any()


@pytest.mark.parametrize(("n", "k", "count"), [(30, 16, 500), (64, 32, 77), (70, 32, 1), (130, 64, 129), (2, 2, 64)])
def test_sequences_by_bits_are_the_traces(n: int, k: int, count: int):
    tree = ParityTree.draw(n, k, 3)
    expected = add_trace(tree, draw_bits(n, 3, 17, count, "validation"))
    assert torch.equal(draw_sequences(tree, 3, 17, count, "validation").T.float(), expected)
