"""grid.py: words to settings; what is no word, and what no run can have."""

import pytest

from internalize.errors import InputError
from internalize.parity.experiments.grid import parse_grid
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.parity.theory.prediction import Setting


def solving(words: list[str]) -> tuple[list[SolveOptions], tuple[str, ...]]:
    grid = parse_grid("solve", words)
    return [setting for setting in grid.settings if isinstance(setting, SolveOptions)], grid.left_out


def test_values_of_every_type():
    grid = parse_grid("train", ["n=12,16", "k=4", "lr=0.1,3e-2", "curriculum=icot", "boundaries=1+3,2", "steps=7"])
    wanted = [
        TrainOptions(n=n, k=4, lr=lr, curriculum="icot", boundaries=boundaries, steps=7)
        for n in (12, 16)
        for lr in (0.1, 0.03)
        for boundaries in ((1, 3), (2,))
    ]
    assert list(grid.settings) == wanted
    assert grid.left_out == ()
    assert parse_grid("solve", []).settings == (SolveOptions(),)


def test_values_that_follow_from_others():
    grid = parse_grid("solve", ["k=n/2", "n=8,16", "samples=0.5x,1x,10*n,n", "K=default,20"])
    wanted: list[SolveOptions] = []
    for n in (8, 16):
        half = Setting(n, n // 2).samples_for(0.5)
        assert half is not None
        for samples in (round(half / 2), half, 10 * n, n):
            wanted += [SolveOptions(n=n, k=n // 2, samples=samples, K=K) for K in (None, 20.0)]
    assert list(grid.settings) == wanted


def test_combinations_that_no_run_can_have():
    settings, left_out = solving(["n=8,12", "k=4,16,n/2", "grid=1,K"])
    assert [(s.n, s.k, s.grid) for s in settings] == [(8, 4, "1"), (8, 4, "K"), (12, 4, "1"), (12, 4, "K")]
    assert len(left_out) == 6  # k = 16 twice and k = 6 once, on two grids; at n = 8, k = 4 and n/2 are one setting
    assert left_out[0].startswith("n=8 k=16 grid=1: n=8 is less than k=16")
    assert any("k=6 is not a power of two" in line for line in left_out)
    odd = parse_grid("solve", ["n=9,8", "k=n/2"])
    assert odd.left_out == ("n=9 k=n/2: k=n/2 is 4.5 at n=9, not a whole number",)
    settings, left_out = solving(["n=8", "k=4", "K=3", "grid=1", "rate=paper,calibrated", "samples=1x"])
    assert [setting.rate for setting in settings] == ["calibrated"]
    assert "samples=1x: no number of samples is predicted to succeed" in left_out[0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["n"], "'n' is not of the form option=value,value"),
        (["n="], "'n=' is not of the form"),
        (["m=3"], "`solve` has no option 'm'; it has n, k,"),
        (["n=8", "n=16"], "n is given twice"),
        (["n=8,8"], "names a value twice"),
        (["n=many"], "n='many' is not of type int"),
        (["n=8.5"], "n='8.5' is not of type int"),
        (["grid=2"], "grid='2' is not one of none, 1, K"),
        (["seed=1"], "seeds are given by --seeds"),
        (["n=__import__('os')"], "is not of type int"),
        (["k=n/0"], "divides by 0"),
        (["k=grid"], "k='grid' is not of type int"),
        (["n=2*k", "k=n/2"], "no combination of the grid is possible; n=2*k k=n/2: n=2*k, and k is not a number"),
        (["n=8", "k=16"], "no combination of the grid is possible; n=8 k=16: n=8 is less than k=16"),
        (["K=2x"], "K='2x' is not of type float"),
        ([f"{name}={','.join(map(str, range(1, 1001)))}" for name in ("n", "k", "samples")], "1000000000 combinations"),
    ],
)
def test_words_that_are_none(words: list[str], told: str):
    with pytest.raises(InputError) as error:
        parse_grid("solve", words)
    assert told in str(error.value)


def test_samples_are_predicted_for_solve_alone():
    with pytest.raises(InputError, match="batch='1x' is not of type int"):
        parse_grid("train", ["batch=1x"])
