"""Environment variables that make no sense change no answer, add no colors and let no library end the command."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from internalize.commands.cli import main
from internalize.errors import MACHINE

COLORS = {"FORCE_COLOR": "3", "CLICOLOR_FORCE": "1", "TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1", "COLORTERM": "x"}
ODD: dict[str, dict[str, str | None]] = {
    "colors, no size, ascii": {**COLORS, "COLUMNS": "0", "LINES": "x", "PYTHONIOENCODING": "ascii", "TERM": None},
    "wide, not ASCII": {**COLORS, "COLUMNS": "9" * 30, "PYTHONIOENCODING": "utf-16", "LC_ALL": "nonsense"},
    "an encoding of host names": {"PYTHONIOENCODING": "idna", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONINSPECT": "1"},
    "nowhere to write": {"HOME": None, "TMPDIR": "/dev/null/x", "MPLCONFIGDIR": "/dev/null", "XDG_CACHE_HOME": "/dev/null"},
    "libraries": {
        "MPLBACKEND": "nonsense", "MATPLOTLIBRC": "/dev/full/x", "SOURCE_DATE_EPOCH": "x", "CC": "'",
        "OMP_NUM_THREADS": "abc", "OPENBLAS_NUM_THREADS": "abc", "MKL_NUM_THREADS": "-1", "KMP_AFFINITY": "x",
    },
}  # fmt: skip


def internalize(argv: Sequence[str], odd: Mapping[str, str | None]) -> subprocess.CompletedProcess[bytes]:
    """Run a command with changed environment variables; None removes one."""
    kept = {name: value for name, value in os.environ.items() if name not in odd}
    given = {name: value for name, value in odd.items() if value is not None}
    command = [sys.executable, "-m", "internalize", *argv]
    return subprocess.run(
        command, env=kept | given, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "store"
    grid = ("n=8,10", "k=4", "samples=20,100")
    assert main(["sweep", "solve", *grid, "--seeds", "0:2", "--jobs", "1", "--out", str(out), "--json"]) == 0
    return out


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_the_answer_is_the_same(odd: dict[str, str | None], store: Path, tmp_path: Path):
    figure = tmp_path / "phase.svg"
    argv = ["sweep", "show", str(store), "--group-by", "n", "samples", "--figure", str(figure), "--json"]
    done = internalize(argv, odd)
    assert done.returncode == 0, done.stderr[-500:]
    found = json.loads(done.stdout.decode())
    assert [row["cells"] for row in found["rows"]] == [2, 2, 2, 2]
    assert figure.stat().st_size > 1000
    assert b"\x1b" not in done.stderr


@pytest.mark.parametrize("odd", [ODD["colors, no size, ascii"], ODD["wide, not ASCII"]])
def test_tables_and_refusals_have_no_colors_and_no_box(odd: dict[str, str | None], store: Path):
    table = internalize(["sweep", "show", str(store), "--group-by", "n"], odd)
    assert (table.returncode, table.stdout.count(b"\n")) == (0, 3)
    refused = internalize(["sweep", "show", str(store), "--bogus"], odd)
    assert (refused.returncode, refused.stderr.count(b"\n")) == (2, 1)
    wrong = internalize(["train", "--n", "x"], odd)
    assert (wrong.returncode, wrong.stderr.count(b"\n")) == (2, 1)
    assert b"\x1b" not in table.stdout + refused.stderr + wrong.stderr


def test_a_panic_of_a_library_is_not_a_bug(store: Path):
    """polars panics if it may use no threads at all."""
    done = internalize(["sweep", "show", str(store), "--json"], {"POLARS_MAX_THREADS": "0"})
    assert (done.returncode, done.stdout) == (MACHINE, b"")
    assert done.stderr.splitlines()[-1].startswith(b"internalize: the machine ended the work: ")


@pytest.mark.parametrize("odd", [{"TORCH_LOGS": "1"}, {"ACCELERATE_LOG_LEVEL": "loud"}])
def test_levels_that_logging_libraries_do_not_know_change_nothing(odd: dict[str, str | None]):
    plan = "lm plan --data parity:n=8,k=4 --layers 1 --width 8 --heads 2 --steps 4 --json"
    done = internalize(plan.split(), odd)
    assert done.returncode == 0, done.stderr[-500:]
    assert json.loads(done.stdout)["examples"]
