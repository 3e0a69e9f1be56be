"""Language models that internalize a chain in text: updates to 99 % and in total, by curriculum."""

from collections.abc import Sequence

from internalize.report.figures.drawing import Drawing
from internalize.report.figures.style import BLUE, INK, PLAIN, SKY, sheet
from internalize.storage.files import Json


def draw_language(rows: Sequence[Json]) -> Drawing:
    """Draw a pair of bars for each method of `lm compare`, with its exact match."""
    with sheet(0.9 + 0.42 * len(rows)) as figure:
        axes = figure.add_subplot()
        for height, row in enumerate(rows):
            axes.barh(height, row["steps"], 0.62, color=SKY, label="updates in total (mean)" if not height else None)
            if row["steps_to_99"] is not None:
                label = "updates to 99 % (median)" if not height else None
                axes.barh(height, row["steps_to_99"], 0.3, color=BLUE, label=label)
            solved = f"{row['solved']} of {row['seeds']} seeds, {row['attempts']:.3g} stages"
            text = f" {row['exact_match']:.4f} exact match, {solved}"
            axes.text(row["steps"], height, text, va="center", fontsize=8, color=INK)
        axes.set_yticks(range(len(rows)), [row["method"] for row in rows], **PLAIN)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, 1.75 * max(row["steps"] for row in rows))
        axes.set_xlabel("updates, including those of the explicit stage")
        figure.legend(loc="outside lower center", ncols=2)
    told = "; ".join(
        f"{row['method']} {_in_words(row['steps_to_99'])} to 99 %, {row['steps']:g} in total" for row in rows
    )
    return Drawing(
        name="language-models",
        figure=figure,
        title="Internalizing a chain in text",
        caption=(
            "A new GPT-2 of five layers learns the parity of 8 secret bits among 16, with its chain of thought as text "
            "and all of it hidden at the end. Exact match is that of greedy answers to held-out questions."
        ),
        alt=f"Updates: {told}.",
    )


def _in_words(steps: float | None) -> str:
    return "never" if steps is None else f"{steps:g}"
