"""`internalize bench`."""

from typing import Any, ClassVar, Literal

from internalize.commands.common_options import RunOptions, SeedOption, ThreadsOption, command
from internalize.commands.console import Flag, available_cores, use_device
from internalize.errors import InputError

COLUMNS = ("measurement", "median", "range", "CPU", "repeats", "goal", "met", "what")


@command
class Bench(RunOptions, SeedOption, ThreadsOption):
    """Measure speed and memory as ratios to references in the same run.

    The references are the machine's bare arithmetic, plain PyTorch, and explicit CoT. The two sides of a ratio run one
    directly after the other, several times. The table shows the median by the clock, the smallest and the largest, and
    the ratio of CPU times, which other work on the machine disturbs less. A missed goal is not an error. The benchmark
    takes some minutes, with --full (n = 4096) some minutes more. After Ctrl-C, --resume continues.

    Examples:
      internalize bench --out runs/bench
      internalize bench --only solve_over_matmul cot --repeats 9 --threads 1 --json
      internalize bench --full --out runs/bench-full
      internalize bench --profile train
    """

    TITLE: ClassVar = "Measurements"

    only: tuple[str, ...] = ()
    """Measure only the ratios whose names start with one of these: solve_over_matmul, literal_over_level,
    plain_over_solve, loop_over_ensemble, cot_over_internalised, growth, peak_memory."""
    repeats: int = 5
    """Repeats per ratio. Slow measurements have fewer: growth 3, memory 1."""
    full: Flag[bool] = False
    """Also measure peak memory at n = 4096."""
    profile: Literal["none", "solve", "train"] = "none"
    """Instead of ratios, show the CPU time of each function on one thread. The profile is kept if --out is given."""
    threads: int | None = None
    """Threads per process, for both sides of every ratio. Latencies are measured on one. Default: one per core."""
    seed: int = 0
    """Random seed of the secret sets and samples."""

    def __call__(self) -> int:
        """Measure, show and keep the ratios."""
        if not 1 <= self.repeats <= 1000:
            raise InputError(f"repeats={self.repeats} is outside 1 … 1000")
        out = self.folder("bench")
        threads = available_cores() if self.threads is None else self.threads
        use_device("cpu", threads)

        from internalize.bench.profile import profile
        from internalize.bench.run import FULL, Sizes, all_measurements, asked_for, bench, chosen, keep_profile
        from internalize.commands.progress import ProgressDisplay

        if self.profile != "none":
            rows = profile(self.profile, Sizes().solve, self.seed)
            if self.out is not None:
                keep_profile(self.out, self.profile, rows)
            self.show({"profile": self.profile, "rows": rows}, rows, ("function", "calls", "cpu_seconds", "share"))
            self.suggest("bench")
            return 0
        sizes = FULL if self.full else Sizes()
        measurements = chosen(all_measurements(sizes, self.seed, threads), self.only)
        self.announce(out, "repeats")
        with ProgressDisplay("bench") as progress:
            found = bench(
                measurements,
                out,
                asked=asked_for(sizes, self.seed, threads),
                repeats=self.repeats,
                resume=self.resume,
                report=progress.show,
            )
        self.show(found, [shown(own.name, found[own.name]) for own in measurements], COLUMNS)
        self.suggest("bench --profile", "solve")
        return 0


def shown(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return one row of the table."""
    unit = f" {found['unit']}" if found["unit"] else ""
    bound = "≤" if found["at_most"] else "≥"
    return {
        "measurement": name,
        "median": f"{found['median']:.3g}{unit}",
        "range": f"{found['low']:.3g} … {found['high']:.3g}",
        "CPU": f"{found['cpu_median']:.3g}" if "cpu_median" in found else None,
        "repeats": found["repeats"],
        "goal": None if found["goal"] is None else f"{bound} {found['goal']:g}{unit}",
        "met": None if found["met"] is None else "yes" if found["met"] else "no",
        "what": found["what"],
    }
