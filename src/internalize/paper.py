"""`internalize paper`: train what is missing, reuse what is finished, write the page.

The runs are kept below the report (``runs/<experiment>/seed-<n>``), so that a second call only draws. They are trained in
processes of one thread each: tensors this small gain nothing from threads, and the bits do not depend on the machine's
number of cores.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from internalize.errors import InputError
from internalize.jobs import TOGETHER, TrainJob
from internalize.options import TrainOptions
from internalize.workers import run_all


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in the seed only."""

    name: str
    options: TrainOptions
    seeds: int


PAPER = Experiment("n30-k16", TrainOptions(), 20)
EXPERIMENTS: tuple[Experiment, ...] = (
    # The longest first, so that the processes end together.
    Experiment("n128-k64-lr0.03", TrainOptions(n=128, k=64, lr=0.03), 3),
    Experiment("n128-k64", TrainOptions(n=128, k=64), 3),
    PAPER,
    Experiment("n64-k32", TrainOptions(n=64, k=32), 5),
    Experiment("n30-k8", TrainOptions(k=8), 20),
    Experiment("n30-k4", TrainOptions(k=4), 20),
    Experiment("n30-k2", TrainOptions(k=2), 20),
)
"""The paper's experiment, smaller and larger trees at its settings, and what the largest one needs."""


def reproduce(
    out: Path,
    experiments: Sequence[Experiment] = EXPERIMENTS,
    *,
    paper: TrainOptions = PAPER.options,
    first_seed: int = 0,
    processes: int | None = None,
    report: Callable[[float, float, str], None] = lambda done, total, seen: None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Train what is missing of the experiments and write ``out/index.html``.

    Args:
        out: the report's folder; runs are kept in ``out/runs``.
        experiments: what to train.
        paper: the settings, among those of the experiments, that the paper's claims and figures are about.
        first_seed: every experiment takes its number of seeds from this one up.
        processes: how many train at once; default the machine's cores.
        report: called with updates done, updates to do, and what was seen last.
        say: called with a line about every run that had to be rebuilt.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
    """
    from internalize.report import write_report
    from internalize.tables import claims, paper_runs

    began = time.perf_counter()
    jobs = [job for experiment in experiments for job in _jobs(out, experiment, first_seed)]
    for job in jobs:
        _discard_if_unusable(job, say)
    refused: list[str] = []
    run_all(
        [job for job in jobs if not job.finished],
        processes or os.cpu_count() or 1,
        report,
        lambda job, reason: refused.append(reason),
        "the same command goes on",
    )
    if refused:
        raise InputError("; ".join(dict.fromkeys(refused)))
    runs = [run for job in jobs for run in job.runs]
    page = write_report(out, runs, paper=paper)
    holds = all(claim.holds for claim in claims(paper_runs(runs, paper), paper))
    figures = sorted(str(path.relative_to(out)) for path in (out / "figures").iterdir())
    return {"report": str(page), "figures": figures, "holds": holds, "seconds": round(time.perf_counter() - began, 1)}


def _jobs(out: Path, experiment: Experiment, first_seed: int) -> Iterator[TrainJob]:
    seeds = range(first_seed, first_seed + experiment.seeds)
    for start in range(0, len(seeds), TOGETHER):
        some = tuple(seeds[start : start + TOGETHER])
        yield TrainJob(out / "runs", Path(experiment.name), experiment.options, some)


def _discard_if_unusable(job: TrainJob, say: Callable[[str], None]) -> None:
    """Remove a job's runs if one is damaged or has other settings. All, because their last bits depend on each other."""
    try:
        job.check(resume=True)
        for run in job.runs:
            if steps := run.checkpoint_steps():
                run.load_checkpoint(max(steps))
    except InputError as error:
        say(f"{error}; training it again with the {len(job.runs) - 1} that were trained together with it")
        for run in job.runs:
            if run.path.exists():
                run.discard()
