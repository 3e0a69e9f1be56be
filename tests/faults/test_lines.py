"""The short version of the campaign of command lines, and that its judge can say no."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from internalize.commands import cli
from tests.faults import lines
from tests.faults.asking import Answer, complaints
from tests.faults.words import TINY, Line, commands


def test_generated_lines(tmp_path: Path):
    for tally in lines.campaign(75, seed=0, folder=tmp_path):
        assert not tally.lost, "\n".join(tally.lost)
        assert tally.tried, tally.what


def test_every_option_is_known():
    found = commands()
    assert found.keys() == TINY.keys()
    assert {"n", "k", "curriculum", "lr", "out", "resume", "json"} <= {option.name for option in found[("train",)]}
    assert [option.name for option in found[("sweep", "solve")] if option.positional] == ["grid"]
    assert "method" not in {option.name for option in found[("lm", "plan")]}  # asked for by --methods


@pytest.mark.parametrize(
    ("answer", "names", "words"),
    [
        (Answer(3, "", ""), (), "status 3"),
        (Answer(cli.BUG, "", "", "ZeroDivisionError"), (), "ZeroDivisionError"),
        (Answer(cli.WRONG, "", "n=0 is wrong\n"), (), "not a line that says why"),
        (Answer(cli.WRONG, "", "Warning: old\ninternalize: n=0 is wrong\n"), (), "not a line that says why"),
        (Answer(cli.WRONG, "", ""), (), "not a line that says why"),
        (Answer(cli.WRONG, "", "internalize: k=3\n"), ("n=",), "is named"),
        (Answer(cli.WRONG, "{}", "internalize: k=3\n"), (), "on standard output"),
        (Answer(0, "{}\n{}", ""), (), "not JSON"),
        (Answer(0, '{"a": NaN}', ""), (), "not JSON"),
        (Answer(0, "[1]", ""), (), "no JSON object"),
    ],
)
def test_the_judge_bites(answer: Answer, names: tuple[str, ...], words: str):
    (found,) = complaints(["train", "--json"], answer, *names)
    assert words in found


def test_the_judge_sees_what_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "make", lambda folder: (folder / "train").mkdir(parents=True))
    own = tmp_path / "cwd", tmp_path / "home", tmp_path / "tmp"
    for room in own:
        room.mkdir()
    monkeypatch.chdir(own[0])
    asked = lines.Asked(tmp_path, own)

    def writes(*paths: Path) -> Any:
        def ask(argv: object) -> Answer:
            for path in paths:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("x")
            return Answer(0, "", "")

        return ask

    line = Line(["train", "--out", "out"], (), True)
    monkeypatch.setattr(lines, "ask", writes(own[0] / "out" / "a" / "b", own[0] / "runs" / "x"))
    assert asked.answer(line) == []
    for place in (own[0] / "other", own[1] / "x", own[2] / "x", tmp_path / "made" / "train" / "x"):
        monkeypatch.setattr(lines, "ask", writes(place))
        (found,) = asked.answer(line)
        assert str(place) in found
        assert not place.exists()  # put back for the next
    monkeypatch.setattr(lines, "ask", lambda argv: Answer(cli.WRONG, "", "internalize: train\n"))
    assert "nothing is wrong" in asked.answer(line)[0]
    monkeypatch.setattr(subprocess, "run", lambda *a, **b: subprocess.CompletedProcess([], 70, "", "Traceback"))
    assert len(asked.as_process(line)) == 2
