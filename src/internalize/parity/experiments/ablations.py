"""`internalize compare --study ablations | gates | simplifications`: one departure from the paper's model at a time.

| what            | departs by                                                 | asks                                             |
| --------------- | ---------------------------------------------------------- | ------------------------------------------------ |
| ablations       | gates, mask, quantisation, link or rate of section 3.2     | where does it break, which statement explains it |
| gates           | gates that are learned, under both masks                   | do they become the prescribed ones               |
| simplifications | another of the paper's simplifications lifted, and learned | can it be learned together with the attention    |

A run breaks at the first stage at whose end the level in training is not 99 % right. A certificate explains an ablation if it
is violated in its world and not in the control's.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch

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
from internalize.storage.runs import Run
from internalize.storage.summaries import SOLVED, Json, SeedSummary, flat, keep_rows, lower_median, over_seeds

Study = Literal["ablations", "gates", "simplifications"]
CONTROL: Final = "control"


@dataclass(frozen=True)
class Variant:
    """The paper's model but for these options."""

    optimizer: Optimizer
    changes: Mapping[str, Any]

    @property
    def what(self) -> str:
        """The options in words."""
        return " ".join(f"{name}={value}" for name, value in self.changes.items()) or CONTROL

    @property
    def folder(self) -> str:
        """The same, as the name of a folder."""
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


@dataclass(frozen=True)
class VariantRow:
    """What one variant came to over its seeds."""

    of: Study
    what: str
    optimizer: Optimizer
    n: int
    k: int
    summary: SeedSummary
    breaks_at: dict[str, int]
    """How many seeds break at each stage."""
    breaks_at_median: float | None
    level_accuracy: list[float]
    seconds: float
    runs: list[str]
    gate_distance: dict[str, float]
    """From the prescribed gates, of learned ones."""
    answer_scale: list[float]
    """See `answer_scale`."""
    turned: list[Json] | None
    """Of ablations: the certificates that explain it; None if it or its control was not judged."""

    def to_json(self) -> Json:
        """The row in ``rows.json``, without what its variant does not have."""
        has = {"gate_distance": self.gate_distance, "answer_scale": self.answer_scale, "turned": self.of == "ablations"}
        return {name: value for name, value in flat(self).items() if has.get(name, True)}


def compare_variants(study: Study, options: CompareOptions, folders: RunFolders) -> list[VariantRow]:
    """Make every run that is missing, at the first of the sizes, and return a row for each variant.

    The runs are in ``out/<study>``, and the rows also in ``out/rows.json``.

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
    """The variants that are asked for, in their order; all unless some are named."""
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
    """One variant over its seeds: the runs of one row."""

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
        # All at the control's number of samples, but for the paper's preset, which has its own.
        samples = None if "preset" in self.variant.changes else default_samples(n, k)
        for seed in seeds:
            asked = SolveOptions(n=n, k=k, samples=samples, seed=seed, **self.variant.changes)
            yield SolveJob(self.out, self.place / f"seed-{seed}", asked)

    def runs(self) -> list[Run]:
        """Those that are finished."""
        return [run for job in self.jobs() for run in job.runs if run.finished]

    def certify(self) -> CertifyJob:
        """Of the first seed's run."""
        run = self.runs()[0].path
        return CertifyJob(self.out, self.place / "certificates" / run.name, run.relative_to(self.out))

    def violated(self) -> dict[str, Json] | None:
        """The certificates that are violated, by statement; None if the run was not judged."""
        kept = self.certify().runs[0]
        if not kept.finished:
            return None
        return {c["statement"]: c for c in kept.result["certificates"] if c["verdict"] == "violated"}

    def row(self, control: "_VariantRuns | None") -> VariantRow:
        runs, adamw = self.runs(), self.variant.optimizer == "adamw"
        results = [run.result for run in runs]
        stages = [_trained_levels(run) if adamw else _solved_levels(run) for run in runs]
        broken = [next((t + 1 for t, own in enumerate(some) if own[t] < SOLVED), None) for some in stages]
        counted = Counter(stage for stage in broken if stage is not None)
        held_out = self.options.eval_samples if adamw else SolveOptions.test_samples
        distances: list[dict[str, float]] = [run.metrics()[-1].get("gate_distance", {}) for run in runs]
        scales = [scale for run in runs if (scale := answer_scale(run.weights()))]
        return VariantRow(
            self.study,
            self.variant.what,
            self.variant.optimizer,
            *self.options.sizes[0],
            over_seeds([result["accuracy"] for result in results], held_out),
            breaks_at={str(stage): counted[stage] for stage in sorted(counted)},
            breaks_at_median=lower_median(broken),
            level_accuracy=[statistics.fmean(level) for level in zip(*(some[-1] for some in stages), strict=True)],
            seconds=round(statistics.fmean(result["seconds"] for result in results), 3),
            runs=[str(run.path) for run in runs],
            gate_distance={part: statistics.fmean(own[part] for own in distances) for part in distances[0]}
            if all(distances)
            else {},
            answer_scale=[statistics.median(layer) for layer in zip(*scales, strict=True)],
            turned=self._turned(control),
        )

    def _turned(self, control: "_VariantRuns | None") -> list[Json] | None:
        """The certificates that are violated in this world and not in the control's, if both were judged."""
        found, known = self.violated(), control and control.violated()
        if found is None or known is None:
            return None
        told = ("statement", "claim", "measured", "bound", "reason")
        return [{key: own[key] for key in told} for name, own in found.items() if name not in known]


def answer_scale(weights: Mapping[str, torch.Tensor]) -> list[float]:
    """How much of φ's swing between z = 0 and z = ±1 each layer's answer has, where that is learned; 1 in the paper's model.

    A layer whose scale is 0 has turned itself off: it answers the same whatever it reads.
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


def _trained_levels(run: Run) -> list[list[float]]:
    """Accuracy of every level at the end of every stage."""
    ends = {line["stage"]: line["level_accuracy"] for line in run.metrics()}
    return [ends[stage] for stage in sorted(ends)]


def _solved_levels(run: Run) -> list[list[float]]:
    """The same of a run of Algorithm 1, by its weights after every stage."""
    config = run.config
    tree = ParityTree.of(config)
    # The samples that its accuracy is of.
    sequence = add_trace(tree, draw_bits(tree.n, config["seed"], 0, config["test_samples"], "test")).unsqueeze(0)
    link, found = get_link(config["link"]), list[list[float]]()
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
