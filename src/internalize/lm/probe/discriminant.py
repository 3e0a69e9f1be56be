r"""The linear probe: Fisher's discriminant, in closed form, so that there is nothing to tune and nothing to converge.

A state x, its coordinates standardised, is given the token c that is greatest in
:math:`\mu_c^\top A x - \tfrac12 \mu_c^\top A \mu_c + \log p_c`, where :math:`A = (\Sigma + \lambda I)^{-1}`, with the means and
shares of the tokens and the covariance Σ within them. That is linear in x, and for two tokens its direction is that of ridge
regression; for more it does not lose the ones in the middle, as regression on indicators does. Standardised, because
coordinates of a residual stream differ in scale by orders of magnitude.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor

RIDGES: Final = (1.0, 1e-2, 1e-4)
"""Values of λ that are tried, on a third of the training half."""


@dataclass(frozen=True)
class Discriminant:
    """A linear reading of tokens from states."""

    tokens: Tensor
    weights: Tensor
    bias: Tensor

    def read(self, states: Tensor) -> Tensor:
        """The token that each state is given."""
        return self.tokens[self._scores(states).argmax(1)]

    def accuracy(self, states: Tensor, tokens: Tensor) -> float:
        """The share of states that are given the true token."""
        return (self.read(states) == tokens).double().mean().item()

    def likelihood(self, states: Tensor, tokens: Tensor) -> float:
        """Mean logarithm of the probability of the true tokens, of those that it knows: what decides where accuracy does not."""
        same = tokens[:, None] == self.tokens
        known = same.any(1)
        return self._scores(states).log_softmax(1)[known][same[known]].mean().item() if bool(known.any()) else 0.0

    def _scores(self, states: Tensor) -> Tensor:
        return states.double() @ self.weights + self.bias


def fit(states: Tensor, tokens: Tensor) -> Discriminant:
    """The discriminant of these states, with the λ that does best on a third of them when it is fitted to the rest."""
    if len(states) < 3:
        return _fit(states, tokens, RIDGES[:1])[0]
    judged = torch.arange(len(states)) % 3 == 0
    tried = _fit(states[~judged], tokens[~judged], RIDGES)
    held = states[judged], tokens[judged]
    worth = [(each.accuracy(*held), each.likelihood(*held)) for each in tried]
    return _fit(states, tokens, (RIDGES[worth.index(max(worth))],))[0]


def _fit(states: Tensor, tokens: Tensor, ridges: Sequence[float]) -> list[Discriminant]:
    """One discriminant a λ, all from one eigendecomposition."""
    centre, spread = states.double().mean(0), states.double().std(0, correction=0)
    scale = spread.where(spread > 0, 1.0)
    x = (states.double() - centre) / scale
    known, which, counts = tally(tokens)
    means = x.new_zeros(len(known), x.shape[1]).index_add_(0, which, x) / counts[:, None]
    within = x - means[which]
    values, vectors = cast("tuple[Tensor, Tensor]", torch.linalg.eigh(within.T @ within / len(x)))
    turned = means @ vectors
    found: list[Discriminant] = []
    for ridge in ridges:
        whitened = turned / (values.clamp(min=0) + ridge)
        weights = vectors @ whitened.T / scale[:, None]
        bias = (counts / len(x)).log() - 0.5 * (whitened * turned).sum(1) - centre @ weights
        found.append(Discriminant(known, weights, bias))
    return found


def chance(tokens: Tensor) -> float:
    """How often somebody is right who sees no state and always says the most frequent token."""
    return tally(tokens)[2].max().item() / len(tokens)


def tally(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The different tokens, which of them each one is, and how often each occurs."""
    plain: Any = tokens  # unique is not typed
    return plain.unique(return_inverse=True, return_counts=True)
