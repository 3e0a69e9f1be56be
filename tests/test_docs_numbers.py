"""Numbers in prose, against stored results or computed anew where that is cheap. (Tables are tools/findings.py's.)

A claim is the page's own words with places for the numbers: filled in, they must be on the page, letter by letter.
"""

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest

from internalize.bench import ratios
from internalize.options import Grid, SolveOptions
from internalize.parity.algorithm import solve
from internalize.parity.certificates import Certificate, World, certify, concentration, theorem
from internalize.parity.certificates.world import EXHAUSTIVE
from internalize.parity.prediction import Setting, predict
from internalize.results import FOLDER
from tests import mutants
from tests.pages import text

Json = dict[str, Any]


@cache
def stored(name: str) -> Json:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def row(of: str, **values: object) -> Json:
    """The one row of `internalize compare` with these values."""
    rows = [r for r in stored("compare")["rows"] if r["of"] == of and all(r.get(k) == v for k, v in values.items())]
    (found,) = rows
    return found


def curriculum(n: int, optimizer: str, method: str) -> Json:
    return row("curricula", n=n, optimizer=optimizer, method=method)


def half(n: int) -> float:
    """Samples a stage for one half, over n ln n."""
    samples = Setting(n=n, k=n // 2).samples_for(0.5)
    assert samples is not None
    return samples / (n * math.log(n))


def needed(grid: Grid) -> int:
    """Samples a stage that `predict` takes by default."""
    samples = predict(Setting(n=30, k=16, grid=grid)).samples_default
    assert samples is not None
    return samples


def signal(n: int) -> float:
    return Setting(n=n, k=16 if n == 30 else n // 2).gradients[0].signal


def siblings(n: int) -> float:
    gradient = Setting(n=n, k=16 if n == 30 else n // 2).gradients[0]
    return gradient.sibling / gradient.variance[0]


def columns_at_a_key(n: int) -> float:
    gradient = Setting(n=n, k=16 if n == 30 else n // 2).gradients[0]
    return float((gradient.shared / gradient.variance)[-1])


def amplitude(n: int) -> int:
    return int(Setting(n=n, k=16 if n == 30 else n // 2).default_amplitude)


def independent(grid_one: bool) -> list[str]:
    rows = [
        r for r in stored("finite-n")["success"] if (r["case"] == "grid 1") is grid_one and r["case"] != "paper's rate"
    ]
    shares = [r["independent"] for r in rows]
    return [f"{share:.2f}"[1:] for share in (min(shares), max(shares))]


def runs(name: str) -> tuple[str, int]:
    """Of a stored sweep: runs in all, with a thin space for thousands, and seeds in each place."""
    rows = stored(name)["rows"]
    (seeds,) = {r["cells"] for r in rows}
    return f"{sum(r['cells'] for r in rows):,}".replace(",", " "), seeds


def always_from(grid: str) -> str:
    """The least number of samples from which every run of the sweep over K ≥ 6 succeeds."""
    rows = [r for r in stored("phase-rounding")["rows"] if r["grid"] == grid and r["K"] >= 6]
    missed = max(r["samples"] for r in rows if r["successes"] < r["cells"])
    return f"{min(r['samples'] for r in rows if r['samples'] > missed):,}".replace(",", " ")


def dead_below() -> int:
    rows = stored("phase-rounding")["rows"]
    return int(max(r["K"] for r in rows if not any(s["successes"] for s in rows if s["K"] <= r["K"])))


def outliers() -> list[Any]:
    """Rows, those beyond 2.05 standard errors, and the next."""
    rows = sorted(stored("finite-n")["success"], key=lambda r: -abs(r["z"]))
    assert [abs(r["z"]) > 2.05 for r in rows[:2]] == [True, False]
    return [len(rows), rows[0]["n"], f"{abs(rows[0]['z']):.1f}", f"{abs(rows[1]['z']):.1f}"]


@cache
def world(n: int) -> World:
    return World.of_solve(SolveOptions(n=n, k={8: 4, 30: 16, 64: 32, 128: 64}[n]))


@cache
def certified(n: int, name: str) -> Certificate:
    return certify(world(n), [name])[0]


def reason(n: int, name: str, before: str, after: str) -> str:
    """What a certificate says between two of its words."""
    return (certified(n, name).reason or "").partition(before)[2].partition(after)[0]


def remainder(n: int) -> float:
    return float(reason(n, "stage-1", "|R| ≤ ", " "))


def least_signals() -> list[float]:
    """Of the first three stages at K = 4, in units of K."""
    return [stage.signal_min for stage in solve(SolveOptions(K=4, samples=204_800)).stages[:3]]


def attention(K: int, n: int) -> float:
    return math.exp(K) / (2 * math.exp(K) + n - 2)


def spaced(number: float) -> str:
    return f"{number:,.0f}".replace(",", " ")


Values = Callable[[], Sequence[Any]]
CLAIMS: list[tuple[str, str, Values]] = [
    # README
    ("README.md", "samples a stage for 50 % success: {}", lambda: [predict(Setting(n=30, k=16)).samples_50]),
    ("README.md", "checks bite: {} broken models", lambda: [len(mutants.MUTANTS)]),
    (
        "README.md",
        "become the prescribed ones on {} of {} seeds under either mask",
        lambda: [row("gates", n=30, what="gates=learned mask=causal")[key] for key in ("solved", "seeds")],
    ),
    # Statements
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
    # Speed
    (
        "docs/speed.md",
        "{} of the {} plain runs; of every run {} updates a stage",
        lambda: [ratios._PLAIN_RUNS, ratios._RUNS, ratios._UPDATES],
    ),
    ("docs/speed.md", "An answer's latency is the median of {}, for one sample", lambda: [ratios._ANSWERS]),
    # Finite n
    ("docs/finite-n.md", "here {:.2f}: the layer attends", lambda: [attention(2, 30)]),
    ("docs/finite-n.md", "n = 67^16 ≈ 10^{:.1f} at ε = 1", lambda: [predict(Setting(n=30, k=16)).theorem_log10_n]),
    (
        "docs/finite-n.md",
        "with s = {:.3f} at n = 30, {:.3f} at 128, {:.3f} at 1024",
        lambda: [signal(n) for n in (30, 128, 1024)],
    ),
    ("docs/finite-n.md", "round to {:.2f} when K = 14", lambda: [14 * signal(30)]),
    (
        "docs/finite-n.md",
        "freezing need: {} at n = 30, {} at n = 256, {} at n = 4096",
        lambda: [amplitude(n) for n in (30, 256, 4096)],
    ),
    (
        "docs/finite-n.md",
        "correlation is {} at n = 30, {} at 128, {} at 1024",
        lambda: [f"{siblings(30):.2f}"[1:], f"{siblings(128):.3f}"[1:], f"{siblings(1024):.4f}"[1:]],
    ),
    (
        "docs/finite-n.md",
        "the same in all columns: correlation {} at n = 30, {} at 1024",
        lambda: [f"{columns_at_a_key(n):.2f}"[1:] for n in (30, 1024)],
    ),
    ("docs/finite-n.md", "the model would say {} to {} in place of .50 on the grid K", lambda: independent(False)),
    ("docs/finite-n.md", "and {} to {} on the grid 1", lambda: independent(True)),
    (
        "docs/finite-n.md",
        "Convergence is logarithmic: {:.1f} at n = 1024, {:.1f} at 4096",
        lambda: [half(1024), half(4096)],
    ),
    ("docs/finite-n.md", "Of {} rows one is beyond 2 standard errors (n = {}, −{}) and one at {}", outliers),
    ("docs/finite-n.md", "{} runs of Algorithm 1 at k = n/2, {} seeds in each place", lambda: runs("phase")),
    ("docs/finite-n.md", "({} runs, {} seeds in each place): ![Two panels", lambda: runs("phase-rounding")),
    ("docs/finite-n.md", "({} runs, {} seeds in each place): ![Four panels", lambda: runs("phase-curricula")),
    ("docs/finite-n.md", "multiples of K always succeeds from {} samples on", lambda: [always_from("K")]),
    ("docs/finite-n.md", "Up to K = {} no run succeeds", lambda: [dead_below()]),
    (
        "docs/finite-n.md",
        "falls from {:.2f} K at the first stage to {:.2f} and {:.2f} at the next two",
        least_signals,
    ),
    # Errata
    ("docs/errata.md", "freezes the layers: {} at n = 30", lambda: [amplitude(30)]),
    ("docs/errata.md", "({:.3f} at n = 30, {:.3f} at 128, stage 1)", lambda: [signal(30), signal(128)]),
    (
        "docs/errata.md",
        "for no m at n = 64 ({:.2f} at m = n) and for {} of 127 at n = 128",
        lambda: [certified(64, "collapse").bound, reason(128, "collapse", "≤ 2 at ", " of")],
    ),
    ("docs/errata.md", "with c = π²/2 it reaches {:.1f}", lambda: [math.pi**2]),
    (
        "docs/errata.md",
        "comes out at {:.1f}, {:.1f} and {:.1f} in stage 1 at n = 8, 30 and 128",
        lambda: [remainder(n) for n in (8, 30, 128)],
    ),
    ("docs/errata.md", "O(n^g), g = {:.2f} for the cosine", lambda: [math.log2(math.pi) + 1]),
    ("docs/errata.md", "δ ≤ {:.4f} for the cosine", lambda: [1 / (9 * math.pi**2 / 2)]),
    ("docs/errata.md", "allows {:.1f} %", lambda: [100 * 4 * math.exp(-math.sqrt(30))]),
    (
        "docs/errata.md",
        "still: {:.0e} against {:.0e} at n = 30",
        lambda: [getattr(certified(30, "barrier"), key) for key in ("measured", "bound")],
    ),
    # Findings
    (
        "docs/findings.md",
        "{} of {} and {} of {} take no update",
        lambda: [curriculum(n, "adamw", "icot")[key] for n in (30, 128) for key in ("idle_stages", "stages")],
    ),
    (
        "docs/findings.md",
        "{} against {} steps, {} against {}, and as many times the samples",
        lambda: [curriculum(n, "algorithm-1", m)["steps_to_99"] for n in (30, 128) for m in ("icot", "log-icot")],
    ),
    (
        "docs/findings.md",
        "it fails on {} of {} seeds at n = 30 and on all at n = 128",
        lambda: [
            curriculum(30, "algorithm-1", "icot")["seeds"] - curriculum(30, "algorithm-1", "icot")["solved"],
            curriculum(30, "algorithm-1", "icot")["seeds"],
        ],
    ),
    (
        "docs/findings.md",
        "{} steps against {}, {} against {}, and a quarter and a sixth",
        lambda: [curriculum(n, "adamw", m)["steps_to_99"] for n in (30, 128) for m in ("cot", "log-icot")],
    ),
    (
        "docs/findings.md",
        "about {:.0f} times the samples (`internalize predict --grid 1`: {} a stage against {})",
        lambda: [round(needed("1") / needed("K"), -1), spaced(needed("1")), spaced(needed("K"))],
    ),
    # Language models
    (
        "docs/language-models.md",
        "a run took {} s on a core shared with other work",
        lambda: [spaced(stored("lm-parity-30")["rows"][0]["seconds"])],
    ),
    (
        "docs/language-models.md",
        "{:.0f} and {:.0f} s a run (mean)",
        lambda: [r["seconds"] for r in stored("lm-parity")["rows"]],
    ),
    (
        "README.md",
        "a run took {:.0f} and {:.0f} s on one busy core",
        lambda: [r["seconds"] for r in stored("lm-parity")["rows"]],
    ),
]

SLOW: list[tuple[str, str, Values]] = [
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


@pytest.mark.parametrize(
    ("page", "words", "values"),
    [*CLAIMS, *(pytest.param(*claim, marks=pytest.mark.slow) for claim in SLOW)],
    ids=range(len(CLAIMS) + len(SLOW)),
)
def test_prose_has_the_numbers(page: str, words: str, values: Values):
    claim = words.format(*values())
    assert claim in text(page)


def test_samples_of_explicit_cot_are_a_quarter_and_a_sixth():
    """In words on the page of findings."""
    for n, part in ((30, 4), (128, 6)):
        ratio = (
            curriculum(n, "algorithm-1", "log-icot")["samples_to_99"]
            / curriculum(n, "algorithm-1", "cot")["samples_to_99"]
        )
        assert ratio == pytest.approx(part, rel=0.01)


def test_curricula_succeed_where_the_caption_says():
    """The four panels over k and n: everywhere with a chain, without one at k = 2 alone."""
    for found in stored("phase-curricula")["rows"]:
        expected = found["curriculum"] != "none" or found["k"] == 2
        assert (found["successes"] == found["cells"]) is expected, found
        assert expected or found["successes"] == 0, found


def test_commands_beside_stored_results_are_those_that_made_them():
    assert stored("lm-parity")["command"] in text("README.md")
    for name in ("lm-parity", "lm-parity-30"):
        assert stored(name)["command"] in text("docs/language-models.md")
