"""Numbers at their edges: one thread or two, float32 or float64, the smallest trees, one sample, huge amplitudes and rates.

Two threads add in another order. Algorithm 1 rounds its steps to the grid, so that its weights have the same bits; AdamW's differ
in the last bits, by no more than `APART` after the few updates made here.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor

from internalize.lm import LmTrainOptions
from internalize.lm.training.quiet import quiet_transformers
from internalize.lm.training.train import train as lm_train
from internalize.parallel.pool import torch_threads
from internalize.parity.adamw.train import train
from internalize.parity.algorithm1.solve import solve
from internalize.parity.certificates import World, certify
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.storage.runs import Run
from tests.faults.harness import Outcome, ask, complaints, strict_json
from tests.faults.sandbox import sandbox

APART: Final = {"float32": 1e-4, "float64": 1e-11}
"""Largest difference of a weight after ten updates on one and on two threads, of weights about 1; measured: 1e-6 and 3e-15."""
LM_APART: Final = 1e-4

Check = Callable[[random.Random, Path], list[str]]
"""One fault: draws a setting, and says what was wrong with the numbers."""


# One thread and two


def _solve_threads(chance: random.Random, folder: Path) -> list[str]:
    k = chance.choice((4, 8, 16))
    options = SolveOptions(
        n=k + chance.randrange(16),
        k=k,
        seed=chance.randrange(1000),
        samples=chance.choice((300, 3000, 30_000)),
        dtype=chance.choice(("float32", "float64")),
        test_samples=50,
    )
    return _apart(lambda run: dict(enumerate(solve(options).weights)), folder, 0, options)


def _train_threads(chance: random.Random, folder: Path) -> list[str]:
    dtype = chance.choice(("float32", "float64"))
    gates = chance.choice(("paper", "learned"))
    options = TrainOptions(n=30, k=16, steps=2, batch=500, eval_samples=100, dtype=dtype, gates=gates)
    seed = chance.randrange(1000)

    def weights(run: Run) -> dict[str, Tensor]:
        train(options, [seed], [run])
        return run.weights()

    return _apart(weights, folder, APART[dtype], options)


def _lm_threads(chance: random.Random, folder: Path) -> list[str]:
    quiet_transformers()
    options = LmTrainOptions(
        data="parity:n=8,k=4", method="log-icot", layers=2, width=32, heads=2, batch=64, steps=4, advance="steps", stage_steps=2,
        warmup=1, eval_every=4, eval_examples=8, test_examples=8, budgets="never",
    )  # fmt: skip
    seed = chance.randrange(1000)

    def weights(run: Run) -> dict[str, Tensor]:
        lm_train(options, seed, run)
        return load_file(run.path / "model" / "model.safetensors")

    return _apart(weights, folder, LM_APART, options)


def _apart(weights: Callable[[Run], Mapping[Any, Tensor]], folder: Path, most: float, options: object) -> list[str]:
    """Compute weights on one thread and on two, and complain if they are more than `most` apart."""
    found: list[Mapping[Any, Tensor]] = []
    for threads in (1, 2):
        with torch_threads(threads):
            found.append(weights(Run(folder / f"threads-{threads}")))
    one, two = found
    if one.keys() != two.keys():
        return [f"other weights on two threads: {options}"]
    apart = max((float((one[name] - two[name]).abs().max().nan_to_num(torch.inf)) for name in one), default=0)
    return [] if apart <= most else [f"weights are {apart:.2g} apart on two threads, more than {most}: {options}"]


# float32 and float64


def _solve_verdicts(chance: random.Random, folder: Path) -> list[str]:
    """Samples about where half of all runs succeed, so that both verdicts occur."""
    k = chance.choice((2, 4, 8, 16))
    n = k + chance.randrange(20)
    options = SolveOptions(
        n=n,
        k=k,
        seed=chance.randrange(10_000),
        samples=chance.choice((20, 100, 300, 1000, 3000)),
        grid=chance.choice(("1", "K")),
        link=chance.choice(("cosine", "quartic")),
        test_samples=200,
    )
    with torch_threads(1):
        one, two = (solve(replace(options, dtype=dtype)) for dtype in ("float32", "float64"))
    pairs = {
        "exact_recovery": (one.exact_recovery, two.exact_recovery),
        "failed_stage": (one.failed_stage, two.failed_stage),
        "accuracy": (one.accuracy >= 0.99, two.accuracy >= 0.99),
    }
    return [f"{name} is {a} in float32, {b} in float64: {options}" for name, (a, b) in pairs.items() if a != b]


def _train_verdicts(chance: random.Random, folder: Path) -> list[str]:
    """Whether the task is solved, and what the certificates say of the weights."""
    options = TrainOptions(
        n=chance.choice((4, 6)), k=chance.choice((2, 4)), steps=chance.choice((5, 60)), batch=100, eval_samples=200
    )
    seed = chance.randrange(1000)
    found: list[tuple[bool, list[tuple[str, str]]]] = []
    for dtype in ("float32", "float64"):
        with torch_threads(1):
            run = Run(folder / dtype)
            (result,) = train(replace(options, dtype=dtype), [seed], [run])
            judged = certify(World.of_run(Run.open(run.path)), ["gating", "frozen-gradient"])
        found.append((result["accuracy"] >= 0.99, [(c.statement, c.verdict) for c in judged]))
    return [] if found[0] == found[1] else [f"float32 and float64 disagree: {found}: seed {seed}, {options}"]


# Edges


def _edges(chance: random.Random, folder: Path) -> list[str]:
    """The smallest trees, one sample, great amplitudes, no rate and a great one: an answer, and no NaN in any file."""
    seed = str(chance.randrange(1000))
    few, some = chance.choice(("1", "20")), chance.choice(("1", "50"))
    n, k = chance.choice(((2, 2), (4, 4), (8, 8), (3, 2), (5, 4)))
    size = ["--n", str(n), "--k", str(k), "--seed", seed]
    tiny = ["--steps", "3", "--batch", few, "--eval-every", "1", "--eval-samples", some]
    dtype = ["--dtype", chance.choice(("float32", "float64"))]
    enough = ["--test-samples", "100", "--threads", "1", *dtype]
    large_k, larger_k = chance.choice(("200", "1000", "10000")), chance.choice(("200", "10000"))
    large_lr = chance.choice(("1e6", "1e30", "1e300"))
    solve_it, train_it = ["solve", *size, *enough], ["train", *size, *tiny]
    edges: list[tuple[list[str], Callable[[dict[str, Any]], Any]]] = [
        (solve_it, lambda found: found["exact_recovery"] and found["accuracy"] == 1),
        ([*solve_it, "--K", large_k], lambda found: found["exact_recovery"]),
        ([*solve_it, "--samples", "1"], lambda found: found["exact_recovery"] or found["reason"]),
        ([*solve_it, "--samples", "1", "--grid", "none", "--K", "200"], lambda found: found["samples_per_stage"] == 1),
        (["predict", *size, "--K", larger_k], lambda found: found["samples_50"] is not None),
        ([*train_it, *dtype], lambda found: 0 <= found["accuracy"] <= 1),
        ([*train_it, *dtype, "--lr", "0"], lambda found: found["min_child_attention"] <= 0.5),
        ([*train_it, *dtype, "--lr", large_lr], lambda found: 0 <= found["accuracy"] <= 1),
        ([*train_it, "--gates", "learned", "--lr", "1e4"], lambda found: 0 <= found["accuracy"] <= 1),
        (["certify", *size, "--only", "gating", "frozen-gradient", "theorem-max"], lambda found: found["certificates"]),
    ]
    argv, right = chance.choice(edges)
    answer = ask([*argv, "--out", str(folder), "--json"])
    found = complaints(["--json", *argv], answer, "lr=", "K=")
    if not found and answer.status != 2 and not right(json.loads(answer.out)):
        found = [f"no sensible verdict: {answer.out[:200]}"]
    if answer.status == 2 and "--lr" not in argv:
        found.append(f"refused: {answer.err[:200]!r}")
    found += [f"{path.name} has a number that is not finite" for path in not_finite(folder)]
    return [f"{' '.join(argv)}: {problem}" for problem in found]


def not_finite(folder: Path) -> list[Path]:
    """Files of JSON below a folder that have a NaN or an infinity."""
    found: list[Path] = []
    for path in folder.rglob("*.json*"):
        try:
            for text in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
                strict_json(text)
        except ValueError:
            found.append(path)
    return found


CHECKS: Final[dict[str, tuple[Check, ...]]] = {
    "edges: no NaN, sensible verdicts": (_edges,),
    "float32 against float64": (_solve_verdicts, _train_verdicts),
    "one thread against two": (_solve_threads, _train_threads, _lm_threads),
}
"""What is checked, by the checks in turn."""


def compute(what: str, count: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Let `count` settings go through the checks of an entry of `CHECKS`."""
    checks = CHECKS[what]
    with sandbox(folder, Path.mkdir):
        for number in range(count):
            check = checks[number % len(checks)]
            found = check(random.Random(f"{what} {seed} {number}"), folder / check.__name__ / str(number))
            lost = f"{check.__name__}, seed {seed}, number {number}: {'; '.join(found)}" if found else ""
            yield Outcome(what, lost)
