"""A run of `lm train` as a job for a pool of processes (``internalize.parallel.pool``).

Tiny models gain nothing from threads, so each process has one unless more are asked for, and the bits do not depend on how many
processes there are.
"""

from dataclasses import dataclass
from pathlib import Path

from internalize.lm.options import LmTrainOptions
from internalize.parallel.pool import ReportProgress, torch_threads
from internalize.storage.runs import Run


@dataclass(frozen=True)
class ExecutionSettings:
    """What all runs have in common."""

    device: str = "cpu"
    threads: int = 1
    checkpoint_steps: int = 200


@dataclass(frozen=True)
class LmJob:
    """One run of `lm train`, finished or begun or not."""

    options: LmTrainOptions
    seed: int
    out: Path
    place: Path
    """Of the run's folder, below ``out``."""
    how: ExecutionSettings

    @property
    def folder(self) -> Path:
        """Where the run is kept."""
        return self.out / self.place

    @property
    def name(self) -> str:
        """The folder, as far as runs of one comparison differ in it."""
        return str(self.place)

    @property
    def size(self) -> int:
        """Its updates."""
        return self.options.steps

    def run(self, seen: ReportProgress) -> None:
        """Train the run, or continue it; a finished one is left as it is."""
        from internalize.lm.training.quiet import quiet_transformers
        from internalize.lm.training.train import LmTrainProgress, train

        def report(now: LmTrainProgress) -> None:
            seen(now.done, f"stage {now.metrics['stage']}/{now.stages}  exact match {now.metrics['exact_match']:.3f}")

        quiet_transformers()
        with torch_threads(self.how.threads):
            train(
                self.options,
                self.seed,
                Run(self.folder),
                device=self.how.device,
                resume=True,
                checkpoint_steps=self.how.checkpoint_steps,
                report=report,
            )
