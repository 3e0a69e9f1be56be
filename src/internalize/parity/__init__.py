"""The paper's world: k-parity, the model of Definition 3 three times, the curricula's stages on it."""

from internalize.parity.algorithm import SolveOptions, SolveResult, solve
from internalize.parity.cot import CoTTransformer
from internalize.parity.data import add_trace, draw_bits, inference_input, pad, stage_input
from internalize.parity.gates import named_gates, paper_gates
from internalize.parity.link import COSINE, QUARTIC, Link, add_link, get_link, link_faults
from internalize.parity.literal import LiteralTransformer
from internalize.parity.loss import level_loss, stage_loss
from internalize.parity.mask import causal_mask, level_mask, masked_softmax, named_mask
from internalize.parity.population import KeyClass, StageGradient, stage_gradient
from internalize.parity.prediction import Prediction, Setting, predict
from internalize.parity.stages import ParityStage, parity_stages
from internalize.parity.transformer import BlockTransformer, LevelTransformer
from internalize.parity.tree import Levels, ParityTree

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
]
