"""Stored results are shown with their command and date, and `paper --full` replaces them."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from internalize.commands import cli, paper
from internalize.commands.cli import parse
from internalize.errors import InputError
from internalize.parallel.interrupt import Interrupted
from internalize.report import stored as results
from internalize.report.stored import FOLDER, STORED, parts
from internalize.storage.summaries import ROWS
from tests.spoiling import spoiled


@pytest.mark.parametrize("stored", STORED, ids=lambda stored: stored.name)
def test_commands_are_ours_and_files_are_there(stored):
    assert (FOLDER / stored.file).is_file()
    assert stored.date.startswith("20")
    if stored.arguments is not None:  # as --full runs it
        command = parse([*stored.arguments, "--jobs", "1", "--out", "x", "--resume"])
        assert getattr(command, "command", command).resume


def test_missing_results_are_left_out_and_new_ones_replace_stored(tmp_path: Path, monkeypatch):
    simplifications = next(stored for stored in STORED if stored.name == "simplifications")
    monkeypatch.setattr(results, "STORED", (simplifications, replace(simplifications, name="no", file="no.json")))
    (part,) = parts(tmp_path)
    assert (part.computed, part.date) == (False, simplifications.date)
    (row, *_) = [row for row in json.loads((FOLDER / "compare.json").read_text())["rows"] if row["of"] == part.of.name]
    assert part.tables[0].body[0][0] == row["what"]
    made = tmp_path / "simplifications" / "rows.json"
    made.parent.mkdir()
    made.write_text(json.dumps({"rows": [row | {"what": "mine"}]}))
    (part,) = parts(tmp_path)
    assert part.computed
    assert [line[0] for line in part.tables[0].body] == ["mine"]
    made.write_text('{"rows": [{}]}')
    with pytest.raises(InputError, match=re.escape(f"{made}: rows[0]: object missing required field `of`")):
        parts(tmp_path)
    made.write_text('{"rows": []}')
    (part,) = parts(tmp_path)
    assert part.tables[0].body == ()


@pytest.mark.parametrize(
    "stored", [own for own in STORED if own.arguments and own.makes == ROWS], ids=lambda stored: stored.name
)
def test_rows_are_shown_or_refused_in_one_line(stored: results.Stored, tmp_path: Path, monkeypatch):
    """Whatever is wrong in a row, there is a page, or one line that names the file."""
    made = tmp_path / stored.name / ROWS
    made.parent.mkdir()
    whole = json.loads((FOLDER / stored.file).read_text())["rows"]
    whole = [{name: own for name, own in row.items() if name not in ("each", "tried")} for row in whole]  # not shown
    mine = [row for row in whole if row.get("of") in (None, stored.name)]
    own = list({row.get("optimizer", row.get("by")): row for row in mine}.values())
    if stored.name == "latency":  # every way to answer needs all batch sizes
        own = [row for row in whole if row["of"] == "latency" and row["k"] == 2]
    drawn = 0

    def show(found: Any) -> results.Shown:
        """Draw only what may fail and some of the rest, because drawing is slow."""
        nonlocal drawn
        drawn += 1
        return stored.show(found) if drawn < 12 or "$" in place else ((), ())

    monkeypatch.setattr(results, "STORED", [replace(stored, show=show)])
    for place, changed in [("", own), *spoiled(own[:1])]:
        made.write_text(json.dumps({"rows": [*changed, *own[1:]] if isinstance(changed, list) else changed}))
        try:
            (part,) = parts(tmp_path)
        except InputError as error:
            assert str(made) in str(error), place  # noqa: PT017  (some are taken)
            continue
        for drawing in part.drawings if "$" in place else ():
            drawing.content()
    assert drawn > (2 if stored.name == "latency" else 12)  # every column of a latency row has a type that refuses most


class MadeUp:
    """A command that ends as a function says."""

    def __init__(self, ends: Callable[[], int]) -> None:
        self.ends = ends

    def __call__(self) -> int:
        print("not for our reader")
        return self.ends()


def full(monkeypatch: pytest.MonkeyPatch, out: Path, ends: Callable[[], int]) -> list[list[str]]:
    """Run `paper --full` with made-up commands, and return their words."""
    seen: list[list[str]] = []
    monkeypatch.setattr(cli, "parse", lambda words: seen.append(words) or MadeUp(ends))
    paper._run_stored_commands(out, 2)
    return seen


def test_full_runs_every_command_of_ours(tmp_path: Path, monkeypatch, capsys):
    seen = full(monkeypatch, tmp_path, lambda: 0)
    ours = [stored for stored in STORED if stored.arguments is not None]
    assert len(seen) == len(ours) < len(STORED)
    for words, stored in zip(seen, ours, strict=True):
        assert words == [*(stored.arguments or []), "--jobs", "2", "--out", str(tmp_path / stored.name), "--resume"]
    said = capsys.readouterr()
    assert not said.out
    assert len(said.err.splitlines()) == len(STORED)


def test_full_stops_with_the_command_that_fails(tmp_path: Path, monkeypatch):
    with pytest.raises(InputError, match="ended with status 2"):
        full(monkeypatch, tmp_path, lambda: 2)

    def interrupted() -> int:
        raise Interrupted("the same command with --out full/phase --resume continues")

    with pytest.raises(Interrupted, match="^the same command continues$"):
        full(monkeypatch, tmp_path, interrupted)
