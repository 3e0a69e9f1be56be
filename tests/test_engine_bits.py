"""bitmatrix.py and native.py: the C loops and their numpy forms do what their names say, with any number of threads."""

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
import torch

from internalize.parity.task import native
from internalize.parity.task.bitmatrix import differing, transposed, use_native

needs_compiler = pytest.mark.skipif(native.library() is None, reason="no C compiler")
forms = pytest.mark.parametrize("native_form", [False, pytest.param(True, marks=needs_compiler)])


def unpacked(rows: np.ndarray) -> np.ndarray:
    return np.unpackbits(rows.astype("<u8").view(np.uint8), axis=1, bitorder="little")


def random_rows(seed: int, rows: int, words: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, (rows, words), dtype=np.uint64)


@forms
@pytest.mark.parametrize(("rows", "words", "columns"), [(1, 1, 64), (70, 3, 128), (200, 2, 640)])
def test_transpose_is_one(rows: int, words: int, columns: int, native_form: bool):
    """Column i is row order[i], or zeros where the order has −1, and there is the room that was requested."""
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
    """Whatever is wrong with the compiler, numpy does the work. One warning says so, unless CC is empty."""
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


def test_little_work_does_not_wait_for_the_compiler(forbid: Callable[..., None]):
    forbid("internalize.parity.task.bitmatrix.library")
    assert not use_native(1000)
