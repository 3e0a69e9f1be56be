"""A place for commands to run in: a working directory, HOME and folder for temporary files of its own, runs and data to read."""

import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Final
from unittest import mock

import polars as pl

from internalize.lm.training.models import PROMPT_FILE
from internalize.lm.training.quiet import quiet_transformers
from internalize.lm.training.train import train as lm_train
from internalize.parallel.interrupt import Interrupted
from internalize.parity.adamw.train import train
from internalize.parity.algorithm1.solve_runs import solve_kept
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.report import stored as results
from internalize.storage.runs import Run
from tests.faults.harness import ask
from tests.lm_runs import TINY, words
from tests.tiny import stop_solving

TRAIN: Final = TrainOptions(n=5, k=4, steps=3, batch=4, eval_every=2, eval_samples=8)
SOLVE: Final = SolveOptions(n=5, k=4, samples=60, test_samples=20, dtype="float64")
LM: Final = replace(
    TINY, data="data.txt", batch=4, steps=4, stage_steps=2, warmup=1,
    eval_every=2, eval_examples=3, test_examples=4, keep_stages=True,
)  # fmt: skip
SWEEP: Final = ("sweep", "solve", "n=4,5", "k=2", "samples=9", "test_samples=4", "--seeds", "0:3", "--jobs", "1")
COMPARE: Final = (
    *("compare", "--of", "ablations", "--variants", "mask=causal", "--sizes", "4,2", "--seeds", "0", "--jobs", "1"),
    *("--steps", "1", "--batch", "2", "--eval-samples", "4", "--lr", "0.1"),
)
MADE: Final = "../made"
"""Seen from the working directory."""
RESUME: Final = {
    **{name: words(TRAIN, f"{MADE}/{name}", "--resume") for name in ("train", "train-begun")},
    **{name: words(SOLVE, f"{MADE}/{name}", "--resume", "--threads", "1") for name in ("solve", "solve-begun")},
    **{name: words(LM, f"{MADE}/{name}", "--resume") for name in ("lm", "lm-begun")},
}
"""By folder below `MADE`: the command that goes on with a run, or finds it finished."""
PAGE_RESULTS: Final = {
    f"full/{stored.name}/{stored.makes}": results.FOLDER / stored.file
    for stored in sorted(results.STORED, key=lambda stored: stored.name)
    if stored.makes == results.ROWS and (results.FOLDER / stored.file).is_file()
}
"""What `paper --full` would have made, had it run these commands: by path below `MADE`."""
_MEMORY: Final = 6 * 2**30
"""Bytes that a command may take beyond what this process has: what asks for more must be refused, not tried."""


def make_runs(folder: Path) -> None:
    """Finished and begun runs, the store of a sweep, language models, results of a page."""

    def stop(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    folder.mkdir(parents=True)
    train(TRAIN, [0], [Run(folder / "train")], snapshots=True)
    with contextlib.suppress(Interrupted):
        train(TRAIN, [0], [Run(folder / "train-begun")], report=lambda now: stop() if now.done >= 2 else None)
    solve_kept(SOLVE, Run(folder / "solve"), snapshots=True)
    with contextlib.suppress(Interrupted):
        solve_kept(SOLVE, Run(folder / "solve-begun"), on_stage=stop_solving(1))
    for argv in ([*SWEEP, "--out", str(folder / "sweep")], [*COMPARE, "--out", str(folder / "compare")]):
        assert ask(argv).status in (0, 1), argv
    (part,) = (folder / "sweep" / "cells").iterdir()
    rows = pl.read_parquet(part)
    rows[:4].write_parquet(part)  # some rows are in both, as after a kill between a part and the end of its journal
    (folder / "sweep" / "journal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[2:].to_dicts()))
    quiet_transformers()
    lm_train(LM, 0, Run(folder / "lm"))
    of_others = shutil.ignore_patterns(PROMPT_FILE)  # a model without our digests
    shutil.copytree(folder / "lm" / "model", folder / "foreign" / "model", ignore=of_others)
    with contextlib.suppress(Interrupted):
        lm_train(LM, 0, Run(folder / "lm-begun"), report=lambda now: stop() if now.done >= 2 else None)
    assert not Run(folder / "train-begun").finished
    assert Run(folder / "solve-begun").checkpoint_steps()
    for path, kept in PAGE_RESULTS.items():
        (folder / path).parent.mkdir(parents=True)
        shutil.copy(kept, folder / path)


class Sandbox:
    """The folders `cwd`, `home`, `tmp` and `made`, all of which can be put back as they were."""

    def __init__(self, folder: Path, make: Callable[[Path], None] = make_runs) -> None:
        self.rooms = self.cwd, self.home, self.tmp = folder / "cwd", folder / "home", folder / "tmp"
        self.made, self.pristine = folder / "made", folder / "pristine"
        self._reset_rooms()
        make(self.made)
        shutil.copytree(self.made, self.pristine, symlinks=True)
        self._reset_rooms()
        self._before = self.tree()

    def tree(self) -> dict[str, str]:
        """Return every file with what tells that it was written to. Locks say nothing."""
        found: dict[str, str] = {}
        for folder in (*self.rooms, self.made):
            for path in folder.rglob("*"):
                if path.name != ".lock":
                    known = path.lstat()
                    size = "" if path.is_dir() else f" {known.st_size} {known.st_mtime_ns}"
                    found[str(path)] = f"{known.st_mode} {known.st_ino}{size}"
        return found

    def put_back(self) -> list[Path]:
        """Undo what has changed since the last time, and return the paths."""
        before, after = self._before, self.tree()
        changed = [Path(path) for path in sorted({*before, *after}) if before.get(path) != after.get(path)]
        if any(path.is_relative_to(self.made) for path in changed):
            shutil.rmtree(self.made)
            shutil.copytree(self.pristine, self.made, symlinks=True)
        if changed:
            self._reset_rooms()
            self._before = self.tree()
        return changed

    def _reset_rooms(self) -> None:
        """Empty folders, but for examples as text and as JSON lines (enough different questions for a probe), and no data."""
        for room in self.rooms:
            shutil.rmtree(room, ignore_errors=True)
            room.mkdir(parents=True)
        os.chdir(self.cwd)  # the folder of this name is another one now
        sums = [(number // 10, number % 10) for number in range(100)]
        rows = [
            {"question": f"{a} {b}", "steps": [str(a + b)], "answer": str(a + b + 1), "levels": [1]} for a, b in sums
        ]
        Path("data.txt").write_text("".join(f"{a} + {b} + 1||<<{a}+{b}={a + b}>> #### {a + b + 1}\n" for a, b in sums))
        Path("data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        Path("bad.txt").write_text("neither nor\n")
        Path("empty.txt").write_text("")
        os.mkfifo("fifo")
        Path("link").symlink_to("nowhere")


@contextlib.contextmanager
def sandbox(folder: Path, make: Callable[[Path], None] = make_runs) -> Generator[Sandbox]:
    """Work in a sandbox, with an end to memory and without a network."""
    importlib.import_module("internalize.report.figures.phase")  # what matplotlib keeps in HOME is not taken for ours
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    tmp = str(folder / "tmp")
    with (
        contextlib.chdir("."),  # comes back at the end
        mock.patch.dict(os.environ, {"HOME": str(folder / "home"), "TMPDIR": tmp, "HF_HUB_OFFLINE": "1"}),
        mock.patch("huggingface_hub.constants.HF_HUB_OFFLINE", new=True),  # it may have been read already
        mock.patch.object(tempfile, "tempdir", tmp),
    ):
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MEMORY, before[1]))
        try:
            yield Sandbox(folder, make)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
