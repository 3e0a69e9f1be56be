"""The README's code runs as printed."""

import csv
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_blocks_run(number: int, capsys: pytest.CaptureFixture[str]):
    exec(compile(BLOCKS[number], f"README.md, block {number + 1}", "exec"), {})
    assert capsys.readouterr().out


def test_there_is_an_example():
    assert BLOCKS


def test_table_is_what_the_paper_command_printed():
    """Every row of the README's table of sizes against the stored table of `internalize paper`."""
    with (README.parent / "docs" / "results" / "paper-sizes.csv").open(encoding="utf-8") as file:
        measured = {(row["n"], row["k"], row["lr"]): row for row in csv.DictReader(file)}
    text = README.read_text(encoding="utf-8")
    start = text.index("| n | k | learning rate | seeds | solved |")
    rows = [
        [cell.strip(" *") for cell in line.strip("|").split("|")]
        for line in text[start:].split("\n\n")[0].splitlines()[2:]
    ]
    seen = 0
    for n, ks, lr, seeds, solved, attention in rows:
        for k, smallest in zip(ks.removesuffix(" (the paper's)").split(", "), attention.split(", "), strict=True):
            row = measured[n, k, lr]
            assert (seeds.removesuffix(" each"), solved.removesuffix(" each")) == (row["seeds"], row["solved"])
            assert float(smallest) == pytest.approx(float(row["child_attention_min"]), abs=5e-4)
            seen += 1
    assert seen == len(measured)
