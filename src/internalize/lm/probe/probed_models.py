"""The input of `lm probe`: the models that a run kept at the ends of its stages, or a single model, and examples."""

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
"""Least number of examples with a token for the token to be probed. Half of them fit the probe, half judge it."""


@dataclass(frozen=True)
class ProbedModels:
    """The models of a run by stage, counted from 1, with the data that they are probed on."""

    folders: dict[int, Path]
    """The folders of all kept models, also of stages that are not asked for."""
    before: dict[int, int]
    """For each stage, the stage with whose model it began, if that model was kept."""
    final: int
    """The last stage of the run. With adaptive it is not the highest one if that was given up."""
    asked: list[int]
    """The stages to probe."""
    text: TextFormat
    stages: TextStages
    examples: list[Example]
    levels: list[int | None]
    """The level of each step of the longest chain."""
    children: tuple[tuple[int, ...], ...] | None
    """The inputs of each step, as in `Task.children`."""
    data: str
    seed: int
    device: str

    @property
    def lineage(self) -> list[tuple[int, int]]:
        """The stages that led to the final model, last first, as pairs of a stage and the one after it."""
        pairs: list[tuple[int, int]] = []
        stage = self.final
        while stage in self.before:
            pairs.append((self.before[stage], stage))
            stage = self.before[stage]
        return pairs

    def model(self, stage: int) -> Any:
        """Load the model of a stage for probing."""
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
    """Find the models of a run, or a single model, and examples with different questions, held-out ones first.

    Args:
        folder: the folder of a run of `lm train --keep-stages`, or of a model that a run wrote.
        data: a file or a task. Default: the data of the model's training.
        examples: number of examples. There may be fewer.
        stage: the stages to probe: a number from 1, all, or last.
        seed: draws the halves of the examples, and a task whose spec has no seed.
        device: the device that computes.
        say: called with each line that the user should see.
    """
    if examples < FEWEST:
        raise InputError(f"examples={examples} must be at least {FEWEST}: half of them fit the probe, half judge it")
    run = our_run(folder, "lm probe")
    if run is None and not present(folder / PROMPT_FILE):
        raise InputError(f"{folder} is neither a run of lm train nor a model that a run wrote: it has no {PROMPT_FILE}")
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
        # A curriculum without levels drops them. Its steps are then in the order of the data.
        _step_levels([given[i] if given[i].levels else original[i] for i in kept]),
        get_task(spec, seed).children if is_task(spec) else None,
        spec,
        seed,
        device,
    )


def _stage_of(folder: Path, last: int) -> int:
    """Return the stage of a single model: the number in its folder's name if a run kept it, otherwise the last."""
    name = folder.name.removeprefix("stage-")
    said = int(name) if folder.name != name and name.isdecimal() else last
    return said if 1 <= said <= last else last


def _training_order(run: Run) -> list[int]:
    """Return the stages in the order of training. With adaptive a stage may come twice."""
    records = run.result["stages"] if run.finished else metrics_of(run)
    order = [stage for stage, _ in groupby(int(record["stage"]) for record in records)]
    again = not run.finished and order[-1:] and order[-1] in order[:-1]
    return order[:-1] if again else order  # the kept model is still that of the earlier attempt


def _starting_stages(order: Sequence[int], kept: Collection[int]) -> dict[int, int]:
    """Return for each stage the stage with whose model it began.

    That is the latest earlier stage that hides less, because an attempt that is given up is followed by a smaller
    removal.
    """
    begins = {stage: next((s for s in reversed(order[:at]) if s < stage), 0) for at, stage in enumerate(order)}
    return {stage: earlier for stage, earlier in begins.items() if earlier in kept and stage in kept}


def _select_stages(stage: str, found: Sequence[int], final: int) -> list[int]:
    """Return the stages to probe."""
    if stage == "all":
        return list(found)
    number = final if stage == "last" else int(stage) if stage.isdecimal() else 0
    if number not in found:
        raise InputError(f"stage={stage!r} is not all, last or one of the kept stages: {', '.join(map(str, found))}")
    return [number]


def _examples(run: Run | None, asking: PromptSpec, data: str, seed: int, count: int, say: Say) -> list[Example]:
    """Return examples with different questions. A probe could memorize a question that is in both halves."""
    if data and not is_task(data):
        return _distinct_questions(eval_examples(data, seed, count, say=say))[:count]
    if not data and run is None and not is_task(asking.data):
        raise InputError(
            f"the model was trained on {asking.data}; only its run folder knows what was held out: give that, or --data"
        )
    source = run_source(run, say) if run and not data else open_source(data or asking.data, seed, held_out=0, say=say)
    if source.spec != asking.data:
        say(f"{source.spec} is not what the model was trained on, which is {asking.data}")
    held_out = _distinct_questions(source.test(count))
    if len(held_out) == count:
        return held_out
    found = _distinct_questions([*held_out, *source.training_sample(count)])[:count]
    say(
        f"only {len(held_out)} held-out questions differ; {len(found) - len(held_out)} training questions are used, too"
    )
    return found


def _distinct_questions(examples: Sequence[Example]) -> list[Example]:
    """Return the first example of each question."""
    return list({example.question: example for example in reversed(examples)}.values())[::-1]


def _examples_that_fit(
    examples: Sequence[Example], text: TextFormat, stages: TextStages, room: int | None, say: Say
) -> list[int]:
    """Return the numbers of the examples that fit into the model's positions at every stage."""
    chains = text.chains(examples)
    kept = [i for i, chain in enumerate(chains) if room is None or stages.longest(chain) <= room]
    if left := len(chains) - len(kept):
        say(f"{left} of {len(chains)} examples do not fit into the model's positions and are left out")
    if len(kept) < FEWEST:
        raise InputError(f"{len(kept)} examples are left, but a probe needs {FEWEST}")
    return kept


def _step_levels(examples: Sequence[Example]) -> list[int | None]:
    """Return the level of each step, or None if the examples that have the step disagree."""
    by_step: dict[int, set[int | None]] = {}
    for example in examples:
        for step in range(len(example.steps)):
            by_step.setdefault(step, set()).add(example.levels[step] if example.levels else None)
    return [levels.pop() if len(levels) == 1 else None for _, levels in sorted(by_step.items())]
