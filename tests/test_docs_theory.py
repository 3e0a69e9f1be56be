"""Numbers in the prose of docs/finite-n.md, docs/errata.md and docs/statements.md, from stored results or computed anew."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from internalize.parity.adamw.train import train
from internalize.parity.algorithm1.solve import setting_of, solve
from internalize.parity.certificates import Certificate, World, certify, concentration, theorem
from internalize.parity.certificates.world import EXHAUSTIVE
from internalize.parity.experiments.crossing import half_crossing
from internalize.parity.model.link import COSINE
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.parity.theory.population import StageGradient
from internalize.parity.theory.prediction import Setting, predict
from internalize.storage.runs import Run
from tests import mutants
from tests.claims import WORDS, Claim, Json, assert_on_page, each, fraction, spaced, stored


def of(n: int) -> Setting:
    return Setting(n=n, k=16 if n == 30 else n // 2)


def first(n: int) -> StageGradient:
    return of(n).gradients[0]


def half(n: int) -> float:
    """Samples a stage for one half, over n ln n."""
    samples = of(n).samples_for(0.5)
    assert samples is not None
    return samples / (n * math.log(n))


def siblings(n: int) -> float:
    return first(n).sibling / first(n).variance[0]


def columns_at_a_key(n: int) -> float:
    return float((first(n).shared / first(n).variance)[-1])


def different_keys(n: int) -> float:
    """Correlation of the first stage's gradient at two keys that are no children, from the law of their sum."""
    total = np.arange(-(n - 2), n - 1, 2)  # of the bits but the children
    chance = np.array([math.comb(n - 2, ones) for ones in range(n - 1)]) / 2**n
    bit, pair = total / (n - 2), (total**2 - (n - 2)) / ((n - 2) * (n - 3))  # their means, given the sum
    mean = square = product = 0.0
    for one in (-1, 1):
        for other in (-1, 1):
            z = (total + one + other) / n
            loss, slope = COSINE.phi(torch.tensor(z)).numpy() - one * other, COSINE.slope(torch.tensor(z)).numpy()
            factor, both = chance * loss * slope, chance * (loss * slope) ** 2
            mean += float((factor * (bit - z)).sum())
            square += float((both * (1 - 2 * z * bit + z**2)).sum())
            product += float((both * (pair - 2 * z * bit + z**2)).sum())
    return (product - mean**2) / (square - mean**2)


def logistic_error() -> float:
    """Of the logistic curve's crossing, in per cent: at the sweep's samples, were the prediction the truth."""
    errors: list[float] = []
    for place in stored("phase")["half"]:
        samples = [r["samples"] for r in stored("phase")["rows"] if r["n"] == place["n"]]
        chances = [math.exp(of(place["n"]).log_success(B)) for B in samples]
        found = half_crossing(samples, [round(1e6 * chance) for chance in chances], [10**6] * len(samples))
        assert found is not None
        errors.append(abs(found.at / place["predicted"] - 1))
    return 100 * max(errors)


def independent(grid_one: bool) -> list[str]:
    rows = [
        r for r in stored("finite-n")["success"] if (r["case"] == "grid 1") is grid_one and r["case"] != "paper's rate"
    ]
    shares = [r["independent"] for r in rows]
    return [fraction(min(shares)), fraction(max(shares))]


def seeds_of(name: str, n: range) -> int:
    (seeds,) = {r["seeds"] for r in stored("finite-n")[name] if r["n"] in n}
    return seeds


def outliers() -> list[Any]:
    """Rows, those beyond 2.05 standard errors, and the next."""
    rows = sorted(stored("finite-n")["success"], key=lambda r: -abs(r["z"]))
    assert [abs(r["z"]) > 2.05 for r in rows[:2]] == [True, False]
    return [len(rows), rows[0]["n"], f"{abs(rows[0]['z']):.1f}", f"{abs(rows[1]['z']):.1f}", len(rows)]


def law(n: int) -> list[Json]:
    (found,) = [r for r in stored("finite-n")["law"] if r["n"] == n]
    return found["points"]


def random_over_adversarial() -> list[float]:
    rows = stored("finite-n")["oracle"]
    largest = {(r["oracle"], r["n"]): r["largest"] for r in rows}
    ratios = [largest["random", r["n"]] / largest["adversarial", r["n"]] for r in rows]
    return [min(ratios), max(ratios)]


def runs(name: str) -> tuple[str, int]:
    """Of a stored sweep: runs in all, and seeds in each place."""
    rows = stored(name)["rows"]
    (seeds,) = {r["cells"] for r in rows}
    return spaced(sum(r["cells"] for r in rows)), seeds


def always_from(grid: str) -> str:
    """The least number of samples from which every run of the sweep over K ≥ 6 succeeds."""
    rows = [r for r in stored("phase-rounding")["rows"] if r["grid"] == grid and r["K"] >= 6]
    missed = max(r["samples"] for r in rows if r["successes"] < r["cells"])
    return spaced(min(r["samples"] for r in rows if r["samples"] > missed))


def hopeless_amplitude() -> list[int]:
    """The largest K at which no run of that sweep succeeds."""
    rows = stored("phase-rounding")["rows"]
    return [int(max({r["K"] for r in rows} - {r["K"] for r in rows if r["successes"]}))]


@cache
def world(n: int) -> World:
    return World.of_solve(SolveOptions(n=n, k={8: 4, 30: 16, 64: 32, 128: 64}[n]))


@cache
def certified(n: int, name: str) -> Certificate:
    return certify(world(n), [name])[0]


@cache
def verbatim() -> Certificate:
    return certify(World.of_solve(SolveOptions(preset="paper")), ["theorem-probability"])[0]


def said(certificate: Certificate, before: str, after: str) -> str:
    """What a certificate says between two of its words."""
    return (certificate.reason or "").partition(before)[2].partition(after)[0]


def remainder(n: int) -> float:
    return float(said(certified(n, "stage-1"), "|R| ≤ ", " "))


def least_signals() -> list[float]:
    """Of the first three stages at K = 4, in units of K."""
    return [stage.signal_min for stage in solve(SolveOptions(K=4, samples=204_800)).stages[:3]]


def attention(K: int, n: int) -> float:
    return math.exp(K) / (2 * math.exp(K) + n - 2)


def amplitudes(*sizes: int) -> list[int]:
    return [int(of(n).default_amplitude) for n in sizes]


CLAIMS: list[Claim] = [
    ("docs/statements.md", "`tests/mutants.py` has {} broken models", lambda: [len(mutants.MUTANTS)]),
    (
        "docs/statements.md",
        "Up to n = {} all 2^n inputs are looked at and, for the barrier, all secrets. Above, {} drawn inputs",
        lambda: [EXHAUSTIVE, World.test_count],
    ),
    (
        "docs/statements.md",
        "all tuples up to T = {} positions, above that all of order 2 and those of {} drawn pairs",
        lambda: [max(T for T in range(100) if math.comb(T, 2) <= concentration._ALL_PAIRS), concentration._ALL_PAIRS],
    ),
    ("docs/statements.md", "checked by {} runs where n ≤ {}", lambda: [theorem._TRIALS, theorem._TRIAL_N]),
    ("docs/statements.md", "no run is made beside the model (n > {})", lambda: [theorem._TRIAL_N]),
    # Finite n
    ("docs/finite-n.md", "K = ⌈n^{{ε/16}}⌉ is {:.0f}.", lambda: [setting_of(SolveOptions(preset="paper")).K]),
    ("docs/finite-n.md", "here {:.2f}: the layer attends", lambda: [attention(2, 30)]),
    ("docs/finite-n.md", "n = 67^16 ≈ 10^{:.1f} at ε = 1", lambda: [predict(Setting(n=30, k=16)).theorem_log10_n]),
    (
        "docs/finite-n.md",
        "with s = {:.3f} at n = 30, {:.3f} at 128, {:.3f} at 1024",
        lambda: [first(n).signal for n in (30, 128, 1024)],
    ),
    ("docs/finite-n.md", "round to {:.2f} when K = 14", lambda: [14 * first(30).signal]),
    ("docs/finite-n.md", "need: {} at n = 30, {} at n = 256, {} at n = 4096", lambda: amplitudes(30, 256, 4096)),
    (
        "docs/finite-n.md",
        "correlation is {} at n = 30, {} at 128, {} at 1024",
        lambda: [fraction(siblings(30)), fraction(siblings(128), 3), fraction(siblings(1024), 4)],
    ),
    (
        "docs/finite-n.md",
        "the same in all columns: correlation {} at n = 30, {} at 1024",
        lambda: [fraction(columns_at_a_key(n)) for n in (30, 1024)],
    ),
    ("docs/finite-n.md", "independent: correlation −{} at n = 64", lambda: [fraction(-different_keys(64), 3)]),
    (
        "docs/finite-n.md",
        "{} to {} in place of .50 on the grid K at the calibrated rate, which {} seeds cannot tell",
        lambda: [*independent(False), seeds_of("success", range(65))],
    ),
    (
        "docs/finite-n.md",
        "{} at the paper's rate at n = 16 and {} to {} on the grid 1",
        lambda: [
            *(
                fraction(r["independent"])
                for r in stored("finite-n")["success"]
                if (r["case"], r["n"]) == ("paper's rate", 16)
            ),
            *independent(True),
        ],
    ),
    ("docs/finite-n.md", "logarithmic: {:.1f} at n = 1024, {:.1f} at 4096", lambda: [half(1024), half(4096)]),
    (
        "docs/finite-n.md",
        "At n = 512 and 1024 there are {} and {} seeds",
        lambda: [law(n)[0]["seeds"] for n in (512, 1024)],
    ),
    (
        "docs/finite-n.md",
        "the symmetry of {}, {} and {} of {}.",
        lambda: [*(point["successes"] for point in law(1024)), law(1024)[0]["seeds"]],
    ),
    (
        "docs/finite-n.md",
        "Seeds 0 … {} for n ≤ 64 and 0 … {} above",
        lambda: [seeds_of("success", range(65)) - 1, seeds_of("success", range(65, 5000)) - 1],
    ),
    (
        "docs/finite-n.md",
        "Of {} rows one is beyond 2 standard errors (n = {}, −{}) and one at {}. "
        "Rows of one n share seeds, so they are not {} independent tests.",
        outliers,
    ),
    ("docs/finite-n.md", "The first {} again", lambda: [WORDS[len(stored("finite-n")["fresh"])]]),
    ("docs/finite-n.md", "{} runs of Algorithm 1 at k = n/2, {} seeds in each place", lambda: runs("phase")),
    ("docs/finite-n.md", "The logistic curve itself is up to {:.1f} % off", lambda: [logistic_error()]),
    ("docs/finite-n.md", "({} runs, {} seeds in each place): ![Two panels", lambda: runs("phase-rounding")),
    ("docs/finite-n.md", "({} runs, {} seeds in each place): ![Four panels", lambda: runs("phase-curricula")),
    ("docs/finite-n.md", "multiples of K always succeeds from {} samples on", lambda: [always_from("K")]),
    ("docs/finite-n.md", "Up to K = {} no run succeeds", hopeless_amplitude),
    ("docs/finite-n.md", "up to K = {} nothing succeeds", hopeless_amplitude),
    ("docs/finite-n.md", "falls from {:.2f} K at the first stage to {:.2f} and {:.2f} at the next two", least_signals),
    ("docs/finite-n.md", "up to a norm {:.0f} to {:.0f} times as large", random_over_adversarial),
    (
        "docs/finite-n.md",
        "in float32 the slope at ±1 is off by {:.0f} · 10^−7",
        lambda: [1e7 * COSINE.slope(-torch.ones(1)).item()],
    ),
    # Errata
    ("docs/errata.md", "is beyond 10^{:.0f} at ε = 1", lambda: [predict(Setting(n=30, k=16)).theorem_log10_n]),
    ("docs/errata.md", "freezes the layers: {} at n = 30", lambda: amplitudes(30)),
    ("docs/errata.md", "({:.3f} at n = 30, {:.3f} at 128, stage 1)", lambda: [first(30).signal, first(128).signal]),
    ("docs/errata.md", "Measured up to n = {}", lambda: [max(r["n"] for r in stored("finite-n")["law"])]),
    (
        "docs/errata.md",
        "for no m at n = 64 ({:.2f} at m = n) and for {} of 127 at n = 128",
        lambda: [certified(64, "collapse").bound, said(certified(128, "collapse"), "≤ 2 at ", " of")],
    ),
    ("docs/errata.md", "with c = π²/2 it reaches {:.1f}", lambda: [math.pi**2]),
    (
        "docs/errata.md",
        "comes out at {:.1f}, {:.1f} and {:.1f} in stage 1 at n = 8, 30 and 128",
        lambda: [remainder(n) for n in (8, 30, 128)],
    ),
    ("docs/errata.md", "O(n^g), g = {:.2f} for the cosine", lambda: [math.log2(math.pi) + 1]),
    (
        "docs/errata.md",
        "the sum, which is below {:.2f} n^g",
        lambda: [math.ceil(100 * float(said(certified(8, "bounded-gradient"), "constant ", ";"))) / 100],
    ),
    ("docs/errata.md", "δ ≤ {:.4f} for the cosine", lambda: [1 / (9 * math.pi**2 / 2)]),
    (
        "docs/errata.md",
        "all of {} runs fail where L exp(−n^{{ε/2}}) allows {:.1f} %",
        lambda: [said(verbatim(), "; ", " of 25 runs with other seeds failed"), 100 * (verbatim().bound or 0)],
    ),
    (
        "docs/errata.md",
        "still: {:.0e} against {:.0e} at n = 30",
        lambda: [getattr(certified(30, "barrier"), key) for key in ("measured", "bound")],
    ),
]

SLOW: list[Claim] = [
    ("docs/finite-n.md", "{:.1f} at 65536. The theorem", lambda: [half(65_536)]),
    (
        "docs/errata.md",
        "The gradient's norm is about {:.1f} at n = 8, 30 and 128 alike, the proof's sum {:.1f}, {:.0f} and {:.0f}",
        lambda: [
            certified(128, "bounded-gradient").measured,
            *(certified(n, "bounded-gradient").bound for n in (8, 30, 128)),
        ],
    ),
]


@each(CLAIMS, SLOW)
def test_prose_has_the_numbers(page: str, words: str, values: Any):
    assert_on_page(page, words, values)


@pytest.mark.slow
def test_an_adamw_run_is_as_far_off_as_the_errata_say(tmp_path: Path):
    run = Run(tmp_path / "run")
    train(TrainOptions(), [0], [run])
    (found,) = certify(World.of_run(run), ["well-trained"])
    assert run.result["accuracy"] == 1
    assert_on_page("docs/errata.md", "δ = {:.2f} at seed 0, though every answer is right", lambda: [found.measured])


def test_where_the_prediction_is_inside_of_its_interval():
    """In words beside the phase diagram: from n = 16 on; at n = 8 more samples are needed than predicted."""
    for place in stored("phase")["half"]:
        assert (place["low"] <= place["predicted"] <= place["high"]) is (place["n"] >= 16), place
        assert place["n"] >= 16 or place["low"] > place["predicted"]


def test_curricula_succeed_where_the_caption_says():
    """The four panels over k and n: everywhere with a chain, without one at k = 2 alone."""
    for found in stored("phase-curricula")["rows"]:
        expected = found["curriculum"] != "none" or found["k"] == 2
        assert (found["successes"] == found["cells"]) is expected, found
        assert expected or found["successes"] == 0, found
