"""`internalize paper`: train what is missing, reuse what is finished, write the page.

The runs are kept below the report (``runs/<experiment>/seed-<n>``), so that a second call only draws. They are trained in
processes of one thread each: tensors this small gain nothing from threads, and the bits do not depend on the machine's
number of cores.
"""

import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from internalize.errors import InputError
from internalize.interrupt import Interrupted, Interruptible
from internalize.options import TrainOptions
from internalize.runs import Run

TOGETHER = 10
"""Seeds trained together: fixed, because the last bits of a run depend on it."""


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


@dataclass(frozen=True)
class Job:
    """Some seeds of an experiment, trained together in one process."""

    options: TrainOptions
    seeds: tuple[int, ...]
    folders: tuple[Path, ...]


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
    _train_all([job for job in jobs if not all(Run(folder).finished for folder in job.folders)], processes, report)
    runs = [Run(folder) for job in jobs for folder in job.folders]
    page = write_report(out, runs, paper=paper)
    holds = all(claim.holds for claim in claims(paper_runs(runs, paper), paper))
    figures = sorted(str(path.relative_to(out)) for path in (out / "figures").iterdir())
    return {"report": str(page), "figures": figures, "holds": holds, "seconds": round(time.perf_counter() - began, 1)}


def _jobs(out: Path, experiment: Experiment, first_seed: int) -> Iterator[Job]:
    seeds = range(first_seed, first_seed + experiment.seeds)
    for start in range(0, len(seeds), TOGETHER):
        some = tuple(seeds[start : start + TOGETHER])
        folders = tuple(out / "runs" / experiment.name / f"seed-{seed}" for seed in some)
        yield Job(experiment.options, some, folders)


def _discard_if_unusable(job: Job, say: Callable[[str], None]) -> None:
    """Remove a job's runs if one is damaged or has other settings. All, because their last bits depend on each other."""
    from internalize.parity.train import check_finished, run_config

    runs = [Run(folder) for folder in job.folders]
    for run, seed in zip(runs, job.seeds, strict=True):
        if not run.path.exists():
            continue
        try:
            if run.exists:
                run.check("train", run_config(job.options, seed), resume=True)
            if run.finished:
                check_finished(run)
            elif run.checkpoint_steps():
                run.load_checkpoint(max(run.checkpoint_steps()))
        except InputError as error:
            say(f"{error}; training it again with the {len(runs) - 1} that were trained together with it")
            for unusable in runs:
                if unusable.path.exists():
                    unusable.discard()
            return


def _train_all(jobs: Sequence[Job], processes: int | None, report: Callable[[float, float, str], None]) -> None:
    """Train the jobs in processes that take the next one until there is none."""
    if not jobs:
        return
    context = multiprocessing.get_context("spawn")
    shared = Shared(context.Queue(), context.Value("i", 0), context.Event(), os.getpid())
    count = min(processes or os.cpu_count() or 1, len(jobs))
    workers = [context.Process(target=_work, args=(jobs, shared)) for _ in range(count)]
    state = {number: (0, _updates(job.options)) for number, job in enumerate(jobs)}  # done, total
    with Interruptible() as interrupt:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers) or not shared.said.empty():
            if interrupt.requested:
                shared.stop.set()
            try:
                message = shared.said.get(timeout=0.2)
            except queue.Empty:
                continue
            if isinstance(message, Refusal):
                shared.stop.set()
                for worker in workers:
                    worker.join()
                raise InputError(message.reason)
            state[message.job] = (message.done, message.total)
            report(sum(done for done, _ in state.values()), sum(total for _, total in state.values()), message.text)
    if interrupt.requested:
        raise Interrupted("the same command goes on")
    for worker in workers:
        if worker.exitcode != 0:
            raise RuntimeError(f"a training process ended with status {worker.exitcode}; its traceback is above")


def _updates(options: TrainOptions) -> int:
    return options.steps * len(options.schedule().stages(options.k - 1))


# What the processes share, and what they say


@dataclass(frozen=True)
class Shared:
    """Handed to every process: where to speak, the number of the next job, a request to stop, and who began it all."""

    said: "multiprocessing.Queue[Place | Refusal]"
    next_job: "Synchronized[int]"
    stop: Event
    parent: int


@dataclass(frozen=True)
class Place:
    """How far a job is."""

    job: int
    done: int
    total: int
    text: str


@dataclass(frozen=True)
class Refusal:
    """Why a job cannot be done: a full disk, a folder in use."""

    reason: str


def _work(jobs: Sequence[Job], shared: Shared) -> None:
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent decides
    try:
        while (number := _take(shared.next_job)) < len(jobs) and not shared.stop.is_set():
            _train_job(number, jobs[number], shared)
    except InputError as error:
        shared.said.put(Refusal(str(error)))
    except Interrupted:
        if os.getppid() != shared.parent:
            os._exit(0)  # nobody is left to read what we said, and an ordinary exit would wait for them


def _take(counter: "Synchronized[int]") -> int:
    with counter.get_lock():
        counter.value += 1
        return counter.value - 1


def _train_job(number: int, job: Job, shared: Shared) -> None:
    from internalize.parity.train import Progress, train

    def report(now: Progress) -> None:
        if shared.stop.is_set() or os.getppid() != shared.parent:  # asked to stop, or left behind by a killed parent
            signal.raise_signal(signal.SIGTERM)
        accuracy = sum(m["accuracy"] for m in now.metrics) / len(now.metrics)
        what = f"n={job.options.n} k={job.options.k} lr={job.options.lr:g} stage {now.metrics[0]['stage']}/{now.stages}"
        shared.said.put(Place(number, now.done, now.total, f"{what}  accuracy {accuracy:.3f}"))

    train(job.options, job.seeds, [Run(folder) for folder in job.folders], resume=True, report=report)
