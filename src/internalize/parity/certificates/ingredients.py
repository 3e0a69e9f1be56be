"""The ingredients of a world, from a new run of Algorithm 1 or from a run folder.

| in the folder                  | in the world                                                                     |
| ------------------------------ | -------------------------------------------------------------------------------- |
| `W1 …` or `W1_full …`          | weights, in level or in block form                                               |
| `mask`, `gates` of the config  | which keys a position sees, which positions take an update                       |
| `gate1 …`, `gates` = `learned` | the gates, from logits of every position                                         |
| `supervised_tokens`            | hidden: stage inputs show no node, and the loss is on the level that is read out |
| metrics and snapshots          | for solve: the samples of each stage and the weights after it                    |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from internalize.curriculum import Curriculum, Method
from internalize.errors import InputError
from internalize.parity.algorithm1.solve import SolveState, setting_of, solve
from internalize.parity.algorithm1.solve_runs import SolveMetrics
from internalize.parity.algorithm1.weight_layouts import form_of, stages_of
from internalize.parity.model.gates import named_gates
from internalize.parity.model.link import get_link
from internalize.parity.model.mask import named_mask
from internalize.parity.model.weights import form_of_weights, read_weights, weight_shapes
from internalize.parity.options import SolveOptions
from internalize.parity.task.stages import ParityStage, parity_stages
from internalize.parity.task.tree import Levels, ParityTree
from internalize.storage.files import check_schema, present
from internalize.storage.runs import Run

Ingredients = dict[str, Any]


@dataclass(frozen=True)
class ModelConfig:
    """The fields of `config.json` that describe a model. Missing fields have the paper's values."""

    n: int
    k: int
    secret: tuple[int, ...]
    pairing: tuple[int, ...] = ()
    seed: int = 0
    mask: str = "level"
    gates: str = "paper"
    link: str = "cosine"
    supervised_tokens: str = "shown"
    curriculum: Method = "log-icot"
    chunk: int | None = 1
    boundaries: tuple[int, ...] = ()
    skip: tuple[int, ...] = ()
    hidden_loss: bool = False
    arity: int = 2
    modulus: int = 2


_ONE_LAYER: Final = (
    "explicit CoT has one layer that reads its own chain; the statements are about the layers of Definition 3"
)


def ingredients_of_solve(options: SolveOptions) -> Ingredients:
    """Run Algorithm 1 and return its weights and samples at every stage."""
    _check_modulus(options.modulus)
    if form_of(options) == "cot":
        raise InputError(f"curriculum={options.curriculum}: {_ONE_LAYER}")
    tree = ParityTree.drawn(options, options.seed)
    kept: list[SolveState] = []
    result = solve(options, tree, on_stage=kept.append)
    history, ranges = [solving.weights for solving in kept], tuple(solving.samples for solving in kept)
    found: Ingredients = {"tree": tree, "weights": result.weights, "history": history, "ranges": ranges}
    return found | _of_algorithm(options, tree)


def _check_modulus(modulus: int) -> None:
    if modulus != 2:
        raise InputError(f"modulus={modulus}: the statements are about values ±1")


def ingredients_of_run(run: Run) -> Ingredients:
    """Read a run folder of train or solve, whatever program wrote it."""
    try:
        return _read(run)
    except InputError as error:
        if str(run.path) in str(error):
            raise
        # The message comes from an option's own check and does not name the file.
        raise InputError(f"{run.path / 'config.json'}: {error}") from None


def _read(run: Run) -> Ingredients:
    config, where = run.config, run.path / "weights.safetensors"
    kind = config.get("kind", "train")
    if kind not in ("train", "solve"):
        raise InputError(
            f"{run.path} is a run of {kind}, which has no weights of the paper's model; choose a run of train or solve"
        )
    if not run.finished and not present(where):
        raise InputError(f"{run.path} is not finished, so it has no weights yet; --resume goes on with it")
    model = check_schema(config, ModelConfig, run.path / "config.json")
    _check_modulus(model.modulus)
    tree = ParityTree(model.n, model.secret, model.pairing, model.arity)
    if tree.k != model.k:
        raise InputError(f"{run.path / 'config.json'}: k={model.k}, but secret has {tree.k} positions")
    tensors, levels = run.weights(), tree.levels
    form = form_of_weights(tensors)
    if form == "cot":
        raise InputError(f"{where}: {_ONE_LAYER}")
    found: Ingredients = {"tree": tree, "weights": read_weights(tensors, levels, form, where)}
    learned = [f"gate{layer + 1}" for layer in range(tree.L)] if model.gates == "learned" else []
    for name in tensors:
        if name not in (*weight_shapes(levels, form), *learned):
            raise InputError(f"{where} has {name}: a learned part of the model that no statement covers")
    if kind == "solve":
        options = check_schema(config, SolveOptions, run.path / "config.json")
        ranges = tuple((line["first_sample"], line["stage_samples"]) for line in run.metrics(schema=SolveMetrics))
        if len(ranges) not in (0, len(stages_of(options))):
            raise InputError(f"{run.path / 'metrics.jsonl'} is damaged: it does not say which samples each stage used")
        history = _snapshots(run, levels, options)
        return found | {"history": history, "ranges": ranges} | _of_algorithm(options, tree)
    schedule = Curriculum(
        model.curriculum, 1 if model.chunk is None else model.chunk, model.boundaries, skip=model.skip
    )
    stages = parity_stages(levels, schedule, hidden_loss=model.hidden_loss)
    if model.supervised_tokens == "hidden":
        stages = tuple(_hiding(stage, levels) for stage in stages)
    return found | {
        "link": get_link(model.link, model.arity, model.modulus),
        "seed": model.seed,
        "visible": named_mask(model.mask, levels),
        "gates": _learned(tensors, learned, levels, where) if learned else named_gates(model.gates, levels),
        "stages": stages,
        "curriculum": described(schedule, hidden_loss=model.hidden_loss),
    }


def _of_algorithm(options: SolveOptions, tree: ParityTree) -> Ingredients:
    """Return the ingredients that follow from the request."""
    return {
        "link": get_link(options.link, options.arity, options.modulus),
        "seed": options.seed,
        "visible": named_mask(options.mask, tree.levels),
        "gates": named_gates(options.gates, tree.levels),
        "stages": stages_of(options),
        "curriculum": described(options.schedule()),
        "algorithm": setting_of(options),
        "epsilon": options.epsilon,
    }


def described(schedule: Curriculum, *, hidden_loss: bool = False) -> str:
    """Return the method of a curriculum, with what sets it apart from the paper's."""
    without = " and ".join(map(str, schedule.skip))
    found = schedule.method + (f" without a stage for level {without}" if without else "")
    return f"{found} with hidden loss" if hidden_loss else found


def _snapshots(run: Run, levels: Levels, options: SolveOptions) -> Sequence[Sequence[Tensor]]:
    """Return the weights after every stage, or nothing if the run did not store all of them."""
    found = dict(run.snapshots())
    if options.transfer or list(found) != list(range(1, len(stages_of(options)) + 1)):
        return ()
    where, form = run.path / "snapshots", form_of(options)
    return [read_weights(tensors, levels, form, where) for tensors in found.values()]


def _learned(tensors: Mapping[str, Tensor], names: Sequence[str], levels: Levels, where: Path) -> Tensor:
    """Return learned gates (layers × positions) from their logits."""
    for name in names:
        if name not in tensors or tuple(tensors[name].shape) != (levels.T,):
            raise InputError(f"{where} has no {name} of {levels.T} logits, which learned gates require")
    return torch.stack([tensors[name].detach().cpu().double().sigmoid() for name in names])


def _hiding(stage: ParityStage, levels: Levels) -> ParityStage:
    """Return a stage whose input shows no node, with the loss on the supervised nodes of the level that it reads."""
    level = levels.nodes(stage.layers)
    supervised = tuple(m for m in stage.supervised if m < level.stop)
    return ParityStage(tuple(range(levels.n, levels.T)), supervised, stage.layers)
