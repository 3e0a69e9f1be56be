"""Ablations of the paper's model: which levels it still computes, and how the inputs collapse with open gates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh

from internalize.parity.model.transformer import BlockTransformer
from internalize.parity.options import FixedGates
from internalize.parity.task.data import draw_bits, inference_input
from internalize.parity.task.tree import Levels
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import BLUE, FAINT, GREEN, MUTED, PLAIN, VERMILION, WEIGHTS, sheet, vector_bar
from internalize.storage.files import Json

_GATES: Final[dict[FixedGates, tuple[str, str]]] = {
    "paper": ("the paper's gates", BLUE),
    "cot": ("open at the nodes (cot)", GREEN),
    "ones": ("open everywhere (ones)", VERMILION),
}
SAMPLES: Final = 2000


@dataclass(frozen=True)
class InputStates:
    """The states at the input bits before the first layer and after each, averaged over the bits."""

    spread: list[float]
    """Standard deviation of a state over samples; that of a bit is 1."""
    left: list[float]
    """Correlation of a state with its bit, times the spread; that of a bit is 1."""


def input_states(levels: Levels, gates: FixedGates) -> InputStates:
    """Return the input states of the model before training, where attention is uniform."""
    model = BlockTransformer(levels.n, levels.k, "causal", gates, dtype=torch.float64)
    bits = draw_bits(levels.n, 0, 0, SAMPLES, "test", torch.float64)
    with torch.no_grad():
        states = [H[:, 1 : levels.n] for H in model.readouts(inference_input(bits, levels.T))]  # bit 0 sees nothing
    bits = bits[:, 1:] - bits[:, 1:].mean(dim=0)
    return InputStates(
        [float(H.std(dim=0, correction=0).mean()) for H in states],
        [float(((H * bits).mean(dim=0) / bits.std(dim=0, correction=0)).mean()) for H in states],
    )


def draw_ablations(rows: Sequence[Json]) -> Drawing:
    """Draw the final accuracy of every level under each ablation, and the states at the inputs by kind of gates."""
    levels = Levels(int(rows[0]["n"]), int(rows[0]["k"]))
    own = {name: [row for row in rows if row["optimizer"] == name] for name in ("adamw", "algorithm-1")}
    kept = {gates: input_states(levels, gates) for gates in _GATES}
    with sheet(3.3) as figure:
        first, second, third = figure.subplots(1, 3, width_ratios=(1, 1, 1.25))
        mesh = _draw_levels(first, own["adamw"], "AdamW")
        _draw_levels(second, own["algorithm-1"], "Algorithm 1")
        bar = figure.colorbar(mesh, ax=[first, second], orientation="horizontal", fraction=0.05, pad=0.02, aspect=40)
        vector_bar(bar, "accuracy of a level after training")
        for gates, (label, color) in _GATES.items():
            third.plot(range(levels.L + 1), kept[gates].spread, "o-", color=color, markersize=3.5, label=label)
            third.plot(range(levels.L + 1), kept[gates].left, "s--", color=color, markersize=3, linewidth=0.9)
        third.set_xticks(range(levels.L + 1))
        third.set_ylim(-0.06, 2.0)
        third.set_yticks([0, 0.5, 1])
        third.set_xlabel("after layer")
        third.set_ylabel("states at the inputs")
        third.set_title("collapse of the inputs")
        third.plot([], [], color=MUTED, label="spread")
        third.plot([], [], "--", color=MUTED, linewidth=0.9, label="part due to the bit itself")
        third.legend(loc="upper right")
    broken = ", ".join(f"{row['what']} ({row['optimizer']})" for row in rows if row["solved"] < row["seeds"])
    return Drawing(
        name="ablations",
        figure=figure,
        title="What the model needs: ablations, and the collapse of the inputs",
        caption=(
            "Left: share of right signs at each level of nodes after training, with one part of the paper's model "
            f"changed at a time (n = {levels.n}, k = {levels.k}; means over seeds; ½ is chance). Right: the states at "
            "the inputs over samples, layer by layer before training, where attention is uniform: their standard "
            "deviation, and the part of it that is still due to the bit itself. With every gate open, each layer "
            "overwrites the inputs by φ of a mean. They then lie close together, and nothing of the bits is left for "
            "the next layer."
        ),
        alt=(
            f"Not solved on every seed: {broken}. With all gates open, the spread of the inputs falls from 1 to "
            f"{kept['ones'].spread[1]:.2f} after one layer, and the part due to the bits to "
            f"{kept['ones'].left[1]:.2f}; with the paper's gates both stay 1."
        ),
    )


def _draw_levels(axes: Axes, rows: Sequence[Json], title: str) -> QuadMesh:
    values = np.array([row["level_accuracy"] for row in rows], dtype=np.float64)
    height, width = len(rows), len(rows[0]["level_accuracy"])
    edges = np.arange(width + 1), np.arange(height + 1)
    mesh = axes.pcolormesh(*edges, values, cmap=WEIGHTS, vmin=0.5, vmax=1, edgecolors=FAINT, linewidth=0.3)
    axes.set_ylim(height, 0)
    axes.set_yticks([row + 0.5 for row in range(height)], [row["what"] for row in rows], **PLAIN)
    axes.set_xticks([level + 0.5 for level in range(width)], [str(level + 1) for level in range(width)])
    axes.tick_params(length=0)
    axes.set_xlabel("level")
    axes.set_title(title)
    return mesh
