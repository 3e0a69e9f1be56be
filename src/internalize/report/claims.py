"""The paper's claims compared with what the runs measured, and results at other sizes.

| name      | meaning                                                                   | where in the paper |
| --------- | ------------------------------------------------------------------------- | ------------------ |
| Spike     | the loss directly after a switch of stage, before any update, and its return | section 4       |
| Claim     | a statement in our words, what was measured, and whether it holds         | sections 1 and 4   |
| SizeRow   | one setting over its seeds, the paper's own or another                    | appendix B.2       |

Everything is computed from the files of finished runs. Stages count from 1, as in those files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median
from typing import Any

from internalize.curriculum import Curriculum
from internalize.errors import InputError
from internalize.parity.adamw.groups import group_runs
from internalize.parity.model.cot import chain_passes
from internalize.parity.options import TrainOptions
from internalize.parity.task.stages import parity_stages
from internalize.parity.task.tree import Levels, ParityTree
from internalize.storage.runs import Run

RETURNED = 0.01
"""Share of the spike below which the loss has returned. Our threshold; the paper says "near zero"."""
SOON = 100
"""Gradient steps within which the loss must return. Our threshold; the paper says "rapidly"."""
CONCENTRATED = 0.4
"""Least attention on each true child; at most 0.5 is possible for both. Our threshold; the paper says "sharply"."""


@dataclass(frozen=True)
class Spike:
    """The effect of one switch of stage on the validation loss."""

    stage: int
    """The stage that begins."""
    step: int
    before: float
    """Loss at the last evaluation of the previous stage."""
    height: float
    """Loss directly after the switch, before any update."""
    steps_to_return: int | None
    """Steps until the first evaluation with a loss under `RETURNED` of the height; None if this stage has none."""
    highest_after: float | None
    """Largest loss from that return to the end of the stage."""

    @property
    def rises(self) -> bool:
        """Whether the loss rises at the switch."""
        return self.height > self.before

    @property
    def returns(self) -> bool:
        """Whether the loss returns soon and stays low to the end of the stage."""
        back, after = self.steps_to_return, self.highest_after
        return back is not None and back <= SOON and after is not None and after < RETURNED * self.height


def spikes(metrics: Sequence[Mapping[str, Any]]) -> tuple[Spike, ...]:
    """Return the spike of every switch in a run's metrics, in order.

    At a switch, a line has another stage than the line before it. Its loss is that of the spike only if both lines have
    the same step. Otherwise the spike was missed; raise an error rather than report too small a spike.
    """
    found: list[Spike] = []
    for number, (last, first) in enumerate(pairwise(metrics), start=1):
        if first["stage"] == last["stage"]:
            continue
        if first["step"] != last["step"]:
            raise InputError(
                f"no evaluation directly after the switch to stage {first['stage']}: the lines around it have steps "
                f"{last['step']} and {first['step']}"
            )
        rest = [line for line in metrics[number + 1 :] if line["stage"] == first["stage"]]
        back = next((place for place, line in enumerate(rest) if line["loss"] < RETURNED * first["loss"]), None)
        found.append(
            Spike(
                stage=first["stage"],
                step=first["step"],
                before=last["loss"],
                height=first["loss"],
                steps_to_return=None if back is None else rest[back]["step"] - first["step"],
                highest_after=None if back is None else max(line["loss"] for line in rest[back:]),
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class Claim:
    """One row of the table of claims: the paper's claim in our words, and what was measured."""

    where: str
    claim: str
    measured: str
    seeds: int
    """Number of runs that were measured; 0 if the claim is about the curricula alone."""
    holds: bool


def claims(runs: Iterable[Run], paper: TrainOptions) -> list[Claim]:
    """Return the paper's claims, checked on the runs with its settings. Runs with other settings are ignored.

    Args:
        runs: finished training runs.
        paper: the paper's settings.
    """
    levels, own = Levels(paper.n, paper.k), paper_runs(runs, paper)
    (row,) = sizes(own, paper)
    log_icot, icot = (len(parity_stages(levels, Curriculum(method))) for method in ("log-icot", "icot"))
    by_node, by_level = len(chain_passes(levels, "node")), len(chain_passes(levels, "level"))
    by_layer = list(zip(*map(_child_attention, own), strict=True))
    smallest = min(min(layer) for layer in by_layer)
    return [
        Claim(
            where="Section 4, training dynamics",
            claim=(
                f"After the last stage the model computes the parity of {paper.k} of {paper.n} bits from the bits "
                "alone, with 100 % validation accuracy."
            ),
            measured=(
                f"{row.solved} of {row.seeds} seeds reach 100 % on {paper.eval_samples} held-out samples with the "
                f"whole chain hidden; the lowest accuracy is {_percent(row.accuracy_min)}."
            ),
            seeds=row.seeds,
            holds=row.solved == row.seeds,
        ),
        Claim(
            where="Section 4, layer-wise internalization; Figure 3",
            claim="At the end, each layer attends to two positions for each node: the node's two children.",
            measured=(
                f"The smallest attention on a true child is {smallest:.3f} over all seeds, nodes and layers (0.5 is "
                "perfect). Layer by layer, the median over seeds is "
                f"{', '.join(f'{median(layer):.3f}' for layer in by_layer)}. Our threshold: {CONCENTRATED}."
            ),
            seeds=row.seeds,
            holds=smallest >= CONCENTRATED,
        ),
        *(_spike_claim(switch, paper) for switch in zip(*spikes_of(own, paper), strict=True)),
        Claim(
            where="Section 1, Figure 1",
            claim="Log-ICoT needs log2 k training stages; ICoT, which removes one step per stage, needs k − 1.",
            measured=f"{log_icot} against {icot} stages for k = {levels.k}, counted from the curricula.",
            seeds=0,
            holds=(log_icot, icot) == (levels.L, levels.k - 1),
        ),
        Claim(
            where="Section 1, Figure 1",
            claim="The trained model answers in one forward pass; explicit CoT writes its k − 1 nodes one by one.",
            measured=(
                f"{row.solved} of {row.seeds} seeds are solved in one pass over the bits and {levels.k - 1} zeros; "
                f"explicit CoT takes {by_node} sequential passes, or {by_level} if it writes a level at a time."
            ),
            seeds=row.seeds,
            holds=row.solved == row.seeds and by_node == levels.k - 1,
        ),
    ]


def _child_attention(run: Run) -> list[float]:
    """Return the smallest attention on a true child after training, for each layer."""
    found, layers = run.metrics()[-1]["child_attention"], ParityTree.of(run.config).L
    if len(found) != layers:
        raise InputError(f"{run.path / 'metrics.jsonl'}: child_attention has {len(found)} layers, not {layers}")
    return found


def paper_runs(runs: Iterable[Run], paper: TrainOptions) -> list[Run]:
    """Return the runs with the given settings, in the order of seeds. Raise an error if there are none."""
    group = group_runs(runs).get(paper)
    if not group:
        raise InputError(f"no finished run has the settings of the paper's experiment: {paper}")
    return group


def spikes_of(runs: Iterable[Run], options: TrainOptions) -> list[tuple[Spike, ...]]:
    """Return the spikes of runs with the given settings. Raise an error if metrics lack a stage or its start."""
    stages = range(1, len(parity_stages(Levels(options.n, options.k), options.schedule())) + 1)
    found: list[tuple[Spike, ...]] = []
    for run in runs:
        metrics = run.metrics()
        if [stage for stage, _ in groupby(metrics, key=lambda line: line["stage"])] != [*stages]:
            raise InputError(f"{run.path / 'metrics.jsonl'} does not have the stages 1 … {len(stages)} in this order")
        try:
            found.append(spikes(metrics))
        except InputError as error:
            raise InputError(f"{run.path / 'metrics.jsonl'}: {error}") from None
    return found


def _spike_claim(switch: Sequence[Spike], paper: TrainOptions) -> Claim:
    """Return the claim about one switch, measured on every seed."""
    heights = [spike.height for spike in switch]
    return Claim(
        where="Section 4, training dynamics; Figure 2(b)",
        claim=f"At the switch to stage {switch[0].stage} the loss spikes; it then quickly returns to near zero.",
        measured=(
            f"Loss {median(spike.before for spike in switch):.2g} → {median(heights):.3g} (medians; spikes from "
            f"{min(heights):.3g} to {max(heights):.3g}). {_return(switch, paper)} Our thresholds: under "
            f"{_percent(RETURNED)} of the spike within {SOON} steps, and under it to the end of the stage."
        ),
        seeds=len(switch),
        holds=all(spike.rises and spike.returns for spike in switch),
    )


def _return(switch: Sequence[Spike], paper: TrainOptions) -> str:
    steps = [spike.steps_to_return for spike in switch if spike.steps_to_return is not None]
    after = [spike.highest_after / spike.height for spike in switch if spike.highest_after is not None]
    text = f"Under {_percent(RETURNED)} of the spike in {len(steps)} of {len(switch)} seeds"
    if not steps:
        return f"{text}."
    return (
        f"{text}, after {median(steps):g} steps (median; at most {max(steps)}; evaluated every {paper.eval_every}). "
        f"After that, at most {_percent(max(after))}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


@dataclass(frozen=True)
class SizeRow:
    """Results of one setting over its seeds."""

    n: int
    k: int
    curriculum: str
    batch: int
    lr: float
    steps: int
    """Gradient steps per stage."""
    seeds: int
    solved: int
    """Seeds with accuracy 1."""
    accuracy_median: float
    accuracy_min: float
    child_attention_min: float
    claimed: bool
    """Whether these are the paper's settings. The paper claims nothing about others."""


def sizes(runs: Iterable[Run], paper: TrainOptions) -> list[SizeRow]:
    """Return a row for every setting among the runs, the paper's own and others."""
    rows: list[SizeRow] = []
    for options, group in group_runs(runs).items():
        results = [run.result for run in group]
        accuracies = [result["accuracy"] for result in results]
        rows.append(
            SizeRow(
                n=options.n,
                k=options.k,
                curriculum=options.curriculum,
                batch=options.batch,
                lr=options.lr,
                steps=options.steps,
                seeds=len(group),
                solved=sum(accuracy == 1.0 for accuracy in accuracies),
                accuracy_median=median(accuracies),
                accuracy_min=min(accuracies),
                child_attention_min=min(result["min_child_attention"] for result in results),
                claimed=options == paper,
            )
        )
    return rows
