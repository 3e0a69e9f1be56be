"""The paper's world: k-parity, the model of Definition 3, its curricula, Algorithm 1, and every statement as a check.

| folder       | what lives there                                                      |
| ------------ | --------------------------------------------------------------------- |
| task         | tree, samples, stages                                                 |
| model        | Definition 3 as printed, and faster forms of it                       |
| theory       | what finite n does: exact moments, predictions, frozen layers         |
| algorithm1   | Algorithm 1                                                           |
| adamw        | training by AdamW, many seeds at once                                 |
| certificates | the paper's statements as checks                                      |
| experiments  | curricula compared, ablations, sweeps                                 |

`parity` never imports `lm`. The names below are imported on first use, so that reading options does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from internalize.parity.adamw.train import train
    from internalize.parity.algorithm1.solve import SolveResult, solve
    from internalize.parity.model.cot import CoTTransformer
    from internalize.parity.model.gates import named_gates, paper_gates
    from internalize.parity.model.link import COSINE, QUARTIC, Link, add_link, get_link, link_faults
    from internalize.parity.model.literal import LiteralTransformer
    from internalize.parity.model.loss import level_loss, stage_loss
    from internalize.parity.model.mask import causal_mask, level_mask, masked_softmax, named_mask
    from internalize.parity.model.transformer import BlockTransformer, LevelTransformer
    from internalize.parity.options import SolveOptions, TrainOptions
    from internalize.parity.task.data import add_trace, draw_bits, inference_input, pad, stage_input
    from internalize.parity.task.stages import ParityStage, parity_stages
    from internalize.parity.task.tree import Levels, ParityTree
    from internalize.parity.theory.population import KeyClass, StageGradient, stage_gradient
    from internalize.parity.theory.prediction import Prediction, Setting, predict

_MODULES = {
    "algorithm1.solve": ("SolveResult", "solve"),
    "model.cot": ("CoTTransformer",),
    "model.gates": ("named_gates", "paper_gates"),
    "model.link": ("COSINE", "QUARTIC", "Link", "add_link", "get_link", "link_faults"),
    "model.literal": ("LiteralTransformer",),
    "model.loss": ("level_loss", "stage_loss"),
    "model.mask": ("causal_mask", "level_mask", "masked_softmax", "named_mask"),
    "model.transformer": ("BlockTransformer", "LevelTransformer"),
    "adamw.train": ("train",),
    "options": ("SolveOptions", "TrainOptions"),
    "task.data": ("add_trace", "draw_bits", "inference_input", "pad", "stage_input"),
    "task.stages": ("ParityStage", "parity_stages"),
    "task.tree": ("Levels", "ParityTree"),
    "theory.population": ("KeyClass", "StageGradient", "stage_gradient"),
    "theory.prediction": ("Prediction", "Setting", "predict"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "COSINE",
    "QUARTIC",
    "BlockTransformer",
    "CoTTransformer",
    "KeyClass",
    "LevelTransformer",
    "Levels",
    "Link",
    "LiteralTransformer",
    "ParityStage",
    "ParityTree",
    "Prediction",
    "Setting",
    "SolveOptions",
    "SolveResult",
    "StageGradient",
    "TrainOptions",
    "add_link",
    "add_trace",
    "causal_mask",
    "draw_bits",
    "get_link",
    "inference_input",
    "level_loss",
    "level_mask",
    "link_faults",
    "masked_softmax",
    "named_gates",
    "named_mask",
    "pad",
    "paper_gates",
    "parity_stages",
    "predict",
    "solve",
    "stage_gradient",
    "stage_input",
    "stage_loss",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
