"""parity/task: trees and stages; samples that are the same in any portion; matrices of bits, in C and in numpy."""

import contextlib
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from internalize import Curriculum, InputError
from internalize.parity import Levels, ParityTree, add_trace, draw_bits, inference_input, parity_stages, stage_input
from internalize.parity.task import native
from internalize.parity.task.bitmatrix import differing, transposed, use_native
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


# ---------------------------------------------------------------- samples


def test_stream_is_pinned():
    """Bits of today are the bits of every later version: published results depend on them."""
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


# ---------------------------------------------------------------- matrices of bits

needs_compiler = pytest.mark.skipif(native.library() is None, reason="no C compiler")
forms = pytest.mark.parametrize("native_form", [False, pytest.param(True, marks=needs_compiler)])


def unpacked(rows: np.ndarray) -> np.ndarray:
    return np.unpackbits(rows.astype("<u8").view(np.uint8), axis=1, bitorder="little")


def random_rows(seed: int, rows: int, words: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, (rows, words), dtype=np.uint64)


@forms
@pytest.mark.parametrize(("rows", "words", "columns"), [(1, 1, 64), (70, 3, 128), (200, 2, 640)])
def test_transpose_is_one(rows: int, words: int, columns: int, native_form: bool):
    """Column i is the row that the order names, −1 a row of zeros, and what room is asked for is there."""
    matrix = random_rows(1, rows, words)
    order = np.random.default_rng(2).integers(-1, rows, columns)
    found = transposed(matrix, order, room=words * 64 + 5, native=native_form)
    assert found.shape == (words * 64 + 5, columns // 64)
    wanted = np.where(order[:, None] < 0, 0, unpacked(matrix)[order]).T
    np.testing.assert_array_equal(unpacked(found[: words * 64]), wanted)


@forms
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (17, 4), (33, 7), (40, 21)])
def test_differing_counts_bits_by_segment(rows: int, columns: int, native_form: bool):
    keys, targets = random_rows(3, rows, 9), random_rows(4, columns, 9)
    ends, weights = np.array([2, 3, 9]), np.array([1.0, -100.0, 0.5])
    total = np.full((rows, columns), 7.0)
    differing(keys, targets, ends, weights, total=total, native=native_form)
    wanted = np.full((rows, columns), 7.0)
    for j, m in np.ndindex(rows, columns):
        bits = (unpacked(keys)[j] != unpacked(targets)[m]).reshape(9, 64).sum(axis=1)
        wanted[j, m] += bits[:2].sum() - 100 * bits[2] + 0.5 * bits[3:].sum()
    np.testing.assert_array_equal(total, wanted)


@needs_compiler
def test_threads_share_the_rows():
    torch.set_num_threads(2)
    matrix, order = random_rows(6, 100, 3), np.arange(-28, 100)
    order[:28] = -1
    alike = [transposed(matrix, order, native=native_form) for native_form in (True, False)]
    np.testing.assert_array_equal(alike[0], alike[1])
    totals = np.zeros((2, 192, 5))
    for total, native_form in zip(totals, (True, False), strict=True):
        differing(alike[0], random_rows(7, 5, 2), np.array([2]), np.array([1.0]), total=total, native=native_form)
    np.testing.assert_array_equal(totals[0], totals[1])


@pytest.mark.parametrize("threads", [1, 2])
def test_one_ahead_keeps_the_order(threads: int):
    torch.set_num_threads(threads)
    assert list(native.one_ahead(lambda item: item * item, range(5))) == [0, 1, 4, 9, 16]
    assert list(native.one_ahead(lambda item: item, [])) == []


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("", None),
        ("no-such-compiler", "No such file"),
        ("false", "non-zero exit status 1"),
        ("true", "cannot open shared object file"),
        ("'", "No closing quotation"),
        ("sh -c 'sleep 60; exit 1'", "timed out after 0.3 seconds"),
        ("sh -c 'sleep 60 & exit 0'", "cannot open shared object file"),
    ],
)
def test_no_compiler_is_no_error(compiler: str, said: str | None, monkeypatch: pytest.MonkeyPatch):
    """Whatever is wrong with the compiler, numpy does the work; that is said once, unless there is none."""
    monkeypatch.setenv("CC", compiler)
    if "timed out" in (said or ""):
        monkeypatch.setattr(native, "COMPILER_SECONDS", 0.3)
    native.library.cache_clear()
    try:
        with pytest.warns(UserWarning, match=said) if said else contextlib.nullcontext():
            assert native.library() is None
        assert not use_native(2**40)
    finally:
        native.library.cache_clear()


def test_little_work_does_not_wait_for_the_compiler(monkeypatch: pytest.MonkeyPatch):
    def compiled() -> None:
        raise AssertionError("compiled for nothing")

    monkeypatch.setattr("internalize.parity.task.bitmatrix.library", compiled)
    assert not use_native(1000)
