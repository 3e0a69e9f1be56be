"""A run of `lm train` as a job for a pool of processes (``internalize.parallel.pool``).

Tiny models gain nothing from threads, so each process has one by default. Results do not depend on the number of
processes.
"""

from dataclasses import dataclass
from pathlib import Path

from internalize.lm.options import LmTrainOptions
from internalize.parallel.pool import ReportProgress, torch_threads
from internalize.parallel.runner import KeptJob
from internalize.storage.runs import Run


@dataclass(frozen=True)
class ExecutionSettings:
    """How every run of a comparison is executed."""

    device: str = "cpu"
    threads: int = 1
    checkpoint_steps: int = 200


@dataclass(frozen=True)
class LmJobOutcome:
    """The updates of a job that finished its run."""

    trained: int
    """Number of updates that the job trained."""
    shared: int
    """Number of updates that it took over from another run."""
    refusal: str
    """The reason why it did not share another run's first stage as planned; empty if it did."""


@dataclass(frozen=True)
class LmJob(KeptJob):
    """One run of `lm train`: finished, started or not yet started."""

    options: LmTrainOptions
    seed: int
    how: ExecutionSettings
    first_stage_of: Path | None = None
    """The folder of the run whose first stage this run shares. It is the run's own folder if it trains that stage."""

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.out / self.place

    @property
    def size(self) -> int:
        """The number of updates."""
        return self.options.steps

    def check(self, *, resume: bool) -> None:
        """Refuse a folder that cannot become this run's, and a finished run that is damaged."""
        from internalize.lm.training.train import KIND, as_begun, check_finished, run_config

        run = Run(self.folder)
        run.check(KIND, run_config(as_begun(self.options, run), self.seed), resume=resume)
        if run.finished:
            check_finished(run)

    def tidy(self) -> None:
        """Remove the Trainer's checkpoints of a finished run."""
        if self.finished:
            Run(self.folder).drop_trainer()

    def run(self, seen: ReportProgress, /) -> LmJobOutcome:
        """Train or continue the run. A finished run stays as it is."""
        from internalize.lm.training.first_stage import SharedStage
        from internalize.lm.training.quiet import quiet_transformers
        from internalize.lm.training.train import LmTrainProgress, train
        from internalize.lm.training.trainer_checkpoints import checkpoint_step

        def report(now: LmTrainProgress) -> None:
            seen(now.done, f"stage {now.metrics['stage']}/{now.stages}  exact match {now.metrics['exact_match']:.3f}")

        quiet_transformers()
        shared = None if self.first_stage_of is None else SharedStage(Run(self.first_stage_of))
        begins = checkpoint_step(self.folder / "checkpoint")
        with torch_threads(self.how.threads):
            result = train(
                self.options,
                self.seed,
                Run(self.folder),
                device=self.how.device,
                resume=True,
                checkpoint_steps=self.how.checkpoint_steps,
                report=report,
                shared=shared,
            )
        taken, refusal = (shared.taken, shared.refusal) if shared else (0, "")
        return LmJobOutcome(result["steps"] - begins - taken, taken, refusal)
