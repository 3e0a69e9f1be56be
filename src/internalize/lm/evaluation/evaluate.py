"""What `lm eval` does: a model of a folder, questions it has not seen, and how many it answers with the chain hidden."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.levels import resolve_levels
from internalize.lm.data.readers import Say
from internalize.lm.data.source import eval_examples
from internalize.lm.data.tasks import get_task, is_task
from internalize.lm.options import CurriculumOptions
from internalize.lm.stages.chains import TextFormat
from internalize.lm.stages.removal import TextStages, unit_of
from internalize.lm.training.generation import BATCH, Answers, continuation_length, generate_answers, positions_left
from internalize.lm.training.memory import check_states_memory
from internalize.lm.training.models import PROMPT_FILE, PromptSpec, check_vocabulary, load_model
from internalize.lm.training.train import KIND, run_source
from internalize.storage.files import Json, present, read_json
from internalize.storage.runs import Run


@dataclass(frozen=True)
class Subject:
    """A model, how it is asked, and what it is asked."""

    model: Any
    text: TextFormat
    stages: TextStages
    examples: list[Example]
    data: str


@dataclass(frozen=True)
class Evaluation:
    """What came out: the answers with the whole chain hidden, and the object that ``--json`` prints."""

    answers: Answers
    result: Json


def open_subject(
    folder: Path,
    data: str = "",
    examples: int = 4096,
    *,
    options: CurriculumOptions | None = None,
    slot_token: str = "",
    dtype: Literal["float32", "bfloat16"] = "float32",
    device: str = "cpu",
    seed: int = 0,
    skip_bad: bool = False,
    say: Say = lambda line: None,
) -> Subject:
    """Load a model and what it is to be asked.

    Args:
        folder: of a run of `lm train`, of a model that one wrote, or of any causal language model.
        data: a file or a task. Default: what was held out when the model was trained.
        examples: how many; a file may have fewer.
        options: how to ask a model that is not ours. One of ours knows by itself, and refuses to be told.
        slot_token: likewise.
        dtype: of the weights.
        device: where the arithmetic happens.
        seed: of a task that names none.
        skip_bad: leave bad lines of a file out.
        say: called with a line for what a user should know.
    """
    import torch

    if examples < 1:
        raise InputError(f"examples={examples} must be at least 1")
    run, where = _model_folder(folder, "lm eval")
    asking = PromptSpec.read(where) if present(where / PROMPT_FILE) else None
    options, default = options or CurriculumOptions(), CurriculumOptions()
    given = ["slot_token"] if slot_token else []
    given += [each.name for each in fields(default) if getattr(options, each.name) != getattr(default, each.name)]
    if asking and given:
        raise InputError(f"{where} says in {PROMPT_FILE} how it is asked; {given[0]} is for models that do not")
    found = _examples(run, asking, data, seed, examples, skip_bad=skip_bad, say=say)
    data = data or (asking.data if asking else "")
    model, tokenizer = load_model(where)
    if asking:
        text, stages, found = as_asked(where, asking, model, tokenizer, found, say)
    else:
        levels, found = resolve_levels(found, options.levels)
        text = TextFormat(tokenizer, unit_of(options, levels), slot_token)
        check_vocabulary(where, model, text, found, say)
        stages = TextStages.measure(options, text.chains(found), text.slot)
        say(f"{where} has no {PROMPT_FILE}: it is asked as {options.method} with --removal {options.removal}")
    subject = Subject(model.to(device=device, dtype=getattr(torch, dtype)), text, stages, found, data)
    if (long := _without_room(subject, stages.last)) == len(found):
        raise InputError(f"{where}: none of the examples fits into the model's positions")
    if long:
        say(f"{long} of {len(found)} examples do not fit into the model's positions and count as wrong")
    return subject


def ask(
    folder: str | Path,
    questions: Sequence[str],
    *,
    longest: int = 64,
    batch: int = BATCH,
    device: str = "cpu",
    say: Say = lambda line: None,
) -> list[str | None]:
    """Answer questions with a model that `lm train` has trained, the whole chain hidden. (That of ``cot`` writes its chain.)

    Args:
        folder: of the run, or of the model that it wrote.
        questions: as the training data have them.
        longest: tokens that the model may write for each; a model that writes its chain needs more than the answer has.
        batch: questions at once.
        device: where the arithmetic happens.
        say: called with a line for what a user should know.

    Returns:
        An answer a question; None where the model gave none, or wrote something before it.
    """
    _, where = _model_folder(Path(folder), "ask")
    asking = PromptSpec.read(where)
    model, tokenizer = load_model(where)
    text = asking.text(tokenizer)
    stages = asking.stages(text)
    examples = [Example(question, (), question) for question in questions]  # what is true nobody knows, nor is it used
    check_vocabulary(where, model, text, examples, say)
    return generate_answers(model.to(device), text, stages, examples, stages.last, batch=batch, longest=longest).answers


def _model_folder(folder: Path, asked_by: str) -> tuple[Run | None, Path]:
    """The run in a folder, if there is one, and the folder of the model."""
    run = our_run(folder, asked_by)
    where = run.path / "model" if run else folder
    if run and not where.exists():
        raise InputError(f"{folder} has no model yet: its training is not finished; continue it with --resume")
    return run, where


def as_asked(
    where: Path, asking: PromptSpec, model: Any, tokenizer: Any, examples: Sequence[Example], say: Say
) -> tuple[TextFormat, TextStages, list[Example]]:
    """Format and stages that a model of ours was trained with, and examples with the levels that it was trained by."""
    text = asking.text(tokenizer)
    check_vocabulary(where, model, text, examples, say)  # other data often have other levels, too: words say it better
    _, found = resolve_levels([e if e.steps else replace(e, levels=()) for e in examples], asking.levels)
    return text, asking.stages(text), found


def evaluate(
    subject: Subject,
    *,
    batch: int = BATCH,
    every_stage: bool = False,
    chain: bool = False,
    report: Callable[[int, int, str], None] = lambda done, total, seen: None,
) -> Evaluation:
    """Exact match with the whole chain hidden; on request at every stage, and of the model writing its chain.

    Args:
        subject: the model with its questions.
        batch: examples at once.
        every_stage: a row for each number of shown steps.
        chain: also let the model write its chain, and time it writing as many tokens as the true one has.
        report: called with examples done, examples in all, and what is being done.
    """
    stages, examples = subject.stages, subject.examples
    if not examples:
        raise InputError("there are no examples to evaluate")
    if chain and stages.hidden[0] > 0:
        raise InputError(f"--chain needs a model that writes its chain; method {stages.options.method} never shows one")
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
    return Evaluation(hidden, {**result, "seconds": round(time.perf_counter() - began, 3)})


def our_run(folder: Path, asked_by: str) -> Run | None:
    """The run of `lm train` in a folder. A model's config.json is none: it names no kind."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder, so no run and no model is in it")
    run = Run(folder)
    if not run.exists or (folder / PROMPT_FILE).exists():
        return None
    config = read_json(folder / "config.json")
    if "model_type" in config:
        return None
    if config.get("kind") != KIND:
        raise InputError(
            f"{folder} holds a run of kind {config.get('kind')!r}; {asked_by} takes one of lm train, or a model"
        )
    return Run.open(folder)


def _examples(
    run: Run | None, asking: PromptSpec | None, data: str, seed: int, count: int, *, skip_bad: bool, say: Say
) -> list[Example]:
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
            f"the model was trained on {asking.data}, and only its run folder knows what was held out: give that, or --data"
        )
    raise InputError("--data is missing: a file or a task to ask the model")


def _without_room(subject: Subject, stage: int) -> int:
    """Examples whose true continuation at a stage does not fit into the model's positions."""
    model, stages, chains = subject.model, subject.stages, subject.text.chains(subject.examples)
    return sum(positions_left(model, stages, c, stage) < continuation_length(stages, c, stage) for c in chains)
