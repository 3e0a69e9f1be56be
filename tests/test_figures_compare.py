"""The figures beyond the paper's: curricula, latency, ablations, learned gates, language models, Algorithm 1 at finite n."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from internalize.report.figures.gate_rows import FLOOR, draw_gate_rows
from matplotlib.collections import QuadMesh

from internalize.errors import InputError
from internalize.parity.model.gates import paper_gates
from internalize.parity.task.tree import Levels
from internalize.parity.theory.prediction import Setting
from internalize.report.figures.ablations import draw_ablations, input_states
from internalize.report.figures.curricula import draw_curricula
from internalize.report.figures.gates import draw_gates, learned_gates
from internalize.report.figures.language import draw_language
from internalize.report.figures.latency import draw_latency
from internalize.report.figures.signal import draw_signal
from internalize.report.figures.success import draw_success
from internalize.report.stored import FOLDER
from internalize.storage.files import read_json
from internalize.storage.runs import Run
from tests.tiny import OPTIONS, rewrite_metrics, tiny_runs


def timed(by: str, k: int, batch: int, n: int = 32) -> dict[str, Any]:
    middle = {"node": k - 1, "level": np.log2(k), "direct": 1}[by] * 0.1 * batch**0.1
    limits = {"latency_ms_low": 0.9 * middle, "latency_ms_high": 1.2 * middle}
    return {"by": by, "n": n, "k": k, "batch": batch, "latency_ms": middle, "repeats": 9, **limits}


def test_latency():
    rows = [timed(by, k, batch) for batch in (1, 1000) for k in (16, 2, 4) for by in ("node", "level", "direct")]
    drawing = draw_latency(rows)
    for axes, batch in zip(drawing.figure.axes, (1, 1000), strict=True):
        assert (axes.get_xscale(), axes.get_yscale(), axes.get_title()) == ("log", "log", f"batch {batch}")
        for container, by in zip(axes.containers, ("node", "level", "direct"), strict=True):
            line: Any = container[0]
            assert np.asarray(line.get_xdata(), dtype=float).tolist() == [2, 4, 16]
            np.testing.assert_allclose(
                np.asarray(line.get_ydata(), dtype=float), [timed(by, k, batch)["latency_ms"] for k in (2, 4, 16)]
            )
    assert "15 at batch 1 and 15 at batch 1000 times as long" in drawing.caption
    assert drawing.content() == draw_latency(rows).content()
    with pytest.raises(InputError, match=r"rows of n=\[16, 32\]"):
        draw_latency([*rows, timed("node", 4, 1, n=16)])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    options = replace(OPTIONS, gates="learned", mask="causal", steps=40)
    return tiny_runs(tmp_path_factory.mktemp("gates"), options, (0, 1))


def test_gates(runs: list[Run]):
    drawing = draw_gates(runs, "learned")
    left, upper, lower = drawing.figure.axes[:3]
    levels = Levels(8, 4)
    for axes, wanted in ((upper, learned_gates(runs[0])), (lower, paper_gates(levels).numpy())):
        (mesh,) = (found for found in axes.collections if isinstance(found, QuadMesh))
        values: Any = mesh.get_array()
        np.testing.assert_array_equal(np.asarray(values), wanted)
    metrics = [run.metrics() for run in runs]
    thick = [line for line in left.lines if not str(line.get_label()).startswith("_")]
    for line, part in zip(thick, ("inputs", "written", "below"), strict=True):
        mean = np.mean([[m["gate_distance"][part] for m in own] for own in metrics], axis=0)  # the median of two
        np.testing.assert_allclose(np.asarray(line.get_ydata(), dtype=float), mean)
    (switch,) = (line for line in left.lines if line.get_linestyle() == "--")
    assert np.asarray(switch.get_xdata()).tolist() == [40, 40]
    assert drawing.name == "learned"
    assert "2 seeds" in drawing.caption
    assert drawing.content() == draw_gates(runs, "learned").content()


def test_gates_that_are_not_learned(tmp_path: Path, runs: list[Run]):
    (fixed,) = tiny_runs(tmp_path / "fixed", replace(OPTIONS, steps=2), (0,))
    with pytest.raises(InputError, match="has no gate1"):
        draw_gates([fixed])
    kept = runs[1].metrics()
    rewrite_metrics(runs[1], kept[:-1])
    try:
        with pytest.raises(InputError, match="not evaluated at the same steps"):
            draw_gates(runs)
    finally:
        rewrite_metrics(runs[1], kept)


def stored(of: str) -> list[dict[str, Any]]:
    return [row for row in read_json(FOLDER / "compare.json")["rows"] if row["of"] == of]


def test_costs_of_curricula():
    rows = stored("curricula")
    drawing = draw_curricula(rows)
    small, large = drawing.figure.axes
    assert (small.get_title(), large.get_title()) == ("n = 30, k = 16", "n = 128, k = 64")
    marks = {float(np.asarray(line.get_xdata())[0]) for line in small.lines if len(np.asarray(line.get_xdata())) == 1}
    assert marks >= {row["samples_to_99"] for row in rows if row["n"] == 30 and row["samples_to_99"]}
    crosses = [line for line in small.lines if line.get_marker() == "x"]
    assert len(crosses) == 2  # without a chain, under either optimizer
    assert "log-icot under adamw at n = 30 52500" in drawing.alt


def test_ablations_and_the_collapse():
    drawing = draw_ablations(stored("ablations"))
    assert "gates=ones (adamw)" in drawing.alt
    assert "mask=causal (adamw)" not in drawing.alt
    levels = Levels(30, 16)
    kept, lost = input_states(levels, "paper"), input_states(levels, "ones")
    assert kept.spread == pytest.approx([1] * 5, abs=0.01)
    assert kept.left == pytest.approx([1] * 5, abs=0.01)
    assert lost.spread[1] < 0.5
    assert abs(lost.left[1]) < 0.02  # an update sees the positions before, never the bit itself


def test_gates_in_rows():
    rows = stored("gates")
    drawing = draw_gate_rows(rows)
    (axes,) = drawing.figure.axes
    inputs = next(line for line in axes.lines if line.get_label() == "input bits, to be kept")
    assert list(np.asarray(inputs.get_xdata())) == [max(row["gate_distance"]["inputs"], FLOOR) for row in rows]
    assert "7 of 11 variants are solved on every seed" in drawing.alt


def test_language_models():
    rows = read_json(FOLDER / "lm-scattered.json")["rows"]
    (axes,) = draw_language(rows).figure.axes
    assert sorted(bar.get_extents().width for bar in axes.patches) == pytest.approx(
        [
            axes.transData.transform((x, 0))[0] - axes.transData.transform((0, 0))[0]
            for x in (360, 390, 400, 481, 487, 506)
        ]
    )


def test_signal_is_the_population_s():
    drawing = draw_signal()
    assert "0.803, 0.842, 0.828, 0.841" in drawing.caption
    left, _ = drawing.figure.axes
    first = next(line for line in left.lines if line.get_label() == "stage 1")
    signal = np.interp([128, 1024], np.asarray(first.get_xdata()), np.asarray(first.get_ydata()))
    assert signal == pytest.approx([0.948, 0.993], abs=5e-4)


def test_success_on_its_line():
    points = [
        {"samples": samples, "seeds": 20, "successes": won} for samples, won in ((905, 0), (1810, 10), (3620, 20))
    ]
    drawing = draw_success(points, Setting(30, 16))
    (axes,) = drawing.figure.axes
    assert "passes through 3 of 3 intervals" in drawing.caption
    line = axes.lines[0]
    middle = np.interp(1810, np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
    assert middle == pytest.approx(0.5, abs=0.01)
    assert "50% at B = 1810" in drawing.alt
