"""The figures show what the curricula, masks, models and runs say, and are the same bytes every time."""

import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from internalize.curriculum import Curriculum
from internalize.errors import InputError
from internalize.parity.model.gates import paper_gates
from internalize.parity.model.literal import LiteralTransformer
from internalize.parity.model.mask import level_mask
from internalize.parity.model.metrics import child_attention
from internalize.parity.model.transformer import LevelTransformer
from internalize.parity.options import TrainOptions
from internalize.parity.task.data import add_trace, draw_bits, stage_input
from internalize.parity.task.stages import parity_stages
from internalize.parity.task.tree import Levels, ParityTree
from internalize.parity.theory.prediction import Setting
from internalize.report.figures.ablations import draw_ablations, input_states
from internalize.report.figures.attention import draw_attention
from internalize.report.figures.curricula import draw_curricula
from internalize.report.figures.gates import FLOOR, draw_gate_rows, draw_gates, learned_gates
from internalize.report.figures.language import draw_language
from internalize.report.figures.latency import draw_latency
from internalize.report.figures.law import draw_law
from internalize.report.figures.loss import draw_loss
from internalize.report.figures.mask import draw_mask
from internalize.report.figures.paradigms import draw_paradigms, paradigms
from internalize.report.figures.signal import draw_signal
from internalize.report.figures.style import FAINT, GREEN, ORANGE, RED, SKY, spaced
from internalize.report.figures.success import draw_success
from internalize.report.figures.tree import SHARP, draw_tree
from internalize.report.stored import FOLDER
from internalize.storage.files import read_json
from internalize.storage.runs import Run
from tests.tiny import OPTIONS, copies, rewrite_metrics, tiny_runs


def meshes(figure: Figure) -> list[QuadMesh]:
    return [found for axes in figure.axes for found in axes.collections if isinstance(found, QuadMesh)]


def values(mesh: QuadMesh) -> np.ndarray:
    array = mesh.get_array()
    assert array is not None
    return np.asarray(array)


def xs(line: Line2D) -> list[float]:
    return np.asarray(line.get_xdata(), dtype=float).tolist()


def ys(line: Line2D) -> list[float]:
    return np.asarray(line.get_ydata(), dtype=float).tolist()


def boxes(axes, color: str) -> set[tuple[int, int]]:
    """Return (column, row) of the unit boxes of a color; columns count from the first node of the chain."""
    found = [p for p in axes.patches if isinstance(p, Rectangle) and to_hex(p.get_facecolor()) == color]
    return {(round(p.get_x() - 2.2), int(p.get_y())) for p in found}


@pytest.mark.parametrize("k", [2, 4, 8, 16])
def test_paradigms_are_the_curricula_s_stages(k):
    figure = draw_paradigms(k).figure
    for axes, method in zip(figure.axes, ("cot", "icot", "log-icot"), strict=True):
        stages = Curriculum(method).stages(k - 1, [Levels(k, k).level_of(k + step) for step in range(k - 2)])
        rows = range(len(stages))
        hidden = {(step, row) for row, stage in enumerate(stages) for step in stage.hidden}
        supervised = {(step, row) for row, stage in enumerate(stages) for step in stage.supervised}
        assert {box for box in boxes(axes, FAINT) if box[1] in rows} == hidden
        assert boxes(axes, SKY) | boxes(axes, ORANGE) == supervised
        assert boxes(axes, ORANGE) == {(k - 2, row) for row in rows}


def test_paradigms_count_stages_and_passes():
    cot, icot, log_icot = paradigms(Levels(8, 8))
    assert [(len(p.stages), len(p.passes)) for p in (cot, icot, log_icot)] == [(1, 7), (7, 1), (3, 1)]
    figure = draw_paradigms(8).figure
    assert [len(boxes(axes, GREEN)) for axes in figure.axes] == [7, 1, 1]
    notes = [[text.get_text() for text in axes.texts][-1] for axes in figure.axes]
    training = ("1 training stage, 7 passes", "7 training stages, 1 pass", "3 training stages, 1 pass")
    assert notes == [f"{counts} at inference" for counts in training]


@pytest.mark.parametrize("levels", [Levels(8, 4), Levels(30, 16), Levels(2, 2)])
def test_mask_is_the_model_s(levels):
    figure = draw_mask(levels).figure
    (mesh,) = meshes(figure)
    np.testing.assert_array_equal(values(mesh), level_mask(levels).T.numpy())
    lines = [xs(line)[0] for line in figure.axes[0].lines if xs(line)[0] == xs(line)[1]]
    assert lines == list(levels.level_end[:-1])


def test_loss_has_a_line_a_stage_and_the_spike_at_the_switch(runs):
    drawing = draw_loss(runs)
    axes = drawing.figure.axes[0]
    metrics = [run.metrics() for run in runs]
    switch = next(place for place, line in enumerate(metrics[0]) if line["stage"] == 2)
    assert metrics[0][switch]["step"] == metrics[0][switch - 1]["step"] == OPTIONS.steps
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [xs(line)[0] for line in dashed] == [0, OPTIONS.steps]

    curve = next(line for line in axes.lines if str(line.get_label()).startswith("median"))
    assert xs(curve) == [line["step"] for line in metrics[0]]
    median = np.median([[line["loss"] for line in own] for own in metrics], axis=0)
    np.testing.assert_allclose(ys(curve), median)
    spike = next(line for line in axes.lines if str(line.get_label()).startswith("directly"))
    assert (xs(spike)[0], ys(spike)[0]) == (OPTIONS.steps, median[switch])
    assert f"median over {len(runs)} seeds" in drawing.caption
    assert f"{median[switch]:.3g}" in drawing.caption


def test_loss_of_one_seed_without_a_switch(tmp_path):
    drawing = draw_loss(tiny_runs(tmp_path, TrainOptions(n=4, k=2, steps=3, batch=8, eval_samples=8), (5,)))
    assert "one seed" in drawing.caption
    assert "there is no switch" in drawing.alt
    assert not drawing.figure.axes[0].collections  # no band


def test_loss_of_runs_that_do_not_belong_together_is_refused(runs, tmp_path):
    others = tiny_runs(tmp_path / "others", replace(OPTIONS, steps=1), (0,))
    with pytest.raises(InputError, match="2 different settings"):
        draw_loss([*runs, *others])
    doctored = copies(runs, tmp_path / "doctored")
    rewrite_metrics(doctored[0], doctored[0].metrics()[:-1])
    with pytest.raises(InputError, match="not evaluated at the same steps"):
        draw_loss(doctored)


def test_attention_is_the_model_s(runs):
    run = runs[1]
    model = LevelTransformer(OPTIONS.n, OPTIONS.k, runs=(1,))
    for layer, parameter in enumerate(model.W):
        parameter.data.copy_(run.weights()[f"W{layer + 1}"][None])
    tree = ParityTree.draw(OPTIONS.n, OPTIONS.k, 1)
    drawing = draw_attention(run)
    panels = meshes(drawing.figure)[: tree.L]
    for layer, mesh in enumerate(panels):
        torch.testing.assert_close(torch.tensor(values(mesh)), model.attention(layer)[0].T.double(), atol=1e-6, rtol=0)
    smallest = child_attention(model, [tree])[0]
    assert ", ".join(f"{value:.3f}" for value in smallest.tolist()) in drawing.caption


def test_attention_marks_the_secret_set_children_and_levels(runs):
    tree = ParityTree.draw(OPTIONS.n, OPTIONS.k, 0)
    figure = draw_attention(runs[0]).figure
    for layer, axes in enumerate(figure.axes[: tree.L]):
        assert [place - 0.5 for place in axes.get_xticks(minor=True)] == list(tree.secret)
        assert {to_hex(tick.tick1line.get_color()) for tick in axes.xaxis.get_minor_ticks()} == {RED}
        frames = [p for p in axes.patches if isinstance(p, Rectangle) and not p.get_fill()]
        wanted = [(child, node) for node in tree.levels.nodes(layer + 1) for child in tree.children(node)]
        assert [p.get_xy() for p in frames] == wanted
        assert [xs(line)[0] for line in axes.lines] == list(tree.levels.level_end[:-1])
        assert axes.get_xlim() == (0, tree.T)


def test_attention_of_another_model_is_refused(tmp_path):
    (run,) = tiny_runs(tmp_path, TrainOptions(n=4, k=2, curriculum="cot", steps=1, batch=4, eval_samples=4), (0,))
    with pytest.raises(InputError, match="weights W but no W1"):
        draw_attention(run)


def test_stream_values_are_the_literal_model_s():
    tree = ParityTree(8, (0, 3, 5, 6), pairing=(0, 5, 3, 6))
    D = add_trace(tree, draw_bits(8, 9, 0, 1, "validation", torch.float64))
    model = LiteralTransformer(tree.levels)
    W = [torch.zeros(11, 11, dtype=torch.float64) for _ in range(2)]
    W[0][[0, 5], 8] = W[0][[3, 6], 9] = W[1][[8, 9], 10] = SHARP
    first, last = parity_stages(tree.levels, Curriculum())
    figure = draw_tree(tree, seed=9).figure
    shown = [values(mesh) for mesh in meshes(figure)]
    assert len(shown) == 6
    for column, stage in enumerate((first, last)):
        for layer, X in enumerate(model.streams(W, stage_input(D, stage))):
            np.testing.assert_allclose(shown[2 * layer + column], X[tree.T :].numpy(), atol=1e-12)
    cot, icot = shown[4], shown[5]
    np.testing.assert_allclose(cot[2], D[0].numpy(), atol=1e-6)  # the model solves it
    np.testing.assert_allclose(icot[2], D[0].numpy(), atol=1e-6)
    np.testing.assert_array_equal(icot[0, 8:10], [0, 0])


def test_labels_keep_their_distance():
    assert spaced([0, 1, 2, 5, 6], 2) == [0, 2, 3]
    assert spaced([], 1) == []


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="k=32 is over 16"):
        draw_paradigms(32)
    with pytest.raises(InputError, match="room for 16 positions"):
        draw_tree(ParityTree(30, tuple(range(16))))
    with pytest.raises(InputError, match="k of at least 4"):
        draw_tree(ParityTree(4, (0, 1)))


def test_files_are_whole_and_nothing_is_clipped(runs, tmp_path):
    """Every drawing is saved as whole SVG and PDF files, has its texts, and fits its frame."""
    for drawing in [draw_paradigms(), draw_mask(), draw_loss(runs), draw_attention(runs[0]), draw_tree()]:
        path = drawing.save(tmp_path / "new" / "figures")
        assert path.name == f"{drawing.name}.svg"
        svg, pdf = path.read_bytes(), path.with_suffix(".pdf").read_bytes()
        assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
        assert b"<image" not in svg  # vectors only
        assert pdf.startswith(b"%PDF-")
        assert pdf.rstrip().endswith(b"%%EOF")
        assert all([drawing.title, drawing.caption, drawing.alt])
        box = drawing.figure.get_tightbbox()
        width, height = drawing.figure.get_size_inches()
        assert 0 <= box.x0 < box.x1 <= width, drawing.name
        assert 0 <= box.y0 < box.y1 <= height, drawing.name


def test_settings_of_matplotlib_neither_matter_nor_change(runs):
    wanted = draw_mask().content()
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "none"}):
        before = dict(matplotlib.rcParams)
        assert draw_mask().content() == wanted
        assert dict(matplotlib.rcParams) == before


def test_law_draws_what_it_is_given():
    """The line is the prediction, the points are the measurements, and the caption says how far apart they are."""
    points = [
        {"n": 16, "predicted": 550, "measured": 605.0, "points": [{"samples": b, "seeds": 7} for b in (440, 550, 688)]},
        {"n": 64, "predicted": 6001, "measured": 6001.0, "points": [{"samples": b, "seeds": 3} for b in (5000, 7000)]},
    ]
    drawing = draw_law(points)
    left, right = drawing.figure.axes
    line = left.get_lines()[1]
    assert dict(zip(xs(line), ys(line), strict=True))[16] == Setting(16, 8).samples_for(0.5)
    (bars,) = left.containers
    assert list(bars[0].get_ydata()) == [605.0, 6001.0]
    (ratios,) = right.containers
    assert ratios[0].get_ydata()[1] == pytest.approx(6001 / (64 * math.log(64)))
    assert "7 at n = 16, 3 at n = 64" in drawing.caption
    assert "is 10%" in drawing.caption


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
            assert xs(container[0]) == [2, 4, 16]
            assert ys(container[0]) == pytest.approx([timed(by, k, batch)["latency_ms"] for k in (2, 4, 16)])
    assert "15 at batch 1 and 15 at batch 1000 times as long" in drawing.caption
    assert drawing.content() == draw_latency(rows).content()
    with pytest.raises(InputError, match=r"rows of n=\[16, 32\]"):
        draw_latency([*rows, timed("node", 4, 1, n=16)])


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    options = replace(OPTIONS, gates="learned", mask="causal", steps=40)
    return tiny_runs(tmp_path_factory.mktemp("gates"), options, (0, 1))


def test_gates(learned: list[Run]):
    drawing = draw_gates(learned, "learned")
    left, upper, lower = drawing.figure.axes[:3]
    levels = Levels(8, 4)
    for axes, wanted in ((upper, learned_gates(learned[0])), (lower, paper_gates(levels).numpy())):
        (mesh,) = (found for found in axes.collections if isinstance(found, QuadMesh))
        np.testing.assert_array_equal(values(mesh), wanted)
    metrics = [run.metrics() for run in learned]
    thick = [line for line in left.lines if not str(line.get_label()).startswith("_")]
    for line, part in zip(thick, ("inputs", "written", "below"), strict=True):
        mean = np.mean([[m["gate_distance"][part] for m in own] for own in metrics], axis=0)  # the median of two
        np.testing.assert_allclose(ys(line), mean)
    (switch,) = (line for line in left.lines if line.get_linestyle() == "--")
    assert xs(switch) == [40, 40]
    assert drawing.name == "learned"
    assert "2 seeds" in drawing.caption
    assert drawing.content() == draw_gates(learned, "learned").content()


def test_gates_that_are_not_learned(tmp_path: Path, learned: list[Run]):
    (fixed,) = tiny_runs(tmp_path / "fixed", replace(OPTIONS, steps=2), (0,))
    with pytest.raises(InputError, match="has no gate1"):
        draw_gates([fixed])
    doctored = copies(learned, tmp_path)
    rewrite_metrics(doctored[1], doctored[1].metrics()[:-1])
    with pytest.raises(InputError, match="not evaluated at the same steps"):
        draw_gates(doctored)


def stored(of: str) -> list[dict[str, Any]]:
    return [row for row in read_json(FOLDER / "compare.json")["rows"] if row["of"] == of]


def test_costs_of_curricula():
    rows = stored("curricula")
    drawing = draw_curricula(rows)
    small, large = drawing.figure.axes
    assert (small.get_title(), large.get_title()) == ("n = 30, k = 16", "n = 128, k = 64")
    marks = {xs(line)[0] for line in small.lines if len(xs(line)) == 1}
    assert marks >= {row["samples_to_99"] for row in rows if row["n"] == 30 and row["samples_to_99"]}
    crosses = [line for line in small.lines if line.get_marker() == "x"]
    assert len(crosses) == 2  # without a chain, for each optimizer
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
    assert abs(lost.left[1]) < 0.02  # an update sees earlier positions, never the bit itself


def test_gates_in_rows():
    rows = stored("gates")
    drawing = draw_gate_rows(rows)
    (axes,) = drawing.figure.axes
    inputs = next(line for line in axes.lines if line.get_label() == "input bits, to be kept")
    assert xs(inputs) == [max(row["gate_distance"]["inputs"], FLOOR) for row in rows]
    assert "7 of 11 variants are solved on every seed" in drawing.alt


def test_language_models():
    rows = read_json(FOLDER / "lm-scattered.json")["rows"]
    (axes,) = draw_language(rows).figure.axes
    (origin, *ends), _ = axes.transData.transform([(x, 0) for x in (0, 360, 390, 400, 481, 487, 506)]).T
    assert sorted(bar.get_extents().width for bar in axes.patches) == pytest.approx([end - origin for end in ends])


def test_signal_is_the_population_s():
    drawing = draw_signal()
    assert "0.803, 0.842, 0.828, 0.841" in drawing.caption
    left, _ = drawing.figure.axes
    first = next(line for line in left.lines if line.get_label() == "stage 1")
    signal = np.interp([128, 1024], xs(first), ys(first))
    assert signal == pytest.approx([0.948, 0.993], abs=5e-4)


def test_success_on_its_line():
    points = [
        {"samples": samples, "seeds": 20, "successes": won} for samples, won in ((905, 0), (1810, 10), (3620, 20))
    ]
    drawing = draw_success(points, Setting(30, 16))
    (axes,) = drawing.figure.axes
    assert "passes through 3 of 3 intervals" in drawing.caption
    assert np.interp(1810, xs(axes.lines[0]), ys(axes.lines[0])) == pytest.approx(0.5, abs=0.01)
    assert "50% at B = 1810" in drawing.alt
