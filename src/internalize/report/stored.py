"""Results that take hours: those stored in the package, and those of `internalize paper --full`.

`STORED` has one entry for each part of the page: the file of its numbers, the command that makes them, its date, and
how they are shown. To add a part, store its file in ``results/`` and add an entry. A part without a file is left out.
"""

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from internalize.errors import InputError
from internalize.parity.experiments.phase import phase_of, read_cells
from internalize.report import comparison_tables as columns
from internalize.report.comparison_tables import Table
from internalize.report.figures.ablations import draw_ablations
from internalize.report.figures.curricula import draw_curricula
from internalize.report.figures.drawing import Drawing
from internalize.report.figures.gates import draw_gate_rows
from internalize.report.figures.language import draw_language
from internalize.report.figures.latency import draw_latency
from internalize.report.figures.law import draw_law
from internalize.report.figures.phase import draw_phase
from internalize.report.stored_rows import ComparedRows, LmComparedRows
from internalize.storage.files import Json, present, read_json
from internalize.storage.summaries import ROWS
from internalize.storage.sweep_store import STORE

FOLDER: Final = Path(__file__).parent / "results"
"""Folder of the stored results."""


_read_compared: Final = partial(read_json, schema=ComparedRows)
Shown = tuple[Sequence[Table], Sequence[Drawing]]
"""The tables and figures of a part of the page."""


@dataclass(frozen=True)
class Stored:
    """A part of the page that is shown from a file."""

    name: str
    title: str
    text: str
    """The finding, in one or two sentences."""
    file: str
    """Name of the stored file in `FOLDER`."""
    command: str
    """The command that makes the numbers, without ``--out``."""
    date: str
    """Date on which the command was run."""
    show: Callable[[Json], Shown]
    read: Callable[[Path], Json] = _read_compared
    """Reads the stored file, or the file that the command writes."""
    makes: str = ROWS
    """Name of the file that the command writes in ``--out``."""

    @property
    def arguments(self) -> list[str] | None:
        """The arguments that ``--full`` runs if the command is one of ours, otherwise None."""
        program, *arguments = shlex.split(self.command)
        return arguments if program == "internalize" else None


@dataclass(frozen=True)
class Part:
    """A part of the page with its tables and figures."""

    of: Stored
    date: str
    computed: bool
    """Whether it was computed for this page, not taken from the package."""
    tables: Sequence[Table]
    drawings: Sequence[Drawing]


def parts(full: Path | None = None) -> list[Part]:
    """Return every part that has numbers: those computed in ``full`` if there are any, otherwise the stored ones."""
    return [part for stored in STORED if (part := _part(stored, full)) is not None]


def _part(stored: Stored, full: Path | None) -> Part | None:
    made = None if full is None or stored.arguments is None else full / stored.name / stored.makes
    if made is None or not present(made):
        path = FOLDER / stored.file
        return Part(stored, stored.date, False, *stored.show(stored.read(path))) if path.is_file() else None
    days = [str(read_json(env).get("started", ""))[:10] for env in made.parent.rglob("env.json") if env.is_file()]
    written = time.strftime("%Y-%m-%d", time.gmtime(made.stat().st_mtime))  # for a study without runs, such as latency
    found = stored.read(made)
    try:
        return Part(stored, max(days, default=written), True, *stored.show(found))
    except (LookupError, ValueError, ArithmeticError) as error:  # every row is valid, but they do not fit together
        raise InputError(f"{made} is not what `{stored.command}` writes: {type(error).__name__} {error}") from None


def _read_phase(*by: str) -> Callable[[Path], Json]:
    """Return a reader for the output of `sweep show --figure --json`, or for a store, given its `sweep.json`."""

    def read(path: Path) -> Json:
        return {"cells": read_cells(path.parent), "by": by} if path.name == STORE else read_json(path)

    return read


def _phase(found: Json) -> Shown:
    return [], [draw_phase(**phase_of(**found) if "cells" in found else found)]


def _rows_of(found: Json, of: str) -> list[Json]:
    return [row for row in found["rows"] if row["of"] == of]


def _curricula(found: Json) -> Shown:
    rows = _rows_of(found, "curricula")
    by_size: dict[tuple[int, int], list[Json]] = {}
    for row in rows:
        by_size.setdefault((row["n"], row["k"]), []).append(row)
    tables = [
        Table.of(f"curricula-n{n}-k{k}", f"n = {n}, k = {k}", columns.COST, own) for (n, k), own in by_size.items()
    ]
    return tables, [draw_curricula(rows)]


def _latency(found: Json) -> Shown:
    rows = _rows_of(found, "latency")
    title = f"Milliseconds per answer, n = {rows[0]['n']}"
    return [Table.of("latency", title, *columns.latency_columns(rows))], [draw_latency(rows)]


def _ablations(found: Json) -> Shown:
    rows = _rows_of(found, "ablations")
    names = {"adamw": "AdamW", "algorithm-1": "Algorithm 1"}
    tables = [
        Table.of(f"ablations-{key}", name, columns.ABLATIONS, [row for row in rows if row["optimizer"] == key])
        for key, name in names.items()
    ]
    return tables, [draw_ablations(rows)]


def _gates(found: Json) -> Shown:
    rows = _rows_of(found, "gates")
    return [Table.of("gates", "Learned gates", columns.GATES, rows)], [draw_gate_rows(rows)]


def _simplifications(found: Json) -> Shown:
    rows = _rows_of(found, "simplifications")
    return [Table.of("simplifications", "Learned with the attention", columns.SIMPLIFICATIONS, rows)], []


def _language(found: Json) -> Shown:
    rows = found["rows"]
    return [Table.of("language-models", "Everything hidden", columns.LANGUAGE, rows)], [draw_language(rows)]


STORED: Final = (
    Stored(
        "law",
        "How many samples Algorithm 1 needs",
        "The number of samples per stage at which half of all runs succeed grows like n ln n, as predicted without a "
        "fitted constant. The theorem asks for n to the power 2 + ε.",
        "finite-n.json",
        "python benchmarks/prediction_table.py",
        "2026-11-15",
        lambda found: ([], [draw_law(found["law"])]),
        read_json,
    ),
    Stored(
        "phase",
        "Where Algorithm 1 succeeds",
        "The share of successful runs over n and samples per stage. It rises from 0 to 1 around the predicted line.",
        "phase.json",
        "internalize sweep solve n=8,16,32,64,128,256 k=n/2 samples=0.5x,0.7x,0.85x,1x,1.2x,1.4x,2x test_samples=200 "
        "--seeds 0:60 --stop-at-failure",
        "2026-11-16",
        _phase,
        _read_phase("n", "samples"),
        STORE,
    ),
    Stored(
        "phase-rounding",
        "Rounding and amplitude",
        "Rounding to multiples of K needs few samples at any K that concentrates attention. Rounding to integers, as "
        "in the paper, needs a number that grows like K², as predicted. Up to K = 4 no number of samples is enough.",
        "phase-rounding.json",
        "internalize sweep solve K=2,3,4,6,8,12,16 samples=400,800,1600,3200,6400,12800,25600,51200,102400,204800 "
        "grid=1,K --seeds 0:20 --stop-at-failure",
        "2026-11-16",
        _phase,
        _read_phase("K", "samples", "grid"),
        STORE,
    ),
    Stored(
        "phase-curricula",
        "Which curricula Algorithm 1 succeeds with",
        "With as many samples as Log-ICoT needs, every curriculum with a chain succeeds at every size. Without a "
        "chain, only a tree of one node is learned.",
        "phase-curricula.json",
        "internalize sweep solve n=8,16,32,64 k=2,4,8,16,32,64 curriculum=none,cot,icot,log-icot --seeds 0:10",
        "2026-11-16",
        _phase,
        _read_phase("k", "n", "curriculum"),
        STORE,
    ),
    Stored(
        "curricula",
        "The curricula compared",
        "The paper makes this claim without a comparison. Without a chain nothing is learned. Under AdamW, where a "
        "stage ends once its level is learned, ICoT and Log-ICoT cost the same. Under Algorithm 1, where each stage "
        "is a gradient step, the idle stages of ICoT cost as much as the others.",
        "compare.json",
        "internalize compare --seeds 0:20 --sizes 30,16 --lr 0.1",
        "2026-11-16",
        _curricula,
    ),
    Stored(
        "latency",
        "How long an answer takes",
        "Explicit chain of thought needs k − 1 passes, each of which waits for the one before. The internalized model "
        "answers in one pass of log2 k layers.",
        "compare.json",
        "internalize compare --study latency --repeats 200",
        "2026-11-16",
        _latency,
    ),
    Stored(
        "ablations",
        "Which parts of the model matter",
        "The gates matter, and under Algorithm 1 so does rounding. The level mask, the link and the rate may vary. The "
        "certificates that turn say which statement of the paper no longer holds.",
        "compare.json",
        "internalize compare --study ablations --seeds 0:20",
        "2026-11-16",
        _ablations,
    ),
    Stored(
        "gates",
        "Learned gates",
        "The paper prescribes its gates and names learning them as the next step. With a small penalty on open gates, "
        "learned gates become the prescribed ones.",
        "compare.json",
        "internalize compare --study gates --seeds 0:20",
        "2026-11-16",
        _gates,
    ),
    Stored(
        "simplifications",
        "The other simplifications, removed",
        "Values, residual streams and a network in place of the link can be learned together with the attention, each "
        "under its condition.",
        "compare.json",
        "internalize compare --study simplifications --seeds 0:5",
        "2026-11-16",
        _simplifications,
    ),
    Stored(
        "language",
        "Language models",
        "The same curricula on text, with an ordinary GPT-2.",
        "lm-scattered.json",
        "internalize lm compare --methods log-icot icot adaptive --budget steps --seeds 0:10 --stop-at 0.998 --steps "
        "2000 --eval-every 10 --eval-examples 256",
        "2026-11-17",
        _language,
        partial(read_json, schema=LmComparedRows),
    ),
)
"""The parts of the page that are not computed by default, in the page's order."""
