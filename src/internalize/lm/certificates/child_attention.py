r"""Attention on the children, from the position that has to predict the node; the mean over questions.

| name   | paper | meaning                                                | where               |
| ------ | ----- | ------------------------------------------------------ | ------------------- |
| weaker | σ     | attention on the child that has less                   | Def. "Well-trained" |
| mass   | 1 − μ | attention on both children together, in one head       | Lemma "Stage 1"     |
| sight  | n_ℓ   | positions that a node sees: uniform attention is 1/n_ℓ | Definition 1        |

Departs from the paper, where a node is at one place: a causal model can know a node at the position of its last bit, long before
the chain, and does (`LOG.md`). So that is a place of the node as well as its slot and the position that predicts it. A look at a
place that does not hold the child is none: it counts where a probe reads the child in the layer below. Uniform attention meets no
bound: of less than 6 bits there are too few different questions to read anything, and a node sees more positions than that.
"""

from typing import Final

import torch
from torch import Tensor

from internalize.certificate import Finding, not_applicable, statement
from internalize.lm.certificates.world import LmWorld

SHORT: Final = 0.25
"""What a child's attention may be short of the paper's ½: half of it."""
MASS: Final = 0.5
"""Largest mass off the children: they get as much as all other positions together."""


NO_SLOTS: Final = not_applicable("deleted steps leave no slots, so nodes have no places to attend to")


@statement(
    'after Definition "Well-trained layer"',
    "each child of a node gets ½ of the attention; here, in some head, at least half of that",
)
def child_attention(world: LmWorld) -> Finding:
    r"""Each child gets ½: what the one that has less is short of it, least over layers and heads, at the worst node.

    The paper has \((1-\delta)/2 \le \sigma \le 1/2\) in its one head, δ next to nothing. Here each child may have a head of its own
    and more than ½ of it, so only the lower side is asked for, and half of it.
    """
    if not world.kept.stages.options.padded:
        return NO_SLOTS
    (weaker, _, sight), worst = _worst_node(world, 0)
    where = f"{worst} has {weaker:.3f} on the lesser child; uniform attention has {1 / sight:.3f}"
    return Finding(max(0.0, 0.5 - weaker), SHORT, where)


@statement('after Lemma "Stage 1"', "attention off the children is next to nothing; here, in some head, at most ½")
def child_mass(world: LmWorld) -> Finding:
    """Attention off the two children, the paper's μ, least over layers and heads, at the worst node.

    In the paper it is next to nothing. Here it may be as much as what the children get.
    """
    if not world.kept.stages.options.padded:
        return NO_SLOTS
    (_, mass, sight), worst = _worst_node(world, 1)
    where = f"{worst} has {mass:.3f} on both children in its best head; uniform attention has {2 / sight:.3f}"
    return Finding(1 - mass, MASS, where)


def _worst_node(world: LmWorld, by: int) -> tuple[tuple[float, float, int], str]:
    """`_attention_on_children` of the node that has least of its number ``by``, and that node's name."""
    seen = [_attention_on_children(world, node) for node in range(world.task.k - 1)]
    worst = min(range(len(seen)), key=lambda node: seen[node][by])
    return seen[worst], world.name(worst)


def _attention_on_held_places(world: LmWorld, node: int) -> list[Tensor]:
    """For each child, what each head of the layers that a node may use has on places that hold it: heads × keys, 0 elsewhere."""
    found: list[Tensor] = []
    for child in world.task.children[node]:
        layers: list[Tensor] = []
        for layer in world.usable(node):
            attention = world.attention[layer - 1][node]
            held = [place for place in world.places[child] if (child, place, layer - 1) in world.held]
            layers.append(torch.zeros_like(attention))
            layers[-1][:, held] = attention[:, held]
        found.append(torch.cat(layers))
    return found


def _attention_on_children(world: LmWorld, node: int) -> tuple[float, float, int]:
    """Attention on the child that has less, greatest mass on both in one head, and the number of positions in sight.

    The children are counted at different places: a slot is also where the next step is predicted, and one look is not two.
    """
    first, second = _attention_on_held_places(world, node)
    other = 1 - torch.eye(first.shape[1])
    weaker = torch.minimum(first.amax(0)[:, None], second.amax(0)[None]) * other
    mass = (first[:, :, None] + second[:, None]) * other
    return weaker.max().item(), mass.max().item(), int(world.sequences.cells.predicted[0, node]) + 1
