"""`internalize solve`."""

from contextlib import ExitStack
from dataclasses import field

import tyro

from internalize.commands.common_options import CORES, SeedsOptions, ThreadsOption, command
from internalize.commands.console import Flag, say, use_device
from internalize.parallel.launcher import joined
from internalize.parity.options import SolveOptions


@command
class Solve(SeedsOptions, ThreadsOption):
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
    snapshots: Flag[bool] = False
    """Keep the weights of every stage, and what they were before rounding."""
    threads: int = CORES

    def __call__(self) -> int:
        """Solve, show, keep."""
        from internalize.commands.progress import ProgressDisplay
        from internalize.parity.algorithm1.solve_runs import SolveProgress, solve_runs

        with ExitStack() as stack:
            first = stack.enter_context(joined(self.options.device, say)).first
            use_device(self.options.device, self.threads, self.options.dtype)
            out = self.folder("solve")
            runs = self.runs(out, self.options.seed)
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
                tuple(runs),
                list(runs.values()) if first else None,
                resume=self.resume,
                snapshots=self.snapshots,
                report=report,
                say=say,
            )
        if not first:
            return 0
        columns = ("exact_recovery", "accuracy", "max_error", "K", "samples_per_stage", "steps", "seconds")
        self.show_runs([result.to_json() for result in results], runs, columns)
        failed = {seed: result.reason for seed, result in zip(runs, results, strict=True) if result.reason}
        for seed, reason in failed.items():
            say(f"seed {seed}: {reason}")
        if len(runs) > 1:
            say(f"{len(runs) - len(failed)} of {len(runs)} seeds recovered every layer")
        return 1 if failed else 0
