"""Tiny options of `lm train`, command lines, and functions that read or change a run."""

import json
import os
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
    """Write a model folder as `lm train` does, with random weights."""
    options = replace(TINY, **changes)
    work = Internalization(options)
    work.save(folder, make_model(options, work.config, 0))
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Load the weights of a run's model."""
    return load_file(folder / "model" / "model.safetensors")


def assert_same_weights(first: Path, second: Path, atol: float = 0) -> None:
    torch.testing.assert_close(weights(first), weights(second), rtol=0, atol=atol)


def forget_digests(folder: Path) -> None:
    """Remove the digests of the weights, as the documentation tells a user who trains a model further in place."""
    path = folder / "internalize.json"
    path.write_text(json.dumps({key: own for key, own in json.loads(path.read_text()).items() if key != "weights"}))


class HostilePickle:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


def words(options: LmTrainOptions | TrainOptions | SolveOptions, out: Path | str, *more: str) -> list[str]:
    """Return the command line of a run: the options, of either wing, that differ from the default."""
    kinds = {LmTrainOptions: ("lm", "train"), TrainOptions: ("train",), SolveOptions: ("solve",)}
    argv = [*kinds[type(options)], "--out", str(out), *more]
    default = type(options)()
    for name, value in vars(options).items():
        if value != getattr(default, name):
            argv += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return argv


def content(run: Run) -> tuple[dict[str, bytes], list[dict[str, Any]], dict[str, Any]]:
    """Return the model files, metrics and result of a run, without times."""
    metrics = [{key: value for key, value in line.items() if key != "seconds"} for line in run.metrics()]
    result = {key: value for key, value in run.result.items() if key != "seconds"}
    kept = {path.name: path / "model.safetensors" for path in (run.path / "model", *(run.path / "stages").glob("*"))}
    return {name: path.read_bytes() for name, path in kept.items()}, metrics, result
