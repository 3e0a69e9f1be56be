"""Liar tests: a broken model turns the verdict of each certificate, and every mutant is caught by its certificate."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from internalize.parity.certificates import STATEMENTS, World, certify
from internalize.parity.model.link import Link
from internalize.parity.task.tree import ParityTree
from internalize.parity.theory.prediction import Setting
from tests import mutants
from tests.mutants import sound_world


@cache
def wide_world() -> World:
    """Return a model wide enough for Lemma 1 to apply: n = 256, k = 2, weights 0."""
    tree = ParityTree.draw(256, 2, 0)
    return World.of_weights(tree, [torch.zeros(256, 1)])


@dataclass(frozen=True)
class Crooked(ParityTree):
    """A tree whose first two nodes have the same children."""

    def children(self, position: int) -> tuple[int, ...]:
        return super().children(self.n if position == self.n + 1 else position)


def crooked(world: World) -> World:
    return replace(world, tree=Crooked(world.tree.n, world.tree.secret))


def chained_loss(world: World) -> World:
    """Use a loss on the whole chain where the barrier's loss is on the root alone."""
    return replace(world, root_loss=lambda output, sequence: (output - sequence).square().sum(-1).mean() / 2)


def few_samples(world: World) -> World:
    return replace(world, ranges=tuple((start, 20) for start, _ in world.ranges))


def papers_constants(world: World) -> World:
    """Use K, rate, grid and B as printed, at an n where they do not work."""
    n, k = world.tree.n, world.tree.k
    return replace(
        world,
        algorithm=Setting(n, k, K=2, grid="1", rate="paper"),
        ranges=tuple((stage * n**3, n**3) for stage in range(world.levels.L)),
    )


def understated(world: World) -> World:
    """Use a link whose stated slope is a hundredth of the true one."""
    link = world.link
    return replace(world, link=Link("flat", link.phi, lambda t: link.slope(t) / 100, link.c))


MUTATED = {mutant.name: mutant.mutate for mutant in mutants.MUTANTS}

LIES = {
    "barrier": chained_loss,
    "collapse": mutants.wrong_sign,
    "collapse-noise": MUTATED["gates all ones"],
    "curriculum": mutants.reversed_stages,
    "frozen-derivative": MUTATED["gates all ones"],
    "sensitivity": MUTATED["block shift applied twice"],
    "bounded-gradient": understated,
    "trivial-tuples": crooked,
    "stage-1": few_samples,
    "inductive-step": few_samples,
    "recursion": mutants.wrong_sign,
    "frozen-gradient": mutants.sloped,
    "theorem-max": mutants.halved,
    "theorem-l2": mutants.halved,
    "theorem-oracle": few_samples,
    "theorem-probability": papers_constants,
    "symmetry": mutants.counting_hidden,
    "skipped-level": MUTATED["mask letting a node see itself"],
    "skipped-levels": mutants.sloped,
}
"""How to break the ingredient of each statement that no mutant is named for."""


def test_every_statement_has_its_liar():
    assert LIES.keys() | {mutant.caught_by for mutant in mutants.MUTANTS} == STATEMENTS.keys()


@pytest.mark.parametrize("name", LIES)
def test_the_verdict_turns_when_the_ingredient_is_broken(name: str):
    world = wide_world() if name == "collapse" else sound_world(*(16, 8) if name == "skipped-level" else (8, 4))
    (before,) = certify(world, [name])
    (after,) = certify(LIES[name](world), [name])
    assert (before.verdict, after.verdict) == ("holds", "violated"), (before, after)


@pytest.mark.parametrize("size", [(8, 4), (30, 16)], ids=str)
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught_by_its_certificate(mutant: mutants.Mutant, size: tuple[int, int]):
    (found,) = certify(mutant.mutate(sound_world(*size)), [mutant.caught_by])
    assert found.verdict == "violated", found


def test_the_sampled_barrier_refutes_a_chain_of_thought():
    (found,) = certify(chained_loss(sound_world(30, 16)), ["barrier"])
    assert found.verdict == "violated", found


def test_fewer_samples_than_the_theorem_asks_are_no_violation_of_it():
    oracle, probability = certify(few_samples(sound_world(8, 4)), ["theorem-oracle", "theorem-probability"])
    assert probability.verdict == "not applicable"
    for found in (oracle, probability):
        assert "n^(2+ε) = 512" in (found.reason or "")
