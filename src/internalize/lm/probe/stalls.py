"""Why a stage has not got on: what `lm probe` read of its model, step by step, in the terms of the paper.

On the paper's model a stage fails because a trained layer is lost, because representations have collapsed, or because the
gradient of a node's children is below the noise of the others. Here a step is *read* if a linear probe reads it in some layer,
and each step that is not has a reason, the first of these that holds:

| reason   | of a step that is missing                                                                                     |
| -------- | ------------------------------------------------------------------------------------------------------------- |
| lost     | it is read in the model that the stage began with, with as much hidden                                        |
| waiting  | one of the steps that it is made of is missing itself                                                         |
| late     | one of them is hidden and read so late that in no layer above it the loss asks anything of this step's place  |
| pulled   | in some layer above them the loss would have it look at all that it is made of, by `ABOVE` times the pull of  |
|          | other keys. It is about to be found                                                                           |
| faint    | it would not: the signal is below the noise                                                                   |
| unknown  | what it is made of, or where that stands, is not known (known for parity alone)                               |

Where all that the model before had is lost, the representation has collapsed. The loss is that of the last layer, at what a
training example of the stage supervises; a loss at every layer is not in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from internalize.storage.files import Json

Row = Mapping[str, Any]
READ: Final = 0.9
"""A step is read where the probe has gone this part of the way from chance to no error."""
ABOVE: Final = 2.0
"""Times the pull of other keys (their median), or of noise alone, that the pull of a child must be, to stand out."""
NOISE: Final = 1.0
"""The pull of noise alone: a mean over its standard error."""


def accounts(
    rows: Iterable[Row],
    own: Mapping[int, int],
    before: Mapping[int, int],
    made_of: Sequence[Sequence[int]] | None = None,
) -> list[Json]:
    """One for every stage's model with as much hidden as at its own stage, if that was read.

    Args:
        rows: of `lm probe`.
        own: how much each stage hides.
        before: the stage with whose model each began.
        made_of: for each step, and last the answer, the steps that it is made of, counted from 1; what is in the question is
            left out. None where it is not known.
    """
    by_model: dict[tuple[int, int], dict[int, list[Row]]] = {}
    for row in rows:
        by_model.setdefault((row["stage"], row["hidden"]), {}).setdefault(row["step"], []).append(row)
    found: list[Json] = []
    for (stage, hidden), steps in sorted(by_model.items()):
        if own[stage] != hidden:
            continue
        earlier = by_model.get((before.get(stage, 0), hidden))
        had = {step for step, layers in (earlier or {}).items() if read_from(layers) is not None}
        missing = [step for step, layers in steps.items() if read_from(layers) is None]
        new = [step for step in steps if step not in had and step not in missing]
        found.append(
            {
                "stage": stage,
                "hidden": hidden,
                "steps": len(steps),
                "found": None if earlier is None else new,
                "collapsed": None if earlier is None else bool(had) and had <= set(missing),
                "missing": [
                    {
                        "step": step,
                        "probe": _best_probe(steps[step]),
                        "probe_before": _best_probe(earlier[step]) if earlier and step in earlier else None,
                        **_explain_missing(step, steps, step in had, made_of),
                    }
                    for step in missing
                ],
            }
        )
    return found


def read_from(layers: Sequence[Row]) -> int | None:
    """The lowest layer in which a step is read; None if there is none."""
    return next((r["layer"] for r in layers if r["probe"] >= r["chance"] + READ * (1 - r["chance"])), None)


def _best_probe(layers: Sequence[Row]) -> float:
    return max(row["probe"] for row in layers)


def _explain_missing(
    step: int, steps: Mapping[int, Sequence[Row]], had: bool, made_of: Sequence[Sequence[int]] | None
) -> Json:
    """The reason; and the pull of the child that is pulled less, in the layer where it stands out most."""
    children: Sequence[int] = () if made_of is None else made_of[step - 1]
    known = made_of is not None and all(child in steps for child in children)
    there = [_usable_from_layer(steps[child]) for child in children if child in steps]
    from_layer = max((layer for layer in there if layer is not None), default=0) + 1
    above = [row for row in steps[step] if row["layer"] >= from_layer]
    pulls = [(min(row["child_pull"]), row["other_pull"]) for row in above if row["child_pull"]]
    pull, others = max(pulls, key=lambda pair: pair[0] / _pull_floor(pair[1]), default=(None, None))
    if had:
        reason = "lost"
    elif not known:
        reason = "unknown"
    elif None in there:
        reason = "waiting"
    elif pull is not None:
        reason = "pulled" if pull >= ABOVE * _pull_floor(others) else "faint"
    elif any(row["child_attention"] is None for row in above):
        reason = "unknown"
    else:
        reason = "late"  # no layer is left, or only some of which nothing is asked
    return {"reason": reason, "pull": pull, "other_pull": others}


def _usable_from_layer(layers: Sequence[Row]) -> int | None:
    """The layer from which a step can be used: at once if it stands in the text."""
    return 0 if layers[0]["shown"] == 1 else read_from(layers)


def _pull_floor(others: float | None) -> float:
    return max(others or 0.0, NOISE)
