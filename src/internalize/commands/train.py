"""`internalize train`."""

from dataclasses import dataclass, field
from pathlib import Path

import tyro

from internalize.commands.console import (
    Flag,
    chosen_seeds,
    default_out,
    print_json,
    print_table,
    run_folders,
    say,
    use_device,
)
from internalize.parity.options import TrainOptions


@dataclass(frozen=True)
class Train:
    """Train by AdamW through the stages of a curriculum; the defaults are the paper's experiment.

    Keeps a run folder with the configuration, the metrics of every evaluation and the weights. Ctrl-C saves and stops;
    --resume goes on from there, or from a kill, to the same bits.

    For example:

      $ internalize train --out runs/first
      $ internalize train --seeds 0:20 --out runs/paper
      $ internalize train --n 64 --k 32 --curriculum icot --json
    """

    options: tyro.conf.OmitArgPrefixes[TrainOptions] = field(default_factory=TrainOptions)
    seed: int = 0
    """Decides the secret set and every sample."""
    seeds: str = ""
    """Several runs at once, in place of --seed: 0:20 is 0 … 19; 1,5,9 also works. Each run gets a folder in --out."""
    out: Path | None = None
    """Run folder. Without it, a new one below runs/."""
    resume: Flag[bool] = False
    """Continue the run in --out where it stopped; a finished one is shown."""
    snapshots: Flag[bool] = False
    """Keep the weights of every evaluation."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, cuda:1, …"""
    threads: int = 1
    """Threads of one process. More pay only from about n=128 and batch 2000 on, and change the last bits."""
    json: Flag[bool] = False
    """Print one JSON object on standard output."""

    def __call__(self) -> int:
        """Train, show, keep."""
        from internalize.commands.progress import ProgressDisplay
        from internalize.parity.adamw.train import TrainProgress as Report
        from internalize.parity.adamw.train import train
        from internalize.storage.runs import Run

        seeds = chosen_seeds(self.seed, self.seeds, self.out, resume=self.resume)
        out = self.out or default_out("train")
        folders = run_folders(out, seeds, several=bool(self.seeds))

        with ProgressDisplay(f"train n={self.options.n} k={self.options.k} {self.options.curriculum}") as progress:

            def report(now: Report) -> None:
                if now.done == 0 and self.out is None:
                    say(f"keeping the run in {out}")
                stage = now.metrics[0]["stage"]
                loss = sum(m["loss"] for m in now.metrics) / len(now.metrics)
                accuracy = sum(m["accuracy"] for m in now.metrics) / len(now.metrics)
                seen = f"stage {stage}/{now.stages}  loss {loss:.4g}  accuracy {accuracy:.3f}"
                progress.show(now.done, now.total, seen)

            results = train(
                self.options,
                seeds,
                [Run(folder) for folder in folders],
                device=use_device(self.device, self.threads, self.options.dtype),
                snapshots=self.snapshots,
                resume=self.resume,
                report=report,
                say=say,
            )
        rows = [{**result, "out": str(folder)} for result, folder in zip(results, folders, strict=True)]
        if self.json:
            print_json({"runs": rows} if self.seeds else results[0])
        else:
            columns = ("seed", "accuracy", "l2_error", "max_error", "min_child_attention", "seconds", "out")
            print_table(rows, columns)
        return 0
