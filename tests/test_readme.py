"""Tables of the README and of docs/language-models.md against what is stored, where tools/findings.py does not write them."""

import csv
import re
from pathlib import Path

import pytest
from tools.results import path_of, stored

from internalize.parity.algorithm1.solve import solve
from internalize.parity.options import SolveOptions
from internalize.parity.theory.prediction import Setting, predict

README = Path(__file__).parents[1] / "README.md"


def test_table_is_what_the_paper_command_printed():
    """Every row of the README's table of sizes against the stored table of `internalize paper`."""
    with path_of("paper-sizes.csv").open(encoding="utf-8") as file:
        measured = {(row["n"], row["k"], row["lr"]): row for row in csv.DictReader(file)}
    seen = 0
    for row in cells(README, "| n | k | learning rate | seeds | solved |"):
        n, ks, lr, seeds, solved, attention = (cell.strip(" *") for cell in row)
        for k, smallest in zip(ks.removesuffix(" (the paper's)").split(", "), attention.split(", "), strict=True):
            found = measured[n, k, lr]
            assert (seeds.removesuffix(" each"), solved.removesuffix(" each")) == (found["seeds"], found["solved"])
            assert float(smallest) == pytest.approx(float(found["child_attention_min"]), abs=5e-4)
            seen += 1
    assert seen == len(measured)


def test_speed_of_generation_is_what_was_measured():
    """docs against the stored rows of benchmarks/lm_generation.py."""
    ratios = stored("lm-generation")["rows"]
    table = cells(README.parent / "docs" / "language-models.md", "| task | chain | ratio |")
    assert [(row[0], row[1], row[2]) for row in table] == [
        (r["task"], r["chain"], f"{r['median']:.1f} ({r['low']:.1f} – {r['high']:.1f})") for r in ratios
    ]


def test_numbers_in_blocks_of_code():
    """Where a marker would be shown: the time of `make paper`, and what Python prints, in comments."""
    text = README.read_text(encoding="utf-8")
    (paper,) = stored("paper-time")["rows"]
    assert re.findall(r"^make paper .* (\d+) s on (\w+) cores", text, re.MULTILINE) == [
        (f"{paper['seconds']:.0f}", "two")
    ]
    assert paper["processes"] == 2
    assert re.findall(r"^print\(predict.* (\d+)$", text, re.MULTILINE) == [str(predict(Setting(n=30, k=16)).samples_50)]
    result = solve(SolveOptions(n=30, k=16, seed=0))
    printed = f"{result.exact_recovery} {result.max_error <= 1e-6}"
    assert re.findall(r"^print\(result.exact_recovery.* # (.*)$", text, re.MULTILINE) == [printed]


def cells(page: Path, header: str) -> list[list[str]]:
    """The rows of the table that begins with that header."""
    text = page.read_text(encoding="utf-8")
    lines = text[text.index(header) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
