"""Folders for commands to read: finished and begun runs, a sweep's store, language models, data; and the options that made them."""

import contextlib
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl

from internalize.lm.training.models import PROMPT_FILE
from internalize.lm.training.quiet import quiet_transformers
from internalize.lm.training.train import train as lm_train
from internalize.parallel.interrupt import Interrupted
from internalize.parity.adamw.train import train
from internalize.parity.algorithm1.checkpoints import solve_kept
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.storage.runs import Run
from tests.faults.asking import ask
from tests.lm_runs import TINY
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


def write_data(folder: Path) -> None:
    """Examples as text and as JSON lines, with enough different questions for a probe; and what is no data."""
    numbers = [(number // 10, number % 10) for number in range(100)]
    text = [f"{a} + {b} + 1||<<{a}+{b}={a + b}>> #### {a + b + 1}" for a, b in numbers]
    rows = [
        {"question": f"{a} {b}", "steps": [str(a + b)], "answer": str(a + b + 1), "levels": [1]} for a, b in numbers
    ]
    (folder / "data.txt").write_text("\n".join(text) + "\n")
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "bad.txt").write_text("neither nor\n")
    (folder / "empty.txt").write_text("")


def make(folder: Path, *, language: bool = True) -> None:
    """Everything, below a folder that is the working directory's neighbour ``made``."""

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
    if language:
        quiet_transformers()
        lm_train(LM, 0, Run(folder / "lm"))
        of_others = shutil.ignore_patterns(PROMPT_FILE)  # a model without our digests
        shutil.copytree(folder / "lm" / "model", folder / "foreign" / "model", ignore=of_others)
        with contextlib.suppress(Interrupted):
            lm_train(LM, 0, Run(folder / "lm-begun"), report=lambda now: stop() if now.done >= 2 else None)
    assert not Run(folder / "train-begun").finished
    assert Run(folder / "solve-begun").checkpoint_steps()
