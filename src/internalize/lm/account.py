"""Why a stage has not got on: what `lm probe` read of its model, step by step, in the terms of the paper.

On the paper's model a stage fails because a trained layer is lost, because representations have collapsed, or because the
gradient of a node's children is below the noise of the others. Here a step is *read* if a linear probe reads it in some layer,
and each step that is not has a reason, the first of these that holds:

| reason   | of a step that is missing                                                                                   |
| -------- | ----------------------------------------------------------------------------------------------------------- |
| lost     | it is read in the model of the stage before, with as much hidden                                            |
| waiting  | one of the steps that it is made of is missing itself                                                       |
| late     | one of them is hidden and read in the last layer only, where no layer is left to use it                     |
| pulled   | in some layer that comes after them the loss would have it look at all that it is made of: at `ABOVE` times |
|          | the pull of other keys, or more. It is about to be found                                                    |
| faint    | it would not: the signal is below the noise                                                                 |

Where all that was read is lost, the representation has collapsed. What a step is made of is known for parity alone; elsewhere a
missing step is lost or *unknown*.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Json = dict[str, Any]
Row = Mapping[str, Any]
READ: Final = 0.9
"""A step is read where the probe has gone this part of the way from chance to no error."""
ABOVE: Final = 2.0
"""Times the pull of other keys (their median) that the pull of a child must be, to stand out."""


def accounts(rows: Iterable[Row], own: Mapping[int, int], made_of: Sequence[Sequence[int]] | None = None) -> list[Json]:
    """One for every stage's model with as much hidden as at its own stage, if that was read.

    Args:
        rows: of `lm probe`.
        own: how much each stage hides.
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
        earlier = max((s for s, h in by_model if s < stage and h == hidden), default=0)
        before = by_model.get((earlier, hidden), {})
        had = {step for step, layers in before.items() if read_from(layers) is not None}
        missing = [step for step, layers in steps.items() if read_from(layers) is None]
        found.append(
            {
                "stage": stage,
                "hidden": hidden,
                "steps": len(steps),
                "found": [step for step in steps if before and step not in had and step not in missing],
                "collapsed": bool(had) and had <= set(missing),
                "missing": [_missing(step, steps, step in had, missing, made_of) for step in missing],
            }
        )
    return found


def read_from(layers: Sequence[Row]) -> int | None:
    """The lowest layer in which a step is read; None if there is none."""
    return next((r["layer"] for r in layers if r["probe"] >= r["chance"] + READ * (1 - r["chance"])), None)


def _missing(
    step: int,
    steps: Mapping[int, Sequence[Row]],
    had: bool,
    missing: Sequence[int],
    made_of: Sequence[Sequence[int]] | None,
) -> Json:
    """A missing step with its reason; the pull is that of the child that is pulled less, where it stands out most."""
    children = [] if made_of is None else [child for child in made_of[step - 1] if child in steps]
    there = [0 if steps[child][0]["shown"] == 1 else read_from(steps[child]) for child in children]
    from_layer = max((layer for layer in there if layer is not None), default=0) + 1
    pulls = [
        (min(row["child_pull"]), row["other_pull"])
        for row in steps[step]
        if row["layer"] >= from_layer and row["child_pull"] and row["other_pull"] is not None
    ]
    pull, others = max(pulls, key=lambda pair: pair[0] - ABOVE * pair[1], default=(None, None))
    if had:
        reason = "lost"
    elif made_of is None:
        reason = "unknown"
    elif any(child in missing for child in children):
        reason = "waiting"
    elif from_layer > steps[step][-1]["layer"]:
        reason = "late"
    elif pull is None or others is None:
        reason = "unknown"
    else:
        reason = "pulled" if pull >= ABOVE * others else "faint"
    return {"step": step, "reason": reason, "pull": pull, "other_pull": others}
