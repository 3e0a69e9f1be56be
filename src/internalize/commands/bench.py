"""`internalize bench`."""

from typing import Any, Literal

from internalize.commands.common_options import CORES, RunOptions, SeedOption, ThreadsOption, command
from internalize.commands.console import Flag, say, use_device
from internalize.errors import InputError

COLUMNS = ("measurement", "median", "spread", "CPU", "repeats", "goal", "met", "what")


@command
class Bench(RunOptions, SeedOption, ThreadsOption):
    """Measure speed and memory, as ratios of times from one run: against the machine, against plain PyTorch, against CoT.

    Each is measured several times, its two sides one directly after the other; the median by the clock is shown with the smallest
    and the largest, and beside it the ratio of CPU times, which other work on the machine disturbs less. The load average
    is kept with every repeat. Takes some minutes; --full adds n = 4096, some minutes more. A goal that is missed is no error.
    Ctrl-C keeps what is measured; --resume goes on.

    For example:

      $ internalize bench --out runs/bench
      $ internalize bench --only solve_over_matmul cot --repeats 9 --threads 1 --json
      $ internalize bench --full --out runs/bench-full
      $ internalize bench --profile train
    """

    only: tuple[str, ...] = ()
    """Measure only what is called so, or begins so: solve_over_matmul, literal_over_level, plain_over_solve,
    loop_over_ensemble, cot_over_internalised, growth, peak_memory."""
    repeats: int = 5
    """Repeats of each ratio; of what takes long fewer: 3 of growth, 1 of memory."""
    full: Flag[bool] = False
    """Also peak memory at n = 4096."""
    profile: Literal["none", "solve", "train"] = "none"
    """In place of ratios: where the CPU time goes, function by function, on one thread; of solve at n = 1024. Kept in
    --out, if that is given."""
    threads: int = CORES
    """Threads of one process, of both sides of every ratio. An answer's latency is of one."""
    seed: int = 0
    """Decides secret sets and samples."""

    def __call__(self) -> int:
        """Measure, show, keep."""
        if not 1 <= self.repeats <= 1000:
            raise InputError(f"repeats={self.repeats} is outside 1 … 1000")
        out = self.folder("bench")
        use_device("cpu", self.threads)

        from internalize.bench.profile import profile
        from internalize.bench.run import FULL, Sizes, all_measurements, asked_for, bench, chosen, keep_profile
        from internalize.commands.progress import ProgressDisplay

        if self.profile != "none":
            rows = profile(self.profile, Sizes().solve, self.seed)
            if self.out is not None:
                keep_profile(self.out, self.profile, rows)
            self.show({"profile": self.profile, "rows": rows}, rows, ("function", "calls", "cpu_seconds", "share"))
            return 0
        sizes = FULL if self.full else Sizes()
        measurements = chosen(all_measurements(sizes, self.seed, self.threads), self.only)
        if self.out is None:
            say(f"keeping the repeats in {out}")
        with ProgressDisplay("bench") as progress:
            found = bench(
                measurements,
                out,
                asked=asked_for(sizes, self.seed, self.threads),
                repeats=self.repeats,
                resume=self.resume,
                report=progress.show,
            )
        self.show(found, [shown(own.name, found[own.name]) for own in measurements], COLUMNS)
        return 0


def shown(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """One line of the table."""
    unit = f" {found['unit']}" if found["unit"] else ""
    bound = "≤" if found["at_most"] else "≥"
    return {
        "measurement": name,
        "median": f"{found['median']:.3g}{unit}",
        "spread": f"{found['low']:.3g} … {found['high']:.3g}",
        "CPU": f"{found['cpu_median']:.3g}" if "cpu_median" in found else None,
        "repeats": found["repeats"],
        "goal": None if found["goal"] is None else f"{bound} {found['goal']:g}{unit}",
        "met": None if found["met"] is None else "yes" if found["met"] else "no",
        "what": found["what"],
    }
