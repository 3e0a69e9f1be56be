r"""The linear probe: Fisher's discriminant, in closed form, so that there is nothing to tune and nothing to converge.

A state x is given the token c that is greatest in :math:`\mu_c^\top A x - \tfrac12 \mu_c^\top A \mu_c + \log p_c`, where
:math:`A = (\Sigma + \lambda \bar s I)^{-1}`, with the means and shares of the tokens, the covariance Σ within them, and
:math:`\bar s` the mean variance of a coordinate. That is linear in x, and for two tokens it is ridge regression; for more it
does not lose the ones in the middle, as regression on indicators does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

RIDGES: Final = (1.0, 1e-2, 1e-4)
"""Values of λ that are tried, on a third of the training half; of equals the greatest is taken."""


@dataclass(frozen=True)
class Discriminant:
    """A linear reading of tokens from states."""

    tokens: Tensor
    weights: Tensor
    bias: Tensor

    def read(self, states: Tensor) -> Tensor:
        """The token that each state is given."""
        return self.tokens[(states.double() @ self.weights + self.bias).argmax(1)]

    def accuracy(self, states: Tensor, tokens: Tensor) -> float:
        """The share of states that are given the true token."""
        return (self.read(states) == tokens).double().mean().item()


def fit(states: Tensor, tokens: Tensor, ridges: Sequence[float] = RIDGES) -> Discriminant:
    """The discriminant of these states, with the λ that does best on a third of them when it is fitted to the rest."""
    if len(ridges) == 1 or len(states) < 3:
        return _fit(states, tokens, ridges[:1])[0]
    judged = torch.arange(len(states)) % 3 == 0
    tried = _fit(states[~judged], tokens[~judged], ridges)
    right = [each.accuracy(states[judged], tokens[judged]) for each in tried]
    return _fit(states, tokens, (ridges[right.index(max(right))],))[0]


def _fit(states: Tensor, tokens: Tensor, ridges: Sequence[float]) -> list[Discriminant]:
    """One discriminant a λ, all from one eigendecomposition."""
    x = states.double()
    known, which, counts = tokens.unique(return_inverse=True, return_counts=True)
    means = x.new_zeros(len(known), x.shape[1]).index_add_(0, which, x) / counts[:, None]
    within = x - means[which]
    values, vectors = torch.linalg.eigh(within.T @ within / len(x))
    scale = (x - x.mean(0)).square().mean().clamp(min=torch.finfo(torch.float64).tiny)
    turned = means @ vectors
    found: list[Discriminant] = []
    for ridge in ridges:
        whitened = turned / (values.clamp(min=0) + ridge * scale)
        bias = (counts / len(x)).log() - 0.5 * (whitened * turned).sum(1)
        found.append(Discriminant(known, vectors @ whitened.T, bias))
    return found


def most_frequent(tokens: Tensor) -> int:
    """What somebody says who sees no state: the most frequent token, of equals the first."""
    known, counts = tokens.unique(return_counts=True)
    return int(known[counts.argmax()])
