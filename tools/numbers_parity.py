"""Numbers on parity, computed from stored results or the package. Pages name these functions (tools/numbers.py)."""

import math
import re
from functools import cache
from typing import Any

import numpy as np
import torch
from tests import mutants as broken
from tests.faults import harness, large_sweep, number_edges
from tools.results import stored

from internalize.bench import ratios
from internalize.parity import ParityTree
from internalize.parity.algorithm1.solve import setting_of, solve
from internalize.parity.certificates import Certificate, World, certify, concentration
from internalize.parity.experiments.crossing import half_crossing
from internalize.parity.model.link import COSINE
from internalize.parity.model.sparse import STATE_NUMBERS
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.parity.theory.population import StageGradient
from internalize.parity.theory.prediction import Setting
from internalize.parity.theory.prediction import predict as predict_for
from internalize.report.reproduce import PAPER
from internalize.storage import files
from internalize.storage.files import Json


def _compared(*wanted: str, **values: object) -> list[Json]:
    """Return the rows of `internalize compare` with these words and values."""
    rows = [r for r in stored("compare")["rows"] if all(word in r.values() for word in wanted)]
    return [r for r in rows if all(r.get(key) == value for key, value in values.items())]


# The package


def paper() -> Any:
    """Return the experiment of `internalize paper`."""
    return PAPER


def mutants() -> int:
    return len(broken.MUTANTS)


def large_file_gib() -> int:
    return files._LARGE // 2**30


def chunk_mb() -> int:
    return 4 * STATE_NUMBERS // 2**20


def faults_limits() -> Json:
    return {"seconds": harness.LIMIT, "cells": large_sweep.CELLS, **number_edges.APART}


def bench_sizes() -> Json:
    options = TrainOptions()
    return {"plain-samples": 2 * ratios._PLAIN_CHUNK, "evaluations": options.steps // options.eval_every}


def levels() -> Json:
    """Return the keys and nodes of the first and the last level at the paper's size."""
    own = ParityTree.draw(30, 16, 0).levels
    return {"keys": [own.level_end[0], own.level_end[3]], "nodes": [own.width(1), own.width(4)]}


def all_tuples_up_to() -> int:
    """Return the largest T at which every pair of positions is certified."""
    return max(T for T in range(100) if math.comb(T, 2) <= concentration._ALL_PAIRS)


# Comparisons


def either_mask() -> Json:
    """Return the number of seeds solved by learned gates and of all seeds, which both masks have in common."""
    found = [_compared(n=30, what=f"gates=learned mask={mask}")[0] for mask in ("level", "causal")]
    (counts,) = {(r["solved"], r["seeds"]) for r in found}
    return dict(zip(("solved", "seeds"), counts, strict=True))


def samples_over_log_icot(n: int) -> float:
    """Return the samples of ICoT under Algorithm 1 over those of Log-ICoT."""
    icot, log = (_compared(method, "algorithm-1", n=n)[0]["samples_to_99"] for method in ("icot", "log-icot"))
    return icot / log


def icot_failed() -> int:
    """Return the number of seeds that ICoT does not solve under Algorithm 1 at n = 30."""
    (row,) = _compared("curricula", "icot", "algorithm-1", n=30)
    return row["seeds"] - row["solved"]


def rates() -> float:
    """Return the largest over the smallest of AdamW's rates that the ablations solve."""
    found = [r["what"] for r in _compared("ablations", "adamw") if r["solved"] == r["seeds"]]
    solved = [float(name.removeprefix("lr=")) for name in found if name.startswith("lr=")]
    return max(solved) / min(solved)


def learned_gates() -> Json:
    """Return how far from shut and how far open gates are, in the worst row with the default penalty."""
    found = [r["gate_distance"] for r in _compared("gates") if re.fullmatch(r"gates=\w+ mask=\w+", r["what"])]
    return {"shut": max(r["inputs"] for r in found), "open": 1 - max(r["written"] for r in found)}


def price_that_closes() -> float:
    """Return the gate penalty that closes all gates, as a multiple of the default."""
    (found,) = [r["what"] for r in _compared("gates", solved=0) if "gate_penalty=0.1" in r["what"]]
    return round(float(found.partition("gate_penalty=")[2]) / TrainOptions().gate_penalty, 6)


def everything_learned() -> Json:
    """Return the number of seeds that fail if gates, values, output and link are learned together, and of all seeds."""
    (found,) = _compared(what="gates=learned mask=causal value=learned output=streams link=mlp-fitted")
    return {"failed": found["seeds"] - found["solved"], "seeds": found["seeds"]}


# Theory


def predict() -> Any:
    """Return the prediction for the paper's size."""
    return predict_for(Setting(n=30, k=16))


def samples_default(grid: str) -> int:
    """Return the samples per stage that `predict` recommends."""
    found = predict_for(Setting(n=30, k=16, grid="1" if grid == "one" else "K")).samples_default
    assert found is not None
    return found


def samples_over_grid() -> float:
    return round(samples_default("one") / samples_default("K"), -1)


def paper_amplitude() -> float:
    """Return K_n with the paper's constants."""
    found = setting_of(SolveOptions(preset="paper")).K
    assert found is not None
    return found


def _of(n: int) -> Setting:
    return Setting(n=n, k=16 if n == 30 else n // 2)


@cache
def _first_stage(n: int) -> StageGradient:
    return _of(n).gradients[0]


def signal(n: int) -> float:
    return _first_stage(n).signal


def cubed_remainder(n: int | str) -> float:
    """Return |R| n³ of the paper's expansion at a child of stage 1, for infinitely many samples, or its limit.

    R = (1 − s) · 2c/n², and s = (n/π)(σγ^{n−1} − (2σγ^{n−1} − (n−2)σ³γ^{n−3})/n) with σ, γ = sin, cos of π/n is
    1 − (2 + π²/2)/n + O(n^−2).
    """
    return 2 * COSINE.c * (2 + math.pi**2 / 2 if isinstance(n, str) else n * (1 - signal(n)))


def step_at(K: int) -> float:
    """Return K times the signal at n = 30."""
    return K * signal(30)


def child_attention(K: int, n: int) -> float:
    return math.exp(K) / (2 * math.exp(K) + n - 2)


def amplitude(n: int) -> float:
    return _of(n).default_amplitude


def half(n: int) -> float:
    """Return the samples per stage at which half of all runs succeed, over n ln n."""
    samples = _of(n).samples_for(0.5)
    assert samples is not None
    return samples / (n * math.log(n))


def siblings(n: int) -> float:
    """Return the correlation of the first stage's gradient at two siblings."""
    return _first_stage(n).sibling[0] / _first_stage(n).variance[0]


def columns_at_a_key(n: int) -> float:
    return float((_first_stage(n).shared / _first_stage(n).variance)[-1])


def different_keys(n: int) -> float:
    """Return minus the correlation of the first stage's gradient at two keys that are not children.

    It follows from the distribution of the sum of the bits that are not children.
    """
    total = np.arange(-(n - 2), n - 1, 2)  # the sum of these bits
    chance = np.array([math.comb(n - 2, ones) for ones in range(n - 1)]) / 2**n
    bit, pair = total / (n - 2), (total**2 - (n - 2)) / ((n - 2) * (n - 3))  # means of a bit and of a product, given it
    mean = square = product = 0.0
    for one in (-1, 1):
        for other in (-1, 1):
            z = (total + one + other) / n
            loss, slope = COSINE.phi(torch.tensor(z)).numpy() - one * other, COSINE.slope(torch.tensor(z)).numpy()
            factor, both = chance * loss * slope, chance * (loss * slope) ** 2
            mean += float((factor * (bit - z)).sum())
            square += float((both * (1 - 2 * z * bit + z**2)).sum())
            product += float((both * (pair - 2 * z * bit + z**2)).sum())
    return -(product - mean**2) / (square - mean**2)


def logistic_error() -> float:
    """Return the largest relative error of the logistic curve's crossing at the sweep's samples.

    It assumes that the prediction is exact.
    """
    errors: list[float] = []
    for place in stored("phase")["half"]:
        samples = [r["samples"] for r in stored("phase")["rows"] if r["n"] == place["n"]]
        chances = [math.exp(_of(place["n"]).log_success(B)) for B in samples]
        found = half_crossing(samples, [round(1e6 * chance) for chance in chances], [10**6] * len(samples))
        assert found is not None
        errors.append(abs(found.at / place["predicted"] - 1))
    return max(errors)


def least_signals() -> list[float]:
    """Return the smallest signals of the first three stages at K = 4, in units of K."""
    return [stage.signal_min for stage in solve(SolveOptions(K=4, samples=204_800)).stages[:3]]


def slope_error() -> float:
    """Return the link's slope at -1 in float32, in units of 1e-7."""
    return 1e7 * COSINE.slope(-torch.ones(1)).item()


# Stored sweeps


def independent(case: str) -> list[float]:
    """Return the smallest and largest success rate if entries were independent, by grid or at the paper's rate."""
    cases = {"grid 1": "one", "paper's rate": "paper"}
    found = [r for r in stored("finite-n")["success"] if cases.get(r["case"], "K") == case]
    shares = [r["independent"] for r in found if case != "paper" or r["n"] == 16]
    return sorted({min(shares), max(shares)})


def seeds_at(place: str) -> Json:
    """Return the number of seeds per row and the last seed, for n up to 64 (``small``) or above."""
    (seeds,) = {r["seeds"] for r in stored("finite-n")["success"] if (r["n"] <= 64) is (place == "small")}
    return {"count": seeds, "last": seeds - 1}


def outliers() -> Json:
    """Return the number of rows, n and standard errors of the farthest one, and standard errors of the next."""
    rows = sorted(stored("finite-n")["success"], key=lambda r: -abs(r["z"]))
    return {"rows": len(rows), "n": rows[0]["n"], "z": abs(rows[0]["z"]), "next": abs(rows[1]["z"])}


def fresh() -> int:
    return len(stored("finite-n")["fresh"])


def largest_n() -> int:
    return max(r["n"] for r in stored("finite-n")["law"])


def random_over_adversarial() -> list[float]:
    rows = stored("finite-n")["oracle"]
    largest = {(r["oracle"], r["n"]): r["largest"] for r in rows}
    found = [largest["random", r["n"]] / largest["adversarial", r["n"]] for r in rows]
    return [min(found), max(found)]


def runs(name: str) -> Json:
    """Return the number of runs of a stored sweep and of seeds per cell."""
    rows = stored(name)["rows"]
    (seeds,) = {r["cells"] for r in rows}
    return {"all": sum(r["cells"] for r in rows), "seeds": seeds}


def pace_growth() -> Json:
    """Return by what factor the updates of a chunk grow over n, predicted and measured, and the worst ratio of both."""
    found = [r for r in stored("stages-pace")["half"] if r["measured"]]
    growth = {name: found[-1][name] / found[0][name] for name in ("predicted", "measured")}
    return growth | {"most": max(r["predicted"] / r["measured"] for r in found)}


def chunk_reach(count: int) -> int:
    """Return the largest n up to which the rule for updates allows a chunk of ``count`` levels in the phase diagram."""
    skip = "+".join(map(str, range(1, count)))
    (found,) = {r["predicted"] for r in stored("stages-phase")["half"] if r["skip"] == skip and r["predicted"]}
    return found


def hopeless_amplitude() -> int:
    """Return the largest K at which no run of the sweep over K succeeds."""
    rows = stored("phase-rounding")["rows"]
    return int(max({r["K"] for r in rows} - {r["K"] for r in rows if r["successes"]}))


# Certificates


@cache
def certified(n: int, name: str, k: int = 0) -> Certificate:
    options = SolveOptions(n=n, k=k or {8: 4, 30: 16, 64: 32, 128: 64}[n])
    return certify(World.of_solve(options), [name])[0]


@cache
def verbatim() -> Certificate:
    """Return the theorem's certificate with the paper's constants."""
    return certify(World.of_solve(SolveOptions(preset="paper")), ["theorem-probability"])[0]


def _said(certificate: Certificate, before: str, after: str) -> str:
    """Return the part of a certificate's reason between two texts."""
    return (certificate.reason or "").partition(before)[2].partition(after)[0]


def verbatim_failed() -> str:
    return _said(verbatim(), "; ", " of 25 runs with other seeds failed")


def collapsed() -> str:
    """Return at how many of 127 values of m the bound holds at n = 128."""
    return _said(certified(128, "collapse"), "≤ 2 at ", " of")


def remainder(n: int) -> float:
    return float(_said(certified(n, "stage-1"), "|R| ≤ ", " "))


def tolerated(n: int, k: int = 0) -> float:
    """Return the largest error of an oracle that the run tolerates, in units of n^(-2-ε/8)."""
    return float(_said(certified(n, "theorem-oracle", k), "an error of ", " "))


def noise_when_open(n: int) -> float:
    """Return the noise in the second layer's gradient over its signal, with every gate open."""
    return float(_said(certified(n, "collapse-noise"), "/n, ", " times"))


def gradient_constant() -> float:
    """Return the constant in front of n^g, rounded up."""
    return math.ceil(100 * float(_said(certified(8, "bounded-gradient"), "constant ", ";"))) / 100
