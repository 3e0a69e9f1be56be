"""Shared by the tests of `lm train`: tiny options, and what a run came to."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from internalize.lm import Internalization, LmTrainOptions
from internalize.lm.training.models import make_model
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.storage.runs import Run

TINY = LmTrainOptions(
    data="parity:n=6,k=4",
    method="log-icot",
    layers=1,
    width=16,
    heads=2,
    batch=8,
    steps=24,
    advance="steps",
    stage_steps=8,
    warmup=4,
    eval_every=6,
    eval_examples=16,
    test_examples=32,
)


def untrained(folder: Path, **changes: Any) -> Path:
    """A model folder as `lm train` writes it, with weights that know nothing."""
    options = replace(TINY, **changes)
    work = Internalization(options)
    work.save(folder, make_model(options, work.config, 0))
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def assert_same_weights(first: Path, second: Path, atol: float = 0) -> None:
    torch.testing.assert_close(weights(first), weights(second), rtol=0, atol=atol)


def forget_digests(folder: Path) -> None:
    """What whoever trains on a model in its place is told to do."""
    path = folder / "internalize.json"
    path.write_text(json.dumps({key: own for key, own in json.loads(path.read_text()).items() if key != "weights"}))


def words(options: LmTrainOptions | TrainOptions | SolveOptions, out: Path | str, *more: str) -> list[str]:
    """The command line of the options that differ from the default, those of the parity wing included."""
    kinds = {LmTrainOptions: ("lm", "train"), TrainOptions: ("train",), SolveOptions: ("solve",)}
    argv = [*kinds[type(options)], "--out", str(out), *more]
    default = type(options)()
    for name, value in vars(options).items():
        if value != getattr(default, name):
            argv += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return argv


def content(run: Run) -> tuple[dict[str, bytes], list[dict[str, Any]], dict[str, Any]]:
    """All of a run but its times."""
    metrics = [{key: value for key, value in line.items() if key != "seconds"} for line in run.metrics()]
    result = {key: value for key, value in run.result.items() if key != "seconds"}
    kept = {path.name: path / "model.safetensors" for path in (run.path / "model", *(run.path / "stages").glob("*"))}
    return {name: path.read_bytes() for name, path in kept.items()}, metrics, result
