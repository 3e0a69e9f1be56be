"""Certificates of hidden nodes: each is ready in time and unchanged by later stages, and the answer is right."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from internalize.certificate import Finding, not_applicable, statement
from internalize.lm.certificates.world import ERROR, LmWorld
from internalize.lm.probe.probe import sequences_of
from internalize.lm.probe.states import Budget, Cells, at_positions, read_states
from internalize.lm.training.generation import generate_answers


@statement(
    'after Lemma "Hidden States"',
    "hidden nodes are near the truth; here a linear probe reads them, early enough for their parents",
)
def hidden_nodes(world: LmWorld) -> Finding:
    """Measure the error of a linear probe at the position that predicts a node, least over its usable layers, at the
    worst node.

    In the paper the state itself is within δ of the truth. A probe shows that a node can be read, not that it was
    computed: from a wide layer any function of few bits can be read. So each node has a control: the parity of its bits
    with one of them exchanged, which the model was not trained for. If a control can be read as well, the verdict is
    vacuous.
    """
    if world.task.k == 2:
        return not_applicable("k=2 has no hidden nodes")
    cells, nodes = world.sequences.cells, range(world.task.k - 2)

    def least(node: int, labels: Tensor) -> float:
        at = (at_positions(world.readings.states[layer], cells.predicted[:, node]) for layer in world.usable(node))
        return min(world.probe(states, labels)[1] for states in at)

    errors = [least(node, cells.tokens[:, node]) for node in nodes]
    controls = [least(node, _control_labels(world, node)) for node in nodes]
    worst, easiest = max(nodes, key=errors.__getitem__), min(nodes, key=controls.__getitem__)
    where = (
        f"{world.name(worst)}; the best control is that of {world.name(easiest)}, with error {controls[easiest]:.3f}"
    )
    return Finding(errors[worst], ERROR, where, vacuous=controls[easiest] <= ERROR)


def _control_labels(world: LmWorld, node: int) -> Tensor:
    """Return the parity of a node's bits with the last one exchanged, if possible for a bit outside the secret set."""
    own, known = world.leaves(node), {world.leaves(other) for other in range(world.task.k - 1)}
    others = sorted(set(range(world.task.n)) - own, key=lambda bit: (bit in world.task.secret, bit))
    sets = (own - {max(own)} | {bit} for bit in others)
    chosen_bits = sorted(next(each for each in sets if each not in known))
    bits = torch.tensor([[int(word) for word in example.question.split()] for example in world.kept.examples])
    return bits[:, chosen_bits].sum(1) % 2


@statement(
    'after Lemma "Frozen gradient"', "a trained layer stays; here what a stage has hidden is read alike after the next"
)
def frozen_nodes(world: LmWorld) -> Finding:
    """Measure how often a probe fitted to one stage's states reads a hidden node differently in the next stage's
    states.

    The measure is the least over the node's usable layers in which the earlier model has it, at the worst node of all
    kept stages that led to the final model.

    The paper's trained layers keep their weights. Here all weights change, and the statement is that the same direction
    in the same layer still encodes the node. Nodes that the earlier model does not have are left out.
    """
    if len(world.kept.folders) < 2:
        return not_applicable("the stages were not kept; lm train --keep-stages keeps them")
    found: list[tuple[float, int, int]] = []
    missing = 0
    for before, after in world.kept.lineage:
        began, given = (sequences_of(world.kept, Budget.at(world.kept.stages, stage)) for stage in (before, after))
        nodes = [node for node in range(world.task.k - 2) if not bool(began.cells.shown[:, node].any())]
        if not nodes:
            continue
        one, other = (read_states(world.kept.model(stage), given).states for stage in (before, after))
        for node in nodes:
            moved = _share_read_differently(world, given.cells, node, one, other)
            missing += moved is None
            found += [] if moved is None else [(moved, node, after)]
    left_out = f"; {missing} hidden nodes that a stage's model does not have are left out" if missing else ""
    if not found:
        return not_applicable(f"no stage but the last hides a node that its model has{left_out}")
    worst, node, stage = max(found, key=lambda each: (math.isnan(each[0]), *each))
    return Finding(worst, ERROR, f"{world.name(node)} in stage {stage}{left_out}")


def _share_read_differently(
    world: LmWorld, cells: Cells, node: int, one: Sequence[Tensor], other: Sequence[Tensor]
) -> float | None:
    """Return how often a node is read differently in other states, or None if it cannot be read in the first ones."""
    shares: list[float] = []
    for layer in world.usable(node):
        first, second = (at_positions(states[layer], cells.predicted[:, node]) for states in (one, other))
        if not bool(second.isfinite().all()):
            return float("nan")
        probe, error = world.probe(first, cells.tokens[:, node])
        if error <= ERROR:
            judged = ~world.fitted
            shares.append((probe.read(second[judged]) != probe.read(first[judged])).double().mean().item())
    return min(shares, default=None)


@statement("after Theorem 1", "the answer is right with everything hidden; here for 99 %")
def answer(world: LmWorld) -> Finding:
    """Measure the share of wrong answers, compared word for word, of greedy generation with the whole chain hidden."""
    kept = world.kept
    found = generate_answers(world.model, kept.text, kept.stages, kept.examples, kept.stages.last)
    wrong = len(kept.examples) - sum(found.right(kept.examples))
    return Finding(wrong / len(kept.examples), ERROR, f"{wrong} of {len(kept.examples)} questions")
