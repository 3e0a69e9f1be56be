"""Internalize chain-of-thought: the curricula of "Transformers Provably Learn to Internalize Chain-of-Thought".

``internalize.parity`` is the paper's world, exact. Importing this package alone does not import torch.
"""

from internalize.curriculum import METHODS, Curriculum, Method, Stage
from internalize.errors import InputError

__all__ = ["METHODS", "Curriculum", "InputError", "Method", "Stage", "__version__"]
__version__ = "0.1.0"
