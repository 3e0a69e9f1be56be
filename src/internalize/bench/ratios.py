r"""The measurements of `internalize bench`: each ratio, how one repeat of it is made, and its goal.

| name                  | one                                        | other                                           |
| --------------------- | ------------------------------------------ | ----------------------------------------------- |
| solve_over_matmul     | `solve`, n = 1024, k = 512                 | float32 `torch.mm` of its gradients' shapes     |
| literal_over_level    | a stage's gradient, as Definition 3 prints | the same in level form; n = 32, k = 16, B = 256 |
| plain_over_solve      | Algorithm 1 in `bench/plain.py`, n = 256   | `solve`                                         |
| loop_over_ensemble    | 64 runs in `bench/plain.py`, in turn       | 64 runs trained together                        |
| cot_over_internalised | chain written node by node, n = 2k         | one pass of the internalized model              |

Long computations are measured in part and scaled up. Of the bare products one in sixteen is timed, since all are equal.
Plain Algorithm 1 runs two chunks of samples per stage, since its time is proportional to the samples. Of the 64 plain
runs eight are timed. Every AdamW run makes 25 updates per stage and one evaluation, where the paper has 500 and 20.

Two more measurements say how time and memory of `solve` grow with n. The dense product of a stage is
\(n_t \times B\) by \(B \times k/2^t\), in total about \(n\,k\,B\) multiplications, and B is about n ln n. The
exponent of n·k·B is the goal for the time. Memory is the peak of a separate process, including torch.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from internalize.bench import plain
from internalize.bench.timing import Seconds, one_over_other, repeatedly, slope, timed
from internalize.curriculum import Curriculum
from internalize.parity import COSINE, LevelTransformer, LiteralTransformer, ParityTree, parity_stages, stage_input
from internalize.parity.adamw.ensemble import Training
from internalize.parity.algorithm1.recovery import recovered_weights
from internalize.parity.algorithm1.solve import samples_of, setting_of, solve
from internalize.parity.model.backward import LevelGradients
from internalize.parity.model.latency import measure_latency
from internalize.parity.model.loss import stage_loss
from internalize.parity.model.sparse import SparseModel
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.parity.task.data import add_trace, draw_bits
from internalize.parity.task.tree import Levels
from internalize.storage.files import Json

_CHUNK: Final = 8192
"""Samples per bare product."""
_SHARE: Final = 16
"""One in this many of the bare products is timed."""
_PLAIN_CHUNK: Final = 1024
"""Samples per gradient of the plain form: the fastest of 128 … 4096 when it was chosen."""
_RUNS, _PLAIN_RUNS, _UPDATES = 64, 8, 25
"""AdamW runs trained together, plain runs timed, and updates per stage."""
_ANSWERS: Final = 20
"""Number of answers over which one repeat of a latency is the median."""
CHAINS: Final = (16, 128, 512)
"""The k for which latencies are compared."""
MEMORY_GOAL: Final = 2.0
"""Goal for the peak memory, in GiB."""


@dataclass(frozen=True)
class Measurement:
    """A measurement. ``once`` makes the repeat of a given number; its result has a ``value`` and perhaps a ``goal``."""

    name: str
    what: str
    once: Callable[[int], Json]
    goal: float | None = None
    at_most: bool = False
    """Whether the goal is an upper bound, not a lower one."""
    unit: str = ""
    repeats: int | None = None
    """Largest number of repeats, for an expensive measurement."""

    def met(self, value: float) -> bool | None:
        """Return whether ``value`` meets the goal; None if there is no goal."""
        if self.goal is None:
            return None
        return value <= self.goal if self.at_most else value >= self.goal


Sides = tuple[Callable[[], Seconds], Callable[[], Seconds]]


def _ratio(name: str, what: str, sides: Callable[[], Sides], goal: float, *, at_most: bool = False) -> Measurement:
    """Return the measurement of a ratio, named ONE_over_OTHER; ``sides`` prepares one repeat."""
    return Measurement(
        name, what, lambda number: one_over_other(number, *sides(), name.split("_over_")), goal, at_most=at_most
    )


def matmul_seconds(levels: Levels, B: int) -> Seconds:
    """Time the bare products of Algorithm 1's gradients: n_t × B by B × k/2^t at every stage, a chunk at a time."""
    total = Seconds(0.0, 0.0)
    for stage in range(levels.L):
        X, R = torch.ones(levels.level_end[stage], _CHUNK), torch.ones(_CHUNK, levels.width(stage + 1))
        out = X @ R
        calls = max(B // _CHUNK // _SHARE, 1)
        total += timed(partial(torch.mm, X, R, out=out), calls) * (B / _CHUNK)
    return total


def solve_over_matmul(n: int, seed: int) -> Measurement:
    """Measure how close Algorithm 1 is to the machine's limit, taken as the matrix product that its gradient is."""
    options = SolveOptions(n=n, k=n // 2, seed=seed)

    def sides() -> Sides:
        levels, B = Levels(n, n // 2), samples_of(options)
        return lambda: timed(lambda: solve(options)), lambda: matmul_seconds(levels, B)

    what = f"solve, given its number of samples, over the float32 products of its gradients, n = {n}, k = {n // 2}"
    return _ratio("solve_over_matmul", what, sides, 1.0, at_most=True)


def literal_over_level(n: int, k: int, B: int, seed: int) -> Measurement:
    """Measure how much faster the gradient in level form is than that of the model as printed, in float64."""

    def sides() -> Sides:
        tree = ParityTree.draw(n, k, seed)
        stage = parity_stages(tree.levels, Curriculum("log-icot"))[-1]
        literal, level = LiteralTransformer(tree.levels), LevelTransformer(n, k, runs=(1,), dtype=torch.float64)
        gradients = LevelGradients(level)
        sequence = add_trace(tree, draw_bits(n, seed, 0, B, dtype=torch.float64))
        D, columns = stage_input(sequence, stage), sequence.T.contiguous().unsqueeze(0)
        W = [torch.zeros(tree.T, tree.T, dtype=torch.float64, requires_grad=True) for _ in range(tree.L)]

        def printed() -> object:
            return torch.autograd.grad(stage_loss(literal(W, D, stage.layers), sequence, stage), W)

        return lambda: timed(printed), repeatedly(lambda: gradients(columns, stage))

    what = f"gradient of the last stage, as printed over level form, n = {n}, k = {k}, B = {B}"
    return _ratio("literal_over_level", what, sides, 100.0)


def plain_over_solve(n: int, seed: int) -> Measurement:
    """Measure how much faster `solve` is than straightforward PyTorch."""
    options = SolveOptions(n=n, k=n // 2, seed=seed)

    def plainly() -> Seconds:
        task = plain.PlainTask(n, list(ParityTree.draw(n, n // 2, seed).secret))
        model, sequence = plain.PlainTransformer(task), task.draw(_PLAIN_CHUNK)
        total = Seconds(0.0, 0.0)
        for stage in range(1, task.L + 1):
            gradient = partial(plain.stage_gradient, model, sequence, stage)
            gradient()
            total += timed(gradient, 2) * (samples_of(options) / _PLAIN_CHUNK)
        return total

    what = f"Algorithm 1 in plain PyTorch over solve, n = {n}, k = {n // 2}, same samples and threads"
    return _ratio("plain_over_solve", what, lambda: (plainly, repeatedly(lambda: solve(options))), 50.0)


def loop_over_ensemble(options: TrainOptions, seed: int) -> Measurement:
    """Measure how much faster runs are trained together than one by one in straightforward PyTorch."""
    seeds = range(seed, seed + _RUNS)

    def in_turn() -> Seconds:
        total = Seconds(0.0, 0.0)
        of_run = (_UPDATES, options.batch, _UPDATES, options.eval_samples, options.lr)
        for own in seeds[:_PLAIN_RUNS]:
            task = plain.PlainTask(options.n, list(ParityTree.draw(options.n, options.k, own).secret))
            total += timed(partial(plain.train, task, *of_run))
        return total * (_RUNS / _PLAIN_RUNS)

    def sides() -> Sides:
        train_together(options, seeds[:1])  # torch loads parts of itself with the first optimizer
        return in_turn, lambda: timed(lambda: train_together(options, seeds))

    what = (
        f"{_RUNS} AdamW runs of the paper (n = {options.n}, k = {options.k}) one by one in plain PyTorch over together"
    )
    return _ratio("loop_over_ensemble", what, sides, 5.0)


def train_together(options: TrainOptions, seeds: Sequence[int]) -> None:
    """Train runs together: some updates of every stage, each followed by an evaluation."""
    training = Training(options, seeds)
    for stage in range(len(training.stages)):
        training.stage = stage
        for _ in range(_UPDATES):
            training.update()
        training.evaluate()


def cot_over_internalised(k: int, seed: int) -> Measurement:
    """Measure how much faster the internalized model answers: both models recovered, in sparse form, one sample."""
    n = 2 * k

    def once(number: int) -> Json:
        tree = ParityTree.draw(n, k, seed)
        K = setting_of(SolveOptions(n=n, k=k)).amplitude
        direct = SparseModel(tree.levels, recovered_weights(tree, "level", K), COSINE)
        chain = SparseModel(tree.levels, recovered_weights(tree, "cot", K), COSINE, "node")
        one, other = measure_latency([chain, direct], 1, _ANSWERS)
        return {
            "value": one.median / other.median,
            "seconds": {"cot": one.median / 1000, "internalised": other.median / 1000},
        }

    what = f"{k - 1} sequential passes over one pass, one sample, n = {n}, k = {k}"
    return Measurement(f"cot_over_internalised_{k}", what, once)


def growth(sizes: Sequence[int], seed: int) -> Measurement:
    """Measure the exponent of the time of `solve` against n, with k = n/2 and default samples."""
    requests = [SolveOptions(n=n, k=n // 2, seed=seed) for n in sizes]

    def once(number: int) -> Json:
        expected, _ = slope(sizes, [options.n * options.k * samples_of(options) for options in requests])
        seconds = [timed(partial(solve, options)) for options in requests]
        by_clock, error = slope(sizes, [own.clock for own in seconds])
        return {
            "value": by_clock,
            "cpu": slope(sizes, [own.cpu for own in seconds])[0],
            "standard_error": error,
            "seconds": {str(n): own.clock for n, own in zip(sizes, seconds, strict=True)},
            "cpu_seconds": {str(n): own.cpu for n, own in zip(sizes, seconds, strict=True)},
            "goal": expected,
        }

    what = f"exponent of the time of solve against n = {sizes[0]} … {sizes[-1]}, k = n/2; goal: that of n·k·B"
    return Measurement("growth", what, once, at_most=True, repeats=3)


def peak_memory(n: int, seed: int, threads: int) -> Measurement:
    """Measure the peak memory of a process that solves n, k = n/2."""

    def once(number: int) -> Json:
        with tempfile.TemporaryDirectory() as folder:
            peak, result = _in_a_process(n, seed, threads, Path(folder))
        return {"value": peak, "solve_seconds": result["seconds"], "solved": float(result["exact_recovery"])}

    what = f"peak memory of solve in a process of its own, n = {n}, k = {n // 2}"
    return Measurement(f"peak_memory_{n}", what, once, MEMORY_GOAL, at_most=True, unit="GiB", repeats=1)


def _in_a_process(n: int, seed: int, threads: int, folder: Path) -> tuple[float, dict[str, Any]]:
    """Return the peak memory in GiB, and what `internalize solve` printed."""
    words = ("solve", "--n", n, "--k", n // 2, "--seed", seed, "--threads", threads, "--out", folder / "run", "--json")
    answer = folder / "answer.json"
    with answer.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "internalize", *map(str, words)], stdout=file)  # noqa: S603
        try:
            _, status, usage = os.wait4(process.pid, 0)  # the usage of this process; getrusage has that of all children
        except BaseException:
            process.kill()
            process.wait()
            raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise RuntimeError(f"solve at n = {n} ended with status {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return usage.ru_maxrss * unit / 2**30, json.loads(answer.read_text(encoding="utf-8"))
