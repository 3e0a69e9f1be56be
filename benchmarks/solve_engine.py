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


def products(n: int, k: int, B: int) -> float:
    """Seconds of n_t × B by B × k/2^t for all stages, a chunk of samples at a time."""
    levels, total = ParityTree.draw(n, k, 0).levels, 0.0
    for stage in range(levels.L):
        X, R = torch.ones(levels.level_end[stage], CHUNK), torch.ones(CHUNK, levels.width(stage + 1))
        out = X @ R
        calls = max(B // CHUNK // SHARE, 1)
        began = time.perf_counter()
        for _ in range(calls):
            torch.mm(X, R, out=out)
        total += (time.perf_counter() - began) * B / (calls * CHUNK)
    return total


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
    for _ in range(arguments.repeats):
        before = products(n, k, B)
        began, cpu = time.perf_counter(), time.process_time()
        result = solve(options)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        bare = (before + products(n, k, B)) / 2
        ratios.append(seconds / bare)
        print(
            f"solve {seconds:.2f} s (CPU {cpu:.2f} s), products {bare:.2f} s, ratio {ratios[-1]:.3f}, {result.solved=}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"n={n} k={k} B={B} threads={arguments.threads}: median {statistics.median(ratios):.3f}, peak {peak:.2f} GiB")


if __name__ == "__main__":
    main()
