"""The house is as docs/layout.md and the README say: who may import whom, and which file is where."""

import ast
import re
from pathlib import Path

import internalize
from tests.pages import BY_NAME

HOUSE = Path(internalize.__file__).parent
MODULES = sorted(HOUSE.rglob("*.py"))
ROWS = [
    re.findall(r"`(\w+)`", row)
    for row in re.findall(
        r"^\| [a-z ]+ \| (`.*`) \|$", BY_NAME["docs/layout.md"].read_text(encoding="utf-8"), re.MULTILINE
    )
]
FLOOR = {name: floor for floor, row in enumerate(ROWS) for name in row}


def room(module: str) -> str:
    """The part of the house that a module is in: `internalize.parity.task.tree` is in parity."""
    return module.split(".")[1]


def imports() -> set[tuple[str, str]]:
    """Every import of one part by another, late ones and those for types included."""
    found: set[tuple[str, str]] = set()
    for path in MODULES:
        own = path.relative_to(HOUSE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("internalize."):
                found.add((own, room(node.module or "")))
    return {(own, other) for own, other in found if own not in (other, "__init__", "__main__")}


def test_every_part_has_its_floor():
    parts = {path.relative_to(HOUSE).parts[0].removesuffix(".py") for path in MODULES} - {"__init__", "__main__"}
    assert sorted(name for row in ROWS for name in row) == sorted(parts)


def test_imports_go_down():
    assert len(imports()) > 50
    assert [pair for pair in sorted(imports()) if FLOOR[pair[0]] < FLOOR[pair[1]]] == []


def test_the_wings_know_nothing_of_each_other():
    assert not imports() & {("parity", "lm"), ("lm", "parity")}
