r"""The linear probe: Fisher's discriminant in closed form, which needs no tuning and no iteration.

For a state x with standardized coordinates, the probe reads the token c that maximizes
:math:`\mu_c^\top A x - \tfrac12 \mu_c^\top A \mu_c + \log p_c`, where :math:`A = (\Sigma + \lambda I)^{-1}`. Here
:math:`\mu_c` and :math:`p_c` are the mean and the share of a token, and Σ is the covariance within tokens. The score is
linear in x. For two tokens its direction is that of ridge regression. For more tokens it still finds those in the
middle, which regression on indicators misses. Coordinates are standardized because in a residual stream their scales
differ by orders of magnitude.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor

RIDGES: Final = (1.0, 1e-2, 1e-4)
"""Values of λ to choose from. A third of the fitting half of the examples decides."""


@dataclass(frozen=True)
class Discriminant:
    """A linear classifier that reads tokens from states."""

    tokens: Tensor
    weights: Tensor
    bias: Tensor

    def read(self, states: Tensor) -> Tensor:
        """Return the token that is read from each state."""
        return self.tokens[self._scores(states).argmax(1)]

    def accuracy(self, states: Tensor, tokens: Tensor) -> float:
        """Return the share of states from which the true token is read."""
        return (self.read(states) == tokens).double().mean().item()

    def likelihood(self, states: Tensor, tokens: Tensor) -> float:
        """Return the mean log-probability of true tokens that the fit has seen. It decides between equal accuracies."""
        same = tokens[:, None] == self.tokens
        known = same.any(1)
        return self._scores(states).log_softmax(1)[known][same[known]].mean().item() if bool(known.any()) else 0.0

    def _scores(self, states: Tensor) -> Tensor:
        return states.double() @ self.weights + self.bias


def fit(states: Tensor, tokens: Tensor) -> Discriminant:
    """Fit the discriminant with the λ that is best on a third of the states when the others are fitted."""
    if len(states) < 3:
        return _fit(states, tokens, RIDGES[:1])[0]
    judged = torch.arange(len(states)) % 3 == 0
    tried = _fit(states[~judged], tokens[~judged], RIDGES)
    held = states[judged], tokens[judged]
    worth = [(each.accuracy(*held), each.likelihood(*held)) for each in tried]
    return _fit(states, tokens, (RIDGES[worth.index(max(worth))],))[0]


def _fit(states: Tensor, tokens: Tensor, ridges: Sequence[float]) -> list[Discriminant]:
    """Fit one discriminant per λ, all from one eigendecomposition."""
    center, spread = states.double().mean(0), states.double().std(0, correction=0)
    scale = spread.where(spread > 0, 1.0)
    x = (states.double() - center) / scale
    known, which, counts = tally(tokens)
    means = x.new_zeros(len(known), x.shape[1]).index_add_(0, which, x) / counts[:, None]
    within = x - means[which]
    values, vectors = cast("tuple[Tensor, Tensor]", torch.linalg.eigh(within.T @ within / len(x)))
    turned = means @ vectors
    found: list[Discriminant] = []
    for ridge in ridges:
        whitened = turned / (values.clamp(min=0) + ridge)
        weights = vectors @ whitened.T / scale[:, None]
        bias = (counts / len(x)).log() - 0.5 * (whitened * turned).sum(1) - center @ weights
        found.append(Discriminant(known, weights, bias))
    return found


def chance(tokens: Tensor) -> float:
    """Return the accuracy of always reading the most frequent token."""
    return tally(tokens)[2].max().item() / len(tokens)


def tally(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the different tokens, the index of each token among them, and the count of each different token."""
    plain: Any = tokens  # unique is not typed
    return plain.unique(return_inverse=True, return_counts=True)
