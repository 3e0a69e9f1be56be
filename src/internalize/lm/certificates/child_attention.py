r"""Attention on the children, from the position that has to predict the node, averaged over questions.

| name   | paper | meaning                                                | where               |
| ------ | ----- | ------------------------------------------------------ | ------------------- |
| weaker | σ     | attention on the child that has less                   | Def. "Well-trained" |
| mass   | 1 − μ | attention on both children together, in one head       | Lemma "Stage 1"     |
| sight  | n_ℓ   | positions that a node sees: uniform attention is 1/n_ℓ | Definition 1        |

Departs from the paper, where a node has one place. A causal model can know a node at the position of its last bit, long
before the chain, and does (`LOG.md`). So this position is also a place of the node, beside its slot and the position
that predicts it. Attention to a place counts only if a probe reads the child there in the layer below. Uniform
attention meets no bound: with fewer than 6 bits there are too few different questions for a probe, and a node sees more
than 6 positions.
"""

from typing import Final

import torch
from torch import Tensor

from internalize.certificate import Finding, not_applicable, statement
from internalize.lm.certificates.world import LmWorld

SHORT: Final = 0.25
"""Largest amount by which a child's attention may be below the paper's ½, which is half of it."""
MASS: Final = 0.5
"""Largest attention off the children. At this bound they get as much as all other positions together."""


NO_SLOTS: Final = not_applicable("deleted steps leave no slots, so nodes have no places to attend to")


@statement(
    'after Definition "Well-trained layer"',
    "each child of a node gets ½ of the attention; here, in some head, at least half of that",
)
def child_attention(world: LmWorld) -> Finding:
    r"""Measure how far attention on the lesser child is below ½, least over layers and heads, at the worst node.

    The paper has \((1-\delta)/2 \le \sigma \le 1/2\) in its single head, with a tiny δ. Here each child may have its
    own head, and more than ½ of its attention. So only the lower bound is checked, with half the attention.
    """
    if not world.kept.stages.options.padded:
        return NO_SLOTS
    (weaker, _, sight), worst = _worst_node(world, 0)
    where = f"{worst} has {weaker:.3f} on the lesser child; uniform attention has {1 / sight:.3f}"
    return Finding(max(0.0, 0.5 - weaker), SHORT, where)


@statement('after Lemma "Stage 1"', "attention off the children is next to nothing; here, in some head, at most ½")
def child_mass(world: LmWorld) -> Finding:
    """Measure attention off the two children, the paper's μ, least over layers and heads, at the worst node.

    In the paper it is tiny. Here it may be as much as the children get.
    """
    if not world.kept.stages.options.padded:
        return NO_SLOTS
    (_, mass, sight), worst = _worst_node(world, 1)
    where = f"{worst} has {mass:.3f} on both children in its best head; uniform attention has {2 / sight:.3f}"
    return Finding(1 - mass, MASS, where)


def _worst_node(world: LmWorld, by: int) -> tuple[tuple[float, float, int], str]:
    """Return `_attention_on_children` of the node at which its entry ``by`` is least, and that node's name."""
    seen = [_attention_on_children(world, node) for node in range(world.task.k - 1)]
    worst = min(range(len(seen)), key=lambda node: seen[node][by])
    return seen[worst], world.name(worst)


def _attention_on_held_places(world: LmWorld, node: int) -> list[Tensor]:
    """Return for each child the attention of usable heads to places that hold it, as heads × keys, with 0 elsewhere."""
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
    """Return attention on the child that has less, greatest mass on both in one head, and the number of visible
    positions.

    The children are counted at different places: a slot also predicts the next step, and attention to it counts for one
    child.
    """
    first, second = _attention_on_held_places(world, node)
    other = 1 - torch.eye(first.shape[1])
    weaker = torch.minimum(first.amax(0)[:, None], second.amax(0)[None]) * other
    mass = (first[:, :, None] + second[:, None]) * other
    return weaker.max().item(), mass.max().item(), int(world.sequences.cells.predicted[0, node]) + 1
