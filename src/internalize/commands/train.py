"""`internalize train`."""

from dataclasses import field

import tyro

from internalize.commands.common_options import DeviceOptions, SeedOption, SeedsOptions, command
from internalize.commands.console import Flag, say, use_device
from internalize.parity.options import TrainOptions


@command
class Train(SeedsOptions, SeedOption, DeviceOptions):
    """Train the paper's model with AdamW, stage by stage.

    The defaults are the paper's experiment. The run folder keeps the configuration, the metrics of every evaluation
    and the weights. After Ctrl-C or a kill, --resume continues the run and ends with bit-for-bit identical weights.

    Examples:
      internalize train --out runs/first
      internalize train --seeds 0:20 --out runs/paper
      internalize train --n 64 --k 32 --curriculum icot --json
    """

    options: tyro.conf.OmitArgPrefixes[TrainOptions] = field(default_factory=TrainOptions)
    snapshots: Flag[bool] = False
    """Also keep the weights of every evaluation."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, cuda:1, mps. Small models are faster on the CPU."""
    threads: int | None = 1
    """Threads per process. More than one is faster only from about n=128 and --batch 2000; it changes the last bits."""

    def __call__(self) -> int:
        """Train, show the results and keep them."""
        from internalize.commands.progress import ProgressDisplay
        from internalize.parity.adamw.train import TrainProgress as Report
        from internalize.parity.adamw.train import train

        out = self.folder("train")
        runs = self.runs(out, self.seed)
        with ProgressDisplay(f"train n={self.options.n} k={self.options.k} {self.options.curriculum}") as progress:

            def report(now: Report) -> None:
                if now.done == 0:
                    self.announce(out, "run")
                stage = now.metrics[0]["stage"]
                loss = sum(m["loss"] for m in now.metrics) / len(now.metrics)
                accuracy = sum(m["accuracy"] for m in now.metrics) / len(now.metrics)
                seen = f"stage {stage}/{now.stages}  loss {loss:.3g}  right without the chain {accuracy:.0%}"
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
        self.suggest("certify --run", next(iter(runs.values())).path)
        return 0
