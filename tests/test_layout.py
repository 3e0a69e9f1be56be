"""The folders show the architecture: imports go one way, and names say where they belong."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import internalize

HOUSE = Path(internalize.__file__).parent
MODULES = sorted(path for path in HOUSE.rglob("*.py") if path != HOUSE / "__main__.py")
SYNTAX = {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}
LOWER_FIRST = [
    "root storage parallel",
    "parity.options parity.task parity.model parity.theory parity.algorithm1 parity.adamw parity.certificates parity.experiments "
    "parity.__init__",
    "lm.model_options lm.options lm.data lm.stages lm.training lm.evaluation lm.probe lm.certificates lm.__init__",
    "bench report commands",
]
ORDER = " ".join(LOWER_FIRST).split()
SAME_ROLE = {"jobs.py", "options.py", "train.py", "world.py"}
"""Files that play the same role in both wings."""


def place(parts: tuple[str, ...]) -> str:
    """Return the folder of a module, given its parts below the package: `parity.task` for parity/task/tree.py."""
    folder = parts[:-1] if len(parts) > 1 else ("root",)
    if folder[0] in ("parity", "lm"):
        return ".".join(parts[:2])
    return folder[0]


def imports() -> set[tuple[str, str]]:
    """Return every import of one folder by another, including late imports and those for types."""
    found: set[tuple[str, str]] = set()
    for path, module in SYNTAX.items():
        own = place(path.relative_to(HOUSE).with_suffix("").parts)
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("internalize."):
                parts = tuple((node.module or "").split(".")[1:])
                is_folder = HOUSE.joinpath(*parts).is_dir()
                found.add((own, place((*parts, "__init__") if is_folder else parts)))
    return {(own, other) for own, other in found if own != other}


def test_every_folder_has_its_place():
    assert {place(path.relative_to(HOUSE).with_suffix("").parts) for path in MODULES} == set(ORDER)


def test_imports_go_one_way():
    found = imports()
    assert len(found) > 50
    assert [pair for pair in sorted(found) if ORDER.index(pair[0]) < ORDER.index(pair[1])] == []


def test_the_wings_know_nothing_of_each_other():
    assert [pair for pair in imports() if {own.split(".")[0] for own in pair} == {"parity", "lm"}] == []


def test_the_root_is_small():
    assert len(list(HOUSE.glob("*.py"))) <= 8


def test_file_names_are_unique():
    """Exceptions are equal roles in the two wings, and a command or figure that presents a module."""
    names = Counter(path.name for path in MODULES if path.name != "__init__.py")
    for name in [name for name, count in names.items() if count > 1]:
        paths = [path.relative_to(HOUSE) for path in MODULES if path.name == name]
        shown = [path for path in paths if path.parts[0] == "commands" or path.parts[:2] == ("report", "figures")]
        modules = [path for path in paths if path not in shown]
        wings = sorted(path.parts[0] for path in modules)
        assert len(modules) == 1 or (name in SAME_ROLE and wings == ["lm", "parity"]), paths


def test_class_names_are_unique():
    nodes = [node for module in SYNTAX.values() for node in ast.walk(module)]
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, count in classes.items() if count > 1] == []


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES}), ids=lambda path: path.name)
def test_a_folder_says_what_lives_there(folder: Path):
    assert len(ast.get_docstring(SYNTAX[folder / "__init__.py"]) or "") > 100
