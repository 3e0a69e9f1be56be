r"""The data of the page's explorers: a run moment by moment, computed from its files. The page only draws it.

| name      | paper          | meaning                                                                   | where       |
| --------- | -------------- | ------------------------------------------------------------------------- | ----------- |
| moment    | –              | an evaluation of a training run, or one act of a stage of Algorithm 1     | –           |
| attention | S(W^(ℓ))       | attention of every node on the positions of lower levels, layer by layer  | section 2.2 |
| accuracy  | –              | share of held-out samples where a node's sign is right, given only the bits | section 4   |
| error     | –              | mean squared error of a node's value on the same samples                  | section 4   |
| elsewhere | –              | a node's largest attention on a position that is not its child            | section 4   |
| gradient  | ∇̃L^(t)         | gradient of the layer that the stage trains                               | Algorithm 1 |
| step      | W − η∇̃L        | the layer before rounding, in units of K                                  | Algorithm 1 |
| rounded   | q[W − η∇̃L]     | the layer after rounding, in units of K                                   | Algorithm 1 |

A layer is a matrix of nodes × keys here, as it is drawn. The page gets matrices as 16-bit numbers in base64, layer
after layer and row after row; an entry is `lowest` + number · `unit`.
"""

import base64
from collections.abc import Iterator, Sequence
from typing import Final, cast

import torch
from torch import Tensor

from internalize.errors import InputError
from internalize.parity.adamw.groups import options_of
from internalize.parity.algorithm1.recovery import split
from internalize.parity.model.link import get_link
from internalize.parity.model.metrics import infer
from internalize.parity.model.transformer import LevelTransformer, set_weights
from internalize.parity.model.weights import read_weights
from internalize.parity.task.data import add_trace, draw_bits
from internalize.parity.task.tree import ParityTree
from internalize.random_words import Stream
from internalize.storage.files import Json
from internalize.storage.runs import Run

_TOP: Final = 65535
ACTS: Final = ("gradient", "step", "rounded")
"""The moments of a stage of Algorithm 1, in order."""


def training_story(run: Run, title: str, every: int = 1) -> Json:
    """Return a training run at its evaluations: loss, attention, and how well each node is computed.

    Args:
        run: a finished run with snapshots.
        title: its name in the list of runs.
        every: keep one evaluation in this many, and the first and last of each stage.
    """
    tree, options = ParityTree.of(run.config), options_of(run)
    where = run.path / "snapshots"
    weights = {step: read_weights(tensors, tree.levels, "level", where) for step, tensors in run.snapshots()}
    lines = [line for line in _thinned(run.metrics(), every) if line["step"] in weights]
    if not lines:
        raise InputError(f"{where} has no weights; train with --snapshots")
    seen = _held_out(tree, run, options.eval_samples, "validation")
    nodes = {step: _nodes(tree, W, seen, options.link) for step, W in weights.items()}
    attention = [_rows(w.softmax(dim=0) for w in weights[line["step"]]) for line in lines]
    return {
        **_task(tree, title),
        "moments": [
            {
                **{key: line[key] for key in ("step", "stage", "loss", "accuracy")},
                "layer": line["stage"] - 1,
                "nodes": nodes[line["step"]],
            }
            for line in lines
        ],
        "maps": {"attention": _packed(torch.stack(attention))},
    }


def solving_story(run: Run, title: str) -> Json:
    """Return a run of Algorithm 1 at three moments per stage: the gradient, the step, the rounded weights."""
    config, result = run.config, run.result
    tree = ParityTree.of(config)
    seen = _held_out(tree, run, config["test_samples"], "test")
    before: list[Tensor] = [torch.zeros_like(w) for w in read_weights(run.weights(), tree.levels, "level", run.path)]
    moments: list[Json] = []
    values: dict[str, list[Tensor]] = {act: [] for act in ACTS}
    attention: list[Tensor] = []
    for (stage, tensors), record in zip(run.snapshots(), result["stages"], strict=True):
        after = read_weights(tensors, tree.levels, "level", run.path / "snapshots")
        if "gradient" not in tensors:
            raise InputError(f"{run.path / 'snapshots'} has no gradient of stage {stage}")
        found = {
            "gradient": tensors["gradient"],
            "step": tensors["step"] / result["K"],
            "rounded": after[stage - 1] / result["K"],
        }
        for act in ACTS:
            W = after if act == "rounded" else before
            place = {"stage": stage, "layer": stage - 1, "act": act}
            moments.append({**place, **record, "nodes": _nodes(tree, W, seen, config["link"])})
            attention.append(_rows(w.softmax(dim=0) for w in W))
            values[act].append(found[act])
        before = after
    return {
        **_task(tree, title),
        "K": result["K"],
        "samples": result["samples_per_stage"],
        "threshold": 0.5 if result["grid"] == "K" else None,
        "moments": moments,
        "maps": {"attention": _packed(torch.stack(attention))}
        | {act: _packed(_rows(layers)) for act, layers in values.items()},
    }


def _task(tree: ParityTree, title: str) -> Json:
    """Return the tree as the page needs it. Positions count from 0; a place is between 0 (left) and 1 (right)."""
    places = [(bit + 0.5) / tree.n for bit in range(tree.n)]
    for node in range(tree.n, tree.T):
        first, second = tree.children(node)
        places.append((places[first] + places[second]) / 2)
    return {
        "title": title,
        "n": tree.n,
        "k": tree.k,
        "level_end": list(tree.levels.level_end),
        "secret": list(tree.secret),
        "children": [list(tree.children(node)) for node in range(tree.n, tree.T)],
        "places": [round(place, 4) for place in places],
    }


def _thinned(lines: Sequence[Json], every: int) -> Iterator[Json]:
    for number, line in enumerate(lines):
        ends = {lines[max(number - 1, 0)]["stage"], lines[min(number + 1, len(lines) - 1)]["stage"]} != {line["stage"]}
        if number % every == 0 or ends or number == len(lines) - 1:
            yield line


def _held_out(tree: ParityTree, run: Run, count: int, stream: Stream) -> Tensor:
    """Return the run's evaluation samples in its precision, on which the signs of values near 0 depend."""
    return add_trace(tree, draw_bits(tree.n, run.config["seed"], 0, count, stream, getattr(torch, run.config["dtype"])))


@torch.no_grad()
def _nodes(tree: ParityTree, W: Sequence[Tensor], sequence: Tensor, link: str) -> list[list[float]]:
    """Return every node's accuracy, mean squared error and largest attention elsewhere."""
    model = set_weights(
        LevelTransformer(tree.n, tree.k, get_link(link, tree.arity, tree.modulus), dtype=sequence.dtype), W
    )
    found, truth = infer(model, sequence[:, : tree.n])[:, tree.n :], sequence[:, tree.n :]
    right, error = (found * truth > 0).double().mean(0), (found - truth).double().square().mean(0)
    elsewhere = torch.cat(
        [split(w.softmax(dim=0), tree.layer_children(layer))[1].amax(dim=0) for layer, w in enumerate(W)]
    )
    columns = cast(list[list[float]], torch.stack([right, error, elsewhere.clamp(min=0)], dim=1).tolist())
    return [[round(a, 4), float(f"{e:.3g}"), round(other, 4)] for a, e, other in columns]


def _rows(layers: "Iterator[Tensor] | Sequence[Tensor]") -> Tensor:
    """Return all layers, nodes × keys each, as one flat tensor."""
    return torch.cat([w.T.flatten() for w in layers])


def _packed(values: Tensor) -> Json:
    """Encode numbers as 16-bit little-endian integers in base64."""
    low, high = float(values.min()), float(values.max())
    unit = (high - low) / _TOP or 1.0
    numbers = ((values.double() - low) / unit).round().to(torch.int32).numpy().astype("<u2")
    return {"lowest": low, "unit": unit, "numbers": base64.b64encode(numbers.tobytes()).decode()}
