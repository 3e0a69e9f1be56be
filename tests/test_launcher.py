"""Processes of a launcher: incomplete environments are refused, and a refusal in one process ends all of them."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from internalize.errors import InputError
from internalize.parallel.launcher import Launched, launched
from tests.asking import refused
from tests.lm_runs import TINY, words
from tests.processes import ENTRY

PLACE = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PLACE:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ({"RANK": None}, "WORLD_SIZE=2 without RANK"),
        ({"RANK": ""}, "WORLD_SIZE=2 without RANK"),
        ({"MASTER_ADDR": None}, "WORLD_SIZE=2 without MASTER_ADDR"),
        ({"MASTER_PORT": None}, "WORLD_SIZE=2 without MASTER_PORT"),
        ({"WORLD_SIZE": None}, "RANK is set and WORLD_SIZE is not"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' is not a number from 1"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0' is not a number from 1"),
        ({"WORLD_SIZE": "9" * 5000}, "is not a number from 1"),
        ({"RANK": "2"}, "RANK='2' is not a number from 0 to 1"),
        ({"RANK": "-1"}, "RANK='-1' is not a number from 0 to 1"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT='x' is not a number from 1 to 65535"),
    ],
)
@pytest.mark.parametrize("command", [["lm", "train", "--steps", "1"], ["solve", "--n", "4", "--k", "2"]])
def test_half_a_launcher_is_refused(
    place: dict[str, str | None], reason: str, command: list[str], tmp_path: Path, monkeypatch
):
    for name, value in {**PLACE, **place}.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as error:
        launched()
    assert reason in str(error.value)
    refused([*command, "--out", str(tmp_path / "run")], reason)
    assert not (tmp_path / "run").exists()


def test_one_process_needs_no_launcher(monkeypatch: pytest.MonkeyPatch):
    assert launched() == Launched(0, 1)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert launched().first
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)
    assert launched() == Launched(1, 2)
    assert not launched().first


def together(argv: list[str], script: str = ENTRY) -> list[tuple[int, str]]:
    """Start two processes as a launcher would, and return the status and messages of each."""
    with socket.create_server(("", 0)) as free:
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, *argv],
            env={**os.environ, **PLACE, "MASTER_PORT": port, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        ended = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, said) for process, (_, said) in zip(started, ended, strict=True)]


@pytest.mark.parametrize("command", ["lm train", "solve"])
def test_when_the_first_process_is_refused_none_waits(command: str, tmp_path: Path):
    """Without a message from the first process, which looks at the run folder, the other would wait half an hour."""
    out = tmp_path / "run"
    out.mkdir()
    (out / "something.txt").touch()
    argv = words(TINY, out) if command == "lm train" else ["solve", "--n", "4", "--k", "2", "--out", str(out)]
    (first, said), (second, echoed) = together(argv)
    assert (first, second) == (2, 2)
    assert "is not a run folder and holds 'something.txt'" in said.splitlines()[-1]
    assert "ends with process 0: " in echoed
    assert "Traceback" not in said + echoed
    assert [path.name for path in out.iterdir()] == ["something.txt"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_refusal_during_training(rank: int, tmp_path: Path):
    """One process is refused while the other waits in a sum of gradients or of right answers."""
    script = (
        "import os\n"
        "from internalize.errors import InputError\n"
        "from internalize.lm.training.callback import StageCallback\n"
        "def refuse(*args, **how): raise InputError('the disk is full')\n"
        f"if os.environ['RANK'] == '{rank}': StageCallback.exact_match = refuse\n{ENTRY}"
    )
    ended = together(words(replace(TINY, eval_every=2), tmp_path / "run"), script)
    assert [status for status, _ in ended] == [2, 2]
    assert "the disk is full" in ended[rank][1]
    assert f"ends with process {rank}: the disk is full" in ended[1 - rank][1]
