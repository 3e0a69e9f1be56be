"""What `lm probe` looks at: the models that a run kept at the ends of its stages, or a single one, and examples to read."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.readers import Say
from internalize.lm.data.source import eval_examples, open_source
from internalize.lm.data.tasks import get_task, is_task
from internalize.lm.evaluation.evaluate import as_trained, our_run
from internalize.lm.stages.chains import TextFormat
from internalize.lm.stages.removal import TextStages
from internalize.lm.training.memory import check_states_memory
from internalize.lm.training.models import PROMPT_FILE, PromptSpec, load_model, positions_of
from internalize.lm.training.train import check_finished, kept_stages, metrics_of, run_source
from internalize.storage.files import present
from internalize.storage.runs import Run

FEWEST: Final = 64
"""Examples that must have a token for it to be read: half of them fit the probe, half judge it."""


@dataclass(frozen=True)
class ProbedModels:
    """Models of a run by stage, counted from 1, with the data that they are probed on."""

    folders: dict[int, Path]
    """All that were kept, those before the ones that are asked about among them."""
    before: dict[int, int]
    """The stage with whose model each began, if that was kept."""
    final: int
    """The stage that the run ended with: of adaptive not the highest, if that was given up."""
    asked: list[int]
    text: TextFormat
    stages: TextStages
    examples: list[Example]
    levels: list[int | None]
    """Of each step of the longest chain."""
    children: tuple[tuple[int, ...], ...] | None
    """As a task knows them."""
    data: str
    seed: int
    device: str

    @property
    def lineage(self) -> list[tuple[int, int]]:
        """The stages that led to the final model, each with the one that began with its model, the last pair first."""
        pairs: list[tuple[int, int]] = []
        stage = self.final
        while stage in self.before:
            pairs.append((self.before[stage], stage))
            stage = self.before[stage]
        return pairs

    def model(self, stage: int) -> Any:
        """The model of a stage, ready to be read."""
        model, _ = load_model(self.folders[stage])
        return model.to(self.device).float().eval()


def open_probed_models(
    folder: Path,
    data: str = "",
    examples: int = 2048,
    *,
    stage: str = "all",
    seed: int = 0,
    device: str = "cpu",
    say: Say = lambda line: None,
) -> ProbedModels:
    """Find the models of a run, or a single one, and what they are to be probed on: questions that differ, held-out ones first.

    Args:
        folder: of a run of `lm train --keep-stages`, or of a model that a run wrote.
        data: a file or a task. Default: what the model was trained on.
        examples: how many; there may be fewer.
        stage: whose model: a number from 1, all, or last.
        seed: draws the halves, and a task that names no seed.
        device: where the arithmetic happens.
        say: called with a line for what a user should know.
    """
    if examples < FEWEST:
        raise InputError(f"examples={examples} must be at least {FEWEST}: half of them fit the probe, half judge it")
    run = our_run(folder, "lm probe")
    if run is None and not present(folder / PROMPT_FILE):
        raise InputError(f"{folder} is neither a run of lm train nor a model that one wrote: it has no {PROMPT_FILE}")
    if run and run.finished:
        check_finished(run)
    found = kept_stages(run) if run else {}
    if run and not found:
        raise InputError(f"{folder} has kept no stages: train it with --keep-stages, or probe {folder / 'model'} alone")
    asking = PromptSpec.read(min(found.items())[1] if run else folder)
    if not run:
        found = {_stage_of(folder, len(asking.hidden)): folder}
    order = _training_order(run) if run else list(found)
    final = next((stage for stage in reversed(order) if stage in found), max(found))
    asked = _select_stages(stage, list(found), final)
    original = _examples(run, asking, data, seed, examples, say)
    model, tokenizer = load_model(found[asked[0]])
    text, stages, given = as_trained(found[asked[0]], asking, model, tokenizer, original, say)
    kept = _examples_that_fit(given, text, stages, positions_of(model.config), say)
    longest = max(stages.longest(chain) for chain in text.chains([given[i] for i in kept]))
    layers = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
    check_states_memory(model, len(kept), longest, layers + 1, f"examples={len(kept)}")
    spec = data or asking.data
    return ProbedModels(
        found,
        _starting_stages(order, found),
        final,
        asked,
        text,
        stages,
        [given[i] for i in kept],
        # A curriculum without levels drops them; the order of its steps is that of the data.
        _step_levels([given[i] if given[i].levels else original[i] for i in kept]),
        get_task(spec, seed).children if is_task(spec) else None,
        spec,
        seed,
        device,
    )


def _stage_of(folder: Path, last: int) -> int:
    """A single model's stage: what its folder's name says if a run kept it, else the last."""
    name = folder.name.removeprefix("stage-")
    said = int(name) if folder.name != name and name.isdecimal() else last
    return said if 1 <= said <= last else last


def _training_order(run: Run) -> list[int]:
    """Stages in the order of training; of adaptive one may come twice."""
    records = run.result["stages"] if run.finished else metrics_of(run)
    order = [stage for stage, _ in groupby(int(record["stage"]) for record in records)]
    again = not run.finished and order[-1:] and order[-1] in order[:-1]
    return order[:-1] if again else order  # the model that was kept is that of the time before


def _starting_stages(order: Sequence[int], kept: Collection[int]) -> dict[int, int]:
    """The stage with whose model each stage began. In the order of training that is the latest one before it that hides less:
    what is given up is followed by something smaller.
    """
    begins = {stage: next((s for s in reversed(order[:at]) if s < stage), 0) for at, stage in enumerate(order)}
    return {stage: earlier for stage, earlier in begins.items() if earlier in kept and stage in kept}


def _select_stages(stage: str, found: Sequence[int], final: int) -> list[int]:
    if stage == "all":
        return list(found)
    number = final if stage == "last" else int(stage) if stage.isdecimal() else 0
    if number not in found:
        raise InputError(f"stage={stage!r} is not all, last or one of the stages kept: {', '.join(map(str, found))}")
    return [number]


def _examples(run: Run | None, asking: PromptSpec, data: str, seed: int, count: int, say: Say) -> list[Example]:
    """Examples whose questions differ: a probe that met one of them twice would only have to remember it."""
    if data and not is_task(data):
        return _distinct_questions(eval_examples(data, seed, count, say=say))[:count]
    if not data and run is None and not is_task(asking.data):
        raise InputError(
            f"the model was trained on {asking.data}, and only its run folder knows what was held out: give that, or --data"
        )
    source = run_source(run, say) if run and not data else open_source(data or asking.data, seed, held_out=0, say=say)
    if source.spec != asking.data:
        say(f"{source.spec} is not what the model was trained on, which is {asking.data}")
    held_out = _distinct_questions(source.test(count))
    if len(held_out) == count:
        return held_out
    found = _distinct_questions([*held_out, *source.training_sample(count)])[:count]
    say(f"{len(held_out)} held-out questions differ; {len(found) - len(held_out)} of training are read, too")
    return found


def _distinct_questions(examples: Sequence[Example]) -> list[Example]:
    return list({example.question: example for example in reversed(examples)}.values())[::-1]


def _examples_that_fit(
    examples: Sequence[Example], text: TextFormat, stages: TextStages, room: int | None, say: Say
) -> list[int]:
    """Which examples have room in the model's positions at every stage."""
    chains = text.chains(examples)
    kept = [i for i, chain in enumerate(chains) if room is None or stages.longest(chain) <= room]
    if left := len(chains) - len(kept):
        say(f"{left} of {len(chains)} examples do not fit into the model's positions and are left out")
    if len(kept) < FEWEST:
        raise InputError(f"{len(kept)} examples are left, and a probe needs {FEWEST}")
    return kept


def _step_levels(examples: Sequence[Example]) -> list[int | None]:
    """The level of each step, where all examples that have the step agree."""
    by_step: dict[int, set[int | None]] = {}
    for example in examples:
        for step in range(len(example.steps)):
            by_step.setdefault(step, set()).add(example.levels[step] if example.levels else None)
    return [levels.pop() if len(levels) == 1 else None for _, levels in sorted(by_step.items())]
