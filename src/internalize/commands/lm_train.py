"""`internalize lm train`."""

import os
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
from internalize.errors import InputError
from internalize.lm.options import LmTrainOptions


@dataclass(frozen=True)
class LmTrain:
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
    seed: int = 0
    """Decides the task, a new model's weights, what is held out, the order of the data and what is replayed."""
    seeds: str = ""
    """Several runs one after another, in place of --seed: 0:10 is 0 … 9. Each gets a folder in --out."""
    out: Path | None = None
    """Run folder. Without it, a new one below runs/."""
    resume: Flag[bool] = False
    """Continue the run in --out where it stopped; a finished one is shown."""
    checkpoint_steps: int = 200
    """Updates between checkpoints."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, …"""
    threads: int = 1
    """Threads of one process. More change the last bits."""
    json: Flag[bool] = False
    """Print one JSON object on standard output."""

    def __call__(self) -> int:
        """Train, show, keep."""
        from internalize.commands.progress import ProgressDisplay
        from internalize.lm.training.quiet import quiet_transformers
        from internalize.storage.runs import Run

        seeds = chosen_seeds(self.seed, self.seeds, self.out, resume=self.resume)
        if self.checkpoint_steps < 1:
            raise InputError(f"checkpoint_steps={self.checkpoint_steps} must be at least 1")
        out = self.out or default_out("lm-train")
        folders = run_folders(out, seeds, several=bool(self.seeds))
        device = use_device(self.device, self.threads)
        quiet_transformers()

        from internalize.lm.training.train import LmTrainProgress as Report
        from internalize.lm.training.train import train

        first = os.environ.get("RANK", "0") == "0"  # of a launcher's processes, the one that speaks
        if self.out is None:
            if "RANK" in os.environ:
                raise InputError("several processes need --out: each would choose another folder")
            say(f"keeping the run in {out}")
        results: list[dict[str, object]] = []
        for seed, folder in zip(seeds, folders, strict=True):
            with ProgressDisplay(f"lm train {self.options.data} {self.options.method} seed {seed}") as progress:

                def report(now: Report, progress: ProgressDisplay = progress) -> None:
                    seen = f"stage {now.metrics['stage']}/{now.stages}  loss {now.metrics['loss']:.4g}  "
                    progress.show(now.done, now.total, f"{seen}exact match {now.metrics['exact_match']:.3f}")

                results.append(
                    train(
                        self.options,
                        seed,
                        Run(folder),
                        device=device,
                        resume=self.resume,
                        checkpoint_steps=self.checkpoint_steps,
                        report=report,
                        say=say,
                    )
                )
        rows = [{**result, "out": str(folder)} for result, folder in zip(results, folders, strict=True)]
        if not first:
            return 0
        if self.json:
            print_json({"runs": rows} if self.seeds else results[0])
        else:
            if not self.seeds:
                print_table(rows[0]["stages"], ("stage", "hidden", "steps", "exact_match", "passed"))  # pyright: ignore[reportArgumentType]
            print_table(rows, ("seed", "exact_match", "word_match", "examples", "steps", "tokens", "seconds", "out"))
        return 0
