"""What the pages name is there: statements with their checks, files, options, modules of the reference."""

import re
from pathlib import Path

import pytest

import internalize
from internalize.parity.certificates import STATEMENTS
from tests.documentation_pages import BY_NAME, PAGES, ROOT
from tests.faults.line_strategies import commands

HOUSE = Path(internalize.__file__).parent
STATEMENT_ROWS = re.findall(
    r"^\| `([\w-]+)` \| (.+?) \| .+? \| `(\w+\.\w+)` \| (.+?) \|$",
    BY_NAME["docs/statements.md"].read_text(encoding="utf-8"),
    re.MULTILINE,
)
OTHERS = {"--parts", "--share", "--nnodes", "--rdzv-endpoint"}
"""Options of our scripts and of torchrun that stand in prose."""


def test_every_statement_is_on_the_page_in_its_order():
    assert [name for name, *_ in STATEMENT_ROWS] == list(STATEMENTS)


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_goes_to_its_check(name: str):
    ((_, statement, code, lie),) = [row for row in STATEMENT_ROWS if row[0] == name]
    check = STATEMENTS[name].check
    assert code == f"{check.__module__.rpartition('.')[2]}.{check.__name__}"
    assert check.__doc__
    assert statement
    assert lie


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page: Path):
    """Of ours: modules by their name or path, and whatever is below tests, tools, benchmarks, docs or src."""
    own = {path.name for folder in ("src", "tests", "tools", "benchmarks") for path in (ROOT / folder).rglob("*.*")}
    for name in re.findall(r"`([\w./-]+\.(?:py|c|md|json|csv))`", page.read_text(encoding="utf-8")):
        if name.startswith(("tests/", "tools/", "benchmarks/", "docs/", "src/")):
            assert (ROOT / name).is_file(), name
        elif "/" in name and name.endswith(".py"):
            assert (HOUSE / name).is_file(), name
        elif name.endswith((".py", ".c")):
            assert name in own, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_that_a_page_names_are_there(page: Path):
    """Of any command of ours, in the midst of prose; those of whole command lines are parsed by test_docs_code.py."""
    ours = {option.word for options in commands().values() for option in options} | {"--help"}
    assert len(ours) > 100
    text = re.sub(r"^.*\b(?:ray|torchrun|python)\b.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", text)) - OTHERS <= ours


def test_the_reference_has_every_module_of_both_wings():
    listed = [
        module
        for page in PAGES
        if page.parent.name == "api"
        for module in re.findall(r"^::: internalize\.([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(listed) == len(set(listed))
    paths = [
        path.relative_to(HOUSE).with_suffix("") for wing in ("parity", "lm") for path in (HOUSE / wing).rglob("*.py")
    ]
    modules = {".".join(path.parts) for path in paths if path.name != "__init__"}
    assert modules - set(listed) == set()
