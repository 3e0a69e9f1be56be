"""`internalize solve`."""

import os
from contextlib import ExitStack
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
from internalize.parity.options import SolveOptions


@dataclass(frozen=True)
class Solve:
    """Run Algorithm 1: one quantised gradient step a stage, on fresh samples.

    The defaults recover every layer exactly at every n; --preset paper is the algorithm verbatim and does not. Exits with 1
    if a layer is not recovered, and says at which stage, why, and what would succeed. `internalize predict` says
    beforehand how likely that is. Under torchrun the samples are shared out over the processes.

    Other curricula (--curriculum) take a step a stage too: k - 1 of icot, most of them idle, and one of cot or none. What the
    mask, the gates and rounding are for shows without them: --mask causal, --gates ones, --gates cot, --grid none.

    For example:

      $ internalize solve --n 128 --k 64
      $ internalize solve --seeds 0:50 --json
      $ internalize solve --preset paper
      $ internalize solve --curriculum icot
      $ internalize solve --gates ones
      $ internalize solve --n 16 --k 8 --samples 550 --grid K --rate paper
      $ torchrun --nproc-per-node 2 -m internalize -- solve --n 256 --k 128 --out runs/two
    """

    options: tyro.conf.OmitArgPrefixes[SolveOptions] = field(default_factory=SolveOptions)
    seeds: str = ""
    """Several runs one after another, in place of --seed: 0:50 is 0 … 49. Each run gets a folder in --out."""
    out: Path | None = None
    """Run folder. Without it, a new one below runs/."""
    resume: Flag[bool] = False
    """Continue the run in --out with its next stage; a finished one is shown."""
    snapshots: Flag[bool] = False
    """Keep the weights of every stage, and what they were before rounding."""
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Threads of one process."""
    json: Flag[bool] = False
    """Print one JSON object on standard output."""

    def __call__(self) -> int:
        """Solve, show, keep."""
        from internalize.commands.progress import ProgressDisplay
        from internalize.parity.algorithm1.checkpoints import SolveProgress, solve_runs
        from internalize.storage.runs import Run

        use_device(self.options.device, self.threads, self.options.dtype)
        seeds = chosen_seeds(self.options.seed, self.seeds, self.out, resume=self.resume)
        out = self.out or default_out("solve")
        folders = run_folders(out, seeds, several=bool(self.seeds))
        with ExitStack() as stack:
            first = _join_processes(stack)
            title = f"solve n={self.options.n} k={self.options.k}"
            progress = stack.enter_context(ProgressDisplay(title)) if first else None

            def report(now: SolveProgress) -> None:
                if progress and now.record:
                    seen = f"seed {now.seed}  stage {now.record.stage}/{now.stages}  margin {now.record.margin:.2f} K"
                    progress.show(now.done, now.total, seen)
                elif progress and self.out is None:
                    say(f"keeping the run in {out}")

            results = solve_runs(
                self.options,
                seeds,
                [Run(folder) for folder in folders] if first else None,
                resume=self.resume,
                snapshots=self.snapshots,
                report=report,
                say=say,
            )
        if not first:
            return 0
        rows = [
            {**result.to_json(), "seed": seed, "out": str(folder)}
            for result, seed, folder in zip(results, seeds, folders, strict=True)
        ]
        failed = [row for row in rows if row["reason"]]
        if self.json:
            print_json({"runs": rows} if self.seeds else {k: v for k, v in rows[0].items() if k not in ("seed", "out")})
        else:
            columns = ("seed", "exact_recovery", "accuracy", "max_error", "K", "samples_per_stage", "steps", "seconds")
            print_table(rows, (*columns, "out"))
        for row in failed:
            say(f"seed {row['seed']}: {row['reason']}")
        if self.seeds and len(seeds) > 1:
            say(f"{len(seeds) - len(failed)} of {len(seeds)} seeds recovered every layer")
        return 1 if failed else 0


def _join_processes(stack: ExitStack) -> bool:
    """Join the other processes if torchrun started several; whether this is the first."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    stack.callback(dist.destroy_process_group)
    return dist.get_rank() == 0
