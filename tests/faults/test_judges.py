"""The faults happen, and what judges their outcome can say no: a fault that nobody meets would be survived by everybody."""

import json
import random
import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from internalize.commands import cli
from tests.faults import __main__ as campaign
from tests.faults import (
    broken_files,
    command_lines,
    foreign_folders,
    number_edges,
    surroundings,
    wrong_structures,
)
from tests.faults.child_process import NO_FAULT, USUAL, Around, Child, Ended, Fault, compiled
from tests.faults.damages import DAMAGES, run_mark
from tests.faults.harness import Answer, Outcome, complaints, one_line, told
from tests.faults.line_strategies import Line
from tests.faults.sandbox import Sandbox, sandbox
from tests.faults.small_commands import COMMANDS, Undisturbed, content, difference

needs_disk = pytest.mark.skipif(compiled() is None, reason="the disk that fails is C, for Linux")


# Processes


@needs_disk
@pytest.mark.parametrize("name", ["train", "solve", "lm train"])
def test_a_vanished_checkpoint_is_told(tmp_path: Path, name: str):
    """The run starts from the beginning, and says so; it ends with the same bits."""
    command, out = Undisturbed(name, tmp_path), tmp_path / "killed"
    assert command.run(out, Fault("kill", command.ended.calls * 3 // 4)).status is None
    shutil.rmtree(out / "checkpoint")
    ended = command.run(out)
    assert command.wrong(out, ended) is None
    assert f"internalize: {out} has no checkpoint: it starts from the beginning" in told(ended.said)
    assert "starts from the beginning" not in command.ended.said


@needs_disk
def test_the_disk_fails_when_it_is_told_to(tmp_path: Path):
    command, out = Undisturbed("train", tmp_path), tmp_path / "faulty"
    middle = command.ended.calls // 2
    assert command.run(out, Fault("kill", middle)).status is None
    assert not (out / "result.json").exists()
    assert list((out / "checkpoint").iterdir())
    for action, reason in {"full": "No space left", "read-only": "Read-only", "vanish": "No such file"}.items():
        shutil.rmtree(out)
        ended = command.run(out, Fault(action, middle))  # pyright: ignore[reportArgumentType]
        assert ended.status == 2
        assert reason in ended.said or "Input/output error" in ended.said
        assert (tmp_path / "faulty.gone").exists() == (action == "vanish")
        shutil.rmtree(tmp_path / "faulty.gone", ignore_errors=True)
        out.mkdir(exist_ok=True)
    found = dict(command.content)
    assert difference(found, command.content) is None
    metrics = json.loads(json.dumps(found["metrics.jsonl"]))
    metrics[1]["loss"] += 1e-7
    other = {**found, "metrics.jsonl": metrics}
    assert difference(other, command.content) == "metrics.jsonl is not as in an undisturbed run"
    assert difference({**found, "x": b""}, command.content) == "x is left over"
    assert "seconds" in (tmp_path / "train" / "undisturbed" / "result.json").read_text()
    assert "seconds" not in str(content(tmp_path / "train" / "undisturbed"))


def test_one_line():
    path = Path("/x/run")
    progress = "train n=6 k=4 log-icot: 8/8  stage 2/2  loss 1.2\n"
    assert told(progress) == []
    assert one_line(f"{progress}internalize: cannot write /x/run/a: No space left on device\n", path) is None
    assert one_line(f"note\n{progress}internalize: cannot write /x/run: Read-only\n", path, usual="note\n") is None
    for said in ("", "internalize: cannot write: no space\n", "cannot write /x/run\n", "internalize: /x/run\n" * 2):
        assert one_line(said, path), said


def test_faults_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(count: int, seed: int, folder: Path):
        yield from [Outcome("a"), Outcome("b", "all is gone"), *[Outcome("a")] * (count - 2)]

    monkeypatch.setitem(campaign.FAMILIES, "load", [campaign.Part(run, 10, 5)])
    rows = campaign.run_part(("load", 0), 0.5, 0, tmp_path)
    assert [(row["what"], row["tried"], row["survived"], row["lost"]) for row in rows] == [
        ("a", 4, 4, 0),
        ("b", 1, 0, 1),
    ]
    assert "LOST b: all is gone" in capsys.readouterr().out
    monkeypatch.setitem(campaign.FAMILIES, "load", [])
    assert campaign.run_part(("load", 0), 0.5, 0, tmp_path) == rows  # it is not run again
    with pytest.raises(IndexError):
        campaign.run_part(("load", 0), 0.5, 1, tmp_path)


# What a process finds around it


@needs_disk
@pytest.mark.parametrize(
    ("words", "around", "fault", "status", "said"),
    [
        ("predict --n 4 --k 2", Around(("heard", "closed", "heard")), NO_FAULT, 74, "standard output"),
        ("predict --n 4 --k 2", Around(("heard", "full", "heard")), NO_FAULT, 74, "No space"),
        ("predict --n 4 --k 2", Around(("heard", "broken after 0 lines", "heard")), NO_FAULT, 0, ""),
        ("train --n 0", Around(("heard", "heard", "closed")), NO_FAULT, 2, ""),
        ("certify --n 4 --k 2 --threads 9", Around(limits={"threads": 2}), NO_FAULT, 2, "start 2 more threads"),
        ("sweep solve n=4 k=2 --jobs 2 --out OUT", Around(limits={"processes": 0}), NO_FAULT, 71, "cannot start a process"),
        ("train --n 4 --k 2 --steps 1 --out OUT", Around(limits={"files": 0}), NO_FAULT, 0, ""),  # it raises its limit
        ("certify --run OUT", Around(), Fault("unreadable", 1), 2, "Input/output error"),
    ],
)  # fmt: skip
def test_what_a_process_needs_is_taken_from_it(
    words: str, around: Around, fault: Fault, status: int, said: str, tmp_path: Path
):
    if "--run" in words:
        (tmp_path / "config.json").write_text("{}")
    ended = Child(words.replace("OUT", str(tmp_path)).split(), tmp_path, fault, around=around).wait()
    assert (ended.status, said in ended.said) == (status, True), ended
    assert bool(ended.printed) == (around.streams[1] == "heard" and status == 0)


@needs_disk
@pytest.mark.parametrize(
    ("worse", "words"),
    [
        ({"status": 1}, "status 1, not"),
        ({"status": None}, "no end"),
        ({"said": "Traceback"}, "a traceback"),
        ({"printed": "{}"}, "another answer"),
    ],
)
def test_what_a_lost_stream_did_is_seen(worse: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    honest = Undisturbed.run

    def run(self: Undisturbed, out: Path, *more: Any, around: Around = USUAL, **others: Any) -> Ended:
        ended = honest(self, out, *more, **others)
        return ended if around is USUAL else replace(ended, **worse)

    monkeypatch.setattr(Undisturbed, "run", run)
    monkeypatch.setattr(surroundings, "NAMES", ["predict"])
    lost = [lost for _, lost in surroundings.lose_streams("full", 6, 0, tmp_path)]
    assert any(words in line for line in lost)


def test_an_environment_is_changed(tmp_path: Path):
    """The interpreter itself refuses to begin with this one, and the command never sees it."""
    command = Undisturbed.__new__(Undisturbed)
    command.command, command.made, command.more = COMMANDS["a mistake"], tmp_path, ()
    assert surroundings._ask(command, tmp_path / "a", {"PYTHONUTF8": None}, 45.0).status == 2
    assert surroundings._ask(command, tmp_path / "b", {"PYTHONUTF8": "x"}, 45.0).status == 1


# What others put into folders


@needs_disk
@pytest.mark.parametrize(
    ("family", "kind", "harm", "words"),
    [
        (foreign_folders.plant_links, "run folders", "outside-0/new", "changed outside: new"),
        (wrong_structures.change_structures, "run folders", "", "status 70"),
    ],
)
def test_harm_to_folders_is_seen(
    family: Any, kind: str, harm: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    honest = foreign_folders.Subject.ask

    def ask(self: Any, argv: Any, out: Path, *names: str, **more: Any) -> Any:
        ended, wrong = honest(self, ["--help"], out, *names, **more)
        if harm:
            (tmp_path / harm).write_text("x")
            return ended, wrong
        return ended, complaints(argv, Answer(70, "", ""))

    monkeypatch.setattr(foreign_folders.Subject, "ask", ask)
    ((_, lost),) = family(kind, 1, 0, tmp_path)
    assert words in lost


@needs_disk
def test_a_run_that_paper_deletes_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    honest = foreign_folders.Subject.ask

    def ask(self: Any, argv: Any, out: Path, **more: Any) -> Any:
        found = honest(self, argv, out, **more)
        for path in out.glob("runs/success*/result.json"):
            path.unlink()
        return found

    monkeypatch.setattr(foreign_folders.Subject, "ask", ask)
    lost = [lost for _, lost in foreign_folders.visit_report(3, 0, tmp_path)]
    assert any("deleted: result.json" in line for line in lost)


def test_structures_differ():
    """Of a small document there are many others, all of which can be written."""
    document = {"version": 1, "rows": [{"n": 4, "name": "x"}, {"n": 5}], "empty": []}
    found = {wrong_structures._text(wrong_structures.other(document, random.Random(seed))[0]) for seed in range(300)}
    assert len(found) > 100
    assert document == {"version": 1, "rows": [{"n": 4, "name": "x"}, {"n": 5}], "empty": []}
    table = pl.DataFrame({"n": [1, 2], "name": ["x", "y"]})
    assert all(change(table, "n", "new") is not None for change in wrong_structures._TABLES.values())


# Answers


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
def test_bad_answers_are_seen(answer: Answer, names: tuple[str, ...], words: str):
    (found,) = complaints(["train", "--json"], answer, *names)
    assert words in found


# Broken files

WEIGHTS = next(reading for reading in broken_files.READINGS if reading.kind == "weights")


@pytest.fixture
def box(tmp_path: Path):
    """A sandbox with nothing in it but one file."""

    def make_one(made: Path) -> None:
        (made / WEIGHTS.file).parent.mkdir(parents=True)
        (made / WEIGHTS.file).write_bytes(struct.pack("<Q", 2) + b"{}")

    with sandbox(tmp_path, make_one) as box:
        yield box


def test_the_short_version_has_every_damage():
    (part,) = campaign.FAMILIES["files"]
    assert len({damage for damages in DAMAGES.values() for damage in damages.values()}) < part.short


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(0, "", ""), "taken"),
        (Answer(cli.WRONG, "", "internalize: something is damaged\n"), "is named"),
    ],
)
def test_bad_answers_to_broken_files_are_seen(
    answer: Answer, words: str, box: Sandbox, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(broken_files, "ask", lambda argv: answer)
    (found,) = broken_files.wrong_after("empty", WEIGHTS, box, random.Random(0))
    assert words in found


def test_code_and_changes_are_seen(box: Sandbox, monkeypatch: pytest.MonkeyPatch):
    def hostile(argv: object) -> Answer:
        run_mark().mkdir()
        (box.made / WEIGHTS.file).write_text("")
        return Answer(cli.WRONG, "", "internalize: weights.safetensors is damaged\n")

    monkeypatch.setattr(broken_files, "ask", hostile)
    found = broken_files.wrong_after("noise", WEIGHTS, box, random.Random(0))
    assert found == ["refused, and something was changed", "code out of the file was run"]
    assert not run_mark().exists()  # put back for the next
    assert (box.made / WEIGHTS.file).read_bytes() == (box.pristine / WEIGHTS.file).read_bytes()


# Command lines


def test_files_outside_of_out_are_seen(box: Sandbox, monkeypatch: pytest.MonkeyPatch):
    def writes(*paths: Path) -> Callable[[object], Answer]:
        def ask(argv: object) -> Answer:
            for path in paths:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("x")
            return Answer(0, "", "")

        return ask

    line = Line(["train", "--out", "out"], (), True)
    monkeypatch.setattr(command_lines, "ask", writes(box.cwd / "out" / "a" / "b", box.cwd / "runs" / "x"))
    assert command_lines.wrong_of_line(line, box) == []
    for place in (box.cwd / "other", box.home / "x", box.tmp / "x", box.made / "train" / "x"):
        monkeypatch.setattr(command_lines, "ask", writes(place))
        (found,) = command_lines.wrong_of_line(line, box)
        assert str(place) in found
        assert not place.exists()  # put back for the next
    monkeypatch.setattr(command_lines, "ask", lambda argv: Answer(cli.WRONG, "", "internalize: train\n"))
    assert "nothing is wrong" in command_lines.wrong_of_line(line, box)[0]
    monkeypatch.setattr(subprocess, "run", lambda *a, **b: subprocess.CompletedProcess([], 70, "", "Traceback"))
    assert len(command_lines.wrong_of_process(line, box)) == 2


# Numbers


def test_weights_that_are_apart_are_seen(tmp_path: Path):
    def weights(run: Any) -> dict[str, torch.Tensor]:
        return {"W": torch.tensor([0.0, 1e-3 * torch.get_num_threads()]), "V": torch.zeros(1)}

    assert number_edges._apart(lambda run: {"W": torch.zeros(2)}, tmp_path, 0, "") == []
    assert "0.001 apart" in number_edges._apart(weights, tmp_path, 1e-4, "")[0]
    assert number_edges._apart(lambda run: {"W": torch.zeros(2), "V": torch.tensor([torch.nan])}, tmp_path, 1, "")


@pytest.mark.parametrize(
    ("name", "text", "finite"),
    [
        ("a.json", '{"a": 1e308}', True),
        ("a.json", '{"a": NaN}', False),
        ("a.jsonl", '{"a": 1}\n{"a": -Infinity}\n', False),
        ("a.jsonl", '{"a": 1}\n', True),
    ],
)
def test_numbers_that_are_not_finite_are_seen(name: str, text: str, finite: bool, tmp_path: Path):
    (tmp_path / name).write_text(text)
    assert (number_edges.not_finite(tmp_path) == []) == finite


@pytest.mark.parametrize(
    ("check", "worse"),
    [
        (number_edges._solve_verdicts, lambda options: options.dtype == "float64"),
        (number_edges._solve_threads, lambda options: torch.get_num_threads() == 2),
    ],
)
def test_other_verdicts_are_seen(check: number_edges.Check, worse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A solve that succeeds with one dtype, or on one thread, and not with the other."""
    honest = number_edges.solve

    def solve(options: Any) -> Any:
        return honest(replace(options, samples=1 if worse(options) else 50_000, grid="K", link="cosine"))

    monkeypatch.setattr(number_edges, "solve", solve)
    assert check(random.Random(0), tmp_path)
