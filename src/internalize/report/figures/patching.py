"""Whether a language model uses its hidden steps: interchange and control, layers × steps."""

from collections.abc import Sequence

import numpy as np
from matplotlib.cm import ScalarMappable

from internalize.errors import InputError
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import FAINT, VERMILION, WEIGHTS, sheet
from internalize.storage.files import Json


def draw_patching(result: Json) -> Drawing:
    """Draw interchange and control from the output of ``lm patch``, with a dot at the layer that the probe names."""
    rows: Sequence[Json] = result["rows"]
    if not rows:
        raise InputError("there are no rows to draw")
    steps, layers = sorted({row["step"] for row in rows}), result["layers"]
    with sheet(0.9 + 0.24 * layers) as figure:
        panels = figure.subplots(1, 2, squeeze=False, sharey=True)[0]
        for axes, name, title in zip(
            panels, ("interchange", "control"), ("the step's own places", "random other places"), strict=True
        ):
            grid = np.full((layers, len(steps)), np.nan)
            for row in rows:
                grid[row["layer"], steps.index(row["step"])] = row[name]
            axes.set_facecolor(FAINT)
            across, up = ([i - 0.5 for i in range(count + 1)] for count in (len(steps), layers))
            axes.pcolormesh(across, up, np.ma.masked_invalid(grid), cmap=WEIGHTS, vmin=0, vmax=1, edgecolors=FAINT)
            axes.set_title(title)
            axes.set_xticks(range(len(steps)), [str(step) for step in steps])
            axes.set_yticks(range(layers))
            axes.set_xlabel("step of the chain")
            axes.tick_params(length=0)
        places = result["places"]
        panels[0].scatter(
            [steps.index(row["step"]) for row in places],
            [row["layer"] for row in places],
            s=8,
            color=VERMILION,
            linewidths=0,
        )
        panels[0].set_ylabel("layer")
        bar = figure.colorbar(ScalarMappable(cmap=WEIGHTS), ax=list(panels), pad=0.01, aspect=20)
        bar.set_label("implied answers")
    listed = ", ".join(f"step {row['step']}: {row['interchange']:.2f} (control {row['control']:.2f})" for row in places)
    return Drawing(
        name="patching",
        figure=figure,
        title="Whether the hidden steps are used",
        caption=(
            "Share of the answers that become what an exchanged step implies, when the step's state of one question is "
            "put into another one. Left: at the positions that predict the step. Right: at as many random other "
            f"positions. A dot: the layer at which a linear probe first reads the step. {result['right']} of "
            f"{result['examples']} questions of {result['data']} are answered correctly, and only pairs of these count."
        ),
        alt=f"Two heat maps of {layers} layers over {len(steps)} steps. At the layer that the probe names: {listed}.",
    )
