"""Time of ``solve`` over the time of the bare float32 products of its gradients, side by side, and where it goes.

python benchmarks/solve_engine.py --n 1024 --threads 1 --repeats 3
"""

import argparse
import resource
import statistics
import time

import torch

from internalize.options import SolveOptions
from internalize.parity import ParityTree, solve
from internalize.parity.algorithm import samples_of

CHUNK = 8192
SHARE = 16
"""One of so many of the products is timed: all are alike."""


def products(n: int, k: int, B: int) -> tuple[float, float]:
    """Seconds, by the clock and of CPU, of n_t × B by B × k/2^t for all stages, a chunk of samples at a time."""
    levels, found = ParityTree.draw(n, k, 0).levels, [0.0, 0.0]
    for stage in range(levels.L):
        X, R = torch.ones(levels.level_end[stage], CHUNK), torch.ones(CHUNK, levels.width(stage + 1))
        out = X @ R
        calls = max(B // CHUNK // SHARE, 1)
        began = time.perf_counter(), time.process_time()
        for _ in range(calls):
            torch.mm(X, R, out=out)
        for index, now in enumerate((time.perf_counter(), time.process_time())):
            found[index] += (now - began[index]) * B / (calls * CHUNK)
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    n, k = arguments.n, arguments.n // 2
    options = SolveOptions(n=n, k=k)
    B = samples_of(options)
    ratios: list[float] = []
    cpu_ratios: list[float] = []
    for _ in range(arguments.repeats):
        before = products(n, k, B)
        began = time.perf_counter(), time.process_time()
        result = solve(options)
        clock, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        bare, bare_cpu = (sum(pair) / 2 for pair in zip(before, products(n, k, B), strict=True))
        ratios.append(clock / bare)
        cpu_ratios.append(cpu / bare_cpu)
        print(f"solve {clock:.2f} s (CPU {cpu:.2f}), products {bare:.2f} s (CPU {bare_cpu:.2f}), {result.solved=}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"n={n} k={k} B={B} threads={arguments.threads}: solve over products "
        f"{statistics.median(ratios):.3f} by the clock, {statistics.median(cpu_ratios):.3f} in CPU time; peak {peak:.2f} GiB"
    )


if __name__ == "__main__":
    main()
