"""The plain implementation in ``benchmarks/plain.py``, which is no part of the package: what a user would have written."""

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Protocol, cast

from torch import Tensor

from internalize.errors import InputError

PATH = Path(__file__).parents[3] / "benchmarks" / "plain.py"


class Task(Protocol):
    """A parity tree."""

    def draw(self, B: int) -> Tensor:
        """Fresh sequences."""
        ...


class Plain(Protocol):
    """What the file has."""

    def PlainTask(self, n: int, secret: list[int]) -> Task:
        """The tree over a secret set."""
        ...

    def PlainTransformer(self, task: Task) -> object:
        """A new model."""
        ...

    def stage_gradient(self, model: object, sequence: Tensor, stage: int) -> Sequence[Tensor]:
        """Gradients of a stage, counted from 1."""
        ...

    def train(self, task: Task, steps: int, batch: int, eval_every: int, eval_samples: int, lr: float) -> object:
        """A trained model."""
        ...


def available() -> bool:
    """Whether this is a checkout, which has the file."""
    return PATH.is_file()


@cache
def load() -> Plain:
    """The file as a module."""
    if not available():
        raise InputError(
            "the plain implementation, benchmarks/plain.py, is in a checkout and not in an installed package"
        )
    spec = importlib.util.spec_from_file_location("internalize_benchmarks_plain", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(Plain, module)
