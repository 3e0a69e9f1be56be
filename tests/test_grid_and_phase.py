"""grid.py turns words into settings; crossing.py finds where success crosses one half; phase.py draws it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.collections import QuadMesh

from internalize.errors import InputError
from internalize.parity.experiments.crossing import half_crossing
from internalize.parity.experiments.grid import parse_grid
from internalize.parity.experiments.jobs import CellJob, cell_schema
from internalize.parity.experiments.phase import half_points, success_rates
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.parity.task.tree import Levels
from internalize.parity.theory.chunks import chunk_signal
from internalize.parity.theory.prediction import Setting
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.phase import draw_phase
from internalize.storage.sweep_store import CellStore


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


def test_impossible_combinations_are_left_out():
    settings, left_out = solving(["n=8,12", "k=4,16,n/2", "grid=1,K", "arity=2,4"])
    assert [(s.n, s.k, s.grid) for s in settings] == [
        *((n, 4, grid) for n in (8, 12) for grid in ("1", "1", "K", "K")),
        *((12, 6, grid) for grid in ("1", "K")),
    ]
    # k = 16 four times for each n, and k = 6 with arity 4 twice; at n = 8, k = 4 and n/2 are one setting
    assert len(left_out) == 10
    assert left_out[0].startswith("n=8 k=16 grid=1 arity=2: n=8 is less than k=16")
    assert any("k=6 must be 1 more than a multiple of 3" in line for line in left_out)
    odd = parse_grid("solve", ["n=9,8", "k=n/2"])
    assert odd.left_out == ("n=9 k=n/2: k=n/2 is 4.5 at n=9, not a whole number",)
    settings, left_out = solving(["n=8", "k=4", "K=3", "grid=1", "rate=paper,calibrated", "samples=1x"])
    assert [setting.rate for setting in settings] == ["calibrated"]
    assert "samples=1x: no number of samples is predicted to succeed" in left_out[0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["n"], "'n' does not have the form option=value,value"),
        (["n="], "'n=' does not have the form"),
        (["m=3"], "`solve` has no option 'm'; it has n, k,"),
        (["n=8", "n=16"], "n is given twice"),
        (["n=8,8"], "names a value twice"),
        (["n=many"], "n='many' is not of type int"),
        (["n=8.5"], "n='8.5' is not of type int"),
        (["grid=2"], "grid='2' is not one of none, 1, K"),
        (["seed=1"], "choose the seeds with --seeds"),
        (["n=__import__('os')"], "is not of type int"),
        (["k=n/0"], "divides by 0"),
        (["k=grid"], "k='grid' is not of type int"),
        (
            ["n=2*k", "k=n/2"],
            "no combination of the grid is possible; n=2*k k=n/2: n=2*k, but k is not given as a number",
        ),
        (["n=8", "k=16"], "no combination of the grid is possible; n=8 k=16: n=8 is less than k=16"),
        (["K=2x"], "K='2x' is not of type float"),
        ([f"{name}={','.join(map(str, range(1, 1001)))}" for name in ("n", "k", "samples")], "1000000000 combinations"),
    ],
)
def test_wrong_words_are_refused(words: list[str], told: str):
    with pytest.raises(InputError) as error:
        parse_grid("solve", words)
    assert told in str(error.value)


def test_samples_are_predicted_for_solve_alone():
    with pytest.raises(InputError, match="batch='1x' is not of type int"):
        parse_grid("train", ["batch=1x"])


FACTORS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0)


def drawn(cells: pl.DataFrame, by: list[str]) -> Drawing:
    return draw_phase(success_rates(cells, by), half_points(cells, by), by)


def test_crossing_of_a_logistic_curve():
    """About 95 of 100 intervals contain the truth, and with very many runs the crossing is at the truth."""
    rng, true = np.random.default_rng(0), 1000.0
    samples = [true * factor for factor in FACTORS]
    chances = [1 / (1 + factor**-4) for factor in FACTORS]
    exact = half_crossing(samples, [round(1e7 * chance) for chance in chances], [10**7] * len(samples))
    assert exact is not None
    assert exact.at == pytest.approx(true, rel=2e-3)
    assert exact.high / exact.low < 1.01
    covered = 0
    for _ in range(40):
        found = half_crossing(samples, [int(rng.binomial(30, chance)) for chance in chances], [30] * len(samples))
        assert found is not None
        assert found.low < found.at < found.high
        covered += found.low <= true <= found.high
    assert covered >= 34


def test_no_crossing():
    assert half_crossing([10, 20], [0, 0], [5, 5]) is None
    assert half_crossing([10, 20], [5, 5], [5, 5]) is None
    assert half_crossing([10], [2], [5]) is None
    assert half_crossing([10, 20], [5, 4], [5, 5]) is None  # falling: above one half everywhere
    step = half_crossing([10, 20, 40, 80], [0, 0, 9, 9], [9] * 4)
    assert step is not None
    assert 20 < step.at < 40
    assert (10 < step.low < 21, 38 < step.high < 80) == (True, True)


def test_an_interval_goes_beyond_what_was_tried():
    wide = half_crossing([100, 200], [4, 6], [10, 10])
    assert wide is not None
    assert (100 < wide.at < 200, wide.low < 50, wide.high > 400) == (True, True, True)


def cells(words: list[str], seeds: int, chance: Any) -> pl.DataFrame:
    """Return made-up cells of which the given share succeeds."""
    rows: list[dict[str, Any]] = []
    for setting in parse_grid("solve", words).settings:
        own = CellJob(setting, tuple(range(seeds))).rows()
        won = round(seeds * chance(setting))
        rows += [{**row, "status": "done", "exact_recovery": number < won} for number, row in enumerate(own)]
    frame = CellStore(Path(), "solve", cell_schema("solve"))._as_frame(rows)
    return frame.with_columns(pl.col("exact_recovery").alias("success"))


def as_predicted(setting: Any) -> float:
    return math.exp(Setting(setting.n, setting.k).log_success(setting.samples))


def test_phase_diagram_of_what_is_predicted():
    """With exactly the predicted shares the measured points are on the line, up to the error of the fit."""
    words = ["n=8,16", "k=n/2", f"samples={','.join(f'{factor}x' for factor in FACTORS)}"]
    found = cells(words, 1000, as_predicted)
    drawing = drawn(found, ["n", "samples"])
    points = half_points(found, ["n", "samples"])
    assert [point["n"] for point in points] == [8, 16]
    for point in points:
        assert point["predicted"] == Setting(point["n"], point["n"] // 2).samples_for(0.5)
        assert abs(point["deviation"]) < 0.02
        assert point["low"] < point["measured"] < point["high"]
        assert f"n = {point['n']}: {point['deviation']:+.1%}" in drawing.caption
    axes = drawing.figure.axes[0]
    meshes = [mesh for mesh in axes.collections if isinstance(mesh, QuadMesh)]
    shares = [np.asarray(mesh.get_array()).ravel() for mesh in meshes]
    np.testing.assert_allclose(
        np.concatenate(shares), [round(1000 * as_predicted(s)) / 1000 for s in parse_grid("solve", words).settings]
    )
    (line,) = (line for line in axes.lines if line.get_linestyle() == "--")
    assert np.asarray(line.get_ydata()).tolist() == [point["predicted"] for point in points]
    assert drawing.content() == drawn(found, ["n", "samples"]).content()


def test_other_diagrams():
    """Diagrams over words and in panels have no line, and what one figure cannot show is refused."""
    found = cells(["n=16", "k=8", "K=8,16", "grid=1,K", "curriculum=log-icot,icot"], 4, lambda setting: 0.5)
    drawing = drawn(found, ["K", "grid", "curriculum"])
    panels = drawing.figure.axes[:2]
    assert [axes.get_title() for axes in panels] == ["curriculum = icot", "curriculum = log-icot"]
    assert [tick.get_text() for tick in panels[0].get_yticklabels()] == ["1", "K"]
    assert half_points(found, ["K", "grid", "curriculum"]) == []
    with pytest.raises(InputError, match="cells with the same K, grid differ in curriculum"):
        drawn(found, ["K", "grid"])
    with pytest.raises(InputError, match="takes two options for the axes"):
        drawn(found, ["K"])
    with pytest.raises(InputError, match="no cells"):
        drawn(found.clear(), ["K", "grid"])
    causal = cells(["n=8", "k=4", "samples=50,200", "mask=causal"], 4, lambda setting: setting.samples / 200)
    (point,) = half_points(causal, ["n", "samples"])
    assert (point["predicted"], point["deviation"]) == (None, None)


def trained(words: list[str], succeeds: Any) -> pl.DataFrame:
    """Return made-up cells of training, ten seeds each."""
    rows: list[dict[str, Any]] = []
    for setting in parse_grid("train", words).settings:
        own = CellJob(setting, tuple(range(10))).rows()
        rows += [{**row, "status": "done", "accuracy": 1.0 if succeeds(setting) else 0.5} for row in own]
    frame = CellStore(Path(), "train", cell_schema("train"))._as_frame(rows)
    return frame.with_columns((pl.col("accuracy") >= 0.99).alias("success"))


def test_updates_of_a_chunk_are_predicted():
    """Two levels from random weights: in updates over n, and in n over the initial scale. Equal columns have none."""

    def pace(n: int) -> float:
        return chunk_signal(Levels(n, 8)).updates(500, 0.03)

    words = ["k=8", "skip=1", "lr=0.03"]
    found = trained([*words, "n=16,24", "init_std=0.1", "steps=50,150,450,1350"], lambda own: own.steps >= pace(own.n))
    points = half_points(found, ["n", "steps"])
    assert [point["predicted"] for point in points] == [round(pace(16)), round(pace(24))]
    assert all(point["low"] < point["predicted"] < point["high"] for point in points)
    words = [*words, "n=12,16,24,32,48", "init_std=0,0.1", "steps=600"]
    found = trained(words, lambda own: own.init_std and pace(own.n) <= own.steps)
    equal, apart = half_points(found, ["init_std", "n"])
    assert (equal["measured"], equal["predicted"]) == (None, None)
    assert pace(apart["predicted"]) <= 600 < pace(apart["predicted"] + 1)
    assert 24 < apart["measured"] < 32
    assert "predicted n for one half" in drawn(found, ["init_std", "n"]).caption
    for change in (["skip=2"], ["skip=1", "link=quartic"], ["skip=1", "curriculum=log-icot", "mask=causal"]):
        other = trained(["n=16,24,32", "k=8", "init_std=0.1", "steps=300", *change], lambda own: own.n < 20)
        assert half_points(other, ["init_std", "n"]) == []
