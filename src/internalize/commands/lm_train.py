"""`internalize lm train`."""

from dataclasses import field
from typing import Any

import tyro

from internalize.commands.common_options import CheckpointOption, DeviceOptions, SeedOption, SeedsOptions, command
from internalize.commands.console import print_table, say, use_device
from internalize.errors import InputError
from internalize.lm.options import LmTrainOptions
from internalize.parallel.launcher import Launched, joined


@command
class LmTrain(CheckpointOption, SeedsOptions, SeedOption, DeviceOptions):
    """Train a language model on chains of thought and take them away, until it answers without writing them.

    Without --model, a new GPT-2 of five layers learns 8-parity of 16 bits (3000 updates, some minutes; with --stop-at
    0.99 it ends once that is reached). The run folder holds the metrics of every evaluation and, in model/, a folder that
    transformers loads by itself. Ctrl-C saves and stops; --resume goes on from there, or from a kill, to the same bits.
    Several processes: torchrun --nproc-per-node 2 -m internalize -- lm train …

    For example:

      $ internalize lm train --stop-at 0.99 --out runs/parity
      $ internalize lm train --data train.txt --model ./gpt2 --batch 32 --lr 5e-5 --out runs/mine
      $ internalize lm train --data multiply:digits=2 --layers 4 --method icot --advance steps --stage-steps 100
      $ internalize lm train --data train.txt --model ./mistral --lora-rank 16 --dtype bfloat16 --accumulate 8
    """

    options: tyro.conf.OmitArgPrefixes[LmTrainOptions] = field(default_factory=LmTrainOptions)

    def __call__(self) -> int:
        """Train, show, keep: alone, or together with the other processes of a launcher."""
        with joined(self.device, say) as here:
            return self._train(here)

    def _train(self, here: Launched) -> int:
        from internalize.commands.progress import ProgressDisplay
        from internalize.lm.training.quiet import quiet_transformers

        out = self.folder("lm-train")
        runs = self.runs(out, self.seed)
        if self.checkpoint_steps < 1:
            raise InputError(f"checkpoint_steps={self.checkpoint_steps} must be at least 1")
        device = use_device(self.device, self.threads)
        quiet_transformers()

        from internalize.lm.training.train import LmTrainProgress as Report
        from internalize.lm.training.train import train

        if self.out is None:
            if here.count > 1:
                raise InputError("several processes need --out: each would choose another folder")
            say(f"keeping the run in {out}")
        results: list[dict[str, Any]] = []
        for seed, run in runs.items():
            with ProgressDisplay(f"lm train {self.options.data} {self.options.method} seed {seed}") as progress:

                def report(now: Report, progress: ProgressDisplay = progress) -> None:
                    seen = f"stage {now.metrics['stage']}/{now.stages}  loss {now.metrics['loss']:.4g}  "
                    progress.show(now.done, now.total, f"{seen}exact match {now.metrics['exact_match']:.3f}")

                results.append(
                    train(
                        self.options,
                        seed,
                        run,
                        device=device,
                        resume=self.resume,
                        checkpoint_steps=self.checkpoint_steps,
                        report=report,
                        say=say,
                    )
                )
        if not here.first:
            return 0
        if not self.json and not self.seeds:
            print_table(results[0]["stages"], ("stage", "hidden", "steps", "exact_match", "passed"))
        self.show_runs(results, runs, ("exact_match", "word_match", "examples", "steps", "tokens", "seconds"))
        return 0
