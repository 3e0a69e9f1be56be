r"""The loss of a stage.

\[ \mathcal L^{(t)} = \frac{1}{2B} \sum_{m > n_t} \lVert \Psi_t^\top \mathcal T_\theta(D)_m - b_m \rVert^2 \]
"""

from jaxtyping import Float
from torch import Tensor

from internalize.parity.model.transformer import LevelTransformer
from internalize.parity.task.stages import ParityStage
from internalize.parity.task.tree import Levels


def stage_loss(
    output: Float[Tensor, "*runs B T"], sequence: Float[Tensor, "*runs B T"], stage: ParityStage
) -> Float[Tensor, "*runs"]:
    """Squared error on the supervised positions, summed over them, averaged over samples, halved: Eq. (loss-t)."""
    supervised = list(stage.supervised)
    error = output[..., supervised] - sequence[..., supervised]
    return error.square().sum(dim=-1).mean(dim=-1) / 2


def supervised_level_loss(
    output: Float[Tensor, "*runs B T"], sequence: Float[Tensor, "*runs B T"], stage: ParityStage, levels: Levels
) -> Float[Tensor, "*runs"]:
    """The same sum over the supervised nodes of the readout's level alone: what is left where the input hides all nodes."""
    nodes = slice(stage.supervised[0], levels.level_end[stage.layers])
    error = output[..., nodes] - sequence[..., nodes]
    return error.square().sum(dim=-1).mean(dim=-1) / 2


def level_loss(
    model: LevelTransformer, sequence: Float[Tensor, "*runs B T"], stage: ParityStage
) -> Float[Tensor, "*runs"]:
    """The same loss of a model in level form, without the part that is 0.

    The forward pass never reads a padded position nor a shown node, and a supervised node above the readout copies its own
    shown token: its error is exactly 0. What remains is the level that the readout layer writes.
    """
    levels = model.levels
    computed = model.by_level(sequence[..., : levels.n], stage.layers)[-1]
    end = levels.level_end[stage.layers]
    first = stage.supervised[0] - end  # negative: counted from the end of the level
    error = computed[..., first:] - sequence[..., stage.supervised[0] : end]
    return error.square().sum(dim=-1).mean(dim=-1) / 2
