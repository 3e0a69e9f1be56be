"""data.py and random_words.py: the same samples in any portion, traces that multiply up, padding that hides."""

import multiprocessing
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from internalize import Curriculum
from internalize.parity import ParityTree, add_trace, draw_bits, inference_input, parity_stages, stage_input
from internalize.parity.task.data import draw_sequences
from internalize.random_words import words
from tests.strategies import seeds, trees


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


def test_processes_make_no_difference():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        part = pool.apply(_portion, (50, 50))
    np.testing.assert_array_equal(part, draw_bits(30, 5, 0, 100)[50:].numpy())


def _portion(start: int, count: int) -> np.ndarray:
    return draw_bits(30, 5, start, count).numpy()


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
