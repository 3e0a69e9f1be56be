"""A curriculum's stages on the parity tree: which positions are padded, which carry loss, which layer is read out.

| name       | paper | meaning                                                              | where        |
| ---------- | ----- | -------------------------------------------------------------------- | ------------ |
| hidden     | –     | padded positions; n+1 … n_t in the paper's stage t                   | section 3.1  |
| supervised | –     | positions with loss; n_t+1 … T in the paper's stage t                | Eq. (loss-t) |
| layers     | t     | layers that run: the readout Ψ_t takes the block that layer t writes | section 2.2  |

The paper defines stages for Log-ICoT. For any other removal, the readout is after the layer that writes the first
position that is not padded. This is the natural reading of ICoT on this model.
"""

from dataclasses import dataclass

from internalize.curriculum import Curriculum
from internalize.parity.task.tree import Levels


@dataclass(frozen=True)
class ParityStage:
    """A stage of a curriculum, as positions of a parity tree."""

    hidden: tuple[int, ...]
    supervised: tuple[int, ...]
    layers: int
    moving: int | None = None
    """Layers that a step of Algorithm 1 moves, from the bottom: None stands for all that run."""

    @property
    def trained(self) -> int:
        """The layer that a step of Algorithm 1 trains, counted from 0: the highest that it moves."""
        return (self.moving or self.layers) - 1


def parity_stages(levels: Levels, curriculum: Curriculum, *, hidden_loss: bool = False) -> tuple[ParityStage, ...]:
    """Return the stages of ``curriculum`` on k-parity: log2 k stages for Log-ICoT, k − 1 for ICoT.

    With ``hidden_loss``, hidden nodes keep their loss. The readout holds them, because it keeps what lower layers wrote.
    """
    chain = range(levels.n, levels.T)
    return tuple(
        ParityStage(
            hidden=tuple(chain[e] for e in stage.hidden),
            supervised=tuple(chain) if hidden_loss else tuple(chain[e] for e in stage.supervised),
            layers=levels.level_of(chain[stage.supervised[0]]),
        )
        for stage in curriculum.stages(len(chain), [levels.level_of(m) for m in chain[:-1]])
    )
