"""README and docs: Python runs as printed, commands exist, the tutorial's are run, and what a page names exists."""

import re
from pathlib import Path

import pytest

import internalize
from internalize.commands.cli import parse
from internalize.lm.data.tasks import get_task, is_task
from internalize.parity.certificates import STATEMENTS
from tests.asking import call
from tests.documentation_pages import BY_NAME, PAGES, ROOT, commands, python_blocks_and_output
from tests.faults.line_strategies import commands as options_of_commands

BLOCKS = {
    f"{name}-{number}": block
    for name in BY_NAME
    for number, block in enumerate(python_blocks_and_output(BY_NAME[name]), 1)
}
COMMANDS = {
    f"{name}-{number}": words
    for name in BY_NAME
    for number, (words, _) in enumerate(commands(BY_NAME[name].read_text(encoding="utf-8")), 1)
}


@pytest.mark.parametrize("name", BLOCKS)
def test_python_blocks_run(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)  # some write a run
    code, promised = BLOCKS[name]
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    assert printed
    if promised:
        shown = [line for line in printed if not line.startswith("{")]  # a Trainer logs dictionaries
        assert shown == promised.splitlines()


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_are_parsed(name: str):
    """The real parser takes every command: each option exists and takes its value."""
    words = [word for word in COMMANDS[name] if word not in ("…", "--help")]  # --help would hide mistakes before it
    assert callable(parse(words))


def test_tasks_exist():
    """Tasks are parsed after the command line, so they are checked separately."""
    named = {word for words in COMMANDS.values() for word in words if is_task(word)}
    assert len(named) > 5
    for name in named:
        get_task(name, 0)


def test_all_blocks_and_commands_are_found():
    """The patterns find every block and command of every page."""
    for page in PAGES:
        markdown = page.read_text(encoding="utf-8")
        assert len(python_blocks_and_output(page)) == markdown.count("```python"), page
        typed = re.findall(r"^(?: {4})?internalize ", markdown, re.MULTILINE)
        assert len(commands(markdown)) >= len(typed), page
    assert len(BLOCKS) > 10
    assert len(COMMANDS) > 60


def test_other_programs_exist():
    """Targets of make and our own scripts exist, and the commands given to torchrun are ours."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    seen = 0
    for page in PAGES:
        markdown = page.read_text(encoding="utf-8")
        for (target, *_), _status in commands(markdown, "make"):
            assert target in targets, (page, target)
            seen += 1
        for script in re.findall(r"python ((?:tools|benchmarks|tests)/\S+\.py)", markdown):
            assert (ROOT / script).is_file(), (page, script)
            seen += 1
        for words, _status in commands(markdown, "torchrun"):
            assert callable(parse([word for word in words[words.index("--") + 1 :] if word != "…"]))
            seen += 1
    assert seen > 10


@pytest.mark.parametrize("name", BLOCKS)
def test_python_is_not_cut_off(name: str):
    """On a page of 1280 pixels no line is wider than its block, and comments stand above their line."""
    if not name.startswith("README"):  # GitHub has wider blocks
        lines = BLOCKS[name][0].splitlines()
        assert all(len(line) <= 88 for line in lines)
        assert not any(re.search(r"\S +# ", line) for line in lines)


def test_examples_of_tasks_are_what_the_command_prints():
    pairs = re.findall(
        r"^internalize (lm data --data .*)\n(.*\|\|.*)$", BY_NAME["docs/lm/data.md"].read_text("utf-8"), re.MULTILINE
    )
    assert len(pairs) > 3
    for words, line in pairs:
        assert call(words).out == f"{line}\n"


@pytest.mark.parametrize(
    "heading",
    [
        "## The parity wing",
        "### The task, in text",
        "### What it would cost",
        pytest.param("### A first model", marks=pytest.mark.slow),
    ],
)
def test_the_tutorial_runs(heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The commands of each section run one after another in an empty folder, with the statuses that the page states."""
    monkeypatch.chdir(tmp_path)
    markdown = BY_NAME["docs/tutorial.md"].read_text(encoding="utf-8")
    depth = heading.index(" ")
    section = re.split(rf"^#{{2,{depth}}} ", markdown.partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    typed = commands(re.sub(r"`[^`\n]+`", "", section.replace("```", "~~~")).replace("~~~", "```"))
    assert typed
    for words, status in typed:
        call(words, status)


# What a page names

HOUSE = Path(internalize.__file__).parent
STATEMENT_ROWS = re.findall(
    r"^\| `([\w-]+)` \| (.+?) \| .+? \| `(\w+\.\w+)` \| (.+?) \|$",
    BY_NAME["docs/statements.md"].read_text(encoding="utf-8"),
    re.MULTILINE,
)
OTHERS = {"--parts", "--share", "--nnodes", "--rdzv-endpoint", "--no-deps", "--extract"}
"""Options of our scripts, of torchrun and of Python's own tools that occur in prose."""


def test_every_statement_is_on_the_page_in_its_order():
    assert [name for name, *_ in STATEMENT_ROWS] == list(STATEMENTS)


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_names_its_check(name: str):
    ((_, statement, code, lie),) = [row for row in STATEMENT_ROWS if row[0] == name]
    check = STATEMENTS[name].check
    assert code == f"{check.__module__.rpartition('.')[2]}.{check.__name__}"
    assert check.__doc__
    assert statement
    assert lie


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path):
    """Named modules exist, and so do the named files below tests, tools, benchmarks, docs and src."""
    own = {path.name for folder in ("src", "tests", "tools", "benchmarks") for path in (ROOT / folder).rglob("*.*")}
    for name in re.findall(r"`([\w./-]+\.(?:py|c|md|json|csv))`", page.read_text(encoding="utf-8")):
        if name.startswith(("tests/", "tools/", "benchmarks/", "docs/", "src/")):
            assert (ROOT / name).is_file(), name
        elif "/" in name and name.endswith(".py"):
            assert (HOUSE / name).is_file(), name
        elif name.endswith((".py", ".c")):
            assert name in own, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_that_a_page_names_exist(page: Path):
    """Every option in prose is one of our commands."""
    ours = {option.word for options in options_of_commands().values() for option in options} | {"--help"}
    assert len(ours) > 100
    text = re.sub(r"^.*\b(?:ray|torchrun|python)\b.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", text)) - OTHERS <= ours


def test_the_reference_has_every_module_of_both_wings():
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.parent.name == "api")
    listed = re.findall(r"^::: internalize\.([\w.]+)$", pages, re.MULTILINE)
    assert len(listed) == len(set(listed))
    paths = [
        path.relative_to(HOUSE).with_suffix("") for wing in ("parity", "lm") for path in (HOUSE / wing).rglob("*.py")
    ]
    modules = {".".join(path.parts) for path in paths if path.name != "__init__"}
    assert modules - set(listed) == set()
