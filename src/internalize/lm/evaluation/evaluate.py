"""`lm eval`: loads a model from a folder and measures how many held-out questions it answers with the chain hidden."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.levels import resolve_levels, with_levels
from internalize.lm.data.readers import Say
from internalize.lm.data.source import eval_examples
from internalize.lm.data.tasks import get_task, is_task
from internalize.lm.options import CurriculumOptions, LmModelOptions
from internalize.lm.stages.chains import TextFormat
from internalize.lm.stages.removal import TextStages, unit_of
from internalize.lm.stages.template import get_template
from internalize.lm.stages.text_check import check_text
from internalize.lm.training.answer_costs import AnswerCosts, answer_costs
from internalize.lm.training.flops import model_size
from internalize.lm.training.generation import BATCH, Answers, continuation_length, generate_answers, positions_left
from internalize.lm.training.memory import check_states_memory
from internalize.lm.training.models import PROMPT_FILE, PromptSpec, check_vocabulary, load_model
from internalize.lm.training.train import KIND, run_source
from internalize.storage.files import Json, present, read_json
from internalize.storage.runs import Run

UNDECIDED: Final = (
    "with --removal delete, the prompt does not depend on --chain: the model chooses whether it writes one"
)
"""A message about a model without slots."""


@dataclass(frozen=True)
class Subject:
    """A model with its prompt format and its questions."""

    model: Any
    text: TextFormat
    stages: TextStages
    examples: list[Example]
    data: str

    @cached_property
    def costs(self) -> AnswerCosts:
        """The costs of the true answers."""
        size = model_size(LmModelOptions(), self.model.config)
        return answer_costs(size, self.stages, self.text.chains(self.examples))


@dataclass(frozen=True)
class Evaluation:
    """The result: the answers with the whole chain hidden and, if asked for, written, and what ``--json`` prints."""

    answers: Answers
    written: Answers | None
    result: Json


def open_subject(
    folder: Path,
    data: str = "",
    examples: int = 4096,
    *,
    options: CurriculumOptions | None = None,
    slot_token: str = "",
    template: str = "",
    dtype: Literal["float32", "bfloat16"] = "float32",
    device: str = "cpu",
    seed: int = 0,
    skip_bad: bool = False,
    say: Say = lambda line: None,
) -> Subject:
    """Load a model and its questions.

    Args:
        folder: the folder of a run of `lm train`, of a model that a run wrote, or of any causal language model.
        data: a file or a task. Default: the held-out examples of the model's training.
        examples: number of examples. A file may have fewer.
        options: the prompt format of a model that is not ours. Our models have it in their folder and refuse this
            argument.
        slot_token: the slot token of a model that is not ours.
        template: the template of a model that is not ours. Default: icot.
        dtype: the dtype of the weights.
        device: the device that computes.
        seed: the seed of a task whose spec has none.
        skip_bad: leave out bad lines of a file.
        say: called with each line that the user should see.
    """
    import torch

    if examples < 1:
        raise InputError(f"examples={examples} must be at least 1")
    run, where = model_folder(folder, "lm eval")
    asking = PromptSpec.read(where) if present(where / PROMPT_FILE) else None
    options, default = options or CurriculumOptions(), CurriculumOptions()
    given = [name for name, value in (("slot_token", slot_token), ("template", template)) if value]
    given += [each.name for each in fields(default) if getattr(options, each.name) != getattr(default, each.name)]
    if asking and given:
        raise InputError(f"{where} has its prompt format in {PROMPT_FILE}; {given[0]} is for models without that file")
    found = _examples(run, asking, data, seed, examples, skip_bad=skip_bad, say=say)
    data = data or (asking.data if asking else "")
    model, tokenizer = load_model(where)
    if asking:
        text, stages, found = as_trained(where, asking, model, tokenizer, found, say)
    else:
        levels, found = resolve_levels(found, options.levels)
        text = TextFormat(tokenizer, unit_of(options, levels), slot_token, get_template(template or "icot", tokenizer))
        check_vocabulary(where, model, text, found, say)
        check_text(text, found, say)
        stages = TextStages.measure(options, text.chains(found), text.slot)
        say(
            f"{where} has no {PROMPT_FILE}: its prompts are those of --method {options.method} --removal {options.removal}"
        )
    subject = Subject(model.to(device=device, dtype=getattr(torch, dtype)), text, stages, found, data)
    if (long := _without_room(subject, stages.last)) == len(found):
        raise InputError(f"{where}: none of the examples fits into the model's positions")
    if long:
        say(f"{long} of {len(found)} examples do not fit into the model's positions and count as wrong")
    return subject


def model_folder(folder: Path, asked_by: str) -> tuple[Run | None, Path]:
    """Return the run in a folder, if there is one, and the folder of its model."""
    run = our_run(folder, asked_by)
    where = run.path / "model" if run else folder
    if run and not where.exists():
        raise InputError(f"{folder} has no model yet: its training is not finished; continue it with --resume")
    return run, where


def as_trained(
    where: Path, asking: PromptSpec, model: Any, tokenizer: Any, examples: Sequence[Example], say: Say
) -> tuple[TextFormat, TextStages, list[Example]]:
    """Return text format, stages and examples as in the training of one of our models."""
    text = asking.text(tokenizer)
    check_vocabulary(where, model, text, examples, say)  # before levels: for other data its message is clearer
    found = with_levels([e if e.steps else replace(e, levels=()) for e in examples], asking.levels)
    return text, asking.stages(text), found


def evaluate(
    subject: Subject,
    *,
    batch: int = BATCH,
    every_stage: bool = False,
    chain: bool = False,
    report: Callable[[int, int, str], None] = lambda done, total, seen: None,
) -> Evaluation:
    """Measure exact match with the whole chain hidden; on request also at every stage, and with the chain written.

    Args:
        subject: the model with its questions.
        batch: number of examples per batch.
        every_stage: also measure every stage.
        chain: also let the model write its chain, and time it for as many tokens as the true chain has.
        report: called with examples done, examples to do, and a message.
    """
    stages, examples = subject.stages, subject.examples
    if not examples:
        raise InputError("there are no examples to evaluate")
    if chain:
        check_writes_chain(stages)
    if subject.model.device.type == "cpu":
        at_once, longest = min(batch, len(examples)), max(map(stages.longest, subject.text.chains(examples)))
        states = 8 + 2 * getattr(subject.model.config.get_text_config(), "num_hidden_layers", 0)  # keys and values
        check_states_memory(subject.model, at_once, longest, states, f"batch={batch} of {at_once} examples")
    began = time.perf_counter()
    asked = range(stages.count) if every_stage else sorted({0, stages.last} if chain else {stages.last})
    total, done = len(examples) * (len(asked) + chain), 0

    def ask(stage: int, *, true_length: bool = False) -> Answers:
        what = "timing the chain" if true_length else f"stage {stage + 1}/{stages.count}"

        def on_batch(count: int) -> None:
            nonlocal done
            done += count
            report(done, total, what)

        return generate_answers(
            subject.model,
            subject.text,
            stages,
            examples,
            stage,
            batch=batch,
            true_length=true_length,
            on_batch=on_batch,
        )

    generate_answers(subject.model, subject.text, stages, examples[:1], stages.last)  # the first call is slow
    found = {stage: ask(stage) for stage in asked}
    hidden = found[stages.last]
    result: Json = {
        **hidden.summary(examples),
        "examples_per_second": len(examples) / hidden.seconds,
        "generated_tokens": hidden.generated_tokens,
        **asdict(subject.costs),
    }
    if every_stage:
        result["stages"] = [
            {
                "stage": stage + 1,
                "hidden": stages.hidden[stage],
                "exact_match": answers.exact_match(examples),
                "without_room": _without_room(subject, stage),
                "generated_tokens": answers.generated_tokens,
                "examples_per_second": len(examples) / answers.seconds,
            }
            for stage, answers in found.items()
        ]
    if chain:
        written = ask(0, true_length=True)
        result["chain_exact_match"] = found[0].exact_match(examples)
        result["chain_without_room"] = _without_room(subject, 0)
        result["chain_examples_per_second"] = len(examples) / written.seconds
        result["speedup"] = written.seconds / hidden.seconds
    return Evaluation(hidden, found[0] if chain else None, {**result, "seconds": round(time.perf_counter() - began, 3)})


def check_writes_chain(stages: TextStages) -> None:
    """Refuse a model that was never trained to write its chain."""
    if stages.hidden[0] > 0:
        raise InputError(f"--chain needs a model that writes its chain; method {stages.options.method} never shows one")


def our_run(folder: Path, asked_by: str) -> Run | None:
    """Return the run of `lm train` in a folder, or None for a model folder, whose config.json has no kind."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder with a run or a model")
    run = Run(folder)
    if not run.exists or (folder / PROMPT_FILE).exists():
        return None
    config = read_json(folder / "config.json")
    if "model_type" in config:
        return None
    if config.get("kind") != KIND:
        raise InputError(
            f"{folder} holds a run of kind {config.get('kind')!r}; {asked_by} takes a run of lm train, or a model"
        )
    return Run.open(folder)


def _examples(
    run: Run | None, asking: PromptSpec | None, data: str, seed: int, count: int, *, skip_bad: bool, say: Say
) -> list[Example]:
    """Return the examples to evaluate on."""
    if data:
        if asking and is_task(data) and (spec := get_task(data, seed).spec) != asking.data:
            say(f"{spec} is not what the model was trained on, which is {asking.data}")
        return eval_examples(data, seed, count, skip_bad=skip_bad, say=say)[:count]
    if run is not None:
        return run_source(run, say).test(count)
    if asking is not None and is_task(asking.data):
        return eval_examples(asking.data, seed, count, say=say)
    if asking is not None:
        raise InputError(
            f"the model was trained on {asking.data}; only its run folder knows what was held out: give that, or --data"
        )
    raise InputError("--data is missing: give a file or a task with questions")


def _without_room(subject: Subject, stage: int) -> int:
    """Return the number of examples whose true continuation at a stage does not fit into the model's positions."""
    model, stages, chains = subject.model, subject.stages, subject.text.chains(subject.examples)
    return sum(positions_left(model, stages, c, stage) < continuation_length(stages, c, stage) for c in chains)
