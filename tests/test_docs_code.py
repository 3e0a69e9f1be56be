"""The code of README and docs: Python runs as printed, every command is one that the command line takes, the tutorial's are run."""

import re
from pathlib import Path

import pytest

from internalize.commands.cli import main, parse
from internalize.errors import InputError
from internalize.lm.data.tasks import get_task, is_task
from tests.documentation_pages import BY_NAME, PAGES, ROOT, commands, python_blocks, python_blocks_and_output

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
    monkeypatch.chdir(tmp_path)  # some keep a run
    code, promised = BLOCKS[name]
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    assert printed
    if promised:
        assert [
            line for line in printed if not line.startswith("{")
        ] == promised.splitlines()  # a Trainer logs dictionaries


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_are_ones_that_we_have(name: str):
    """Parsed by the real parser: every command and option exists, every value is one that it takes."""
    words = [word for word in COMMANDS[name] if word not in ("…", "--help")]  # help would hide what is wrong before it
    assert callable(parse(words))


def test_tasks_are_ones_that_we_have():
    """A task is read after the command line is."""
    named = {word for words in COMMANDS.values() for word in words if is_task(word)}
    assert len(named) > 5
    for name in named:
        get_task(name, 0)


def test_the_parser_would_notice():
    for words in (["train", "--nn", "3"], ["lm", "trane"], ["lm", "train", "--method", "icott"]):
        with pytest.raises(InputError):
            parse(words)


def test_there_are_blocks_and_commands_to_check():
    """Of every kind, and on every page that has any: what is searched for is what is there."""
    for page in PAGES:
        markdown = page.read_text(encoding="utf-8")
        assert len(python_blocks(page)) == markdown.count("```python"), page
        typed = re.findall(r"^(?: {4})?internalize ", markdown, re.MULTILINE)
        assert len(commands(markdown)) >= len(typed), page
    assert len(BLOCKS) > 15
    assert len(COMMANDS) > 60


def test_other_programs_are_there():
    """Targets of make, our own scripts, and what a launcher is asked to run."""
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
    """On a page of 1280 pixels: no line is wider than its block, and comments stand above their line."""
    if not name.startswith("README"):  # GitHub shows it wider
        lines = BLOCKS[name][0].splitlines()
        assert all(len(line) <= 88 for line in lines)
        assert not any(re.search(r"\S +# ", line) for line in lines)


def test_examples_of_tasks_are_what_the_command_prints(capsys: pytest.CaptureFixture[str]):
    pairs = re.findall(
        r"^internalize (lm data --data .*)\n(.*\|\|.*)$", BY_NAME["docs/lm/data.md"].read_text("utf-8"), re.MULTILINE
    )
    assert len(pairs) > 3
    for words, line in pairs:
        assert main(words.split()) == 0
        assert capsys.readouterr().out == f"{line}\n"


@pytest.mark.parametrize(
    "heading",
    [
        "## The parity wing",
        "### The task, in text",
        "### What it would cost",
        pytest.param("### A first model", marks=pytest.mark.slow),
    ],
)
def test_the_tutorial_goes_as_it_says(heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its commands one after another, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    markdown = BY_NAME["docs/tutorial.md"].read_text(encoding="utf-8")
    depth = heading.index(" ")
    section = re.split(rf"^#{{2,{depth}}} ", markdown.partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    typed = commands(re.sub(r"`[^`\n]+`", "", section.replace("```", "~~~")).replace("~~~", "```"))
    assert typed
    for words, status in typed:
        assert main(words) == status, words
