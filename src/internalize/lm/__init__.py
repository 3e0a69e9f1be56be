"""Ordinary language models: the same curricula on text, through Hugging Face transformers.

| file               | what                                                                                          |
| ------------------ | --------------------------------------------------------------------------------------------- |
| example            | a question, the steps of a chain of thought, the answer                                       |
| readers, tasks     | where examples are read and how they are generated; source: by position, some held out        |
| levels             | where the levels of steps come from                                                           |
| chains             | from text to tokens                                                                           |
| removal            | what a stage leaves of a chain: slots, shown steps, supervised tokens                         |
| schedule           | when each stage begins                                                                        |
| loss               | the loss at every layer, so that steps are computed early                                     |
| batches, callback  | the collator and the callback of a Trainer; internalization puts all of this together         |
| models, generation | models made, loaded and written; greedy answers                                               |
| train, evaluation  | what `lm train` and `lm eval` do; plan and compare likewise                                   |
| probe              | what `lm probe` does; kept: models, states: what is where, discriminant: the probe, signal    |
| certificates       | what `lm certify` does: what carries over of the paper's statements, on models of parity      |
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from internalize.lm.data.example import Example
from internalize.lm.data.readers import from_dataset, read_examples
from internalize.lm.data.source import of_examples, of_task, open_source
from internalize.lm.data.tasks import Task, TaskStream
from internalize.lm.options import CurriculumOptions, LmTrainOptions

if TYPE_CHECKING:
    from internalize.lm.evaluation.evaluate import ask
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
    "ask": "internalize.lm.evaluation.evaluate",
}


def __getattr__(name: str) -> Any:
    """Import names that need torch and transformers on first use."""
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_NEEDS_TORCH[name]), name)
