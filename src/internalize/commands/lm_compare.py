"""`internalize lm compare`."""

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from internalize.commands.common_options import CheckpointOption, DeviceOptions, StudyOptions, command
from internalize.commands.console import available_cores, say, use_device
from internalize.commands.lm_plan import PlanOptions
from internalize.lm.options import LmMethod

COLUMNS = (
    *(
        "budget",
        "method",
        "exact_match",
        "95 %",
        "word_match",
        "solved",
        "stages",
        "stage_steps",
        "steps",
        "tokens",
        "flops",
    ),
    *("tokens_per_answer", "steps_to_99", "seconds"),
)


@command
class LmCompare(CheckpointOption, StudyOptions, DeviceOptions):
    """Compare methods on the same data and model, over several seeds.

    The command takes the options of `lm train`. Methods are compared at equal updates, at equal tokens, or at equal
    operations (flops): then each method gets as many updates as cost what log-icot, or the first method, costs in
    --steps. With --advance steps, all
    schedules are derived from --steps: the first stage gets a quarter of the updates (or --first-steps), and the
    removals share two thirds of the rest. With --advance accuracy, stages end as in `lm train`, and --steps is a limit.
    Methods with the same first stage train it once per seed. After Ctrl-C, --resume continues; finished runs are
    reused.

    Examples:
      internalize lm compare --out runs/parity --steps 1500
      internalize lm compare --data multiply:digits=2 --layers 4 --advance steps --steps 4000 --seeds 0:5 --out runs/multiply
      internalize lm compare --methods icot log-icot --budget tokens --removal delete --jobs 4 --json
    """

    TITLE: ClassVar = "Comparison"

    options: tyro.conf.OmitArgPrefixes[PlanOptions] = field(default_factory=PlanOptions)
    methods: Annotated[tuple[LmMethod, ...], tyro.conf.arg(aliases=("--method",))] = ()
    """Methods to compare. Default: cot, icot, log-icot, pause, none and, if stages end by accuracy, adaptive. cot
    writes its chain when it is evaluated."""
    budget: Literal["steps", "tokens", "flops", "both"] = "both"
    """Give all methods the same number of updates (steps), of tokens, or of floating-point operations (flops). both:
    compare at equal updates and at equal tokens."""
    seeds: str = "0:3"
    out: Path | None = None
    """Folder for the runs, each in <budget>/<method>/seed-<seed>, and for rows.json. Default: a new folder in runs/."""

    def __call__(self) -> int:
        """Train the missing runs and show the rows."""
        from internalize.commands.progress import ProgressDisplay
        from internalize.lm.training.quiet import quiet_transformers

        seeds, out = self.all_seeds(), self.folder("lm-compare")
        jobs = available_cores() if self.jobs is None else self.jobs
        threads = max(1, available_cores() // max(1, jobs)) if self.threads is None else self.threads
        device = use_device(self.device, threads)
        quiet_transformers()

        from internalize.lm.evaluation.comparison import compare
        from internalize.lm.evaluation.jobs import ExecutionSettings, LmJobOutcome

        self.announce(out, "runs")
        failed: list[dict[str, str]] = []
        outcomes: list[LmJobOutcome] = []
        with ProgressDisplay(f"lm compare {self.options.data}") as progress:
            compared = compare(
                self.options,
                self.methods,
                seeds,
                ("steps", "tokens") if self.budget == "both" else (self.budget,),
                out=out,
                resume=self.resume,
                jobs=jobs,
                how=ExecutionSettings(device, threads, self.checkpoint_steps),
                report=progress.show,
                refused=lambda folder, reason: failed.append({"run": str(folder), "reason": reason}),
                finished=outcomes.append,
                say=say,
            )
        updates = {
            "updates_trained": sum(outcome.trained for outcome in outcomes),
            "updates_shared": sum(outcome.shared for outcome in outcomes),
        }
        found = {"rows": [row.to_json() for row in compared], "failed": failed, "out": str(out), **updates}
        return self.show_study(found, _shown, COLUMNS, ())


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return one row of the table, with the interval in one column."""
    interval = f"{row['exact_match_low']:.3f} … {row['exact_match_high']:.3f}"
    return {**row, "95 %": interval, "solved": f"{row['solved']}/{row['seeds']}"}
