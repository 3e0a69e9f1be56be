"""Files and folders from others: nothing in them causes a traceback, controls the terminal, or hides other runs."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from internalize import InputError
from internalize.storage.files import load_tensors
from internalize.storage.runs import Run, list_runs
from tests.asking import ask, call, refused
from tests.lm_runs import words as command_line
from tests.tiny import SMALLEST


def test_a_folder_whose_name_is_not_utf8_does_not_hide_the_others(run: Run):
    shutil.copytree(run.path, run.path.parent / os.fsdecode(b"caf\xe9"))
    frame = list_runs(run.path.parent)
    assert frame.filter(pl.col("broken").is_null())["path"].to_list() == [str(run.path)]
    for more in ([], ["--json"]):
        said = call(["runs", str(run.path.parent), *more])
        assert f"internalize: {run.path.parent}/caf\\udce9 has a name that is not UTF-8; rename it\n" in said.err
        assert str(run.path) in said.out
        said.out.encode()
    assert len(ask(["runs", str(run.path.parent)])["runs"]) == 2


@pytest.mark.parametrize("value", [r"\ud800", r"a\udfffb", r"\ud83d"])
def test_a_lone_surrogate_does_not_hide_the_others(run: Run, value: str):
    bad = run.path.parent / "two"
    shutil.copytree(run.path, bad)
    for name in ("config.json", "result.json"):
        whole = (bad / name).read_text()
        (bad / name).write_text(whole.replace("{", f'{{"dtype": "{value}", "{value}": 1, ', 1))
        said = call(["runs", str(run.path.parent)])
        assert str(run.path) in said.out
        assert f"{bad / name} is not JSON" in said.err
        (bad / name).write_text(whole)


def test_a_config_can_neither_control_the_terminal_nor_pass_for_another_run(run: Run):
    """Control codes are printed as text, and no file sets the columns path, finished and broken."""
    escape = run.path.parent / "a\x1b[2J\nb"
    shutil.copytree(run.path, escape)
    for name in ("config.json", "result.json"):
        found = json.loads((escape / name).read_text())
        found |= {"path": "/spoofed", "finished": False, "broken": "spoofed"}
        (escape / name).write_text(json.dumps(found | {"curriculum": "x\x1b]0;owned\x07\r\u202ey"}))
    frame = list_runs(run.path.parent)
    assert set(frame["path"]) == {str(run.path), str(escape)}
    assert frame["finished"].all()
    assert frame["broken"].null_count() == 2
    (escape / "metrics.jsonl").unlink()
    said = call(["runs", str(run.path.parent)])
    assert len(said.out.splitlines()) == 3
    assert (said.out + said.err).replace("\n", "").isprintable()
    assert "x\\x1b]0;owned\\x07\\r\\u202ey" in said.out
    (escape / "config.json").write_text("{")
    assert call(["runs", str(run.path.parent)]).err.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "line",
    [
        "lm train --steps 1 --data BAD",
        "lm train --steps 1 --data parity:n=4,k=2 --validation BAD",
        "lm eval --model BAD",
        "lm ask BAD question",
        "lm plan --data BAD",
        "certify --run BAD",
        "certify --run BAD --json",
        "train --out BAD",
        "compare --out BAD",
        "sweep show BAD",
        "runs BAD",
    ],
)
def test_a_path_that_is_not_utf8_is_refused(line: str, run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(run.path.parent)
    bad = os.fsdecode(b"caf\xe9")
    shutil.copytree(run.path, bad)
    argv = [bad if word == "BAD" else word for word in line.split()]
    for more in ([], [] if "--out" in argv else ["--out", "kept"]):
        refused(argv + more, alone=False)
    assert not Path("kept").exists()


def test_an_option_that_no_file_could_hold_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="is not UTF-8, so it cannot be written to .*config.json"):
        Run(tmp_path / "new").check("certify", {"run": os.fsdecode(b"caf\xe9")}, resume=False)


def _safetensors(dtype: str, shape: list[int], size: int, **more: object) -> bytes:
    """Return a safetensors file with one tensor of zeros."""
    header = {"W1": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}, **more}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(size)


def test_unusual_safetensors(tmp_path: Path):
    path = tmp_path / "weights.safetensors"
    for metadata in (None, {}, {"format": "pt"}):
        path.write_bytes(_safetensors("F32", [2], 8, __metadata__=metadata))
        assert load_tensors(path)["W1"].tolist() == [0, 0]
    exotic = dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "BOOL"), 2)
    for dtype, size in (exotic | {"F4": 1, "C64": 16, "U16": 4, "U64": 16}).items():
        path.write_bytes(_safetensors(dtype, [2], size))
        with pytest.raises(InputError, match=f"weights.safetensors: W1: dtype: invalid enum value '{dtype}'"):
            load_tensors(path)
    for shape in ([2**63, 0], [0] * 65, [1] * 65):
        path.write_bytes(_safetensors("F32", shape, 4 * math.prod(shape)))
        with pytest.raises(InputError, match="weights.safetensors: W1: shape"):
            load_tensors(path)
    short = _safetensors("F32", [3], 8)
    for content in (b"", b"\xff" * 8, b"\xff" * 8 + b"{}", _safetensors("F32", [2], 8, W2={}), short):
        path.write_bytes(content)
        with pytest.raises(InputError, match="weights.safetensors"):
            load_tensors(path)


@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl", "weights.safetensors"])
def test_a_pipe_or_a_file_without_end_is_refused(run: Run, name: str):
    argv = [*command_line(SMALLEST, run.path), "--resume"]
    path = run.path / name
    for make in (os.mkfifo, _without_end):
        path.unlink()
        make(path)
        refused(argv, name)


def _without_end(path: Path) -> None:
    """Make a sparse file of 8 TiB."""
    with path.open("wb") as file:
        file.truncate(2**43)


@pytest.mark.parametrize(("soft", "hard", "status"), [(60, 150, 2), (60, 1024, 0)])
def test_more_runs_than_open_files(tmp_path: Path, soft: int, hard: int, status: int):
    """Too many runs are refused before a folder is made, unless the limit can be raised."""
    argv = command_line(replace(SMALLEST, steps=0), tmp_path / "runs", "--seeds", "0:200")
    code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
    code += f"import sys; from internalize.commands.cli import main; sys.exit(main({argv}))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stderr
    if status == 0:
        assert len(list_runs(tmp_path / "runs", finished=True)) == 200
    else:
        assert re.fullmatch(
            r"internalize: 200 runs at a time need 2\d\d open files, but only 150 are allowed .*\n", ended.stderr
        )
        assert not (tmp_path / "runs").exists()
