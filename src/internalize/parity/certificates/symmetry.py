r"""Symmetry: the nodes of a hidden level that nothing supervises can be exchanged, so training cannot tell them apart.

| name   | meaning                                                                                        |
| ------ | ---------------------------------------------------------------------------------------------- |
| block  | nodes of one level that a stage hides and does not supervise, below the level that it reads    |
| P      | an exchange of positions of a block: rows and columns of every layer's weights change places   |
| spread | largest difference between the columns of a block, and between its rows in the layers above    |

**Claim.** Let the mask be the level mask, let the gates of a layer be equal on each level, and let a stage read out
the layer ``t``. For any link, weights θ, batch, and exchange P within a block, the stage's *empirical* loss satisfies
\(\mathcal L(P\theta) = \mathcal L(\theta)\).

**Proof.** In the input all positions of the block hold the padding, so P does not change the input. Mask and gates are
unchanged by P. Call the states of the two models X and X′; we show X′ = PX block by block. It holds for the input. If
it holds for what a layer reads, the layer's scores for a query Pm and a key Pj are those for m and j, both are visible
or neither is, and the softmax runs over the same numbers. So the layer computes at Pm what it computed at m, and gates
and block shift act on each position alone. The readout at supervised positions, which P leaves in place, is the same.
∎

**Corollary 1.** Differentiating \(\mathcal L(P\theta) = \mathcal L(\theta)\) gives \(\nabla\mathcal L(P\theta) =
P\,\nabla\mathcal L(\theta)\). If Pθ = θ for every exchange within the block (the block is *collapsed*), the gradient is
collapsed too.

**Corollary 2.** Let an optimizer update every entry of a layer by one function of the entry, its gradient and its own
state: gradient descent with or without momentum, AdamW with weight decay and its bias correction, Algorithm 1 with
rounding, with any rate per layer. If weights and states are collapsed, they stay collapsed, for any batches and any
number of steps. W = 0 is collapsed. So a level that gets no stage of its own ends the curriculum with equal columns: in
the stages before, its layer is above the readout and does not move; in the stages after, its nodes are a block.

**Where it ends.** Random initial weights are not collapsed. Algorithm 1 with a random error of the oracle is not
equivariant, because its error differs between columns. A loss on the hidden nodes, a causal mask, and gates that differ
within a level break the claim. Of a level that is partly supervised (ICoT), only the nodes without a loss are a block.
In floating point the spread stays exactly 0 if the sums of all columns run in one order; ``tests/test_symmetry.py``
measures it for every optimizer and every form of the model.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from internalize.certificate import Finding, not_applicable, statement
from internalize.parity.certificates.architecture import ROUNDING, gradients, worse
from internalize.parity.certificates.world import World
from internalize.parity.task.stages import ParityStage
from internalize.parity.task.tree import Levels

_ALL_STAGES = 64
"""Largest T at which the blocks of all stages are checked; above it, those of the last stage, which hides most."""


def blocks(levels: Levels, stage: ParityStage) -> list[list[int]]:
    """Return the blocks of a stage that have at least two nodes, from the lowest level up."""
    free = set(stage.hidden) - set(stage.supervised)
    found = [[m for m in levels.nodes(level) if m in free] for level in range(1, stage.layers)]
    return [block for block in found if len(block) > 1]


def level_spread(W: Sequence[Tensor], levels: Levels, level: int) -> float:
    """Return the spread of a level, from 1 to L − 1, in weights in level form (leading run dimensions allowed)."""
    nodes = levels.span(level)
    parts = [W[level - 1], *(w[..., nodes, :].mT for w in W[level:])]
    return max(float((part - part[..., :1]).detach().abs().max()) for part in parts)


@statement("docs/stages.md, Symmetry", "exchanging hidden nodes without a loss leaves the empirical loss unchanged")
def symmetry(world: World) -> Finding:
    """Check the claim and Corollary 1 with random weights, for a swap and a rotation, which generate all exchanges.

    Measured: the largest difference of a loss from that of the exchanged weights, and the spread of the gradient of
    collapsed weights, over all blocks of the stages (above T = 64, of the last stage).
    """
    levels, worst = world.levels, 0.0
    sequence = world.sequence(world.some_bits(16))
    stages = world.stages if levels.T <= _ALL_STAGES else world.stages[-1:]
    found = [(stage, block) for stage in stages for block in blocks(levels, stage)]
    if not found:
        return not_applicable("no stage hides two nodes of a level without supervising them")
    W = [w.requires_grad_() for w in world.generic(1.0)]
    for stage, block in found:
        D = world.stage_input(sequence, stage)

        def loss(weights: list[Tensor], D: Tensor = D, stage: ParityStage = stage) -> Tensor:
            return world.loss(world.output(D, stage.layers, weights), sequence, stage)

        with torch.no_grad():
            here = loss(W)
            for exchanged in ([block[1], block[0], *block[2:]], [*block[1:], block[0]]):
                order = torch.arange(levels.T).index_copy(0, torch.tensor(block), torch.tensor(exchanged))
                worst = worse(worst, loss([w[order][:, order] for w in W]) - here)
        collapsed = [_collapsed(w, block) for w in W]
        for gradient in gradients(loss(collapsed), collapsed):
            columns, rows = gradient[:, block], gradient[block].mT
            # Entries between two nodes of the block move along with both, and the level mask hides them.
            outside = [m for m in range(levels.T) if m not in block]
            worst = worse(worst, (columns - columns[:, :1])[outside])
            worst = worse(worst, (rows - rows[:, :1])[outside])
    return Finding(worst, ROUNDING, f"{len(found)} blocks of {len(stages)} stages")


def _collapsed(W: Tensor, block: list[int]) -> Tensor:
    """Return a copy of T × T weights in which the block's columns are equal, and its rows are."""
    found = W.detach().clone()
    found[:, block] = found[:, block[:1]]
    found[block] = found[block[:1]]
    return found.requires_grad_()
