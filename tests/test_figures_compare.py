"""The figures of `compare`: latency against k, and learned gates beside the prescribed ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import QuadMesh

from internalize.errors import InputError
from internalize.figures.gates import draw_gates, learned_gates
from internalize.figures.latency import draw_latency
from internalize.figures.save import svg_bytes
from internalize.parity.gates import paper_gates
from internalize.parity.tree import Levels
from internalize.runs import Run
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
    assert svg_bytes(drawing.figure) == svg_bytes(draw_latency(rows).figure)
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
    assert svg_bytes(drawing.figure) == svg_bytes(draw_gates(runs, "learned").figure)


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
