"""Random inputs: small parity problems for hypothesis, and random weights."""

import torch
from hypothesis import strategies as st

from internalize.parity import ParityTree
from internalize.parity.model.transformer import AnyModel


@st.composite
def trees(draw: st.DrawFn, max_k: int = 8, spare: int = 4) -> ParityTree:
    """Draw a tree over k = 2 … max_k of at most k + spare bits, with its pairing in order or not."""
    k = draw(st.sampled_from([2**i for i in range(1, max_k.bit_length())]))
    n = draw(st.integers(k, k + spare))
    secret = draw(st.permutations(range(n)))[:k]
    pairing = tuple(secret) if draw(st.booleans()) else ()
    return ParityTree(n, tuple(sorted(secret)), pairing)


seeds = st.integers(0, 2**63 - 1)


def randomized(model: AnyModel, seed: int = 1) -> AnyModel:
    """Fill a model with random weights and return it."""
    generator = torch.Generator().manual_seed(seed % 2**32)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=2.0, generator=generator)
    return model
