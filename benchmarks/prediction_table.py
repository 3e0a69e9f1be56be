"""Algorithm 1 at finite n, predicted against measured: success rates, the law of B*(n), tolerated oracle errors.

    nice -n 19 python benchmarks/prediction_table.py --out src/internalize/report/results/finite-n.json

Nothing is fitted: predictions come from ``prediction.py``, measurements from ``solve`` on the stated seeds. Each row is
printed when it is made. ``tools/findings.py`` makes the tables of docs/finite-n.md from the file. --parts law,oracle
makes only those tables; --quick checks the script itself in a minute.
"""

import argparse
import json
import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from internalize.parity.algorithm1.recovery import recovered_weights
from internalize.parity.algorithm1.solve import samples_of, setting_of, solve
from internalize.parity.options import SolveOptions
from internalize.parity.task.tree import ParityTree
from internalize.parity.theory.population import StageGradient
from internalize.parity.theory.prediction import Setting


@dataclass(frozen=True)
class IndependentEntries(Setting):
    """The prediction with every entry of the gradient independent, which shows the effect of the covariances."""

    @property
    def gradients(self) -> tuple[StageGradient, ...]:
        """The exact moments without the covariances."""
        return tuple(replace(g, shared=np.zeros_like(g.shared), sibling=0.0) for g in super().gradients)


def successes(options: SolveOptions, seeds: int, first: int = 0, strict: bool = False) -> int:
    runs = (replace(options, seed=seed, test_samples=1) for seed in range(first, first + seeds))
    return sum(recovered(run, strict) for run in runs)


def recovered(run: SolveOptions, strict: bool) -> bool:
    """Return whether a run recovers every layer: up to a shift of each column, or with the paper's very weights."""
    found = solve(run, stop_at_failure=True)
    wanted = recovered_weights(ParityTree.draw(run.n, run.k, run.seed), "level", found.K)
    return found.exact_recovery and (not strict or all(map(torch.equal, found.weights, wanted)))


def row(
    label: str, options: SolveOptions, samples: int, seeds: int, first: int = 0, strict: bool = False
) -> dict[str, Any]:
    """Return predicted and measured success at B = samples, with their difference in binomial standard errors."""
    setting = setting_of(options)
    predicted = math.exp(setting.log_success(samples, strict))
    found = successes(replace(options, samples=samples), seeds, first, strict)
    error = math.sqrt(predicted * (1 - predicted) / seeds)
    return {
        "case": label,
        "n": options.n,
        "k": options.k,
        "samples": samples,
        "predicted": predicted,
        "independent": math.exp(IndependentEntries(**vars(setting)).log_success(samples, strict)),
        "successes": found,
        "seeds": seeds,
        "z": (found / seeds - predicted) / error if error else 0.0,
    }


def shown(found: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(found), flush=True)
    return found


def table_of_successes(quick: bool) -> list[dict[str, Any]]:
    cases: list[tuple[str, SolveOptions]] = [
        *(("k = n/2", SolveOptions(n=n, k=n // 2)) for n in (16, 32, 64, 128, 256)),
        *(("k = n/4", SolveOptions(n=n, k=n // 4)) for n in (16, 64, 256)),
        *(("k = n", SolveOptions(n=n, k=n)) for n in (16, 64, 256)),
        *(("quartic", SolveOptions(n=n, k=n // 2, link="quartic")) for n in (16, 64, 256)),
        *(("grid 1", SolveOptions(n=n, k=n // 2, grid="1")) for n in (16, 32)),
        *(("paper's rate", SolveOptions(n=n, k=n // 2, rate="paper")) for n in (16, 64)),
    ]
    return at_half([(label, options, 200 if options.n <= 64 else 50) for label, options in cases], 0, quick)


def table_of_fresh_seeds(quick: bool) -> list[dict[str, Any]]:
    """Measure the first rows again on other and more seeds, so that chance in the table above does not repeat."""
    cases = [("k = n/2", SolveOptions(n=n, k=n // 2), 1000 if n <= 64 else 100) for n in (16, 32, 64, 128, 256)]
    return at_half(cases, 1000, quick)


def at_half(cases: list[tuple[str, SolveOptions, int]], first: int, quick: bool) -> list[dict[str, Any]]:
    """Measure success at the samples for which one half is predicted."""
    rows: list[dict[str, Any]] = []
    for label, options, seeds in cases:
        if quick and options.n > 32:
            continue
        samples = setting_of(options).samples_for(0.5)
        assert samples is not None
        rows.append(shown(row(label, options, samples, 10 if quick else seeds, first)))
    return rows


def table_of_the_law(quick: bool) -> list[dict[str, Any]]:
    """Return B*(n) at k = n/2: predicted, and measured by interpolating success rates at three B (probit in ln B)."""
    normal = statistics.NormalDist()
    seeds = {16: 200, 32: 200, 64: 200, 128: 50, 256: 50, 512: 16, 1024: 8}
    rows: list[dict[str, Any]] = []
    for n, count in seeds.items():
        if quick and n > 32:
            continue
        options = SolveOptions(n=n, k=n // 2)
        samples = setting_of(options).samples_for(0.5)
        assert samples is not None
        points = [row("law", options, round(samples * f), 10 if quick else count) for f in (0.8, 1.0, 1.25)]
        # Half a success and half a failure are added, so that rates of 0 and 1 have a probit.
        x = [math.log(point["samples"]) for point in points]
        y = [normal.inv_cdf((point["successes"] + 0.5) / (point["seeds"] + 1)) for point in points]
        slope, intercept = statistics.linear_regression(x, y)
        measured = math.exp(-intercept / slope) if slope > 0 else None
        ratio = samples / (n * math.log(n))
        rows.append(shown({"n": n, "predicted": samples, "measured": measured, "ratio": ratio, "points": points}))
    return rows


def table_of_strict_recovery(quick: bool) -> list[dict[str, Any]]:
    """Return the samples for one half with strict recovery, relative to recovery up to a shift, and measure there."""
    rows: list[dict[str, Any]] = []
    for n, seeds in {16: 1000, 32: 1000, 64: 200, 128: 100, 256: 50}.items():
        if quick and n > 32:
            continue
        options = SolveOptions(n=n, k=n // 2)
        shifted, samples = (setting_of(options).samples_for(0.5, strict) for strict in (False, True))
        assert shifted is not None
        assert samples is not None
        found = row("strict", options, samples, 10 if quick else seeds, first=1000, strict=True)
        rows.append(shown(found | {"shifted": shifted, "ratio": samples / shifted}))
    return rows


def predicted_largest_error(options: SolveOptions, samples: int) -> float:
    """Return the oracle error at which the modeled success probability is one half, by bisection."""
    low, high = 0.0, 1.0
    while high > low * (1 + 1e-6):
        middle = (low + high) / 2
        success = setting_of(replace(options, oracle_error=middle)).log_success(samples)
        low, high = (middle, high) if success > math.log(0.5) else (low, middle)
    return low


def table_of_oracle_errors(quick: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for n in (16, 32, 64):
        if quick and n > 16:
            continue
        seeds = 10 if quick else 100
        base = SolveOptions(n=n, k=n // 2)
        samples = samples_of(base)
        for oracle in ("random", "adversarial"):
            options = replace(base, oracle=oracle, oracle_error=1e-6)
            largest = predicted_largest_error(options, samples)
            points = [
                row(oracle, replace(options, oracle_error=largest * f), samples, seeds) | {"oracle_error": largest * f}
                for f in (0.9, 1.0, 1.1)
            ]
            rows.append(shown({"oracle": oracle, "n": n, "largest": largest, "points": points}))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write all rows to this JSON file; other parts in it stay")
    parser.add_argument("--parts", default="success,fresh,oracle,law,strict")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    makers = {
        "success": table_of_successes,
        "fresh": table_of_fresh_seeds,
        "oracle": table_of_oracle_errors,
        "law": table_of_the_law,
        "strict": table_of_strict_recovery,
    }
    for part in arguments.parts.split(","):
        rows = makers[part](arguments.quick)
        if arguments.out is not None:
            kept: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
            whole = arguments.out.with_suffix(".part")
            whole.write_text(json.dumps(kept | {part: rows}, indent=1) + "\n")
            whole.replace(arguments.out)


if __name__ == "__main__":
    main()
