"""Every statement of the paper as an executable certificate, which compares a measurement in a world with its bound.

certify(World.of_solve(SolveOptions(n=30, k=16)))       Algorithm 1
certify(World.of_run(Run.open("runs/…")))               a run folder of train or solve
certify(World.of_weights(tree, weights))                any weights in level or block form

Each group of statements has a file. ``STATEMENTS`` lists them in the order of the paper.
"""

import math
from collections.abc import Sequence

from internalize.certificate import Certificate, Finding, Statement, Verdict, chosen
from internalize.errors import InputError
from internalize.parity.certificates import (
    architecture,
    barrier,
    collapse,
    concentration,
    sensitivity,
    skipped,
    symmetry,
    theorem,
    training,
)
from internalize.parity.certificates.world import World

__all__ = ["STATEMENTS", "Certificate", "Statement", "Verdict", "World", "certify"]


STATEMENTS: dict[str, Statement[World]] = {
    "barrier": barrier.barrier,
    "mask": architecture.mask,
    "softmax": architecture.softmax,
    "link": architecture.link,
    "gating": architecture.gating,
    "collapse": collapse.collapse,
    "collapse-noise": collapse.noise,
    "kept-inputs": architecture.kept_inputs,
    "curriculum": architecture.curriculum,
    "loss": architecture.loss,
    "evaluation": architecture.evaluation,
    "propagation": architecture.propagation,
    "frozen-derivative": architecture.derivative,
    "sensitivity": sensitivity.sensitivity,
    "bounded-gradient": sensitivity.bounded_gradient,
    "concentration": concentration.concentration,
    "trivial-tuples": concentration.trivial_tuples,
    "well-trained": training.well_trained,
    "stage-1": training.stage_one,
    "hidden-states": training.hidden_states,
    "inductive-step": training.inductive_step,
    "recursion": training.recursion,
    "frozen-gradient": training.frozen_gradient,
    "frozen-weights": training.frozen_weights,
    "stage-order": training.stage_order,
    "fresh-samples": training.fresh_samples,
    "theorem-max": theorem.max_error,
    "theorem-l2": theorem.l2_error,
    "theorem-oracle": theorem.oracle,
    "theorem-probability": theorem.probability,
    "symmetry": symmetry.symmetry,
    "skipped-level": skipped.skipped_level,
    "skipped-levels": skipped.skipped_levels,
}
"""All statements by the name that ``--only`` takes: those of the paper in its order, then our own about stages."""


MAX_POSITIONS = 1023
"""Largest T that certify accepts. The cost grows about like T³; T = 383 (n = 256) took a minute on one core."""


_ABOUT_THE_MODEL = frozenset(STATEMENTS) - {
    *("mask", "link", "gating", "curriculum", "concentration", "trivial-tuples", "fresh-samples"),
    *("skipped-level", "skipped-levels"),
}
"""Statements that run the model. A NaN in the model violates each of them, which a maximum would overlook."""


def certify(world: World, only: Sequence[str] | None = None) -> list[Certificate]:
    """Check the statements (default: all) in a world, in the order of the paper."""
    selected = chosen(STATEMENTS, only)
    if world.levels.T > MAX_POSITIONS:
        raise InputError(
            f"n={world.tree.n}, k={world.tree.k} have T = n + k − 1 = {world.levels.T} positions, more than "
            f"{MAX_POSITIONS}; certify holds L matrices of T × T in float64 and their gradients"
        )
    certificates: list[Certificate] = []
    for name, statement in selected.items():
        if name in _ABOUT_THE_MODEL and not world.finite:
            found = Finding(math.nan, 0.0, "the model computes numbers that are not finite")
        else:
            found = statement.check(world)
        certificates.append(statement.certificate(name, found, world.seed, "float64"))
    return certificates
