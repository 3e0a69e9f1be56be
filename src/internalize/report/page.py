"""The page: the paper's figures, claims, explorers, certificates and comparisons in one self-contained file.

The page computes nothing itself. `claims` and `explorer` measure, `figures` draws, `results` holds results that take
hours, the template arranges all of it, and its script draws what moves. Everything on the page, including the dates,
comes from files, so the same files give the same bytes.
"""

import base64
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from internalize.parity.adamw.groups import options_of
from internalize.parity.options import TrainOptions
from internalize.parity.theory.prediction import Setting
from internalize.report.claims import Claim, SizeRow, Spike, claims, paper_runs, sizes, spikes_of
from internalize.report.explorer import solving_story, training_story
from internalize.report.figures.attention import draw_attention
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.loss import draw_loss
from internalize.report.figures.mask import draw_mask
from internalize.report.figures.paradigms import draw_paradigms
from internalize.report.figures.signal import draw_signal
from internalize.report.figures.success import draw_success
from internalize.report.figures.tree import draw_tree
from internalize.report.stored import Part, parts
from internalize.report.tiles import algorithm_tile, certificates_tile, tiles
from internalize.storage.files import write_atomically, writing
from internalize.storage.runs import Run

_PIXELS: Final = 96
"""CSS pixels per inch."""
_NUMBERS: Final = 400_000
"""Approximate limit of the numbers in an explorer's maps; of a longer run, fewer moments are shown."""
_CERTIFICATES: Final = ("run", "statement", "claim", "verdict", "measured", "bound", "margin", "dtype", "reason")


@dataclass(frozen=True)
class ReportInputs:
    """The finished runs behind the page. If a field is empty, the page leaves out its part."""

    trained: Sequence[Run]
    """Training runs. Those with the paper's settings give the claims and figures; all are in the table of sizes."""
    explored: Sequence[Run] = ()
    """Training runs with snapshots, for the explorer."""
    solved: Sequence[Run] = ()
    """Runs of Algorithm 1 with snapshots."""
    success: Run | None = None
    """Success rates of Algorithm 1 over numbers of samples."""
    certificates: Mapping[str, Run] = field(default_factory=dict[str, Run])
    """Runs of `certify` by the name of their subject. The headline shows the last one."""
    full: Path | None = None
    """Folder of the results of `paper --full`."""


@dataclass(frozen=True)
class WrittenReport:
    """The written page, and whether every claim of the paper holds on it."""

    page: Path
    holds: bool


def paper_drawings(runs: Sequence[Run]) -> list[Drawing]:
    """Return the paper's figures in its order, from the runs of its experiment. Attention is that of the first seed."""
    return [draw_paradigms(), draw_mask(), draw_loss(runs), draw_attention(runs[0]), draw_tree()]


def write_report(folder: Path, inputs: ReportInputs, paper: TrainOptions) -> WrittenReport:
    """Write ``index.html``, ``figures/*.svg|pdf`` and ``tables/*.csv``.

    Args:
        folder: the folder to write to; created if missing.
        inputs: finished runs.
        paper: the paper's settings.
    """
    own = paper_runs(inputs.trained, paper)
    found_claims, found_spikes = claims(own, paper), spikes_of(own, paper)
    found_sizes = sizes(inputs.trained, paper)
    seeds = [run.config["seed"] for run in own]
    certificates = [
        {"run": name, **row} for name, run in inputs.certificates.items() for row in run.result["certificates"]
    ]
    headline = tiles(paper, found_sizes, found_spikes, found_claims)
    if inputs.solved:
        headline.append(algorithm_tile([run.result for run in inputs.solved]))
    if certificates:
        headline.append(certificates_tile([row for row in certificates if row["run"] == certificates[-1]["run"]]))
    runs = [*inputs.trained, *inputs.solved, *inputs.certificates.values()]
    writer = _Writer(folder)
    writer.rows("claims", _names(Claim), map(vars, found_claims))
    writer.rows("sizes", _names(SizeRow), map(vars, found_sizes))
    spike_rows = [{"seed": seed, **vars(s)} for seed, row in zip(seeds, found_spikes, strict=True) for s in row]
    writer.rows("spikes", ("seed", *_names(Spike)), spike_rows)
    writer.rows("certificates", _CERTIFICATES, certificates)
    html = (
        _jinja()
        .get_template("report.html.j2")
        .render(
            paper=paper,
            layers=paper.k.bit_length() - 1,
            seeds=seeds,
            seed_list=_ranges(seeds),
            tiles=headline,
            claims=found_claims,
            sizes=found_sizes,
            unsolved=[row for row in found_sizes if row.solved < row.seeds],
            pictures=[writer.picture(drawing) for drawing in paper_drawings(own)],
            algorithm=_algorithm(inputs, writer) if inputs.solved else None,
            stories=_stories(inputs),
            statements=_statements(certificates),
            certified=list(inputs.certificates),
            verdicts=list(dict.fromkeys(row["verdict"] for row in certificates)),
            parts=[writer.part(part) for part in parts(inputs.full)],
            environment=_environment([*runs, inputs.success] if inputs.success else runs),
            style=_asset("page.css"),
            script=_asset("page.js"),
            plotly=_plotly,
        )
    )
    path = folder / "index.html"
    write_atomically(path, html.encode())
    return WrittenReport(path, all(claim.holds for claim in found_claims))


def _algorithm(inputs: ReportInputs, writer: "_Writer") -> dict[str, Any]:
    """Return the values of the page's section on Algorithm 1."""
    config = inputs.solved[0].config
    names = ("seed", "exact_recovery", "accuracy", "max_error", "samples_per_stage", "K", "steps", "seconds")
    rows = [{"seed": run.config["seed"], **run.result} for run in inputs.solved]
    writer.rows("algorithm-1", names, rows)
    drawings = [draw_signal(config["n"], config["k"])]
    if inputs.success:
        points = inputs.success.result["points"]
        writer.rows("success", ("samples", "seeds", "successes"), points)
        drawings.append(draw_success(points, Setting(config["n"], config["k"])))
    return {
        **config,
        **rows[0],
        "seeds": len(rows),
        "recovered": sum(bool(row["exact_recovery"]) for row in rows),
        "max_error": max(row["max_error"] for row in rows),
        "pictures": [writer.picture(drawing) for drawing in drawings],
    }


def _stories(inputs: ReportInputs) -> dict[str, list[dict[str, Any]]]:
    """Return the data of the explorers, by explorer."""
    told: list[dict[str, Any]] = []
    for run in inputs.explored:
        options, result = options_of(run), run.result
        size = len(run.metrics()) * sum(w.numel() for w in run.weights().values())
        rate = f", rate {options.lr:g}" if options.lr != TrainOptions.lr else ""
        outcome = "solved" if result["accuracy"] == 1.0 else f"not solved, {result['accuracy']:.0%} right"
        title = f"n = {options.n}, k = {options.k}{rate}, seed {run.config['seed']}: {outcome}"
        told.append(training_story(run, title, every=max(1, round(size / _NUMBERS))))
    return {
        "training": told,
        "solving": [solving_story(run, f"seed {run.config['seed']}") for run in inputs.solved[:1]],
    }


def _statements(certificates: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the statements in the order of the paper, each with its claim and its certificates by run."""
    found: dict[str, dict[str, Any]] = {}
    for row in certificates:
        own = found.setdefault(row["statement"], {"statement": row["statement"], "claim": row["claim"], "by": {}})
        own["by"][row["run"]] = row
    return list(found.values())


class _Writer:
    """Writes every figure as SVG and PDF and every table as CSV, and returns what the page shows of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def picture(self, drawing: Drawing) -> dict[str, Any]:
        """Save a drawing, and return its texts, its data URI and its size in CSS pixels."""
        svg = drawing.save(self.folder / "figures").read_bytes()
        width, height = (round(float(inches) * _PIXELS) for inches in drawing.figure.get_size_inches())
        uri = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
        return {**vars(drawing), "uri": uri, "width": width, "height": height}

    def part(self, part: Part) -> dict[str, Any]:
        for table in part.tables:
            self.rows(table.name, table.head, (dict(zip(table.head, row, strict=True)) for row in table.body))
        return {**vars(part), "pictures": [self.picture(drawing) for drawing in part.drawings]}

    def rows(self, name: str, head: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        """Write a table as CSV. An empty table still has its header."""
        path = self.folder / "tables" / f"{name}.csv"
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        file = io.StringIO()
        writer = csv.DictWriter(file, head, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(path, file.getvalue().encode())


def _names(row: type) -> list[str]:
    return [field.name for field in fields(row)]


def _jinja() -> Environment:
    jinja = Environment(
        loader=PackageLoader("internalize.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters |= {"tight": _tight, "code": _code, "significant": _significant}
    return jinja


def _asset(name: str) -> Markup:
    return Markup((resources.files("internalize.report") / "templates" / name).read_text(encoding="utf-8"))  # noqa: S704  (ours)


def _plotly() -> Markup:
    """Return the script of plotly, the library that the explorers use."""
    source = resources.files("plotly") / "package_data" / "plotly.min.js"
    return Markup(source.read_text(encoding="utf-8").replace("</script", "<\\/script"))  # noqa: S704  (as shipped)


def _tight(text: str) -> str:
    """Keep a number and its percent sign, and the sides of = and −, on one line."""
    for sign in (" %", " = ", " − "):
        text = text.replace(sign, sign.replace(" ", "\u00a0"))
    return text


def _code(text: str) -> Markup:
    """Mark up text between backticks as code."""
    pieces = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if place % 2 else escape(piece) for place, piece in enumerate(pieces)
    )


def _significant(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _ranges(seeds: Sequence[int]) -> str:
    """Return sorted seeds as text: 0, 1, 2, 5 becomes "0 … 2, 5"."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} … {part[-1]}" for part in parts)


def _environment(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return the environments of the runs as pairs of a name and all values that occur."""
    found = [run.env for run in runs]
    names = {"internalize": "internalize", "commit": "commit", "python": "Python", "torch": "torch", "cpu": "CPU"}
    rows = [
        (label, ", ".join(sorted({str(env[key]) for env in found if env.get(key) is not None})) or "not known")
        for key, label in names.items()
    ]
    days = sorted({str(env["started"])[:10] for env in found if env.get("started")})
    return [*rows, ("runs of", " … ".join(dict.fromkeys((days[0], days[-1]))) if days else "not known")]
