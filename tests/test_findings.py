"""The pages show what is stored: tables and numbers are current, and the tools that store results keep them right."""

import itertools
import re
from pathlib import Path

import pytest
from tools.findings import PAGES, all_tables, filled
from tools.numbers import DERIVED, MARKED, names, number, written
from tools.numbers_parity import certified, cubed_remainder, half
from tools.results import path_of, read, stored
from tools.stalls import after_explicit

from internalize.parity.adamw.train import train
from internalize.parity.certificates import World, certify
from internalize.parity.options import TrainOptions
from internalize.parity.theory.prediction import Setting
from internalize.storage.runs import Run
from internalize.storage.summaries import lower_median

TABLES = all_tables()
LANGUAGE = {path for name in ("compare", "bench") for path in path_of(f"{name}.json").parent.glob("lm-*.json")}
RECOMPUTED = stored("recomputed")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_current(page: Path):
    """Regenerating the pages changes nothing. If it does, run `python -m tools.findings`."""
    text = page.read_text(encoding="utf-8")
    assert filled(text, TABLES) == text
    tables = re.findall(r"<!-- table: (.*?) -->", text)
    assert filled(text, dict.fromkeys(TABLES, "|new|")).count("|new|") == len(tables)  # no table is missed
    assert len(names(text)) == text.count("data-n") == text.count("<span")  # and no number
    assert filled(MARKED.sub(r"\1wrong\4", text), TABLES).split() == text.split()  # wrong numbers are replaced


def test_every_table_and_function_is_used():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert set(re.findall(r"<!-- table: (.*?) -->", text)) == set(TABLES)
    used = names(text)
    assert all(re.fullmatch(r"[\w/.,=:%–-]+", name) for name in used)  # a bar would end a table cell
    assert len(used) > 200
    assert {re.split("[:/]", name)[0] for name in used} >= set(DERIVED)
    parts = {name.partition(":")[0] for name in used}
    whole = {key for key in RECOMPUTED if not any(part.startswith(f"recomputed/{key}") for part in parts)}
    assert whole == {"recomputed_by"}


def test_unknown_numbers_are_refused():
    for name in ("lm-scattered/adaptive/nothing", "lm-scattered/nobody/seeds", "nothing", "lm.nothing/X", "half/x"):
        with pytest.raises(LookupError, match=name):
            number(name)
    with pytest.raises(LookupError, match="too many values"):
        number("lm-depth/log-icot/seeds")  # several rows


def test_formats():
    assert written(0.001, ".0e") == "1e-3"
    assert written(0.754, ".0%") == "75"
    assert written(0.754, "point.2f") == ".75"
    assert written(12345.6, "spaced") == "12 346"
    assert written([1, 12], "word") == "one to twelve"
    assert written([1.5, 2], ".1f–") == "1.5 – 2.0"
    assert written({"ratio": 1, "ratio_low": 0.5, "ratio_high": 2}, "ratio") == "1.00 (0.50 – 2.00)"


def test_recomputed_tutorial(tmp_path: Path):
    train(TrainOptions(n=10, k=4, steps=100), [0], [Run(tmp_path / "first")])
    assert Run(tmp_path / "first").result["accuracy"] == RECOMPUTED["tutorial_accuracy"]


@pytest.mark.slow
def test_recomputed_adamw_run(tmp_path: Path):
    """The run is far from well-trained, although every answer is right."""
    run = Run(tmp_path / "run")
    train(TrainOptions(), [0], [run])
    (found,) = certify(World.of_run(run), ["well-trained"])
    assert run.result["accuracy"] == 1
    assert found.measured == pytest.approx(RECOMPUTED["adamw_delta"], abs=0.005)


@pytest.mark.slow
def test_recomputed_learned_values(tmp_path: Path):
    train(TrainOptions(value="learned"), [0], [Run(tmp_path / "run")])
    values = [float(value) for name, value in Run(tmp_path / "run").weights().items() if name.startswith("value")]
    assert [min(values), max(values)] == pytest.approx(RECOMPUTED["learned_values"], abs=0.005)


def test_the_remainder_has_its_limit():
    """|R| n³ of the exact gradient at a child tends to 2c(2 + π²/2), at speed 1/n."""
    limit = cubed_remainder("limit")
    gaps = [limit - cubed_remainder(n) for n in (256, 1024, 4096)]
    assert all(3.9 < a / b < 4.1 for a, b in itertools.pairwise(gaps))
    gradient = Setting(256, 128).gradients[0]
    remainder = abs(float(gradient.mean[0]) + 2 * gradient.c / 256**2)
    assert cubed_remainder(256) == pytest.approx(remainder * 256**3, rel=1e-9)


@pytest.mark.slow
def test_recomputed_theory():
    assert half(65_536) == pytest.approx(RECOMPUTED["half_65536"], rel=1e-4)
    for n, bound in RECOMPUTED["gradient_bounds"].items():
        found = certified(int(n), "bounded-gradient")
        assert found.bound == pytest.approx(bound, rel=1e-4)
        assert found.measured == pytest.approx(RECOMPUTED["gradient_norm"], abs=0.05)


@pytest.mark.parametrize("path", sorted(LANGUAGE), ids=lambda path: path.stem)
def test_medians_are_those_of_the_seeds(path: Path):
    for row in read(path)["rows"]:
        if "steps_after_explicit" in row and row["stages"] > 1:
            after = [run["after_explicit"] for run in row["each"]]
            all_of_it = [
                None if own is None else run["explicit"] + own for run, own in zip(row["each"], after, strict=True)
            ]
            assert (row["steps_after_explicit"], row["steps_to_99"]) == (lower_median(after), lower_median(all_of_it))


def test_a_setting_of_which_no_run_is_solved():
    assert after_explicit({"runs": [{"exact_match": 0.5, "steps": [100, 200]}]}) == "–"
    assert after_explicit({"runs": [{"exact_match": 1.0, "steps": [100, 200, 31]}]}) == "231"
