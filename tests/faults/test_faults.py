"""The campaign in small: every family with some faults, by the same code as `make faults`."""

import json
from pathlib import Path

import pytest

from tests.faults.__main__ import FAMILIES, Part, store, table
from tests.faults.child_process import compiled
from tests.faults.harness import ask, complaints
from tests.faults.line_strategies import TINY, commands
from tests.faults.number_edges import not_finite
from tests.faults.small_commands import COMMANDS

SHORT = [
    pytest.param(part, id="-".join([family, *map(str, getattr(part.run, "args", ())[-1:])]))
    for family, parts in FAMILIES.items()
    for part in parts
    if part.short
]


@pytest.mark.parametrize("part", SHORT)
def test_faults_are_survived(part: Part, request: pytest.FixtureRequest, tmp_path: Path):
    family = request.node.callspec.id.partition("-")[0]
    if family not in ("files", "lines", "numbers") and compiled() is None:
        pytest.skip("what refuses and fails is C, for Linux")
    outcomes = list(part.run(part.short, 1, tmp_path))
    assert [outcome.lost for outcome in outcomes if outcome.lost] == []
    assert len({outcome.row for outcome in outcomes}) == {"files": 6, "lines": 3}.get(family, 1)
    assert len(outcomes) == part.short + (family == "lines")  # and one as a process


def test_every_family_and_command_has_its_faults():
    assert all(any(part.short for part in parts) for parts in FAMILIES.values())
    assert all(part.long >= part.short for parts in FAMILIES.values() for part in parts)
    lines = [own.words.split() for own in COMMANDS.values()]
    assert [path for path in commands() if not any(words[: len(path)] == list(path) for words in lines)] == []


def test_every_option_is_known():
    found = commands()
    assert found.keys() == TINY.keys()
    assert {"n", "k", "curriculum", "lr", "out", "resume", "json"} <= {option.name for option in found[("train",)]}
    assert [option.name for option in found[("sweep", "solve")] if option.positional] == ["grid"]
    assert "method" not in {option.name for option in found[("lm", "plan")]}  # asked for by --methods


TRAIN = "--steps 3 --eval-every 1 --eval-samples 20"


@pytest.mark.parametrize(
    "line",
    [
        "solve --n 2 --k 2",
        "solve --n 8 --k 8",
        "solve --n 8 --k 4 --samples 1",
        "solve --n 8 --k 4 --K 200",
        "predict --n 2 --k 2",
        "predict --n 8 --k 4 --K 200",
        f"train --n 2 --k 2 --batch 1 {TRAIN}",
        f"train --n 8 --k 8 --batch 1 {TRAIN}",
        f"train --n 8 --k 8 --batch 20 --gates learned {TRAIN}",
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_edges_by_name(line: str, dtype: str, tmp_path: Path):
    """Of those that `numbers` draws: every one of them, whatever the seed."""
    words = [] if line.startswith("predict") else ["--dtype", dtype]
    answer = ask([*line.split(), *words, "--out", str(tmp_path / "run"), "--json"])
    assert complaints(["--json"], answer) == []
    assert answer.status in ((0, 1) if "--samples 1" in line else (0,))
    assert list(tmp_path.rglob("*.json"))
    assert not_finite(tmp_path) == []


def test_table_and_store(tmp_path: Path):
    row = {"family": "load", "what": "load", "tried": 3, "survived": 2, "lost": 1, "seconds": 0.4}
    assert table([row, {**row, "what": "more"}]).splitlines()[-1].split() == ["all", "6", "4", "2", "1"]
    path = tmp_path / "faults.json"
    store([row], 0, path)
    store([{**row, "family": "kills"}, {**row, "family": "kills", "tried": 9}], 5, path)
    store([{**row, "tried": 4}], 5, path)
    found = json.loads(path.read_text())
    assert [(own["family"], own["tried"]) for own in found["rows"]] == [("kills", 3), ("kills", 9), ("load", 4)]
    assert (found["seed"], found["seconds"]) == (5, 1.2)
