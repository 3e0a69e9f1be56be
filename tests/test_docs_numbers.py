"""Numbers in prose, against stored results or computed anew where that is cheap. (Tables are tools/findings.py's.)

Those of finite-n.md, errata.md and statements.md are in test_docs_theory.py, those of language models in test_docs_language.py.
"""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from internalize.bench import ratios
from internalize.commands import progress
from internalize.lm.data.source import _BLOCK
from internalize.lm.options import LmTrainOptions
from internalize.lm.probe import gradient_signal as signal
from internalize.parity import ParityTree
from internalize.parity.adamw.train import train
from internalize.parity.algorithm1.solve import setting_of, solve
from internalize.parity.model.relaxed import HIDDEN, STREAMS
from internalize.parity.model.sparse import STATE_NUMBERS
from internalize.parity.options import Grid, SolveOptions, TrainOptions
from internalize.parity.theory.prediction import Setting, predict
from internalize.report import reproduce as paper
from internalize.storage import files
from internalize.storage.runs import Run
from tests import mutants
from tests.claims import WORDS, Claim, Json, assert_on_page, each, spaced, stored
from tests.faults import asking, load, numbers
from tests.pages import ROOT, text


def rows(of: str, **values: object) -> list[Json]:
    """Those of `internalize compare` with these values."""
    return [r for r in stored("compare")["rows"] if r["of"] == of and all(r.get(k) == v for k, v in values.items())]


def row(of: str, **values: object) -> Json:
    (found,) = rows(of, **values)
    return found


def curriculum(n: int, optimizer: str, method: str) -> Json:
    return row("curricula", n=n, optimizer=optimizer, method=method)


def slower_rate(method: str) -> Json:
    (found,) = [r for r in stored("compare-rate")["rows"] if r["method"] == method]
    return found


def needed(grid: Grid) -> int:
    """Samples a stage that `predict` takes by default."""
    samples = predict(Setting(n=30, k=16, grid=grid)).samples_default
    assert samples is not None
    return samples


def learned_gates() -> tuple[str, str]:
    """How far the inputs' gates are from shut, in units of 1e-4, and how far the written ones are open: of the worst row that has
    both masks and the price.
    """
    found = [r for r in rows("gates") if re.fullmatch(r"gates=\w+ mask=\w+", r["what"])]
    assert len(found) == 6
    shut, opened = (max(r["gate_distance"][key] for r in found) for key in ("inputs", "written"))
    return f"{1e4 * shut:.1f}", f"{1 - opened:.2f}"


def either_mask() -> tuple[int, int]:
    """Seeds solved, and all, of learned gates: the same under both masks."""
    found = [row("gates", n=30, what=f"gates=learned mask={mask}") for mask in ("level", "causal")]
    (counts,) = {(r["solved"], r["seeds"]) for r in found}
    return counts


def rates() -> float:
    """The largest of AdamW's rates that the ablations solve over the least."""
    names = [r["what"] for r in rows("ablations", optimizer="adamw") if r["solved"] == r["seeds"]]
    found = [float(name.removeprefix("lr=")) for name in names if name.startswith("lr=")]
    return max(found) / min(found)


def price_that_closes() -> float:
    (found,) = [r for r in rows("gates") if "gate_penalty=0.1" in r["what"] and not r["solved"]]
    return float(found["what"].partition("gate_penalty=")[2]) / TrainOptions().gate_penalty


def everything_at_once() -> list[str]:
    found = row("simplifications", what="gates=learned mask=causal value=learned output=streams link=mlp-fitted")
    alone = ("gates=learned", "value=learned", "output=streams parts_lr=0.01", "link=mlp-fitted")
    assert {row("simplifications", what=what)["solved"] for what in alone} == {found["seeds"]}
    return [WORDS[found["seeds"] - found["solved"]], *[WORDS[found["seeds"]]] * 2]


def deep_parity() -> list[Any]:
    """Of the default method on language models: the size, and seeds in words."""
    (found,) = (row for row in stored("lm-scattered-30")["rows"] if row["method"] == "adaptive")
    n, k = size_of("lm-scattered-30")
    return [k, n, found["layer_loss"], WORDS[found["solved"]], WORDS[found["seeds"]]]


def parity_model() -> list[Any]:
    found = stored("lm-scattered")["rows"][0]
    n, k = size_of("lm-scattered")
    return [k, n, WORDS[found["layers"]], spaced(LmTrainOptions().test_examples)]


def size_of(name: str) -> list[str]:
    """n and k of a stored comparison of language models on parity."""
    return re.findall(r"\d+", stored(name)["rows"][0]["data"])


def seeds_of_log_icot() -> list[str]:
    """Solved and all, the same at both sizes of parity."""
    (counts,) = {(r["solved"], r["seeds"]) for r in (stored(name)["rows"][0] for name in ("lm-parity", "lm-parity-30"))}
    return [WORDS[count] for count in counts]


SMALL = ParityTree.draw(30, 16, 0).levels

CLAIMS: list[Claim] = [
    (
        "README.md",
        "report/index.html: {:.0f} s on {} cores, after the install",
        lambda: [(found := stored("paper-time")["rows"][0])["seconds"], WORDS[found["processes"]]],
    ),
    ("README.md", "redrawn from {} seeds", lambda: [paper.PAPER.seeds]),
    ("README.md", "100 % of {} held-out samples", lambda: [spaced(TrainOptions().eval_samples)]),
    ("README.md", "pinned version, {},", lambda: re.findall(r"^torch==(\S+)", constraints(), re.MULTILINE)),
    ("README.md", "samples a stage for 50 % success: {}", lambda: [predict(Setting(n=30, k=16)).samples_50]),
    (
        "README.md",
        "print(result.exact_recovery, result.max_error <= 1e-6) # {} {}",
        lambda: [(result := solve(SolveOptions(n=30, k=16, seed=0))).exact_recovery, result.max_error <= 1e-6],
    ),
    ("README.md", "checks bite: {} broken models", lambda: [len(mutants.MUTANTS)]),
    ("README.md", "become the prescribed ones on {} of {} seeds under either mask", either_mask),
    (
        "README.md",
        "Parity of {} secret bits among {}, a new GPT-2 of {} layers, everything hidden, {} held",
        parity_model,
    ),
    (
        "README.md",
        "Parity of {} among {}, with the loss at every layer (`--layer-loss {:.0f}`): {} seeds of {}",
        deep_parity,
    ),
    (
        "README.md",
        "Multiplication 2 × 2: {} of {};",
        lambda: [WORDS[stored("lm-multiply-scattered")["rows"][0][key]] for key in ("solved", "seeds")],
    ),
    (
        "README.md",
        "({:.0f}, {:.0f} and {:.0f} s a run on one core)",
        lambda: [r["seconds"] for r in stored("lm-scattered")["rows"]],
    ),
    # Tutorial, contract, what is survived
    ("docs/how-to/own-task.md", "(fewer than {} questions)", lambda: [_BLOCK]),
    ("docs/contract.md", "at most one in {} seconds", lambda: [WORDS[round(progress.SECONDS_BETWEEN_LINES)]]),
    ("docs/contract.md", "(`weights`, beyond {} GiB their sizes)", lambda: [files._LARGE // 2**30]),
    ("docs/contract.md", "they are about equal; on the first {} examples", lambda: [signal.EXAMPLES]),
    ("docs/contract.md", "(all but parity) and at layer 0; on the first {} examples", lambda: [signal.EXAMPLES]),
    ("docs/reliability.md", "what is wrong with it, within {:.0f} seconds", lambda: [asking.LIMIT]),
    ("docs/reliability.md", "its store opens in a second at {} of them", lambda: [spaced(load.LONG)]),
    (
        "docs/reliability.md",
        "by less than {} in float32 and {} in float64",
        lambda: [f"{numbers.APART[dtype]:.0e}".replace("-0", "-") for dtype in ("float32", "float64")],
    ),
    # Speed
    (
        "docs/speed.md",
        "{} samples at every stage, its time being proportional to samples; {} of the {} plain runs; of every run {} updates a "
        "stage and the evaluation after them, where the paper has {} and {}.",
        lambda: [
            *(spaced(2 * ratios._PLAIN_CHUNK), ratios._PLAIN_RUNS, ratios._RUNS, ratios._UPDATES),
            *(TrainOptions().steps, TrainOptions().steps // TrainOptions().eval_every),
        ],
    ),
    ("docs/speed.md", "of the bare products every {}teenth", lambda: [WORDS[ratios._SHARE - 10]]),
    ("docs/speed.md", "An answer's latency is the median of {}, for one sample", lambda: [ratios._ANSWERS]),
    (
        "docs/speed.md",
        "has {} to {} keys and {} to {} nodes. The products of {} samples",
        lambda: [SMALL.level_end[0], SMALL.level_end[3], SMALL.width(1), SMALL.width(4), TrainOptions().batch],
    ),
    ("docs/speed.md", "chunks of {} MB of states", lambda: [4 * STATE_NUMBERS // 2**20]),
    # Findings
    (
        "docs/findings.md",
        "{} of {} and {} of {} take no update",
        lambda: [curriculum(n, "adamw", "icot")[key] for n in (30, 128) for key in ("idle_stages", "stages")],
    ),
    (
        "docs/findings.md",
        "{} against {} steps, {} against {}, and {:.2f} and {:.1f} times the samples",
        lambda: [
            *(curriculum(n, "algorithm-1", m)["steps_to_99"] for n in (30, 128) for m in ("icot", "log-icot")),
            *(
                curriculum(n, "algorithm-1", "icot")["samples_to_99"]
                / curriculum(n, "algorithm-1", "log-icot")["samples_to_99"]
                for n in (30, 128)
            ),
        ],
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
    *(
        (
            "docs/findings.md",
            "the rate {} takes longer, on the first {} seeds: {} steps for ICoT and Log-ICoT, {} for CoT",
            lambda method=method: [
                *(slower_rate(method)["lr"], WORDS[slower_rate(method)["seeds"]]),
                *(slower_rate(own)["steps_to_99"] for own in (method, "cot")),
            ],
        )
        for method in ("icot", "log-icot")
    ),
    (
        "docs/findings.md",
        "Milliseconds for an answer at n = {}, one thread, median of {}",
        lambda: [row("latency", by="direct", batch=1, k=16)[key] for key in ("n", "repeats")],
    ),
    ("docs/findings.md", "AdamW's rate over a factor of {:.0f}", lambda: [rates()]),
    (
        "docs/findings.md",
        "about {:.0f} times the samples (`internalize predict --grid 1`: {} a stage against {})",
        lambda: [round(needed("1") / needed("K"), -1), spaced(needed("1")), spaced(needed("K"))],
    ),
    ("docs/findings.md", "another reason, K_n = {:.0f} (", lambda: [setting_of(SolveOptions(preset="paper")).K]),
    ("docs/findings.md", "are shut to {}e-4, the written ones open to {} (means", learned_gates),
    (
        "docs/findings.md",
        "so little is enough: {} is small",
        lambda: [f"{TrainOptions().gate_penalty:.0e}".replace("-0", "-")],
    ),
    (
        "docs/findings.md",
        "A {} times as much closes everything",
        lambda: [{100: "hundred"}[round(price_that_closes())]],
    ),
    ("docs/findings.md", "`output=streams`: {} of them", lambda: [WORDS[STREAMS]]),
    ("docs/findings.md", "a network of {} tanh units", lambda: [HIDDEN]),
    ("docs/findings.md", "attention and gates have {}.", lambda: [TrainOptions().lr]),
    ("docs/findings.md", "fail on {} seeds of {}. Each alone is solved on all {}.", everything_at_once),
    (
        "docs/findings.md",
        "on an ordinary transformer**, on {} seeds of {} at n = {}, k = {} and at n = {}, k = {}.",
        lambda: [*seeds_of_log_icot(), *size_of("lm-parity"), *size_of("lm-parity-30")],
    ),
    (
        "docs/findings.md",
        "is internalised** by Log-ICoT on {} seeds of {}, and",
        lambda: [WORDS[stored("lm-multiply")["rows"][0][key]] for key in ("solved", "seeds")],
    ),
    (
        "docs/findings.md",
        "(above: {} of {} stages idle)",
        lambda: [WORDS[curriculum(30, "adamw", "icot")[key]] for key in ("idle_stages", "stages")],
    ),
]


def constraints() -> str:
    return (ROOT / "constraints.txt").read_text(encoding="utf-8")


@each(CLAIMS)
def test_prose_has_the_numbers(page: str, words: str, values: Any):
    assert_on_page(page, words, values)


def test_the_tutorials_first_run_ends_as_it_says(tmp_path: Path):
    train(TrainOptions(n=10, k=4, steps=100), [0], [Run(tmp_path / "first")])
    accuracy = Run(tmp_path / "first").result["accuracy"]
    assert_on_page("docs/tutorial.md", "ends with an accuracy of {:.3g} and a table", lambda: [accuracy])


@pytest.mark.slow
def test_learned_values_are_where_the_findings_say(tmp_path: Path):
    train(TrainOptions(value="learned"), [0], [Run(tmp_path / "run")])
    values = [float(value) for name, value in Run(tmp_path / "run").weights().items() if name.startswith("value")]
    assert_on_page("docs/findings.md", "above 1, at {:.2f} to {:.2f} on seed 0", lambda: [min(values), max(values)])


def test_samples_of_explicit_cot_are_a_quarter_and_a_sixth():
    """In words on the page of findings."""
    for n, part in ((30, 4), (128, 6)):
        ratio = (
            curriculum(n, "algorithm-1", "log-icot")["samples_to_99"]
            / curriculum(n, "algorithm-1", "cot")["samples_to_99"]
        )
        assert ratio == pytest.approx(part, rel=0.01)


def test_the_last_doubling_is_steeper_and_all_is_flatter_than_the_products():
    """In words on the page of speed."""
    found = stored("bench")["growth"]
    last = math.log2(found["seconds"]["2048"] / found["seconds"]["1024"])
    assert found["median"] < last < found["goal"]


def test_commands_beside_stored_results_are_those_that_made_them():
    assert stored("lm-scattered")["command"] in text("README.md")
    assert stored("compare-rate")["command"] in text("docs/findings.md")
