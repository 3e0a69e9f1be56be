r"""Loss and gradients of a stage in level form, without autograd and without its copies.

| name | paper                            | meaning                                                    | where        |
| ---- | -------------------------------- | ---------------------------------------------------------- | ------------ |
| X    | x^(ℓ)_[ℓ+1]                      | runs × positions × samples: the bits, then the nodes       | section 2.2  |
| A    | softmax of W^(ℓ)                 | runs × keys × nodes                                        | Definition 1 |
| Z    | ẑ                                | runs × nodes × samples: means of the keys, before the link | section 2.2  |
| dX   | ∂L/∂x                            | gradient of the nodes; the bits need none                  | –            |
| G    | ∂L/∂ẑ                            | gradient of the nodes that a layer writes                  | –            |

With \(Z = A^\top X\) and \(x_m = \phi(Z_m)\),
\[ G = \frac{\partial \mathcal L}{\partial x} \odot \phi'(Z), \qquad
   \frac{\partial \mathcal L}{\partial A} = X G^\top, \qquad \frac{\partial \mathcal L}{\partial X} \mathrel{+}= A
   G, \qquad \frac{\partial \mathcal L}{\partial W} = A \odot \Bigl(\frac{\partial \mathcal L}{\partial A}
   - \mathbf 1 \sum_j A_j \odot \frac{\partial \mathcal L}{\partial A_j}\Bigr). \]

Samples are adjacent in memory, so that a product with few nodes has long rows; with nodes adjacent, the same
products take five times as long. All states are in one buffer, so that a layer reads them in one product and
nothing is concatenated.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from internalize.parity.model.transformer import LevelTransformer
from internalize.parity.task.stages import ParityStage


class LevelGradients:
    """Computes a stage's loss and gradients for a model whose weights have one leading dimension, the runs."""

    def __init__(self, model: LevelTransformer) -> None:
        self.model = model
        self.levels = model.levels
        self.W = [w for w in model.W if isinstance(w, nn.Parameter)]
        self.gradients = [torch.empty_like(w) for w in self.W]
        like = self.W[0]
        self._X, self._dX = like.new_empty(0), like.new_empty(0)

    @torch.no_grad()
    def __call__(self, sequence: Tensor, stage: ParityStage) -> Float[Tensor, "runs"]:
        """Set ``grad`` of every weight, and return each run's loss on ``sequence`` (runs × positions × samples).

        Layers above the readout get the gradient None, not zero.
        """
        levels, end = self.levels, self.levels.level_end
        n, (runs, T, B) = levels.n, sequence.shape
        if self._X.shape != sequence.shape:
            self._X, self._dX = self._X.new_empty(runs, T, B), self._dX.new_empty(runs, T - n, B)
        X, dX = self._X, self._dX
        X[:, :n] = sequence[:, :n]
        A: list[Tensor] = []
        Z: list[Tensor] = []
        for layer in range(stage.layers):
            A.append(self.W[layer].softmax(dim=-2))
            Z.append(A[layer].mT @ X[:, : end[layer]])
            X[:, end[layer] : end[layer + 1]] = self.model.link(Z[layer])

        # Nodes of lower levels have a loss only if hidden nodes keep theirs; otherwise ``lower`` is empty.
        top, first = stage.layers, max(stage.supervised[0], end[stage.layers - 1])
        lower = slice(stage.supervised[0], max(stage.supervised[0], end[top - 1]))
        below_error = X[:, lower] - sequence[:, lower]
        error = dX[:, end[top - 1] - n : end[top] - n]
        error[:, : first - end[top - 1]] = 0
        torch.sub(X[:, first : end[top]], sequence[:, first : end[top]], out=error[:, first - end[top - 1] :])
        losses = (error.square().sum(dim=(-1, -2)) + below_error.square().sum(dim=(-1, -2))) / (2 * B)
        error /= B
        for layer in reversed(range(top)):
            G = self.model.link.slope(Z[layer]).mul_(dX[:, end[layer] - n : end[layer + 1] - n])
            dA = (G @ X[:, : end[layer]].mT).mT
            mean = (A[layer] * dA).sum(dim=-2, keepdim=True)
            torch.mul(A[layer], dA.sub_(mean), out=self.gradients[layer])
            below = dX[:, : end[layer] - n]
            if layer == top - 1:
                below[:] = A[layer][:, n:] @ G
                dX[:, lower.start - n : lower.stop - n] += below_error / B
            elif layer:
                below += A[layer][:, n:] @ G  # baddbmm_ into a part of a buffer would compute run by run
        for layer, (w, gradient) in enumerate(zip(self.W, self.gradients, strict=True)):
            w.grad = gradient if layer < top else None
        return losses
