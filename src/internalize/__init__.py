"""Internalize chain-of-thought: the curricula of "Transformers Provably Learn to Internalize Chain-of-Thought".

``internalize.parity`` implements the paper's task and algorithms exactly. ``internalize.lm`` applies the curricula to
language models. Importing this package alone does not import torch.
"""

from internalize.curriculum import METHODS, Curriculum, Method, Stage
from internalize.errors import InputError

__all__ = ["METHODS", "Curriculum", "InputError", "Method", "Stage", "__version__"]
__version__ = "0.1.0"
