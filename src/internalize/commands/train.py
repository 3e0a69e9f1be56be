"""`internalize train`."""

from dataclasses import field

import tyro

from internalize.commands.common_options import DeviceOptions, SeedOption, SeedsOptions, command
from internalize.commands.console import Flag, say, use_device
from internalize.parity.options import TrainOptions


@command
class Train(SeedsOptions, SeedOption, DeviceOptions):
    """Train by AdamW through the stages of a curriculum; the defaults are the paper's experiment.

    Keeps a run folder with the configuration, the metrics of every evaluation and the weights. Ctrl-C saves and stops;
    --resume goes on from there, or from a kill, to the same bits.

    For example:

      $ internalize train --out runs/first
      $ internalize train --seeds 0:20 --out runs/paper
      $ internalize train --n 64 --k 32 --curriculum icot --json
    """

    options: tyro.conf.OmitArgPrefixes[TrainOptions] = field(default_factory=TrainOptions)
    snapshots: Flag[bool] = False
    """Keep the weights of every evaluation."""
    threads: int = 1
    """Threads of one process. More pay only from about n=128 and batch 2000 on, and change the last bits."""

    def __call__(self) -> int:
        """Train, show, keep."""
        from internalize.commands.progress import ProgressDisplay
        from internalize.parity.adamw.train import TrainProgress as Report
        from internalize.parity.adamw.train import train

        out = self.folder("train")
        runs = self.runs(out, self.seed)
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
                list(runs),
                list(runs.values()),
                device=use_device(self.device, self.threads, self.options.dtype),
                snapshots=self.snapshots,
                resume=self.resume,
                report=report,
                say=say,
            )
        self.show_runs(results, runs, ("accuracy", "l2_error", "max_error", "min_child_attention", "seconds"))
        return 0
