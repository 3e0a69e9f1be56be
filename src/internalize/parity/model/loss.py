r"""The loss of a stage.

\[ \mathcal L^{(t)} = \frac{1}{2B} \sum_{m > n_t} \lVert \Psi_t^\top \mathcal T_\theta(D)_m - b_m \rVert^2 \]
"""

from jaxtyping import Float, Inexact
from torch import Tensor

from internalize.parity.model.transformer import LevelTransformer
from internalize.parity.task.stages import ParityStage
from internalize.parity.task.tree import Levels


def stage_loss(
    output: Inexact[Tensor, "*runs B T"], sequence: Inexact[Tensor, "*runs B T"], stage: ParityStage
) -> Float[Tensor, "*runs"]:
    """Return half the mean over samples of the squared error, summed over the supervised positions: Eq. (loss-t)."""
    supervised = list(stage.supervised)
    return _half_square(output[..., supervised] - sequence[..., supervised])


def supervised_level_loss(
    output: Inexact[Tensor, "*runs B T"], sequence: Inexact[Tensor, "*runs B T"], stage: ParityStage, levels: Levels
) -> Float[Tensor, "*runs"]:
    """Return the stage loss over the supervised nodes of the readout's level alone, for inputs that hide all nodes."""
    nodes = slice(stage.supervised[0], levels.level_end[stage.layers])
    return _half_square(output[..., nodes] - sequence[..., nodes])


def level_loss(
    model: LevelTransformer, sequence: Inexact[Tensor, "*runs B T"], stage: ParityStage
) -> Float[Tensor, "*runs"]:
    """Return the stage loss of a model in level form, without the terms that are 0.

    The forward pass reads neither padded positions nor shown nodes. A supervised node above the readout copies its
    own shown token, so its error is exactly 0. Only the level that the readout layer writes contributes.
    """
    levels = model.levels
    computed = model.by_level(sequence[..., : levels.n], stage.layers)[-1]
    nodes = slice(stage.supervised[0], levels.level_end[stage.layers])
    return _half_square(computed[..., nodes.start - nodes.stop :] - sequence[..., nodes])


def _half_square(error: Inexact[Tensor, "*runs B nodes"]) -> Float[Tensor, "*runs"]:
    square = (error * error.conj()).real if error.is_complex() else error.square()
    return square.sum(dim=-1).mean(dim=-1) / 2
