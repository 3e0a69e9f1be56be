"""`lm patch`: exchanges the state of one hidden step between two questions, and reads the answer that follows.

A probe that reads a step does not show that the model uses it. If the model does, then its state, put into another
question, changes the answer to what the exchanged step implies there. That answer follows from the task
(`Task.implied`).

| name        | meaning                                                                                      |
| ----------- | -------------------------------------------------------------------------------------------- |
| base        | the question that is answered                                                                |
| source      | another question, whose states are put into the base                                         |
| state       | what enters a layer at a position; layer 0 is the embedding, as in `lm probe`                |
| step's place | the positions that predict the tokens of the step, where `lm probe` reads it                |
| interchange | share of the pairs whose answer becomes what the source's step implies in the base           |
| control     | the same share if states are exchanged at as many other positions of the question and slots  |

Only pairs count in which the exchanged step changes the answer, and both questions are answered correctly.
"""

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import torch
from torch import Tensor, nn

from internalize.errors import InputError
from internalize.intervals import wilson
from internalize.lm.data.example import Example
from internalize.lm.data.tasks import Task, get_task, is_task
from internalize.lm.probe.probe import probed_accuracy, sequences_of
from internalize.lm.probe.probed_models import FEWEST, ProbedModels
from internalize.lm.probe.states import Budget, Readings, Sequences, read_states
from internalize.lm.training.generation import BATCH, ROOM, continuation_length, generate_answers, generate_rows
from internalize.random_words import words
from internalize.storage.files import Json

READ: Final = 0.99
"""Accuracy of a probe, scaled from chance to 1, at which a step counts as read."""


@dataclass(frozen=True)
class Exchange:
    """Pairs of examples between which one step is exchanged, and the answer that each base should then get."""

    base: list[int]
    source: list[int]
    implied: list[str]


def exchanges(task: Task, examples: Sequence[Example], right: Sequence[bool], step: int, shift: int) -> Exchange:
    """Return the pairs of examples for a step, counted from 0. The source is ``shift`` examples after the base."""
    found = Exchange([], [], [])
    for base, example in enumerate(examples):
        source = (base + shift) % len(examples)
        has = step < min(len(example.steps), len(examples[source].steps))
        if not (has and right[base] and right[source]):
            continue
        implied = task.implied(example, step, examples[source].steps[step])
        if implied is not None and implied != example.answer:
            found.base.append(base)
            found.source.append(source)
            found.implied.append(implied)
    return found


@dataclass(frozen=True)
class Patchable:
    """A model that answers enough questions correctly, with its states on them."""

    kept: ProbedModels
    task: Task
    model: Any
    sequences: Sequences
    readings: Readings
    right: list[bool]
    """Whether the model answers each question correctly with everything hidden."""


def open_patchable(kept: ProbedModels) -> Patchable:
    """Load the final model and ask it all questions. Refuse data and models for which exchanges mean nothing."""
    if not is_task(kept.data):
        raise InputError(f"{kept.data}: only a generated task says what an exchanged step implies; give its --data")
    task, stages, examples = get_task(kept.data, kept.seed), kept.stages, kept.examples
    if not examples[0].steps or task.implied(examples[0], 0, examples[0].steps[0]) is None:
        raise InputError(f"{kept.data}: this task does not say what an exchanged step implies")
    model = kept.model(kept.final)
    right = generate_answers(model, kept.text, stages, examples, stages.last).right(examples)
    if sum(right) < FEWEST:
        raise InputError(
            f"the model answers only {sum(right)} of {len(examples)} questions correctly with everything hidden; "
            f"exchanges need at least {FEWEST}"
        )
    sequences = sequences_of(kept, Budget.at(stages, stages.count))
    return Patchable(kept, task, model, sequences, read_states(model, sequences), right)


def patch(
    patchable: Patchable,
    report: Callable[[int, int, str], None] = lambda done, total, seen: None,
) -> Json:
    """Exchange every hidden step at every layer, and return what ``--json`` prints.

    Args:
        patchable: the model, its data and its states.
        report: called with exchanges done, exchanges to do, and a message about the last one.
    """
    began = time.perf_counter()
    kept, sequences, readings, right = patchable.kept, patchable.sequences, patchable.readings, patchable.right
    examples, model = kept.examples, patchable.model
    # States at the end of the last layer lead to no other position, so there is nothing to exchange.
    layers, steps = len(readings.states) - 1, len(kept.levels)
    shift = 1 + int(words(kept.seed, "patch", 0, 1)[0] % (len(examples) - 1))
    rows: list[Json] = []
    for step in range(steps):
        pairs = exchanges(patchable.task, examples, right, step, shift)
        places = _places(sequences, step)
        if places is None or not pairs.base:
            continue
        others = _other_places(kept, sequences, step, len(places[0]))
        for layer in range(layers):
            interchange, control = (_implied(kept, model, readings, pairs, where, layer) for where in (places, others))
            count = len(pairs.base)
            low, high = wilson(round(interchange * count), count)
            rows.append(
                {
                    "step": step + 1,
                    "level": kept.levels[step],
                    "layer": layer,
                    "tokens": len(places[0]),
                    "pairs": count,
                    "interchange": interchange,
                    "interchange_low": low,
                    "interchange_high": high,
                    "control": control,
                    "probe": probed_accuracy(kept, sequences, readings, step, layer),
                }
            )
            seen = f"step {step + 1}, layer {layer}: {interchange:.3f}, control {control:.3f}"
            report(step * layers + layer + 1, steps * layers, seen)
    if not rows:
        raise InputError("no pair of examples has a hidden step whose exchange changes the answer")
    return {
        "data": kept.data,
        "examples": len(examples),
        "right": sum(right),
        "layers": layers,
        "steps": steps,
        "levels": kept.levels,
        "rows": rows,
        "places": [named_place(list(own)) for _, own in groupby(rows, lambda row: row["step"])],
        "seconds": round(time.perf_counter() - began, 3),
    }


def named_place(rows: Sequence[Json]) -> Json:
    """Return the row of a step at the layer that the probe names: the first at which it reads the step.

    If it reads the step at none, that is the layer of its highest accuracy.
    """
    read = [row for row in rows if row["probe"] is not None and row["probe"] >= READ]
    return read[0] if read else max(rows, key=lambda row: row["probe"] or 0.0)


def _places(sequences: Sequences, step: int) -> Tensor | None:
    """Return the positions that predict the tokens of a step, examples × tokens; None if it is shown or not read."""
    cells = [cell for cell, (element, _) in enumerate(sequences.cells.keys) if element == step]
    if not cells or bool(sequences.cells.shown[:, cells].any()):
        return None
    return sequences.cells.predicted[:, cells]


def _other_places(kept: ProbedModels, sequences: Sequences, step: int, count: int) -> Tensor:
    """Return as many random positions of the question and the slots, other than those of the step, for each example."""
    own = _places(sequences, step)
    assert own is not None
    lengths = [len(kept.stages.prompt(chain, kept.stages.last).tokens) for chain in kept.text.chains(kept.examples)]
    drawn = words(kept.seed, "patch", 1 + step * len(lengths) * 64, len(lengths) * 64).reshape(len(lengths), 64)
    found: list[list[int]] = []
    for length, places, numbers in zip(lengths, own, drawn.tolist(), strict=True):
        taken = {int(place) for place in places}
        free = [position for position in range(length) if position not in taken]
        found.append([free[number % len(free)] for number in numbers[:count]])
    return torch.tensor(found)


def _implied(kept: ProbedModels, model: Any, readings: Readings, pairs: Exchange, places: Tensor, layer: int) -> float:
    """Return the share of the pairs whose answer becomes the implied one after an exchange at a layer."""
    examples = [kept.examples[base] for base in pairs.base]
    states = readings.states[layer][torch.tensor(pairs.source)[:, None], places[pairs.source]]
    right = 0
    stages, last, chains = kept.stages, kept.stages.last, kept.text.chains(examples)
    most = max(continuation_length(stages, chain, last) for chain in chains) + ROOM
    prompts = torch.tensor([len(stages.prompt(chain, last).tokens) for chain in chains])
    right = 0
    for start in range(0, len(examples), BATCH):
        some = slice(start, start + BATCH)
        padded = places[pairs.base][some] + (prompts[some].max() - prompts[some])[:, None]  # the padding is at the left
        with exchanged(model, layer, padded, states[some]):
            written = generate_rows(model, kept.text, stages, chains[some], last, most, None)
        answers = (kept.text.answer(row, direct=True) for row in written)
        right += sum(answer == implied for answer, implied in zip(answers, pairs.implied[some], strict=True))
    return right / len(examples)


@contextlib.contextmanager
def exchanged(model: Any, layer: int, places: Tensor, states: Tensor) -> Generator[None]:
    """Let a model replace the states that enter a layer, in its first pass only.

    Args:
        model: the model.
        layer: the layer, from 0.
        places: positions in the model's input, examples × positions.
        states: the new states, examples × positions × width.
    """
    done = False

    def replace(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal done
        if done:
            return None
        done = True
        hidden: Tensor = (args[0] if args else kwargs["hidden_states"]).clone()
        hidden[torch.arange(len(hidden), device=hidden.device)[:, None], places.to(hidden.device)] = states.to(hidden)
        return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})

    handle = _blocks(model)[layer].register_forward_pre_hook(replace, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _blocks(model: Any) -> nn.ModuleList:
    """Return the layers of a model."""
    count = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise InputError(f"{type(model).__name__} has no list of {count} layers, so its states cannot be exchanged")
