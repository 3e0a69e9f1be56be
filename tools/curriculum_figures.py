"""Pictures of the curricula in docs/lm: `python -m tools.curriculum_figures` writes docs/figures/curriculum-*.svg.

Every box is a token of a training sequence that the package makes for a stage, so a picture changes when a curriculum
does. A test draws the pictures again and compares.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from internalize.curriculum import largest_removal, smaller_removal
from internalize.lm.options import CurriculumOptions, LmMethod
from internalize.lm.stages.chains import Chain
from internalize.lm.stages.removal import IGNORED, Row, TextStages
from internalize.report.figures.style import FAINT, INK, MUTED, ORANGE, SKY, VERMILION

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
STEPS = 6
HALVES = (1, 1, 1, 1, 2, 2)
"""Levels of the chain of 8-parity."""
UNEVEN = (1, 1, 1, 2, 2, 3)
"""Levels at which halving would hide other steps."""
QUESTION, SLOT, ANSWER = 90, 91, 92
NO_CHANCE = (1.0, 0.0, 0.0, 0.0)
"""Random numbers with which no step is replayed and hidden slots carry a loss if the options have one."""
CELL, HEIGHT, LEFT, TOP = 44, 30, 118, 34


@dataclass(frozen=True)
class Line:
    """One sequence of a picture, with the texts before and after it."""

    label: str
    row: Row
    note: str = ""
    good: bool = True


@dataclass(frozen=True)
class Picture:
    """A picture: lines under headings."""

    name: str
    title: str
    panels: tuple[tuple[str, tuple[Line, ...]], ...]


def stages_of(options: CurriculumOptions, levels: tuple[int, ...] | None) -> tuple[Chain, TextStages]:
    """Return the drawn chain and the stages of a curriculum on it."""
    chain = Chain((QUESTION,), tuple((step,) for step in range(1, STEPS + 1)), levels, (ANSWER,))
    return chain, TextStages.measure(options, [chain], SLOT)


def staged(
    method: LmMethod, levels: tuple[int, ...] | None = None, options: CurriculumOptions | None = None
) -> tuple[Line, ...]:
    """Return a line for every stage of a method."""
    chain, stages = stages_of(options or CurriculumOptions(method), levels)
    return tuple(Line(f"stage {stage + 1}", stages.training(chain, stage, NO_CHANCE)) for stage in range(stages.count))


def attempts() -> tuple[Line, ...]:
    """Return the attempts of `adaptive` if hiding 6 steps and then 4 stalls once, and all other attempts pass."""
    chain, stages = stages_of(CurriculumOptions("adaptive"), HALVES)
    stalls, lines, good, stage = [6, 4], list[Line](), -1, 0
    while good < stages.last:
        row = stages.training(chain, stage, NO_CHANCE)
        failed = stage in stalls
        note = "stalls: go back, remove less" if failed else "passes"
        lines.append(Line(f"attempt {len(lines) + 1}", row, note, not failed))
        if failed:
            stalls.remove(stage)
            stage = smaller_removal(good, stage, stages.targets)
        else:
            good = stage
            stage = largest_removal(good, stages.targets) if good < stages.last else stage
    return tuple(lines)


def replayed(replay: str) -> tuple[Line, ...]:
    """Return some replayed examples of the second of three stages."""
    chain, stages = stages_of(CurriculumOptions("log-icot", replay_of=replay), HALVES)  # pyright: ignore[reportArgumentType]
    draws = [
        (0.3, (0.1, 0.9, 0.2, 0.8, 0.25, 0.6)),
        (0.55, (0.2, 0.5, 0.9, 0.4, 0.7, 0.1)),
        (0.9, (0.8, 0.3, 0.95, 0.1, 0.5, 0.2)),
    ]
    return tuple(
        Line(f"example {number}", stages.training(chain, 1, (0.0, how_much, 0.0, 0.0, *each)))
        for number, (how_much, each) in enumerate(draws, 1)
    )


def pictures() -> tuple[Picture, ...]:
    """Return all pictures."""
    return (
        Picture("adaptive", "adaptive: everything at once, less where that stalls", (("", attempts()),)),
        Picture(
            "log-icot",
            "log-icot: level by level, or half of what remains",
            (("levels 1 1 1 2 2 3 known", staged("log-icot", UNEVEN)), ("no levels known", staged("log-icot"))),
        ),
        Picture("thin", "thin: every 2nd step stays, then every 4th", (("", staged("thin")),)),
        Picture("doubling", "doubling: 1, 2, 4, … tokens at a time", (("", staged("doubling")),)),
        Picture("icot", "icot and icot-steps: one at a time", (("", staged("icot-steps")),)),
        Picture(
            "baselines",
            "cot, pause and none: one stage, no curriculum",
            tuple((method, staged(method)) for method in ("cot", "pause", "none")),
        ),
        Picture(
            "removal",
            "What a hidden step leaves: a slot, or nothing",
            (
                ("--removal pad", staged("log-icot", HALVES)),
                ("--removal delete", staged("log-icot", HALVES, CurriculumOptions("log-icot", removal="delete"))),
            ),
        ),
        Picture(
            "replay",
            "Replayed examples while the stage hides 4 of 6 steps",
            tuple((f"--replay-of {name}", replayed(name)) for name in ("scattered", "counts", "stages")),
        ),
    )


def svg(picture: Picture) -> str:
    """Return a picture as SVG of boxes and text, without scripts or fonts."""
    noted = any(line.note for _, lines in picture.panels for line in lines)
    width = LEFT + (STEPS + 2) * CELL + 60 + (210 if noted else 20)
    body, y = list[str](), TOP
    for heading, lines in picture.panels:
        if heading:
            body.append(_text(12, y + 14, heading, weight="600"))
            y += 26
        for line in lines:
            body += _line(line, y)
            y += HEIGHT + 6
        y += 10
    body += _legend(y + 4)
    height = y + 44
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="Helvetica, Arial, sans-serif" font-size="13">\n<title>{escape(picture.title)}</title>\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    )
    return "\n".join([head, _text(12, 20, picture.title, weight="600"), *body, "</svg>\n"])


def _line(line: Line, y: int) -> Iterator[str]:
    yield _text(LEFT - 12, y + 20, line.label, anchor="end", ink=MUTED)
    x = LEFT
    for token, label in zip(line.row.tokens, line.row.labels, strict=True):
        width = 2 * CELL if token == QUESTION else CELL
        text, color = {QUESTION: ("question", "#ffffff"), SLOT: ("", FAINT), ANSWER: ("answer", ORANGE)}.get(
            token, (str(token), SKY)
        )
        if token == ANSWER:
            width = CELL + 16
        if token == SLOT and label != IGNORED:
            text = f"{label}?"
        yield _box(x + 2, y, width - 4, HEIGHT, color)
        if text:
            yield _text(x + width // 2, y + 20, text, anchor="middle", ink=MUTED if token == SLOT else INK)
        x += width
    if line.note:
        yield _text(x + 14, y + 20, line.note, ink=INK if line.good else VERMILION)


def _legend(y: int) -> Iterator[str]:
    x = 12
    for color, text in ((SKY, "shown: predicted"), (FAINT, "hidden: a slot; 3? means that it still predicts step 3")):
        yield _box(x, y, 14, 14, color)
        yield _text(x + 20, y + 12, text, ink=MUTED)
        x += 44 + 7 * len(text)


def _box(x: int, y: int, width: int, height: int, color: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="{color}" stroke="{INK}" '
        'stroke-width="0.7"/>'
    )


def _text(x: int, y: int, text: str, *, anchor: str = "start", ink: str = INK, weight: str = "400") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{ink}" font-weight="{weight}">{escape(text)}</text>'


def drawn() -> dict[Path, str]:
    """Return the content of every file."""
    return {FIGURES / f"curriculum-{picture.name}.svg": svg(picture) for picture in pictures()}


def main() -> None:
    for path, content in drawn().items():
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
