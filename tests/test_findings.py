"""docs/findings.md and the README show the stored rows of `internalize compare`, and nothing else."""

import json
import re
from pathlib import Path

import pytest
from tools.findings import PAGES, STORED, filled, tables

ROWS = json.loads(STORED.read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_the_stored_rows(page: Path):
    text = page.read_text(encoding="utf-8")
    assert filled(text, ROWS) == text
    assert "| 20 of 20 |" in text
    assert filled(text.replace("| 20 of 20 |", "| 19 of 20 |"), ROWS) == text  # a changed number would be noticed


def test_every_table_has_its_place():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert sorted(re.findall(r"<!-- table: (.*?) -->", text)) == sorted(tables(ROWS))


def test_what_issue_and_readme_rest_on():
    """None at chance, the others solved on every seed, ICoT as Log-ICoT under AdamW; gates learned on 18 of 20 or more."""
    cost = {(row["n"], row["optimizer"], row["method"]): row for row in ROWS if row["of"] == "curricula"}
    for n, seeds in ((30, 20), (128, 5)):
        assert cost[n, "adamw", "none"]["solved"] == 0
        assert cost[n, "adamw", "none"]["accuracy_high"] < 0.6
        for method in ("cot", "icot", "log-icot"):
            row = cost[n, "adamw", method]
            assert (row["solved"], row["seeds"]) == (seeds, seeds)
        assert cost[n, "adamw", "icot"]["steps_to_99"] == cost[n, "adamw", "log-icot"]["steps_to_99"]
    gates = {(row["n"], row["what"]): row for row in ROWS if row["of"] == "gates"}
    for n in (30, 64):
        for mask in ("level", "causal"):
            assert gates[n, f"gates=learned mask={mask}"]["solved"] >= 18
