"""`internalize compare --study ablations | gates | simplifications`: one departure from the paper's model at a time.

| study           | departure from the paper                  | question                                           |
| --------------- | ----------------------------------------- | -------------------------------------------------- |
| ablations       | gates, mask, quantization, link or rate   | where does it break, and which statement explains it |
| gates           | learned gates, under both masks           | do they become the prescribed ones                 |
| simplifications | another fixed part of the model is learned | can it be learned together with the attention     |

A run breaks at the first stage that ends with less than 99 % accuracy on the level in training. A certificate
explains an ablation if it is violated in the ablation's world and not in the control's.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypedDict

import torch
from msgspec import UNSET, Meta, UnsetType, field

from internalize.errors import InputError
from internalize.parallel.runner import RunFolders
from internalize.parity.experiments.curricula import CompareOptions, Optimizer, default_samples
from internalize.parity.experiments.jobs import SEEDS_PER_BATCH, CertifyJob, SolveJob, TrainJob
from internalize.parity.model.link import get_link
from internalize.parity.model.metrics import measure
from internalize.parity.model.transformer import BlockTransformer, LevelTransformer, set_weights
from internalize.parity.model.weights import form_of_weights, read_weights
from internalize.parity.options import SolveOptions
from internalize.parity.task.data import add_trace, draw_bits
from internalize.parity.task.tree import ParityTree
from internalize.storage.files import Json
from internalize.storage.runs import Run
from internalize.storage.summaries import (
    SOLVED,
    Amount,
    Count,
    SeedsRow,
    Share,
    Words,
    keep_rows,
    lower_median,
    over_seeds,
)

Study = Literal["ablations", "gates", "simplifications"]
CONTROL: Final = "control"


@dataclass(frozen=True)
class Variant:
    """The paper's model with some options changed."""

    optimizer: Optimizer
    changes: Mapping[str, Any]

    @property
    def what(self) -> str:
        """The changed options in words."""
        return " ".join(f"{name}={value}" for name, value in self.changes.items()) or CONTROL

    @property
    def folder(self) -> str:
        """The changed options as the name of a folder."""
        return self.what.replace("=", "-").replace(" ", "-")


def _variants(optimizer: Optimizer, *changes: Mapping[str, Any]) -> tuple[Variant, ...]:
    return tuple(Variant(optimizer, own) for own in changes)


_ARCHITECTURE: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"gates": "ones"},
    {"gates": "cot"},
    {"mask": "causal"},
    {"link": "quartic"},
)
VARIANTS: Final[dict[Study, tuple[Variant, ...]]] = {
    "ablations": (
        *_variants("adamw", *_ARCHITECTURE, {"lr": 0.01}, {"lr": 0.03}, {"lr": 0.3}),
        *_variants(
            "algorithm-1", *_ARCHITECTURE, {"grid": "1"}, {"grid": "none"}, {"rate": "paper"}, {"preset": "paper"}
        ),
    ),
    "gates": _variants(
        "adamw",
        *({"gates": gates, "mask": mask} for gates in ("learned", "input") for mask in ("level", "causal")),
        *({"gates": "learned", "mask": mask, "gate_penalty": 0.0} for mask in ("level", "causal")),
        {"gates": "learned", "gate_bias": 0.0},
        {"gates": "learned", "gate_penalty": 0.1},
        {"gates": "learned", "tokens": "shown"},
    ),
    "simplifications": _variants(
        "adamw",
        {"tokens": "hidden"},
        {"value": "learned"},
        *({"output": output, "parts_lr": rate} for output in ("residual", "streams") for rate in (0.01, 0.1)),
        *({"link": link} for link in ("mlp-fitted", "mlp")),
        {"gates": "learned"},
        {"gates": "learned", "mask": "causal", "value": "learned", "output": "streams", "link": "mlp-fitted"},
    ),
}


class Turned(TypedDict):
    """A certificate that is violated in a variant and not in its control."""

    statement: Words


class GateDistance(TypedDict):
    """The mean distance of learned gates from the prescribed ones."""

    inputs: Share
    written: Share
    below: Share


class VariantRow(SeedsRow, frozen=True, kw_only=True):
    """The results of one variant over its seeds."""

    n: Annotated[int, Meta(ge=1, le=1024)]  # a model of this size is built to draw it
    what: Words
    optimizer: Optimizer
    breaks_at: dict[Words, Count]
    """Number of seeds that break at each stage."""
    breaks_at_median: Amount | None
    level_accuracy: Annotated[list[Share], Meta(min_length=1, max_length=64)]
    seconds: Amount
    runs: list[str] = field(default_factory=list[str])
    gate_distance: GateDistance | UnsetType = UNSET
    answer_scale: list[Annotated[float, Meta(ge=-1e15, le=1e15)]] | UnsetType = UNSET
    """See `answer_scale`."""
    turned: list[Turned] | UnsetType | None = UNSET
    """For ablations: the certificates that explain it; None if it or its control has no certificates."""


class AblationRow(VariantRow, frozen=True, tag="ablations"):
    """A row of `compare --study ablations`."""


class GatesRow(VariantRow, frozen=True, tag="gates"):
    """A row of `compare --study gates`."""


class SimplificationRow(VariantRow, frozen=True, tag="simplifications"):
    """A row of `compare --study simplifications`."""


_ROWS: Final[dict[Study, type[VariantRow]]] = {
    "ablations": AblationRow,
    "gates": GatesRow,
    "simplifications": SimplificationRow,
}


def compare_variants(study: Study, options: CompareOptions, folders: RunFolders) -> list[VariantRow]:
    """Make the missing runs at the first of the sizes, and return a row per variant.

    The runs are in ``out/<study>``, and the rows are also in ``out/rows.json``.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
    """
    entries = [_VariantRuns(study, variant, options, folders.out) for variant in _chosen(study, options)]
    folders.fill([job for entry in entries for job in entry.jobs()])
    entries = [entry for entry in entries if entry.runs()]
    if study == "ablations":
        folders.fill([entry.certify() for entry in entries])
    controls = {entry.variant.optimizer: entry for entry in entries if entry.variant.what == CONTROL}
    rows = [entry.row(controls.get(entry.variant.optimizer)) for entry in entries]
    keep_rows(folders.out, [row.to_json() for row in rows])
    return rows


def _chosen(study: Study, options: CompareOptions) -> list[Variant]:
    """Return the requested variants in the order of the study; all if none is named."""
    if len(options.sizes) > 1:
        raise InputError(f"sizes={options.sizes}: --study {study} takes one size")
    found = [variant for variant in VARIANTS[study] if variant.optimizer in options.optimizers]
    if not found:
        raise InputError(f"optimizers={options.optimizers}: --study {study} has variants under adamw only")
    names = list(dict.fromkeys(variant.what for variant in found))
    for name in options.variants:
        if name not in names:
            raise InputError(f"variant {name!r} is not one of {', '.join(map(repr, names))}")
    return [variant for variant in found if not options.variants or variant.what in options.variants]


@dataclass(frozen=True)
class _VariantRuns:
    """The runs of one variant over its seeds, which make one row."""

    study: Study
    variant: Variant
    options: CompareOptions
    out: Path

    @property
    def place(self) -> Path:
        n, k = self.options.sizes[0]
        return Path(self.study) / f"n{n}-k{k}" / self.variant.optimizer / self.variant.folder

    def jobs(self) -> Iterator[TrainJob | SolveJob]:
        (n, k), seeds = self.options.sizes[0], self.options.seeds
        if self.variant.optimizer == "adamw":
            options = self.options.train(n, k, **self.variant.changes)
            for start in range(0, len(seeds), SEEDS_PER_BATCH):
                yield TrainJob(self.out, self.place, options, seeds[start : start + SEEDS_PER_BATCH])
            return
        # All variants have the control's number of samples, except the paper's preset, which sets its own.
        samples = None if "preset" in self.variant.changes else default_samples(n, k)
        for seed in seeds:
            solving = SolveOptions(n=n, k=k, samples=samples, seed=seed, **self.variant.changes)
            yield SolveJob(self.out, self.place / f"seed-{seed}", solving)

    def runs(self) -> list[Run]:
        """Return the finished runs."""
        return [run for job in self.jobs() for run in job.runs if run.finished]

    def certify(self) -> CertifyJob:
        """Return the job that certifies the first seed's run."""
        run = self.runs()[0].path
        return CertifyJob(self.out, self.place / "certificates" / run.name, run.relative_to(self.out))

    def violated(self) -> dict[str, Json] | None:
        """Return the violated certificates by statement; None if the run has no certificates."""
        certified = self.certify().runs[0]
        if not certified.finished:
            return None
        return {c["statement"]: c for c in certified.result["certificates"] if c["verdict"] == "violated"}

    def row(self, control: "_VariantRuns | None") -> VariantRow:
        runs, adamw = self.runs(), self.variant.optimizer == "adamw"
        results = [run.result for run in runs]
        stages = [_levels_at_stage_ends(run) if adamw else _solved_levels(run) for run in runs]
        broken = [next((t + 1 for t, own in enumerate(some) if own[t] < SOLVED), None) for some in stages]
        counted = Counter(stage for stage in broken if stage is not None)
        held_out = self.options.eval_samples if adamw else SolveOptions.test_samples
        distances: list[Json] = [run.metrics()[-1].get("gate_distance", {}) for run in runs]
        scales = [scale for run in runs if (scale := answer_scale(run.weights()))]
        n, k = self.options.sizes[0]
        only: Json = {"turned": self._turned(control)} if self.study == "ablations" else {}
        if all(distances):
            only["gate_distance"] = {part: statistics.fmean(own[part] for own in distances) for part in distances[0]}
        if scales:
            only["answer_scale"] = [statistics.median(layer) for layer in zip(*scales, strict=True)]
        return _ROWS[self.study](
            what=self.variant.what,
            optimizer=self.variant.optimizer,
            n=n,
            k=k,
            **vars(over_seeds([result["accuracy"] for result in results], held_out)),
            breaks_at={str(stage): counted[stage] for stage in sorted(counted)},
            breaks_at_median=lower_median(broken),
            level_accuracy=[statistics.fmean(level) for level in zip(*(some[-1] for some in stages), strict=True)],
            seconds=round(statistics.fmean(result["seconds"] for result in results), 3),
            runs=[str(run.path) for run in runs],
            **only,
        )

    def _turned(self, control: "_VariantRuns | None") -> list[Json] | None:
        """Return the certificates that are violated here and not in the control; None if either has no certificates."""
        found, known = self.violated(), control and control.violated()
        if found is None or known is None:
            return None
        told = ("statement", "claim", "measured", "bound", "reason")
        return [{key: own[key] for key in told} for name, own in found.items() if name not in known]


def answer_scale(weights: Mapping[str, torch.Tensor]) -> list[float]:
    """Return the scale of each layer's answer, if it is learned: its change from z = 0 to z = ±1, relative to φ's.

    It is 1 in the paper's model. At scale 0 the answer of a layer does not depend on what it reads.
    """
    found: list[float] = []
    for layer in range(1, sum(name.endswith("_full") for name in weights) + 1):
        scale = torch.ones(()).double()
        if f"mlp{layer}_weight" in weights:
            part = {name: weights[f"mlp{layer}_{name}"].double() for name in ("steepness", "offset", "weight")}
            low, middle, high = (
                (part["weight"] * torch.tanh(part["steepness"] * z + part["offset"])).sum() for z in (-1.0, 0.0, 1.0)
            )
            scale = scale * ((low + high) / 2 - middle) / 2
        if f"write{layer}" in weights:
            scale = scale * (weights[f"write{layer}"] * weights[f"output{layer}"]).double().sum()
        found.append(float(scale))
    return found if "mlp1_weight" in weights or "write1" in weights else []


def _levels_at_stage_ends(run: Run) -> list[list[float]]:
    """Return the accuracy of every level at the end of every stage."""
    return list({line["stage"]: line["level_accuracy"] for line in run.metrics()}.values())


def _solved_levels(run: Run) -> list[list[float]]:
    """Return the same for a run of Algorithm 1, from its weights after every stage."""
    config = run.config
    tree = ParityTree.of(config)
    # The samples on which the run measured its accuracy.
    sequence = add_trace(tree, draw_bits(tree.n, config["seed"], 0, config["test_samples"], "test")).unsqueeze(0)
    link, found = get_link(config["link"], tree.arity, tree.modulus), list[list[float]]()
    for _, tensors in run.snapshots():
        form = form_of_weights(tensors)
        model = (
            LevelTransformer(tree.n, tree.k, link, runs=(1,))
            if form == "level"
            else BlockTransformer(tree.n, tree.k, config["mask"], config["gates"], link, runs=(1,))
        )
        set_weights(model, read_weights(tensors, tree.levels, form, run.path))
        found.append(measure(model, [tree], sequence)[0]["level_accuracy"])
    return found
