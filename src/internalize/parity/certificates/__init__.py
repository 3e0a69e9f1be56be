"""Every statement of the paper as an executable certificate: what it bounds against what is measured in a world.

    certify(World.of_solve(SolveOptions(n=30, k=16)))       Algorithm 1
    certify(World.of_run(Run.open("runs/…")))               a run folder, trained or solved
    certify(World.of_weights(tree, weights))                anyone's weights in level or block form

One file for each group of statements; ``STATEMENTS`` is the list, in the order of the paper.
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
    theorem,
    training,
)
from internalize.parity.certificates.world import World

__all__ = ["STATEMENTS", "Certificate", "Statement", "Verdict", "World", "certify"]


STATEMENTS: dict[str, Statement[World]] = {
    "barrier": Statement(
        "Proposition 1",
        "without a chain the gradient's variance over secrets is at most E‖∇f‖²/C(n,k)",
        barrier.barrier,
    ),
    "mask": Statement("Definition 1", "a node sees the positions of lower levels and no other", architecture.mask),
    "softmax": Statement("Definition 1", "attention is a softmax over the keys of each query", architecture.softmax),
    "link": Statement("Definition 2", "φ meets the conditions of a link function", architecture.link),
    "gating": Statement("Eq. (gating)", "layer ℓ is open at level ℓ + 1 and nowhere else", architecture.gating),
    "collapse": Statement(
        "Lemma 1", "under uniform attention the inputs collapse: |φ + 1| = O(n^(−ε/16))", collapse.collapse
    ),
    "kept-inputs": Statement(
        "section 3.2",
        "gated connections keep the input bits: no layer's states of the inputs collapse",
        architecture.kept_inputs,
    ),
    "curriculum": Statement(
        "section 3.1", "stage t pads nodes up to n_t, supervises those above, reads layer t", architecture.curriculum
    ),
    "loss": Statement("Eq. (loss-t)", "the loss is the squared error over positions above n_t", architecture.loss),
    "evaluation": Statement(
        "section 3.1", "the answer is computed from the bits alone, whatever the chain shows", architecture.evaluation
    ),
    "propagation": Statement(
        'Lemma "Gated Connection Propagation"',
        "a state is its token until its level is written and φ(ẑ) from then on",
        architecture.propagation,
    ),
    "frozen-derivative": Statement(
        'Corollary "Frozen Derivative"',
        "a state depends on no weight but those up to its writing layer",
        architecture.derivative,
    ),
    "sensitivity": Statement(
        'Lemma "Per-Node Sensitivity"',
        "a weight moves a state by at most 2 L_φ^(ℓ−ℓ'+1) σ_j; measured relative to that",
        sensitivity.sensitivity,
    ),
    "bounded-gradient": Statement(
        'Lemma "Bounded Gradient"',
        "the gradient of the output is O(n^g), g = log2 L_φ + 1",
        sensitivity.bounded_gradient,
    ),
    "concentration": Statement(
        "Lemma 9 of Kim and Suzuki",
        "non-trivial correlations of order up to 4 are at most κ",
        concentration.concentration,
    ),
    "trivial-tuples": Statement(
        'Lemma "Trivial 4-tuple count"',
        "3M² − 2M + 48·#(nodes above level 2) tuples of 4 cancel",
        concentration.trivial_tuples,
    ),
    "well-trained": Statement(
        'Definition "Well-trained layer"',
        "attention is within δ of ½ on both children, and the states within δ of the truth",
        training.well_trained,
    ),
    "stage-1": Statement(
        'Lemma "Stage 1"', "one step makes layer 1 well-trained: |Δ| < ½ in units of the grid", training.stage_one
    ),
    "hidden-states": Statement(
        'Lemma "Hidden States"',
        "computed nodes are within δ of the truth, shown ones exact, padded ones 0",
        training.hidden_states,
    ),
    "inductive-step": Statement(
        'Lemma "Inductive Step"', "one step makes the next layer well-trained: |Δ| < ½", training.inductive_step
    ),
    "recursion": Statement(
        "section 3.4", "ε_{t+1} ≤ max{ε_t, C_2 (2δ + ε_t)²}: errors do not add up", training.recursion
    ),
    "frozen-gradient": Statement(
        'Lemma "Frozen gradient"', "the gradient of a trained weight is next to nothing", training.frozen_gradient
    ),
    "frozen-weights": Statement(
        'Lemma "Frozen gradient"', "a trained layer keeps its weights to the end", training.frozen_weights
    ),
    "stage-order": Statement(
        "proof of Theorem 1", "after stage t layer t is trained and those above are 0", training.stage_order
    ),
    "fresh-samples": Statement("Algorithm 1", "no two stages share a sample", training.fresh_samples),
    "theorem-max": Statement("Theorem 1", "the answer is within ε_L of the truth on every input", theorem.max_error),
    "theorem-l2": Statement("Theorem 1", "the population error E(θ) is at most ε_L²", theorem.l2_error),
    "theorem-probability": Statement(
        "Theorem 1", "Algorithm 1 fails with probability at most L exp(−n^(ε/2))", theorem.probability
    ),
}
"""All statements by the name that ``--only`` takes, in the order of the paper."""


MAX_POSITIONS = 1023
"""The largest T that is taken on. Cost grows about like T³; n = 256, k = 128 (T = 383) took a minute on one core."""


_ABOUT_THE_MODEL = frozenset(STATEMENTS) - {
    *("mask", "link", "gating", "curriculum", "concentration", "trivial-tuples", "fresh-samples"),
}
"""Statements that run the model: a NaN in it is a violation of each, which a maximum would overlook."""


def certify(world: World, only: Sequence[str] | None = None) -> list[Certificate]:
    """Check the statements (default: all) in a world, in the order of the paper."""
    asked = chosen(STATEMENTS, only)
    if world.levels.T > MAX_POSITIONS:
        raise InputError(
            f"n={world.tree.n}, k={world.tree.k} have {world.levels.T} positions; certify holds L matrices of T × T in "
            f"float64 and their gradients, and takes T = n + k − 1 up to {MAX_POSITIONS}"
        )
    certificates: list[Certificate] = []
    for name, statement in asked.items():
        if name in _ABOUT_THE_MODEL and not world.finite:
            found = Finding(math.nan, 0.0, "the model computes numbers that are not finite")
        else:
            found = statement.check(world)
        certificates.append(statement.certificate(name, found, world.seed, "float64"))
    return certificates
