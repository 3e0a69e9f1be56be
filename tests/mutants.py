"""Broken models, each with the certificate that must catch it. `make mutants` prints the table.

Each mutant is the sound world (Algorithm 1 at n = 8, k = 4 and at n = 30, k = 16) with one fault.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from internalize.parity.certificates import STATEMENTS, World, certify
from internalize.parity.model.link import Link
from internalize.parity.model.mask import masked_softmax
from internalize.parity.options import SolveOptions
from internalize.parity.task.stages import ParityStage
from internalize.random_words import Stream

Mutate = Callable[[World], World]


@dataclass(frozen=True)
class Mutant:
    """One fault: its name, the certificate that must catch it, and the function that makes it."""

    name: str
    caught_by: str
    mutate: Mutate


def shifted_gates(world: World, by: int) -> World:
    gates = torch.zeros_like(world.gates)
    for layer in range(min(world.levels.L, world.levels.L - by)):
        gates[layer, world.levels.span(layer + 1 + by)] = 1.0
    return replace(world, gates=gates)


def with_gate(world: World, layer: int, position: int, value: float) -> World:
    gates = world.gates.clone()
    gates[layer, position] = value
    return replace(world, gates=gates)


def seeing(world: World, extra: Callable[[int, int], bool]) -> World:
    T = world.levels.T
    more = torch.tensor([[m >= world.tree.n and extra(j, m) for m in range(T)] for j in range(T)])
    return replace(world, visible=world.visible | more)


def with_weights(change: Callable[[World, list[Tensor]], None]) -> Mutate:
    """Return a mutation that changes the weights, from the stage that trains their layer on."""

    def mutate(world: World) -> World:
        def changed(weights: tuple[Tensor, ...], stage: int) -> tuple[Tensor, ...]:
            new = [w.clone() for w in weights]
            change(world, new)
            return tuple(w if layer <= stage else torch.zeros_like(w) for layer, w in enumerate(new))

        history = tuple(changed(weights, stage) for stage, weights in enumerate(world.history))
        return replace(world, weights=changed(world.weights, world.levels.L), history=history)

    return mutate


@with_weights
def swapped_children(world: World, W: list[Tensor]) -> None:
    W[0][:, [0, 1]] = W[0][:, [1, 0]]


def with_logits(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Mutate:
    """Return a mutation of two logits of the first node: of a child, and of a bit that no node depends on."""

    def mutate(world: World, W: list[Tensor]) -> None:
        stranger = next(j for j in range(world.tree.n) if j not in world.tree.secret)
        places = [world.tree.children(world.tree.n)[0], stranger]
        W[0][places, 0] = torch.stack(change(*W[0][places, 0]))

    return with_weights(mutate)


@with_weights
def halved(world: World, W: list[Tensor]) -> None:
    for w in W:
        w *= 0.5


def moved_later(world: World) -> World:
    assert world.algorithm is not None
    unit = world.algorithm.amplitude if world.algorithm.grid == "K" else 1.0

    def moved(weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        first = weights[0].clone()
        first[-1, 0] -= unit
        return (first, *weights[1:])

    return replace(world, weights=moved(world.weights), history=(*world.history[:-1], moved(world.history[-1])))


def reversed_stages(world: World) -> World:
    L = world.levels.L
    history = tuple(
        tuple(w if layer >= L - 1 - stage else torch.zeros_like(w) for layer, w in enumerate(world.weights))
        for stage in range(L)
    )
    return replace(world, stages=world.stages[::-1], history=history)


def wrong_axis(logits: Tensor, visible: Tensor) -> Tensor:
    return masked_softmax(logits.T, visible.T).T


def wrong_sign(world: World) -> World:
    link = world.link
    return replace(world, link=Link("negated", lambda t: -link.phi(t), lambda t: -link.slope(t), link.c))


def sloped(world: World) -> World:
    link = world.link
    phi = lambda t: link.phi(t) + 0.2 * t * (1 - t**2)  # noqa: E731
    return replace(world, link=Link("sloped", phi, lambda t: link.slope(t) + 0.2 - 0.6 * t**2, link.c))


def counting_hidden(world: World) -> World:
    def loss(output: Tensor, sequence: Tensor, stage: ParityStage) -> Tensor:
        level = world.levels.nodes(max(stage.layers - 1, 0))
        unread = (output - sequence)[..., level.start : level.stop].square().sum(-1).mean(-1) / 2
        return world.loss(output, sequence, stage) + unread

    return replace(world, loss=loss)


def biased(world: World) -> World:
    def draw(start: int, count: int, stream: Stream) -> Tensor:
        uniform = np.random.Generator(np.random.Philox(start)).random((count, world.tree.n))
        return torch.from_numpy(np.where(uniform < 0.6, 1.0, -1.0))

    return replace(world, draw=draw)


def drawn_twice(world: World) -> World:
    def draw(start: int, count: int, stream: Stream) -> Tensor:
        halves = world.draw(start // 2, count // 2 + 1, stream).repeat_interleave(2, dim=0)
        return halves[start % 2 :][:count]

    return replace(world, draw=draw)


def drawn_at_every_stage(world: World) -> World:
    """Give every stage the samples of the first, although their numbers differ."""
    B = world.ranges[0][1]
    return replace(world, draw=lambda start, count, stream: world.draw(start % B, count, stream))


MUTANTS = (
    Mutant("gate one level too low", "gating", lambda world: shifted_gates(world, -1)),
    Mutant("gate one level too high", "gating", lambda world: shifted_gates(world, 1)),
    Mutant("gates all ones", "gating", lambda world: replace(world, gates=torch.ones_like(world.gates))),
    Mutant("a gate open at an input bit", "kept-inputs", lambda w: with_gate(w, 0, w.tree.secret[-1], 1.0)),
    Mutant(
        "mask off by one",
        "mask",
        lambda world: seeing(world, lambda j, m: j <= world.levels.level_end[world.levels.level_of(m) - 1]),
    ),
    Mutant(
        "mask letting a node see its own level",
        "mask",
        lambda world: seeing(world, lambda j, m: j != m and world.levels.level_of(j) == world.levels.level_of(m)),
    ),
    Mutant("mask letting a node see itself", "mask", lambda world: seeing(world, lambda j, m: j == m)),
    Mutant("children of two neighbouring nodes swapped", "well-trained", swapped_children),
    Mutant("one child replaced by an irrelevant bit", "well-trained", with_logits(lambda child, other: (other, child))),
    Mutant("children's logits unequal by one", "well-trained", with_logits(lambda child, other: (child - 1, other))),
    Mutant("one logit negated", "well-trained", with_logits(lambda child, other: (-child, other))),
    Mutant("a third key as strong as the children", "well-trained", with_logits(lambda child, _: (child, child))),
    Mutant("amplitude halved", "well-trained", halved),
    Mutant("softmax over the wrong axis", "softmax", lambda world: replace(world, softmax=wrong_axis)),
    Mutant("readout of the wrong block", "propagation", lambda w: replace(w, readout=w.readout.roll(1, dims=1))),
    Mutant("block shift applied twice", "propagation", lambda world: replace(world, shift=2 * world.shift)),
    Mutant("φ with the wrong sign", "link", wrong_sign),
    Mutant("φ with a slope at 0", "link", sloped),
    # carries a tenth of the root's own token over
    Mutant("a shown CoT token leaking into the root", "evaluation", lambda w: with_gate(w, -1, -1, 0.9)),
    Mutant("padding by 1 instead of 0", "hidden-states", lambda world: replace(world, pad_value=1.0)),
    Mutant("loss that counts an unread level", "loss", counting_hidden),
    Mutant("stage order reversed", "stage-order", reversed_stages),
    Mutant("a trained layer moved by one grid step at a later stage", "frozen-weights", moved_later),
    Mutant(
        "samples reused across stages",
        "fresh-samples",
        lambda world: replace(world, ranges=(world.ranges[0],) * len(world.ranges)),
    ),
    Mutant("every sample drawn twice", "fresh-samples", drawn_twice),
    Mutant("the same bits drawn at every stage", "fresh-samples", drawn_at_every_stage),
    Mutant("bits biased to 0.6", "concentration", biased),
)


@cache
def sound_world(n: int, k: int) -> World:
    """Run Algorithm 1 with its defaults and return its world."""
    return World.of_solve(SolveOptions(n=n, k=k))


def main() -> int:
    """Print what catches each mutant. Return 1 if a mutant is missed, or if the sound model violates a certificate."""
    torch.set_num_threads(1)
    quick = [name for name in STATEMENTS if name not in ("barrier", "theorem-probability")]
    missed = 0
    for n, k in ((8, 4), (30, 16)):
        world = sound_world(n, k)
        for mutant in (Mutant("sound", "", lambda world: world), *MUTANTS):
            only = None if mutant.name == "sound" else quick
            found = [c.statement for c in certify(mutant.mutate(world), only) if c.verdict == "violated"]
            caught = not found if mutant.name == "sound" else mutant.caught_by in found
            missed += not caught
            also = ", ".join(name for name in found if name != mutant.caught_by)
            print(f"n={n:<3} {'ok  ' if caught else 'MISS'} {mutant.name:56} {mutant.caught_by:15} also: {also or '–'}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
