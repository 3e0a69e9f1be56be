"""Why a stage stalls: an account of each missing step, from what `lm probe` measured, in the terms of the paper.

On the paper's model a stage fails because a trained layer is lost, because representations collapse, or because the
gradient of a node's children is below the noise of the other keys. Here a step is *read* if a linear probe reads it in
some layer, and otherwise *missing*. The reason for a missing step is the first of these that holds:

| reason   | meaning                                                                                                  |
| -------- | -------------------------------------------------------------------------------------------------------- |
| lost     | the step is read in the model that the stage began with, with the same steps hidden                      |
| waiting  | one of its children, which are the steps that it is computed from, is missing                            |
| late     | a child is hidden and read so late that in no higher layer the loss depends on the attention of the step |
| pulled   | in some layer above the children each child has at least `ABOVE` times the pull of other keys, so the    |
|          | step is about to be found                                                                                |
| faint    | no layer has such a pull: the signal is below the noise                                                  |
| unknown  | the children or their places are not known (known only for parity and words)                             |

The representation has collapsed if all steps of the earlier model are lost. The loss is that of the last layer on what
a training example of the stage supervises. A loss at every layer is not included.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from internalize.storage.files import Json

Row = Mapping[str, Any]
READ: Final = 0.9
"""A step is read if the probe's accuracy is at least this fraction of the way from chance to 1."""
ABOVE: Final = 2.0
"""The pull of a child stands out if it is this many times the median pull of other keys, or the pull of noise."""
NOISE: Final = 1.0
"""The pull of pure noise: a mean divided by its standard error."""


def accounts(
    rows: Iterable[Row],
    own: Mapping[int, int],
    before: Mapping[int, int],
    made_of: Sequence[Sequence[int]] | None = None,
) -> list[Json]:
    """Return one account for each stage whose model was probed at the stage's own budget.

    Args:
        rows: the rows of `lm probe`.
        own: the number of hidden units of each stage.
        before: for each stage, the stage with whose model it began.
        made_of: for each step, and last for the answer, the steps that are its children, counted from 1, without words
            of the question. None if they are not known.
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
    """Return the lowest layer in which a step is read, or None if there is none."""
    return next((r["layer"] for r in layers if r["probe"] >= r["chance"] + READ * (1 - r["chance"])), None)


def _best_probe(layers: Sequence[Row]) -> float:
    """Return the best accuracy of the probe over the layers."""
    return max(row["probe"] for row in layers)


def _explain_missing(
    step: int, steps: Mapping[int, Sequence[Row]], had: bool, made_of: Sequence[Sequence[int]] | None
) -> Json:
    """Return the reason, and the pull of the child that is pulled less, in the layer where it stands out most."""
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
        reason = "late"  # there is no higher layer, or the loss does not depend on the attention there
    return {"reason": reason, "pull": pull, "other_pull": others}


def _usable_from_layer(layers: Sequence[Row]) -> int | None:
    """Return the layer from which a step can be used: the embedding if it is shown, or None if it is missing."""
    return 0 if layers[0]["shown"] == 1 else read_from(layers)


def _pull_floor(others: float | None) -> float:
    """Return the pull of other keys, or of noise if that is larger."""
    return max(others or 0.0, NOISE)
