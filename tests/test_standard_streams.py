"""Lost streams, and libraries that end the process, stop neither the work nor change its status."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from internalize.errors import BUG, MACHINE, NOT_WRITTEN, WRONG
from tests.faults.child_process import compiled

TRAIN = "train --n 8 --k 4 --steps 300 --batch 50 --eval-samples 50 --eval-every 5 --json"
PREDICT = "predict --n 8 --k 4 --json"


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `internalize` is the command."""
    script = f'set -o pipefail; internalize() {{ "{sys.executable}" -m internalize "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("command", "streams", "status"),
    [
        (TRAIN, "2> >(head -1 > /dev/null)", 0),
        (PREDICT, "2>&-", 0),
        (PREDICT, "2>/dev/full", 0),
        (PREDICT, "> /dev/full", NOT_WRITTEN),
        (TRAIN, "<&- >&- 2>&-", NOT_WRITTEN),
    ],
)
def test_a_lost_stream_does_not_stop_the_work(command: str, streams: str, status: int, tmp_path: Path) -> None:
    done = shell(f"internalize {command} --out run {streams}", tmp_path)
    assert done.returncode == status
    stored = json.loads((tmp_path / "run/result.json").read_text())
    if streams.startswith("2>") and "|" not in streams:
        assert json.loads(done.stdout) == stored
    if "2>" not in streams:
        assert done.stderr.splitlines()[-1].startswith("internalize: cannot write to standard output: ")


@pytest.mark.parametrize(("jobs", "streams", "status"), [(1, "2> >(true)", 0), (2, "<&- >&- 2>&-", NOT_WRITTEN)])
def test_a_lost_stream_does_not_stop_processes(jobs: int, streams: str, status: int, tmp_path: Path) -> None:
    done = shell(f"internalize sweep solve n=8 k=4 --seeds 0:3 --json --jobs {jobs} --out run {streams}", tmp_path)
    assert done.returncode == status
    assert pl.read_parquet(tmp_path / "run/cells/*.parquet").height == 3


@pytest.mark.parametrize("streams", ["2>&-", ">&-"])
def test_a_refusal_keeps_its_status(streams: str, tmp_path: Path) -> None:
    assert shell(f"internalize train --n 0 {streams}", tmp_path).returncode == WRONG


def test_the_verdict_does_not_need_a_reader(tmp_path: Path) -> None:
    """A failed `solve` has status 1, even if nobody reads why."""
    assert shell("internalize solve --preset paper --n 8 --k 4 | true", tmp_path).returncode == 1


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("ctypes.CDLL(None).exit(1)", MACHINE),  # as OpenMP does when it cannot start a thread
        ("cli.main = lambda: sys.exit('a library gives up'); cli.run()", MACHINE),
        ("leave(1)", 1),
        ("cli._end_with_error(ValueError, ValueError(), None)", BUG),
        ("cli._end_with_error(MemoryError, MemoryError(), None)", MACHINE),
        ("cli._end_with_error(OSError, OSError(24, 'Too many open files'), None)", MACHINE),
        ("cli._end_with_error(OSError, OSError(5, 'Input/output error'), None)", BUG),
    ],
)
def test_only_we_decide_the_status(ending: str, status: int) -> None:
    imports = (
        "import ctypes, sys\nfrom internalize.commands import cli\nfrom internalize.commands.standard_streams import *"
    )
    code = f"{imports}\nprotect(); {ending}"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == status


@pytest.mark.parametrize(
    ("command", "few"),
    [
        ("certify --n 8 --k 4 --threads 16", 3),
        ("solve --n 8 --k 4 --threads 2", 0),
        ("solve --n 8 --k 4 --threads 2", 2),
        ("solve --n 8 --k 4 --threads 1", 0),
        ("sweep solve n=8 k=4 --seeds 0:2 --jobs 1", 0),
    ],
)
def test_threads_that_cannot_start(command: str, few: int, tmp_path: Path) -> None:
    """A preloaded library refuses every thread after the first few, like a limit on the number of processes.

    The command is refused, ended by the machine, or done. It never hangs, and it has no verdict without an answer.
    """
    if (library := compiled()) is None:
        pytest.skip("needs a C compiler")
    limits = f"export LD_PRELOAD={library} REFUSING_THREADS={few}"
    done = shell(f"{limits}; internalize {command} --out run --json", tmp_path)
    assert done.returncode in (0, WRONG, MACHINE), done.stderr[-300:]
    assert (done.returncode == 0) == bool(done.stdout)
    if done.returncode == WRONG:
        assert "the machine lets this process start" in done.stderr.splitlines()[-1]
