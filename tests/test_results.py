"""Stored results: shown with their command and date, replaced by what `paper --full` made."""

import json
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from internalize.commands.cli import _parse
from internalize.errors import InputError
from internalize.parallel.interrupt import Interrupted
from internalize.report import full
from internalize.report import stored as results
from internalize.report.stored import FOLDER, STORED, parts


@pytest.mark.parametrize("stored", STORED, ids=lambda stored: stored.name)
def test_commands_are_ours_and_files_are_there(stored):
    assert (FOLDER / stored.file).is_file()
    assert stored.date.startswith("20")
    if stored.arguments is not None:  # as --full runs it
        command = _parse([*stored.arguments, "--jobs", "1", "--out", "x", "--resume"])
        assert getattr(command, "command", command).resume


def test_missing_is_left_out_and_full_takes_the_place(tmp_path: Path, monkeypatch):
    simplifications = next(stored for stored in STORED if stored.name == "simplifications")
    monkeypatch.setattr(results, "STORED", (simplifications, replace(simplifications, name="no", file="no.json")))
    (part,) = parts(tmp_path)
    assert (part.computed, part.date) == (False, simplifications.date)
    (row, *_) = [row for row in json.loads((FOLDER / "compare.json").read_text())["rows"] if row["of"] == part.of.name]
    assert part.shown.tables[0].body[0][0] == row["what"]
    made = tmp_path / "simplifications" / "rows.json"
    made.parent.mkdir()
    made.write_text(json.dumps({"rows": [row | {"what": "mine"}]}))
    (part,) = parts(tmp_path)
    assert part.computed
    assert [line[0] for line in part.shown.tables[0].body] == ["mine"]
    made.write_text('{"rows": [{}]}')
    with pytest.raises(InputError, match=f"{made} is not what `internalize compare --of simplifications"):
        parts(tmp_path)


def test_a_stored_file_that_cannot_be_shown_is_a_bug_of_ours(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(results, "STORED", [stored for stored in STORED if stored.name == "simplifications"])
    (tmp_path / "compare.json").write_text('{"rows": [{}]}')
    with pytest.raises(KeyError, match="of"):
        parts(tmp_path / "full")


def test_full_runs_every_command_of_ours(tmp_path: Path, monkeypatch):
    seen: list[list[str]] = []
    monkeypatch.setattr(full, "_run", lambda argv: seen.append(argv) or 0)
    said: list[str] = []
    full.run_full(tmp_path, 2, said.append)
    ours = [stored for stored in STORED if stored.arguments is not None]
    assert len(seen) == len(ours) < len(STORED) == len(said)
    for argv, stored in zip(seen, ours, strict=True):
        end = ["--jobs", "2", "--out", str(tmp_path / stored.name), "--resume"]
        assert argv == [sys.executable, "-m", "internalize", *(stored.arguments or []), *end]
    monkeypatch.setattr(full, "_run", lambda argv: 2)
    with pytest.raises(InputError, match="ended with status 2"):
        full.run_full(tmp_path, 2)


def test_full_waits_for_what_it_runs():
    assert full._run([sys.executable, "-c", "import sys; sys.exit(3)"]) == 3


def test_full_stops_what_it_runs_and_waits_for_it(tmp_path: Path):
    saved = tmp_path / "saved"
    script = (
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(saved)!r}, 'w').close(), sys.exit(130)))\n"
        "time.sleep(60)"
    )
    asked = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    asked.start()
    with pytest.raises(Interrupted, match="the same command goes on"):
        full._run([sys.executable, "-c", script])
    assert saved.exists()
