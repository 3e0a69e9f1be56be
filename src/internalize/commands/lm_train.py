"""`internalize lm train`."""

from dataclasses import field
from typing import Any

import tyro

from internalize.commands.common_options import CheckpointOption, DeviceOptions, SeedOption, SeedsOptions, command
from internalize.commands.console import print_table, print_text, say, use_device
from internalize.errors import InputError
from internalize.lm.options import LmTrainOptions
from internalize.parallel.launcher import Launched, joined


@command
class LmTrain(CheckpointOption, SeedsOptions, SeedOption, DeviceOptions):
    """Train a language model to answer without writing its chain of thought.

    Training starts with the whole chain shown and then hides it, stage by stage. Without --model, a new GPT-2 of five
    layers learns the parity of 8 secret bits among 16, in a few minutes. The run folder keeps the metrics of every
    evaluation and, in model/, a folder that transformers can load. After Ctrl-C or a kill, --resume continues the run
    and ends with bit-for-bit identical weights.

    Examples:
      internalize lm train --stop-at 0.99 --out runs/parity
      internalize lm train --data train.txt --model ./gpt2 --batch 32 --lr 5e-5 --out runs/mine
      internalize lm train --data multiply:digits=2 --layers 4 --method icot --advance steps --stage-steps 100
      internalize lm train --data train.txt --model ./mistral --lora-rank 16 --dtype bfloat16 --accumulate 8
      torchrun --nproc-per-node 2 -m internalize -- lm train --out runs/two
    """

    report_to: tuple[str, ...] = ()
    """Loggers that record losses and evaluations: tensorboard, wandb, mlflow, … Default: none."""
    options: tyro.conf.OmitArgPrefixes[LmTrainOptions] = field(default_factory=LmTrainOptions)

    def __call__(self) -> int:
        """Train, show the results and keep them, alone or together with the other processes of a launcher."""
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

        if self.out is None and here.count > 1:
            raise InputError("several processes need --out: without it, each would choose another folder")
        self.announce(out, "run")
        results: list[dict[str, Any]] = []
        total = 0
        for seed, run in runs.items():
            with ProgressDisplay(f"lm train {self.options.data} {self.options.method} seed {seed}") as progress:
                noted = 0

                def report(now: Report, progress: ProgressDisplay = progress) -> None:
                    nonlocal noted, total
                    total = now.total
                    for stage in now.finished[noted:]:
                        progress.note(_in_words(stage, now.stages))
                    noted = len(now.finished)
                    seen = f"stage {now.metrics['stage']}/{now.stages}  loss {now.metrics['loss']:.3g}  "
                    progress.show(now.done, now.total, f"{seen}exact match {now.metrics['exact_match']:.3f}")

                results.append(
                    train(
                        self.options,
                        seed,
                        run,
                        device=device,
                        resume=self.resume,
                        checkpoint_steps=self.checkpoint_steps,
                        report_to=self.report_to,
                        report=report,
                        say=say,
                    )
                )
        if not here.first:
            return 0
        if not self.json and not self.seeds:
            print_table(results[0]["stages"], ("stage", "hidden", "steps", "exact_match", "passed"))
            print_text("")
        self.show_runs(results, runs, ("exact_match", "word_match", "examples", "steps", "tokens", "seconds"))
        if not self.json:
            stop_at, made = self.options.stop_at, results[0]["steps"]
            if stop_at is not None and not self.seeds and made < total:
                say(f"stopped after {made} updates: exact match reached {stop_at:g} with the whole chain hidden")
            self.suggest("lm eval --stages all --chain --model", next(iter(runs.values())).path)
        return 0


def _in_words(stage: dict[str, Any], stages: int) -> str:
    """Return a finished stage as one line."""
    if stage["exact_match"] is None:
        return f"stage {stage['stage']}/{stages} ended: {stage['steps']} updates, not evaluated"
    outcome = "passed" if stage["passed"] else "ended below the threshold"
    return (
        f"stage {stage['stage']}/{stages} {outcome}: {stage['steps']} updates, exact match {stage['exact_match']:.3f}"
    )
