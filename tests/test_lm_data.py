"""The command `internalize lm data`."""

import json
from pathlib import Path

import pytest

from internalize.commands.cli import parse
from internalize.errors import InputError
from internalize.lm.data.readers import from_dataset, read_examples, text_line
from internalize.lm.data.source import open_source
from internalize.lm.data.tasks import TASKS
from tests.test_lm_readers import BAD_TEXT


def run(*argv: str) -> int:
    return parse(["lm", "data", *argv])()


def test_command_prints_examples(capsys: pytest.CaptureFixture[str]):
    assert run("--data", "multiply:digits=4") == 0
    lines = capsys.readouterr().out.splitlines()
    source = open_source("multiply:digits=4", 0)
    assert lines == [text_line(source.train(position)) for position in range(10)]
    assert run("--data", "parity:seed=4", "--count", "3", "--stream", "validation", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["data"] == "parity:n=16,k=8,seed=4"
    assert from_dataset(found["examples"]) == open_source("parity", 4, held_out=3).validation


def test_command_writes_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "test.jsonl"
    assert run("--data", "parity", "--count", "20", "--stream", "test", "--out", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["count"] == 20
    assert read_examples(path) == open_source("parity", 0).test(20)
    assert run("--check", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "file": str(path),
        "examples": 20,
        "problems": 0,
        "steps": 120,
        "longest_chain": 6,
        "levels_from": "given",
        "levels": 2,
        "bad": [],
    }
    text = tmp_path / "test.txt"
    assert run("--data", "multiply", "--out", str(text)) == 0
    assert "text keeps neither levels nor steps" in capsys.readouterr().err
    assert len(text.read_text().splitlines()) == 10
    assert run("--check", str(text)) == 0
    assert "steps of the longest chain  46" in capsys.readouterr().out


def test_command_lists_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"\n".join(line for line, _ in BAD_TEXT.values()))
    assert run("--check", str(path)) == 1
    shown = capsys.readouterr().out
    assert run("--check", str(path), "--json") == 1
    bad = json.loads(capsys.readouterr().out)["bad"]
    assert [problem["line"] for problem in bad] == list(range(1, len(BAD_TEXT) + 1))
    assert all(problem["reason"] in shown for problem in bad)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "give --data SPEC to write examples, or --check FILE"),
        (["--data", "parity", "--check", "x"], "give --data SPEC"),
        (["--check", "x", "--count", "3"], "--out and --count belong to --data"),
        (["--check", "no-such-file"], "cannot read no-such-file"),
        (["--data", "parity", "--count", "0"], "count=0 must be at least 1"),
        (["--data", "some.txt"], "'some.txt' is not a task"),
        (["--data", "parity", "--out", "no/such/folder.txt"], "cannot write"),
        (["--data", "parity", "--out", ""], "--out . is a folder; name a file"),
    ],
)
def test_command_refuses(argv: list[str], said: str):
    with pytest.raises(InputError, match=said):
        run(*argv)


def test_help_names_every_task(capsys: pytest.CaptureFixture[str]):
    assert run("--help") == 0
    shown = capsys.readouterr().out
    for name in TASKS:
        assert f"{name}:" in shown
