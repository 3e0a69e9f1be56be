"""Figure 1: explicit CoT, ICoT and Log-ICoT, drawn from the stages of the curricula."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Arc, Patch, Rectangle

from internalize.curriculum import Curriculum, Method
from internalize.errors import InputError
from internalize.parity.model.cot import chain_passes
from internalize.parity.task.stages import ParityStage, parity_stages
from internalize.parity.task.tree import Levels, ParityTree
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import FAINT, GREEN, INK, MUTED, ORANGE, PAGE_WIDTH, SKY, bare, sheet

LARGEST_K = 16
"""The largest chain whose boxes are large enough to read."""
_BITS = 1.9
_GAP = 0.3
_NAMES: dict[Method, str] = {"cot": "Explicit CoT", "icot": "ICoT", "log-icot": "Log-ICoT"}


@dataclass(frozen=True)
class Paradigm:
    """One panel: the stages of a curriculum, and the nodes that each pass at inference writes."""

    method: Method
    stages: tuple[ParityStage, ...]
    passes: tuple[range, ...]


def paradigms(levels: Levels) -> tuple[Paradigm, ...]:
    """Return the three paradigms on one tree. Explicit CoT writes its chain node by node; the others need one pass."""
    written = {
        "cot": tuple(chain_passes(levels, "node")),
        "icot": (range(levels.n, levels.T),),
        "log-icot": (range(levels.n, levels.T),),
    }
    return tuple(Paradigm(method, parity_stages(levels, Curriculum(method)), written[method]) for method in _NAMES)


def draw_paradigms(k: int = 8) -> Drawing:
    """Draw a panel per paradigm with a row per stage and a box per node of the chain, and below them the inference."""
    if k > LARGEST_K:
        raise InputError(f"k={k} is over {LARGEST_K}: the {k - 1} boxes of the chain would be too small to read")
    tree = ParityTree(k, tuple(range(k)))
    shown = paradigms(tree.levels)
    columns = _BITS + _GAP + (k - 1)
    rows = max(len(paradigm.stages) for paradigm in shown)
    above, below = 0.5 + k / 8, 2.6
    unit = PAGE_WIDTH / (3 * (columns + 1.2))
    with sheet(unit * (rows + above + below) + 0.62) as figure:
        panels = figure.subplots(1, 3)
        for letter, axes, paradigm in zip("abc", panels, shown, strict=True):
            bare(axes)
            axes.set_xlim(-1.0, columns + 0.2)
            axes.set_ylim(rows + below, -above)
            axes.set_aspect("equal", anchor="N")
            axes.set_title(f"({letter}) {_NAMES[paradigm.method]}", loc="left", fontweight="bold")
            _draw_tree(axes, tree)
            axes.text(-0.25, -0.1, "stage", ha="left", va="bottom", fontsize=8, color=MUTED)
            for number, stage in enumerate(paradigm.stages):
                axes.text(-0.25, number + 0.5, str(number + 1), ha="right", va="center", fontsize=8, color=MUTED)
                _draw_stage(axes, tree.levels, stage, number)
            _draw_inference(axes, tree.levels, paradigm, len(paradigm.stages) + 0.75)
        figure.legend(handles=_legend(), loc="outside lower center", ncols=4, handlelength=1.1, columnspacing=1.4)
    counts = {p.method: (len(p.stages), len(p.passes)) for p in shown}
    return Drawing(
        name="figure-1-paradigms",
        figure=figure,
        title="Figure 1. Three ways to train with a chain of thought",
        caption=(
            f"The chain of {k}-parity: {k - 1} nodes, bottom to top, after the input bits; arcs join children and "
            "parent. A row is a training stage. Blue nodes are shown and supervised, gray ones are replaced by the "
            "padding 0, and the answer (orange) is always supervised. Explicit CoT needs "
            f"{_count(counts['cot'][0], 'stage')} but {_count(counts['cot'][1], 'sequential pass')} at inference. ICoT "
            f"removes one node per stage and needs {_count(counts['icot'][0], 'stage')}. Log-ICoT removes a level per "
            f"stage and needs {_count(counts['log-icot'][0], 'stage')}. Both then answer in "
            f"{_count(counts['icot'][1], 'pass')}. Green: written by the model, with the number of the pass."
        ),
        alt=" ".join(_describe(paradigm) for paradigm in shown),
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def _describe(paradigm: Paradigm) -> str:
    hidden = ", ".join(str(len(stage.hidden)) for stage in paradigm.stages)
    return (
        f"{_NAMES[paradigm.method]}: {_count(len(paradigm.stages), 'stage')} with {hidden} nodes hidden; "
        f"{_count(len(paradigm.passes), 'pass')} at inference."
    )


def _x(levels: Levels, position: int) -> float:
    return _BITS + _GAP + position - levels.n


def _box(axes: Axes, x: float, y: float, fill: str, text: str = "", width: float = 1.0, **style: str) -> None:
    patch = Rectangle((x + 0.06, y + 0.1), width - 0.12, 0.8, facecolor=fill, edgecolor=INK, linewidth=0.5)
    patch.set_gid(style.get("gid"))
    axes.add_patch(patch)
    if text:
        # The text fits the box, whose side in points is the panel's width over its range
        points = 72 * PAGE_WIDTH / 3 / (axes.get_xlim()[1] - axes.get_xlim()[0])
        size, color = min(7.0, 0.44 * points), style.get("color", INK)
        axes.text(x + width / 2, y + 0.52, text, ha="center", va="center", fontsize=size, color=color)


def _draw_stage(axes: Axes, levels: Levels, stage: ParityStage, row: int) -> None:
    _box(axes, 0, row, "white", "bits", _BITS)
    for position in stage.hidden:
        _box(axes, _x(levels, position), row, FAINT, "0", color=MUTED, gid=f"hidden-{row}-{position}")
    for position in stage.supervised:
        answer = position == levels.T - 1
        _box(axes, _x(levels, position), row, ORANGE if answer else SKY, "y" if answer else "")


def _draw_inference(axes: Axes, levels: Levels, paradigm: Paradigm, y: float) -> None:
    axes.plot([-0.7, _x(levels, levels.T)], [y - 0.4, y - 0.4], color=MUTED, linewidth=0.5, linestyle=(0, (2, 2)))
    _box(axes, 0, y, "white", "bits", _BITS)
    for number, nodes in enumerate(paradigm.passes, start=1):
        for position in nodes[:-1]:
            _box(axes, _x(levels, position), y, FAINT, "0", color=MUTED)
        _box(axes, _x(levels, nodes[-1]), y, GREEN, str(number), color="white")
    stages, passes = _count(len(paradigm.stages), "training stage"), _count(len(paradigm.passes), "pass")
    axes.text(0, y + 1.35, f"{stages}, {passes} at inference", ha="left", va="top", fontsize=8.5)


def _draw_tree(axes: Axes, tree: ParityTree) -> None:
    """Draw arcs above the first row from every node of the chain to its parent."""
    for position in range(tree.n, tree.root):
        parent = tree.parent(position)
        assert parent is not None  # only the root and bits outside the secret set have none
        left, right = _x(tree.levels, position) + 0.5, _x(tree.levels, parent) + 0.5
        height = 0.3 + 0.28 * 2 * (right - left)
        axes.add_patch(Arc(((left + right) / 2, 0), right - left, height, theta1=180, theta2=360, color=MUTED, lw=0.6))


def _legend() -> Sequence[Patch]:
    kinds = [(SKY, "shown and supervised"), (FAINT, "hidden (padding 0)"), (ORANGE, "answer, supervised")]
    kinds.append((GREEN, "written at inference, in this pass"))
    return [Patch(facecolor=color, edgecolor=INK, linewidth=0.5, label=label) for color, label in kinds]
