"""The short version of the campaign of broken files, and one check each that the long one's judge can say no."""

import random
import struct
from pathlib import Path

import pytest

from internalize.commands import cli
from tests.faults import files
from tests.faults.asking import Answer
from tests.faults.damages import DAMAGES
from tests.faults.files import READINGS, Reading


def test_broken_files(tmp_path: Path):
    """Every kind of damage at least once, for they come in turn."""
    assert len({damage for damages in DAMAGES.values() for damage in damages.values()}) < 60
    for tally in files.campaign(60, seed=0, folder=tmp_path):
        assert not tally.lost, "\n".join(tally.lost)
        assert tally.tried, tally.what


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(0, "", ""), "taken"),
        (Answer(cli.WRONG, "", "internalize: something is damaged\n"), "is named"),
        (Answer(cli.WRONG, "", "weights.safetensors\n"), "not a line that says why"),
        (Answer(cli.BUG, "", "", "KeyError: 'cell'"), "KeyError"),
    ],
)
def test_the_judge_bites(answer: Answer, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reading = next(reading for reading in READINGS if reading.kind == "weights")
    monkeypatch.setattr(files, "ask", lambda argv: answer)
    found = _broken(tmp_path, reading, monkeypatch).answer(reading, "empty", random.Random(0))
    assert len(found) == 1
    assert words in found[0]


def test_the_judge_sees_code_and_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reading = next(reading for reading in READINGS if reading.kind == "weights")

    def hostile(argv: object) -> Answer:
        files.run_mark().mkdir()
        (tmp_path / "made" / reading.file).write_text("")
        return Answer(cli.WRONG, "", "internalize: weights.safetensors is damaged\n")

    monkeypatch.setattr(files, "ask", hostile)
    found = _broken(tmp_path, reading, monkeypatch).answer(reading, "noise", random.Random(0))
    assert found == ["refused, and something was changed", "code out of the file was run"]


def _broken(folder: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch) -> files.Broken:
    """Rooms with nothing in them but the one file."""

    def make_one(made: Path) -> None:
        (made / reading.file).parent.mkdir(parents=True)
        (made / reading.file).write_bytes(struct.pack("<Q", 2) + b"{}")

    monkeypatch.setattr(files, "make", make_one)
    (folder / "cwd").mkdir()
    monkeypatch.chdir(folder / "cwd")
    return files.Broken(folder, folder / "cwd")
