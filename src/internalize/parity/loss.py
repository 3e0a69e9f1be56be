r"""The loss of a stage.

\[ \mathcal L^{(t)} = \frac{1}{2B} \sum_{m > n_t} \lVert \Psi_t^\top \mathcal T_\theta(D)_m - b_m \rVert^2 \]
"""

from jaxtyping import Float
from torch import Tensor

from internalize.parity.stages import ParityStage


def stage_loss(
    output: Float[Tensor, "*runs B T"], sequence: Float[Tensor, "*runs B T"], stage: ParityStage
) -> Float[Tensor, "*runs"]:
    """Squared error on the supervised positions, summed over them, averaged over samples, halved: Eq. (loss-t)."""
    supervised = list(stage.supervised)
    error = output[..., supervised] - sequence[..., supervised]
    return error.square().sum(dim=-1).mean(dim=-1) / 2
