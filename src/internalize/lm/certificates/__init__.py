"""Certificates of which of the paper's statements carry over to an ordinary transformer that was trained on parity.

    certify(LmWorld.of_folder(Path("runs/…")))       a run of `lm train`, with --keep-stages for the statement about
        stages

The paper proves its statements for its own model: L = log2 k layers, attention by position alone, nodes at fixed
places. An ordinary model has heads, MLPs, a residual stream and more layers than it needs, and nothing is proved about
it. Each bound here is therefore a convention of this project. The claim names it beside the paper's bound, and a
violation refutes the analogy, not the paper. All statements are measured on the last stage's model with everything
hidden, except the one on freezing, which compares neighboring stages.
"""

from collections.abc import Callable, Sequence

from internalize.certificate import Certificate, Finding, Statement, chosen, not_applicable
from internalize.lm.certificates.child_attention import child_attention, child_mass
from internalize.lm.certificates.hidden_nodes import answer, frozen_nodes, hidden_nodes
from internalize.lm.certificates.world import LmWorld

__all__ = ["STATEMENTS", "LmWorld", "certify"]

STATEMENTS: dict[str, Statement[LmWorld]] = {
    "child-attention": child_attention,
    "child-mass": child_mass,
    "hidden-nodes": hidden_nodes,
    "frozen-nodes": frozen_nodes,
    "answer": answer,
}
"""All statements, by their names for ``--only``. The paper's own statements are in `docs/statements.md`."""


def certify(
    world: LmWorld,
    only: Sequence[str] | None = None,
    report: Callable[[int, int, str], None] = lambda done, total, seen: None,
) -> list[Certificate]:
    """Check the statements.

    Args:
        world: the models.
        only: names of statements. Default: all of them.
        report: called with statements done, statements to do, and the name of the last one.
    """
    asked = chosen(STATEMENTS, only)
    finite = all(bool(states.isfinite().all()) for states in world.readings.states)
    found: list[Certificate] = []
    for name, statement in asked.items():
        if not finite:
            result = Finding(float("nan"), 0.0, "the model computes numbers that are not finite")
        elif reason := world.shown_chain_reason if name == "answer" else world.not_applicable_reason:
            result = not_applicable(reason)
        else:
            result = statement.check(world)
        found.append(statement.certificate(name, result, world.kept.seed, "float32"))
        report(len(found), len(asked), name)
    return found
