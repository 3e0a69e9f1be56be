"""The page: figures and tables of the paper's experiment, from finished runs to one self-contained file.

The page holds no arithmetic of its own: `tables` measures, `figures` draw, the template arranges. All of it, the dates
included, comes from the runs' files, so that writing it again from the same runs gives the same bytes.
"""

import base64
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from internalize.figures.attention import draw_attention
from internalize.figures.drawing import Drawing
from internalize.figures.loss import draw_loss
from internalize.figures.mask import draw_mask
from internalize.figures.paradigms import draw_paradigms
from internalize.figures.save import save
from internalize.figures.tree import draw_tree
from internalize.files import write_atomically, writing
from internalize.options import TrainOptions
from internalize.runs import Run
from internalize.tables import CONCENTRATED, RETURNED, Claim, SizeRow, Spike, claims, paper_runs, sizes, spikes_of

_PIXELS = 96
"""CSS pixels an inch."""


@dataclass(frozen=True)
class Tile:
    """One number of the headline."""

    number: str
    text: str
    holds: bool


@dataclass(frozen=True)
class Picture:
    """A drawing as the page shows it: its words, its bytes as a data URI and its size in CSS pixels."""

    name: str
    title: str
    caption: str
    alt: str
    uri: str
    width: int
    height: int


def paper_drawings(runs: Sequence[Run]) -> list[Drawing]:
    """The paper's figures in its order, from the runs of its experiment; attention is of the first seed."""
    return [draw_paradigms(), draw_mask(), draw_loss(runs), draw_attention(runs[0]), draw_tree()]


def write_report(
    folder: Path,
    runs: Sequence[Run],
    *,
    paper: TrainOptions | None = None,
    notes: Sequence[str] = (),
    command: str = "internalize paper",
) -> Path:
    """Write ``index.html``, ``figures/*.svg|pdf`` and ``tables/*.csv``, and return the path of the page.

    Args:
        folder: where; made if missing.
        runs: finished training runs. Those at the paper's settings are the claims and the figures; all of them are in
            the table of sizes.
        paper: which settings are the paper's, if not the defaults.
        notes: paragraphs of plain text below the headline.
        command: what the footer names as the way to make this page again.
    """
    paper = paper or TrainOptions()
    own = paper_runs(runs, paper)
    found_claims, found_sizes, found_spikes = claims(own, paper), sizes(runs, paper), spikes_of(own, paper)
    pictures = [_picture(drawing, folder / "figures") for drawing in paper_drawings(own)]
    _write_csv(folder / "tables" / "claims.csv", Claim, map(asdict, found_claims))
    _write_csv(folder / "tables" / "sizes.csv", SizeRow, map(asdict, found_sizes))
    seeds = [run.config["seed"] for run in own]
    spike_rows = [{"seed": seed, **asdict(s)} for seed, row in zip(seeds, found_spikes, strict=True) for s in row]
    _write_csv(folder / "tables" / "spikes.csv", Spike, spike_rows, first=("seed",))

    jinja = Environment(
        loader=PackageLoader("internalize"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters["tight"] = _tight
    html = jinja.get_template("report.html.j2").render(
        paper=paper,
        layers=paper.k.bit_length() - 1,
        seeds=seeds,
        seed_list=_ranges(seeds),
        tiles=_tiles(paper, found_sizes, found_spikes, found_claims),
        claims=found_claims,
        sizes=found_sizes,
        unsolved=[row for row in found_sizes if row.solved < row.seeds],
        pictures=pictures,
        notes=notes,
        command=command,
        environment=_environment(runs),
    )
    path = folder / "index.html"
    write_atomically(path, html.encode())
    return path


def _tiles(
    paper: TrainOptions, rows: Sequence[SizeRow], found: Sequence[Sequence[Spike]], all_claims: Sequence[Claim]
) -> list[Tile]:
    """The headline's numbers: claims, accuracy, attention, return of the loss."""
    own = next(row for row in rows if row.claimed)
    held = sum(claim.holds for claim in all_claims)
    tiles = [
        Tile(f"{held} of {len(all_claims)}", "claims hold as measured here", held == len(all_claims)),
        Tile(f"{own.solved} of {own.seeds}", "seeds with 100 % validation accuracy", own.solved == own.seeds),
        Tile(
            f"{own.child_attention_min:.3f}",
            "smallest attention on a true child, where ½ is all; over all seeds, nodes and layers",
            own.child_attention_min >= CONCENTRATED,
        ),
    ]
    spikes = [spike for row in found for spike in row]
    if spikes:
        backs = [spike.steps_to_return for spike in spikes]
        seen = [back for back in backs if back is not None]
        tiles.append(
            Tile(
                f"{max(seen)} steps" if len(seen) == len(backs) else "never",
                f"until the loss is under {100 * RETURNED:g} % of its spike after a switch: the slowest of {len(spikes)} "
                f"switches, looked at every {paper.eval_every} steps",
                all(spike.returns for spike in spikes),
            )
        )
    return tiles


def _tight(text: str) -> str:
    """Keep a number and its percent sign, and the sides of = and −, on one line."""
    for sign in (" %", " = ", " − "):
        text = text.replace(sign, sign.replace(" ", "\u00a0"))
    return text


def _ranges(seeds: Sequence[int]) -> str:
    """Sorted seeds in words: 0, 1, 2, 5 is "0 … 2, 5"."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} … {part[-1]}" for part in parts)


def _picture(drawing: Drawing, folder: Path) -> Picture:
    svg = save(drawing.figure, folder, drawing.name).read_bytes()
    width, height = (round(float(inches) * _PIXELS) for inches in drawing.figure.get_size_inches())
    uri = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    return Picture(drawing.name, drawing.title, drawing.caption, drawing.alt, uri, width, height)


def _write_csv(path: Path, row: type, rows: Iterable[Mapping[str, Any]], first: Sequence[str] = ()) -> None:
    """One line a row, headed by the names of the row's fields, so that an empty table has its heading too."""
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    file = io.StringIO()
    writer = csv.DictWriter(file, [*first, *(field.name for field in fields(row))], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, file.getvalue().encode())


def _environment(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What the runs ran on, every value that occurs: (name, values)."""
    found = [run.env for run in runs]
    names = {"internalize": "internalize", "commit": "commit", "python": "Python", "torch": "torch", "cpu": "CPU"}
    rows = [
        (label, ", ".join(sorted({str(env[key]) for env in found if env.get(key) is not None})) or "not known")
        for key, label in names.items()
    ]
    days = sorted({str(env["started"])[:10] for env in found if env.get("started")})
    return [*rows, ("runs of", " … ".join(dict.fromkeys((days[0], days[-1]))) if days else "not known")]
