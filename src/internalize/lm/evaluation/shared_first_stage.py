"""Finds the runs of `lm compare` that share a first stage (`lm.training.first_stage`), and removes it after use."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from internalize.errors import InputError
from internalize.lm.evaluation.jobs import LmJob
from internalize.lm.options import LmTrainOptions
from internalize.lm.training.first_stage import SharedStage, first_stage_options
from internalize.storage.runs import Run


def share_first_stages(jobs: Sequence[LmJob], say: Callable[[str], None]) -> list[LmJob]:
    """Return the jobs in their order, each with the run whose first stage it shares.

    That run has kept its first stage. If there is no such run, it is the first that is still in its first stage.
    """
    groups = _groups(jobs)
    shared: dict[LmJob, LmJob] = {}
    for group in groups:
        kept = [job for job in group if SharedStage(Run(job.folder)).kept]
        begun = [job for job in group if not Run(job.folder).finished and _in_first_stage(Run(job.folder))]
        if kept or len(begun) > 1:
            owner = (kept or begun)[0].folder
            shared |= {job: replace(job, first_stage_of=owner) for job in begun}
    alone = {job.name: None for (job, *others) in groups if not others and not Run(job.folder).finished}
    if alone and len({job.options.method for group in groups for job in group}) > 1:
        say(f"no first stage is shared by {', '.join(alone)}: other runs have other numbers of updates")
    return [shared.get(job, job) for job in jobs]


def may_begin(job: LmJob, running: Sequence[LmJob]) -> bool:
    """Return whether a job may begin: no running job is still training the first stage that it shares."""
    others = {other.folder for other in running if other != job}
    return job.first_stage_of not in others or SharedStage(Run(job.first_stage_of)).kept


def drop_first_stages(jobs: Sequence[LmJob]) -> None:
    """Remove the first stages that no run needs any more."""
    for group in _groups(jobs):
        if all(Run(job.folder).finished for job in group):
            for job in group:
                SharedStage(Run(job.folder)).drop()


def _groups(jobs: Sequence[LmJob]) -> list[list[LmJob]]:
    """Return the jobs that have several stages, grouped by the options that their first stage depends on."""
    groups: dict[tuple[LmTrainOptions, int], list[LmJob]] = {}
    for job in jobs:
        if job.options.method not in ("none", "cot", "pause"):
            groups.setdefault((first_stage_options(job.options), job.seed), []).append(job)
    return list(groups.values())


def _in_first_stage(run: Run) -> bool:
    """Return whether a run is still in its first stage."""
    try:
        return all(metrics["stage"] == 1 for metrics in run.metrics())
    except (InputError, KeyError):  # damaged, which the run's own job reports
        return False
