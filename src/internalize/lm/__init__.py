"""Ordinary language models: the same curricula on text, through Hugging Face transformers.

Read the folders in this order: data, stages, training, evaluation, probe, certificates. The ``__init__`` of each says
what is in it, and docs/layout.md shows the tree.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from internalize.lm.data.example import Example
from internalize.lm.data.readers import from_dataset, read_examples
from internalize.lm.data.source import of_examples, of_task, open_source
from internalize.lm.data.tasks import Task, TaskStream
from internalize.lm.options import CurriculumOptions, LmTrainOptions

if TYPE_CHECKING:
    from internalize.lm.evaluation.ask import ask
    from internalize.lm.training.internalization import Internalization

__all__ = [
    "CurriculumOptions",
    "Example",
    "Internalization",
    "LmTrainOptions",
    "Task",
    "TaskStream",
    "ask",
    "from_dataset",
    "of_examples",
    "of_task",
    "open_source",
    "read_examples",
]

_NEEDS_TORCH = {
    "Internalization": "internalize.lm.training.internalization",
    "ask": "internalize.lm.evaluation.ask",
}


def __getattr__(name: str) -> Any:
    """Import names that need torch and transformers on first use."""
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_NEEDS_TORCH[name]), name)
