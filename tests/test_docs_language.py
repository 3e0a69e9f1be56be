"""Numbers in the prose of docs/language-models.md and on language models in docs/findings.md and README, from stored results."""

import math
from typing import Any

from tools.language import ruler, share_of_first

from internalize.lm.data.source import _OF, _SHARES, _share, open_source
from internalize.lm.evaluation.linear import compare_with_linear
from internalize.lm.options import LmTrainOptions
from internalize.lm.probe.stalls import ABOVE
from internalize.lm.stages.schedule import GAIN, NEARLY
from tests.claims import WORDS, Claim, assert_on_page, each, over_linear, row_of, spaced, stored
from tests.pages import text


def read_from() -> list[int]:
    """The lowest layers from which the steps of each level, and the answer, are read in 99 % of the questions."""
    lowest: dict[int | None, set[int]] = {}
    for level, step in {(r["level"], r["step"]) for r in stored("lm-probe")["rows"]}:
        layers = [r["layer"] for r in stored("lm-probe")["rows"] if r["step"] == step and r["probe"] >= 0.99]
        lowest.setdefault(level, set()).add(min(layers))
    return [layer for level in (1, 2, None) for layer in sorted(lowest[level])]


def of_stages(method: str, *stages: int) -> list[int]:
    """The least and the most updates that a seed's runs at n = 30 have had in these stages together, from 1."""
    found = row_of("lm-parity-30", method)
    sums = [sum(each["steps"][stage - 1] for stage in stages) for each in found["each"]]
    return [min(sums), max(sums)]


def linears_stages() -> list[Any]:
    """Of those between the first and the last: how many pass within two evaluations, and what the others take."""
    found = row_of("lm-parity-30", "icot")
    updates = [each["steps"][1:-1] for each in found["each"]]
    twice = 2 * found["eval_every"]
    quick = [sum(own <= twice for own in run) for run in updates]
    slow = [own for run in updates for own in run if own > twice]
    return [len(updates[0]), min(quick), max(quick), sum(quick) / len(quick), min(slow), max(slow)]


def first_evaluations() -> list[int]:
    log, linear = ((r["eval_every"], r["stages"] - 1) for r in stored("lm-parity-30")["rows"])
    return [math.prod(linear), linear[1], math.prod(log)]


def read_in_multiplication() -> list[int]:
    """The lowest layers from which the partial products and the answer are read in 99 % of their digits."""
    rows = stored("lm-probe-multiply")["rows"]
    one, other, answer = (
        min(r["layer"] for r in rows if r["step"] == step and r["probe"] >= 0.99) for step in (1, 2, 3)
    )
    assert one == other
    return [one, answer]


def stalled() -> dict[str, list[dict[str, Any]]]:
    """Runs that end at chance, by what became of level 2: with neither replay nor loss on hidden slots. Of others none does."""
    rows = stored("lm-stalls")["rows"]
    kept = [r for r in rows if r["replay"] or r["hidden_loss"]]
    assert all(r["exact_match"] >= 0.99 and not r["account"]["missing"] for r in kept)
    wrong = [r for r in rows if r["exact_match"] < 0.6]
    of: dict[str, list[dict[str, Any]]] = {"all": [r for r in rows if r not in kept], "chance": wrong}
    for reason in ("lost", "faint"):
        of[reason] = [r for r in wrong if {m["reason"] for m in r["account"]["missing"]} == {reason, "waiting"}]
    assert len(of["lost"]) + len(of["faint"]) == len(wrong)
    return of


def of_level_2(reason: str, *keys: str) -> list[float]:
    """What is known of the steps that are missing for a reason: the least and the most of each."""
    missing = [m for r in stalled()[reason] for m in r["account"]["missing"] if m["reason"] == reason]
    return [bound(m[key] for m in missing) for key in keys for bound in (min, max)]


def quick_removals() -> list[int]:
    """Of linear with an evaluation every other update: its stages between the first and the last, and those that end at once."""
    linear = row_of("lm-fine", "icot")
    between = [updates for each in linear["each"] for updates in each["steps"][1:-1]]
    return [len(between), sum(updates <= linear["eval_every"] for updates in between), linear["eval_every"]]


def test_what_carries_over_is_what_the_certificates_say():
    """That states do on every model and attention, both statements, on one of five."""
    verdicts: dict[str, list[str]] = {}
    for row in stored("lm-certify")["rows"]:
        verdicts.setdefault(row["statement"], []).append(row["verdict"])
    assert all("violated" not in verdicts[name] for name in ("hidden-nodes", "frozen-nodes", "answer"))
    both = zip(verdicts["child-attention"], verdicts["child-mass"], strict=True)
    assert [pair == ("holds", "holds") for pair in both].count(True) == 1
    assert {len(own) for own in verdicts.values()} == {5}


def shallow(layers: int) -> dict[str, Any]:
    """k = 16 with few layers."""
    return row_of("lm-depth-scattered", "adaptive", layers=layers)


def runs_back() -> list[dict[str, Any]]:
    """The runs at k = 16 in which everything at once was given up."""
    return [each for layers in (3, 4, 5, 6) for each in shallow(layers)["each"] if each["seed"] in went_back(layers)]


def went_back(layers: int) -> dict[int, list[int]]:
    """Updates of each attempt of the runs in which everything at once was given up, by seed."""
    return {each["seed"]: each["steps"] for each in shallow(layers)["each"] if len(each["steps"]) > 2}


def test_where_everything_at_once_stalled():
    """As docs/findings.md says: with two layers to spare on no seed, with one on one that was solved, with none on two that were
    not, with a layer too few on two, of which one was solved."""
    assert not went_back(6)
    assert list(went_back(5)) == [3]
    assert list(went_back(4)) == [1, 3]
    assert list(went_back(3)) == [0, 2]
    wrong = {layers: [e["seed"] for e in shallow(layers)["each"] if e["exact_match"] < 0.99] for layers in (3, 4, 5)}
    assert wrong == {3: [0, 1], 4: [1, 3], 5: []}


def explicit(name: str, seed: int) -> int:
    """Updates that linear ICoT's explicit stage had."""
    return next(run["explicit"] for run in row_of(name, "icot")["each"] if run["seed"] == seed)


def different(data: str) -> int:
    """Different questions among those that seed 0 is tested with."""
    return len({example.question for example in open_source(data, 0).test(LmTrainOptions().test_examples)})


def test_every_product_held_out_for_the_test_is_asked():
    products = (
        f"{one % 10} {one // 10} * {other % 10} {other // 10}" for one in range(10, 100) for other in range(10, 100)
    )
    assert sum(_SHARES.get(_share(question)) == "test" for question in products) == different("multiply:digits=2")


def over_counts(scattered: str, counts: str) -> list[float]:
    """Log-ICoT's updates after the explicit stage with scattered replay over those with replay of counts, seed by seed."""
    own, other = (row_of(name, "log-icot")["each"] for name in (scattered, counts))
    found = compare_with_linear(own, other)
    assert found is not None
    assert found["ratio_seeds"] == len(own) == 10
    return [found[key] for key in ("ratio", "ratio_low", "ratio_high")]


CLAIMS: list[Claim] = [
    (
        "docs/language-models.md",
        "{:.0f} to {:.0f} % of its updates after the explicit stage are such.",
        lambda: [100 * bound(share_of_first(row["linear"]) for row in ruler()) for bound in (min, max)],
    ),
    (
        "docs/language-models.md",
        "of linear's {} removals before the last ones {} pass at their first evaluation, {} updates after",
        quick_removals,
    ),
    (
        "docs/findings.md",
        "Log-ICoT takes {:.2f} ({:.2f} – {:.2f}) of linear's, everything at once {:.2f} ({:.2f} – {:.2f}), five seeds",
        lambda: [
            row_of("lm-fine", method)["against_linear"][key]
            for method in ("log-icot", "adaptive")
            for key in ("ratio", "ratio_low", "ratio_high")
        ],
    ),
    (
        "docs/language-models.md",
        "on {} held-out questions a seed, drawn with repetition (of seed 0 at n = 16 {} different ones; for 2 × 2 all {} that "
        "there are)",
        lambda: [
            spaced(LmTrainOptions().test_examples),
            *(spaced(different(data)) for data in ("parity:n=16,k=8", "multiply:digits=2")),
        ],
    ),
    (
        "docs/language-models.md",
        "(at n = 30 seed 2 took {} updates there and {} here, seed 8 {} and {})",
        lambda: [spaced(explicit(name, seed)) for seed in (2, 8) for name in ("lm-parity-30", "lm-scattered-30")],
    ),
    (
        "docs/language-models.md",
        "a run took {} s on a core shared with other work",
        lambda: [spaced(stored("lm-parity-30")["rows"][0]["seconds"])],
    ),
    (
        "docs/language-models.md",
        "its seeds took {} – {}, {} – {}, {} – {} and {} – {} updates (the last with",
        lambda: [updates for stage in (1, 2, 3, 4) for updates in of_stages("log-icot", stage)],
    ),
    (
        "docs/language-models.md",
        "After the explicit stage Log-ICoT takes {:.2f} of linear's at n = 16, where the stages are {} of {}, and {:.2f} at "
        "n = 30, where they are {} of {}, and that interval holds 1.",
        lambda: [
            value
            for name in ("lm-parity", "lm-parity-30")
            for value in (*over_linear(name, "ratio"), *(r["stages"] for r in stored(name)["rows"]))
        ],
    ),
    (
        "docs/language-models.md",
        "Of the {} stages between linear's first and last at n = 30, {} to {} ({:.1f} in the mean) passed",
        lambda: linears_stages()[:4],
    ),
    ("docs/language-models.md", "The others take {} to {} each; which", lambda: linears_stages()[4:]),
    ("docs/language-models.md", "Together the 13 take {} – {} updates.", lambda: of_stages("icot", *range(2, 15))),
    (
        "docs/language-models.md",
        "of linear's updates at least {} are its {} removals' first evaluations, of Log-ICoT's {}.",
        first_evaluations,
    ),
    ("docs/language-models.md", "in stages 2 and 3 together {} – {}.", lambda: of_stages("log-icot", 2, 3)),
    (
        "docs/language-models.md",
        "Log-ICoT takes {} – {} updates, linear with one {} – {} (consolidation not counted)",
        lambda: [n - LmTrainOptions().consolidate for n in (*of_stages("log-icot", 4), *of_stages("icot", 15))],
    ),
    (
        "docs/findings.md",
        "With replay of counts Log-ICoT takes {:.2f} ({:.2f} – {:.2f}) of them at n = 16, k = 8 and "
        "{:.2f} ({:.2f} – {:.2f}) at n = 30, k = 16, ten seeds each",
        lambda: [
            n for name in ("lm-parity", "lm-parity-30") for n in over_linear(name, "ratio", "ratio_low", "ratio_high")
        ],
    ),
    (
        "docs/language-models.md",
        "both partial products are read from layer {}, the answer from layer {}.",
        read_in_multiplication,
    ),
    (
        "docs/language-models.md",
        "{:.0f}, {:.0f} and {:.0f} s a run (mean)",
        lambda: [r["seconds"] for r in stored("lm-scattered")["rows"]],
    ),
    (
        "docs/language-models.md",
        "{:.0f} and {:.0f} s a run (mean)",
        lambda: [r["seconds"] for r in stored("lm-parity")["rows"]],
    ),
    (
        "docs/language-models.md",
        "our generation ({} at once) over `generate` one example at a time with the cache on, same model, dtype, thread and "
        "number of tokens; median of {} with",
        lambda: [(found := stored("lm-generation")["rows"][0])["batch"], WORDS[found["repeats"]]],
    ),
    (
        "docs/language-models.md",
        "In the final model level 1 is read from layer {}, level 2 from layers {} and {}, the answer from layer {}.",
        read_from,
    ),
    (
        "docs/language-models.md",
        "is below {:.0f} % of what the last good stage had, both counted from chance (always giving the most frequent answer); and "
        "for `--patience` updates ({}) it has lost neither a {} of",
        lambda: [100 * NEARLY, LmTrainOptions().patience, {0.1: "tenth"}[GAIN]],
    ),
    (
        "docs/language-models.md",
        "Without either {} seeds of {} end at chance, {} to {} updates into their last stage. On {} of them a circuit is lost.",
        lambda: [
            WORDS[len(stalled()["chance"])],
            WORDS[len(stalled()["all"])],
            *(spaced(bound(r["steps"][-1] for r in stalled()["chance"])) for bound in (min, max)),
            WORDS[len(stalled()["lost"])],
        ],
    ),
    (
        "docs/language-models.md",
        "each read in {:.2f} of the questions; in the end they are read in {:.2f} to {:.2f},",
        lambda: of_level_2("lost", "probe_before", "probe")[1:],
    ),
    (
        "docs/language-models.md",
        "was not there when the last stage began ({:.2f}), and is not in the end ({:.2f}); by then the pull of its children, "
        "{:.1f} beside {:.1f} of other keys,",
        lambda: of_level_2("faint", "probe_before", "probe", "pull", "other_pull")[::2],
    ),
    (
        "docs/language-models.md",
        "the loss would have it look at both, by {} the pull of other keys",
        lambda: [{2.0: "twice"}[ABOVE]],
    ),
    (
        "docs/findings.md",
        "it takes {:.2f} ({:.2f} – {:.2f}) and {:.2f} ({:.2f} – {:.2f}), everything at once {:.2f} ({:.2f} – {:.2f}) and "
        "{:.2f} ({:.2f} – {:.2f}). And",
        lambda: [
            row_of(name, method)["against_linear"][key]
            for method in ("log-icot", "adaptive")
            for name in ("lm-scattered", "lm-scattered-30")
            for key in ("ratio", "ratio_low", "ratio_high")
        ],
    ),
    (
        "docs/language-models.md",
        "Log-ICoT does at n = 30 ({:.2f} of them, {:.2f} – {:.2f}), and does not at n = 16 ({:.2f}, {:.2f} – {:.2f}).",
        lambda: [*over_counts("lm-scattered-30", "lm-parity-30"), *over_counts("lm-scattered", "lm-parity")],
    ),
    (
        "docs/language-models.md",
        "the difference is at least {:.4f} (one-sided 95 %)",
        lambda: [row_of("lm-scattered-30", "adaptive")["against_linear"]["exact_match_low"]],
    ),
    (
        "docs/language-models.md",
        "had not passed after its {} updates, everything at once was given up after {} more",
        lambda: [spaced(n) for n in went_back(4)[1][:2]],
    ),
    (
        "docs/language-models.md",
        "are enough at k = 16 on {} seeds of {}, and take more updates; five layers are on {} of {}.",
        lambda: [WORDS[shallow(layers)[key]] for layers in (4, 5) for key in ("solved", "seeds")],
    ),
    (
        "docs/language-models.md",
        "of the {} runs of this table that went back {} are solved.",
        lambda: [WORDS[len(runs_back())], WORDS[sum(e["exact_match"] >= 0.99 for e in runs_back())]],
    ),
    (
        "docs/findings.md",
        "{1} of {0} runs that did were solved.",
        lambda: [WORDS[len(runs_back())], WORDS[sum(e["exact_match"] >= 0.99 for e in runs_back())]],
    ),
    (
        "docs/language-models.md",
        "with four layers on seed 4 everything at once, never given up, took {}.)",
        lambda: [spaced(shallow(4)["each"][4]["steps"][1])],
    ),
    (
        "docs/language-models.md",
        "With five layers on seed 3 it was given up after {} updates at chance; then 8, 12 and 14 steps, Log-ICoT's own stages, "
        "were hidden within {}, {} and {} updates",
        lambda: [spaced(n) for n in went_back(5)[3][1:]],
    ),
    (
        "docs/language-models.md",
        "With four layers on seed 3 it was given up after {}; 8 steps took {} updates, 12 steps {}, and {} into the last stage, "
        "at {:.3f},",
        lambda: [*went_back(4)[3][1:], shallow(4)["each"][3]["exact_match"]],
    ),
    (
        "docs/findings.md",
        "given up after {} updates at chance, and was solved by Log-ICoT's own stages in {} more",
        lambda: [spaced(went_back(5)[3][1]), sum(went_back(5)[3][2:])],
    ),
    (
        "docs/findings.md",
        "at k = 16 on {} of {}, with one layer more on {} of {}, with one less on {} of {} ([the table]",
        lambda: [WORDS[shallow(layers)[key]] for layers in (4, 5, 3) for key in ("solved", "seeds")],
    ),
    (
        "docs/language-models.md",
        "Three layers, one less than log2 k, are on {} seed of {}.",
        lambda: [WORDS[shallow(3)[key]] for key in ("solved", "seeds")],
    ),
    (
        "docs/language-models.md",
        "With three layers on seed 2 it was given up after {}, and solved by the same stages in {} more.",
        lambda: [spaced(went_back(3)[2][1]), spaced(sum(went_back(3)[2][2:]))],
    ),
    ("docs/language-models.md", "Of a task a {}teenth of all questions", lambda: [WORDS[_OF - 10]]),
]


@each(CLAIMS)
def test_prose_has_the_numbers(page: str, words: str, values: Any):
    assert_on_page(page, words, values)


def test_commands_beside_stored_results_are_those_that_made_them():
    for name in (
        "lm-parity",
        "lm-parity-30",
        "lm-fine",
        "lm-scattered",
        "lm-scattered-30",
        "lm-multiply",
        "lm-multiply-scattered",
        "lm-multiply-3",
        "lm-multiply-tree",
        "lm-multiply-4",
        "lm-depth",
        "lm-stalls",
        "lm-depth-scattered",
        "lm-certify",
        "lm-probe",
        "lm-probe-multiply",
    ):
        assert stored(name)["command"] in text("docs/language-models.md")
        assert stored(name).get("read_by", "") in text("docs/language-models.md")
