"""`internalize solve`."""

from contextlib import ExitStack
from dataclasses import field

import tyro

from internalize.commands.common_options import SeedsOptions, ThreadsOption, command
from internalize.commands.console import Flag, say, use_device
from internalize.parallel.launcher import joined
from internalize.parity.options import SolveOptions


@command
class Solve(SeedsOptions, ThreadsOption):
    """Run Algorithm 1: one rounded gradient step per stage.

    The defaults recover every layer exactly at every n. With --preset paper, the algorithm as printed, no n that fits
    on a machine is recovered. The exit status is 1 if a layer is not recovered; a line then says at which stage, why,
    and what would succeed. `internalize predict` computes the probability of success beforehand.

    Other curricula also take one step per stage: icot takes k - 1 steps, most of which change nothing, and cot and none
    take one. To see what the mask, the gates and rounding do, remove them: --mask causal, --gates ones, --gates cot,
    --grid none. Under torchrun, the processes share the samples.

    Examples:
      internalize solve --n 128 --k 64
      internalize solve --seeds 0:50 --json
      internalize solve --preset paper
      internalize solve --curriculum icot
      internalize solve --gates ones
      internalize solve --n 16 --k 8 --samples 550 --grid K --rate paper
      torchrun --nproc-per-node 2 -m internalize -- solve --n 256 --k 128 --out runs/two
    """

    options: tyro.conf.OmitArgPrefixes[SolveOptions] = field(default_factory=SolveOptions)
    snapshots: Flag[bool] = False
    """Also keep the weights of every stage, before and after rounding."""
    threads: int | None = None

    def __call__(self) -> int:
        """Solve, show the results and keep them."""
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
                elif progress:
                    self.announce(out, "run")

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
        if failed:
            self.suggest("predict", "--n", self.options.n, "--k", self.options.k)
        else:
            self.suggest("certify --run", next(iter(runs.values())).path)
        return 1 if failed else 0
