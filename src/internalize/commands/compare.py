"""`internalize compare`."""

from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import tyro

from internalize.commands.common_options import StudyOptions, command
from internalize.errors import InputError
from internalize.parallel.runner import RunFolders, Runner
from internalize.parity.experiments.curricula import CompareOptions, CurriculumRow, LatencyRow, compare, compare_latency

if TYPE_CHECKING:
    from internalize.parity.experiments.ablations import VariantRow

    Rows = Sequence[CurriculumRow | LatencyRow | VariantRow]

Study = Literal["curricula", "latency", "ablations", "gates", "simplifications"]
COLUMNS: dict[Study, tuple[str, ...]] = {
    "curricula": (
        *("n", "k", "optimizer", "method", "solved", "steps_to_99", "samples_to_99", "stages", "idle_stages"),
        *("lr", "accuracy", "95 %", "seconds_to_99", "passes", "latency_ms", "latency_ms_1000"),
    ),
    "latency": ("n", "k", "by", "batch", "passes", "latency_ms", "95 %", "repeats"),
    "ablations": ("n", "k", "optimizer", "what", "accuracy", "95 %", "solved", "breaks", "turned"),
    "gates": ("n", "k", "what", "accuracy", "95 %", "solved", "breaks", "inputs", "written", "below"),
    "simplifications": ("n", "k", "what", "accuracy", "95 %", "solved", "breaks", "seconds"),
}
DEFAULT_SIZES: dict[Study, tuple[tuple[int, int], ...]] = {"latency": tuple((128, 2**level) for level in range(1, 7))}


@command
class Compare(StudyOptions):
    """Compare curricula, ablations and learned parts of the paper's model.

    - curricula: the cost of 99 % accuracy with none, cot, icot and log-icot, under AdamW and under Algorithm 1. Also
      accuracy at equal samples, sequential passes and latency.
    - latency: the time per answer at each of --sizes.
    - ablations: gates, mask, rounding, link and rate changed one at a time, and the certificates whose verdict each
      change turns.
    - gates, simplifications: learn parts that the paper prescribes.

    The last three studies use the first of --sizes. After Ctrl-C, --resume continues; finished runs are reused.

    Examples:
      internalize compare --out runs/compare --seeds 0:20
      internalize compare --sizes 30,16 128,64 --lr 0.1 0.03 --seeds 0:5 --json
      internalize compare --methods log-icot cot transfer hidden-loss --seeds 0:20
      internalize compare --study ablations --out runs/ablations
      internalize compare --study gates --seeds 0:20 --sizes 64,32 --variants "gates=learned mask=causal"
      internalize compare --study latency --sizes 128,2 128,4 128,8 128,16 128,32 128,64
    """

    TITLE: ClassVar = "Comparison"

    options: tyro.conf.OmitArgPrefixes[CompareOptions] = field(default_factory=CompareOptions)
    study: Study = "curricula"
    """What to compare."""
    sizes: tuple[str, ...] = ()
    """Pairs n,k. Default: 30,16; for --study latency 128,2 to 128,64."""
    eval_every: int | None = None
    """Gradient steps between evaluations; a stage can end only at an evaluation. Default: 5 for curricula, otherwise
    25."""
    out: Path | None = None
    """Folder for the runs (in a folder named after --study), rows.json and figures. Default: a new folder in runs/."""

    def __call__(self) -> int:
        """Make the missing runs and show the rows."""
        from internalize.commands.progress import ProgressDisplay

        variants = self.options.variants
        if variants and self.study in ("curricula", "latency"):
            raise InputError(
                f"variants={', '.join(variants)}: --study {self.study} has none; use ablations, gates or "
                "simplifications"
            )
        options = replace(
            self.options,
            sizes=tuple(_size(text) for text in self.sizes) or DEFAULT_SIZES.get(self.study, ((30, 16),)),
            seeds=self.all_seeds(),
            eval_every=(5 if self.study == "curricula" else 25) if self.eval_every is None else self.eval_every,
        )
        out = self.folder("compare")
        self.announce(out, "runs")
        failed: list[dict[str, str]] = []
        lines: list[str] = []
        with ProgressDisplay(f"compare {self.study}") as progress:
            folders = RunFolders(
                out,
                self.resume,
                Runner(self.jobs, report=progress.show),
                lambda run, reason: failed.append({"run": run, "reason": reason}),
            )
            rows = self._rows(options, folders, lines)
            lines += self._draw(rows, out)
        found = {"rows": [row.to_json() for row in rows], "failed": failed, "out": str(out)}
        return self.show_study(found, _shown, COLUMNS[self.study], lines)

    def _rows(self, options: CompareOptions, folders: RunFolders, lines: list[str]) -> "Rows":
        from internalize.parity.experiments.ablations import compare_variants

        match self.study:
            case "curricula":
                return compare(options, folders, lines.append)
            case "latency":
                return compare_latency(options, folders, lines.append)
            case study:
                return compare_variants(study, options, folders)

    def _draw(self, rows: "Rows", out: Path) -> list[str]:
        """Draw the figures of the study, and return one line per figure."""
        if self.study not in ("latency", "gates"):
            return []
        from internalize.parity.experiments.ablations import VariantRow
        from internalize.report.figures.drawing import Drawing
        from internalize.report.figures.gates import draw_gates
        from internalize.report.figures.latency import draw_latency
        from internalize.storage.runs import Run

        drawings: dict[str, Drawing] = {}
        if self.study == "latency":
            for n in dict.fromkeys(row.n for row in rows):
                name = f"latency-n{n}"
                drawings[name] = draw_latency([row.to_json() for row in rows if row.n == n], name)
        for row in (row for row in rows if isinstance(row, VariantRow)):
            name = f"{row.what.replace('=', '-').replace(' ', '-')}-n{row.n}-k{row.k}"
            drawings[name] = draw_gates([Run(Path(run)) for run in row.runs], name)
        return [f"drawn in {drawing.save(out / 'figures')}" for drawing in drawings.values()]


def _size(text: str) -> tuple[int, int]:
    try:
        n, k = text.split(",")
        return int(n), int(k)
    except ValueError:
        raise InputError(f"sizes={text!r} is not a pair of numbers n,k like 30,16") from None


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return one row of the table, with an interval or a list in one column."""
    shown = dict(row)
    middle = "latency_ms" if row["of"] == "latency" else "accuracy"
    shown["95 %"] = f"{row[f'{middle}_low']:.3f} … {row[f'{middle}_high']:.3f}"
    if "solved" in row:
        shown["solved"] = f"{row['solved']}/{row['seeds']}"
    if "breaks_at" in row:
        shown["breaks"] = ", ".join(f"stage {stage}: {seeds}" for stage, seeds in row["breaks_at"].items()) or "never"
    if "turned" in row:
        judged: list[dict[str, Any]] | None = row["turned"]
        shown["turned"] = "not judged" if judged is None else ", ".join(found["statement"] for found in judged)
    return shown | row.get("gate_distance", {})
