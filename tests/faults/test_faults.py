"""The campaign in small: every family with some faults, by the same code as `make faults`; and what makes the faults bites."""

import json
import shutil
from pathlib import Path

import pytest

from tests.faults import kills, load, together, writes
from tests.faults.__main__ import store, table
from tests.faults.alone import Alone
from tests.faults.children import Fault, compiled
from tests.faults.commands import COMMANDS, content, difference, one_line, told
from tests.faults.tally import Tally

pytestmark = pytest.mark.skipif(compiled() is None, reason="the disk that fails is C, for Linux")


def check(tally: Tally, tried: int) -> None:
    assert tally.lost == []
    assert tally.tried == tally.survived == tried


KILLS = {"train": 4, "train --seeds": 4, "solve": 3, "sweep solve": 4, "sweep train": 4, "paper": 1, "lm train": 2}
WRITES = {"train": 4, "solve": 3, "sweep solve": 4, "compare": 2, "lm train": 3, "lm data": 3}
MEETINGS = {"train": 2, "sweep solve": 2, "lm train": 1}


@pytest.mark.parametrize("name", KILLS)
def test_kills(tmp_path: Path, name: str):
    check(kills.kill(name, KILLS[name], 1, tmp_path), KILLS[name])


@pytest.mark.parametrize("name", WRITES)
def test_failed_writes(tmp_path: Path, name: str):
    check(writes.fail(name, WRITES[name], 1, tmp_path), WRITES[name])


@pytest.mark.parametrize("name", MEETINGS)
def test_two_processes(tmp_path: Path, name: str):
    check(together.meet(name, MEETINGS[name], 1, tmp_path), MEETINGS[name])


def test_load(tmp_path: Path):
    (tally,) = load.campaign(300, 0, tmp_path)
    check(tally, 300)


@pytest.mark.parametrize("name", ["train", "solve", "lm train"])
def test_a_vanished_checkpoint_is_told(tmp_path: Path, name: str):
    """The run begins anew, and says so; it ends with the same bits."""
    alone, out = Alone.of(name, tmp_path), tmp_path / "killed"
    assert alone.run(out, Fault("kill", alone.whole.calls * 3 // 4)).status is None
    shutil.rmtree(out / "checkpoint")
    ended = alone.run(out)
    assert alone.wrong(out, ended) is None
    assert f"internalize: {out} has no checkpoint to go on from: it begins anew" in told(ended.said)
    assert "begins anew" not in alone.whole.said


# The faults themselves


def test_the_disk_fails_when_it_is_told_to(tmp_path: Path):
    """A fault that nobody meets would be survived by everybody."""
    alone = Alone.of("train", tmp_path)
    middle = alone.whole.calls // 2
    out = tmp_path / "faulty"
    assert alone.run(out, Fault("kill", middle)).status is None
    assert not (out / "result.json").exists()
    assert list((out / "checkpoint").iterdir())
    for action, reason in {"full": "No space left", "read-only": "Read-only", "vanish": "No such file"}.items():
        shutil.rmtree(out)
        ended = alone.run(out, Fault(action, middle))  # pyright: ignore[reportArgumentType]
        assert ended.status == 2
        assert reason in ended.said or "Input/output error" in ended.said
        assert (tmp_path / "faulty.gone").exists() == (action == "vanish")
        shutil.rmtree(tmp_path / "faulty.gone", ignore_errors=True)
        out.mkdir(exist_ok=True)
    found = dict(alone.content)
    assert difference(found, alone.content) is None
    metrics = json.loads(json.dumps(found["metrics.jsonl"]))
    metrics[1]["loss"] += 1e-7
    assert (
        difference({**found, "metrics.jsonl": metrics}, alone.content)
        == "metrics.jsonl is not as it is of a run left alone"
    )
    assert difference({**found, "x": b""}, alone.content) == "x is left over"
    assert "seconds" in (tmp_path / "train" / "alone" / "result.json").read_text()
    assert "seconds" not in str(content(tmp_path / "train" / "alone"))


def test_one_line():
    path = Path("/x/run")
    progress = "train n=6 k=4 log-icot: 8/8  stage 2/2  loss 1.2\n"
    assert told(progress) == []
    assert one_line(f"{progress}internalize: cannot write /x/run/a: No space left on device\n", path) is None
    assert one_line(f"note\n{progress}internalize: cannot write /x/run: Read-only\n", path, usual="note\n") is None
    for said in ("", "internalize: cannot write: no space\n", "cannot write /x/run\n", "internalize: /x/run\n" * 2):
        assert one_line(said, path), said


# The frame


def test_table_and_store(tmp_path: Path):
    row = {"family": "load", "what": "load", "tried": 3, "survived": 2, "lost": 1, "seconds": 0.4}
    assert table([row, {**row, "what": "more"}]).splitlines()[-1].split() == ["all", "6", "4", "2", "1"]
    path = tmp_path / "faults.json"
    store([row], 0, path)
    store([{**row, "family": "kills"}, {**row, "family": "kills", "tried": 9}], 5, path)
    store([{**row, "tried": 4}], 5, path)
    found = json.loads(path.read_text())
    assert [(own["family"], own["tried"]) for own in found["rows"]] == [("kills", 3), ("kills", 9), ("load", 4)]
    assert (found["seed"], found["seconds"]) == (5, 1.2)


def test_every_command_has_its_faults():
    assert {*kills.KILLS, *writes.WRITERS, *together.MEETINGS} == set(COMMANDS)
