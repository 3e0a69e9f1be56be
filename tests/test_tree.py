"""tree.py and stages.py: the paper's worked example, and what must hold for every tree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from internalize import Curriculum, InputError
from internalize.parity import Levels, ParityTree, parity_stages
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
    assert [(s.hidden, s.supervised, s.layers) for s in stages] == [
        ((), (8, 9, 10), 1),
        ((8, 9), (10,), 2),
    ]


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
    """Parents and children are inverse, children are one level down, and every leaf is reached once."""
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
        (lambda: Levels(30, 1), "k=1 is not a power of two from 2"),
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
