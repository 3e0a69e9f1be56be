"""`lm probe`: measures how well each step of the chain can be read from each layer, for the model of each stage.

A row is one step at one layer of one stage's model, with a number of hidden steps; `docs/contract.md` has its keys.
Tokens that are the same in all examples (separators, signs) are left out. For a step of several tokens, each number is
the mean over them.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from internalize.errors import InputError
from internalize.lm.probe.discriminant import chance, fit, tally
from internalize.lm.probe.gradient_signal import Children, measure_signals
from internalize.lm.probe.probed_models import FEWEST, ProbedModels
from internalize.lm.probe.stalls import accounts
from internalize.lm.probe.states import Budget, Cells, Readings, Sequences, at_positions, cells_of, places, read_states
from internalize.random_words import words
from internalize.storage.files import Json


def probe(
    kept: ProbedModels,
    hidden: Sequence[int] = (),
    report: Callable[[int, int, str], None] = lambda done, total, seen: None,
) -> Json:
    """Probe the selected models, and return what ``--json`` prints.

    Args:
        kept: the models and the data.
        hidden: budgets, as numbers of hidden units. Default: those of the model's own stage, the next and the last.
        report: called with probes done, probes to do, and a message about the last one.
    """
    began = time.perf_counter()
    stages = kept.stages
    if wrong := [count for count in hidden if not 0 <= count < len(stages.count_slots)]:
        raise InputError(
            f"hidden={wrong[0]} is outside 0 … {len(stages.count_slots) - 1}, the number of units of the longest chain"
        )
    jobs = [(stage, budget) for stage in kept.asked for budget in _budgets(kept, stage, hidden)]
    asked = {(stage, budget.hidden) for stage, budget in jobs}
    rows: list[Json] = []
    also: list[Json] = []  # only for the accounts: rows of the model that a stage began with
    model, before, at = None, None, 0
    for done, (stage, budget) in enumerate(jobs):
        if at != stage:
            earlier = kept.before.get(stage)
            before = None if earlier is None else model if at == earlier else kept.model(earlier)
            model, at = kept.model(stage), stage
        rows += _rows(kept, stage, budget, model, before)
        own = budget.hidden == Budget.at(stages, stage).hidden
        if own and before is not None and (kept.before[stage], budget.hidden) not in asked:
            also += _rows(kept, kept.before[stage], budget, before, None)
        report(done + 1, len(jobs), f"stage {stage}, {budget.hidden} hidden")
    return {
        "data": kept.data,
        "examples": len(kept.examples),
        "layers": max(row["layer"] for row in rows),
        "steps": len(kept.levels),
        "levels": kept.levels,
        "rows": rows,
        "accounts": accounts([*rows, *also], dict(enumerate(stages.hidden, 1)), kept.before, _child_steps(kept)),
        "seconds": round(time.perf_counter() - began, 3),
    }


def _budgets(kept: ProbedModels, stage: int, hidden: Sequence[int]) -> Iterator[Budget]:
    """Yield the budgets at which a stage's model is probed, each number of hidden units once.

    The default budgets are those of the model's own stage, of the next planned one, of those that began with this
    model, and of the last. Among stages that hide the same number of the longest chain's units, the model's own counts,
    or the last.
    """
    stages = kept.stages
    if hidden:
        yield from (Budget.of(stages, count) for count in dict.fromkeys(hidden))
        return
    following = next((planned for planned in stages.planned if planned >= stage), stages.last)
    after = {later - 1 for later, earlier in kept.before.items() if earlier == stage}
    own = Budget.at(stages, stage)
    numbers = sorted({following, *after, stages.last})
    by_hidden = {budget.hidden: budget for budget in (Budget.at(stages, number + 1) for number in numbers)}
    yield from sorted((by_hidden | {own.hidden: own}).values(), key=lambda budget: budget.stage or 0)


def sequences_of(kept: ProbedModels, budget: Budget) -> Sequences:
    """Return a model's input under a budget, with cells for the tokens of the chain that differ between examples."""
    found = [places(kept.stages, chain, budget) for chain in kept.text.chains(kept.examples)]
    by_steps = kept.text.with_unit("step").chains(kept.examples)
    cells = cells_of(
        by_steps, [own for _, own in found], lambda tokens: len(tokens) >= FEWEST and len(tally(tokens)[0]) > 1
    )
    if not cells.keys:
        raise InputError(f"{kept.data}: no token of the chain differs between examples, or too few examples have it")
    return Sequences([row for row, _ in found], cells, kept.text.pad, kept.stages.options.keep_positions)


def _rows(kept: ProbedModels, stage: int, budget: Budget, model: Any, before: Any) -> Iterator[Json]:
    """Yield a row for each layer and step of a model under a budget. Its stage began with the model ``before``."""
    sequences = sequences_of(kept, budget)
    cells = sequences.cells
    readings = read_states(model, sequences)
    earlier = hidden_before = None
    if before is not None:
        earlier = read_states(before, sequences, keep=False).read
        hidden_before = ~sequences_of(kept, Budget.at(kept.stages, kept.before[stage])).cells.shown
    signals = measure_signals(model, sequences, child_positions(kept, sequences))
    fitted = fitting_half(kept.seed, len(sequences.rows))
    for layer in range(len(readings.states)):
        elements: dict[int, list[Json]] = {}
        for cell, (element, _) in enumerate(cells.keys):
            measured = _read_cell(cells, cell, readings, layer, fitted)
            measured["agreement"] = None
            if earlier is not None and hidden_before is not None and readings.read[layer].numel():
                some = cells.having(cell) & hidden_before[:, cell]
                measured["agreement"] = _agreement(readings.read[layer][some, cell], earlier[layer][some, cell])
            elements.setdefault(element, []).append(measured | vars(signals[layer][cell]))
        for element, several in elements.items():
            yield {
                "stage": stage,
                "hidden": budget.hidden,
                "layer": layer,
                "step": element + 1,
                "level": kept.levels[element] if element < len(kept.levels) else None,
                "tokens": len(several),
                **{key: _mean([each[key] for each in several]) for key in several[0]},
            }


def _read_cell(cells: Cells, cell: int, readings: Readings, layer: int, fitted: Tensor) -> Json:
    """Measure one token at one layer, on the half of the examples that the probe is not fitted to."""
    true, having, shown = cells.tokens[:, cell], cells.having(cell), cells.shown[:, cell]
    judged = having & ~fitted

    def probed(positions: Tensor, some: Tensor) -> float:
        states = at_positions(readings.states[layer], positions)
        return fit(states[some & fitted], true[some & fitted]).accuracy(states[some & ~fitted], true[some & ~fitted])

    predicted, own = cells.predicted[:, cell], cells.own[:, cell]
    in_slots = having & ~shown & (own != predicted)  # a shown token can always be read at its own position
    readable = readings.read[layer].numel() > 0
    return {
        "shown": shown[having].double().mean().item(),
        "chance": chance(true[judged]),
        "probe": probed(predicted, having),
        "probe_slot": probed(own, in_slots) if int(in_slots.sum()) >= FEWEST else None,
        "lens": _agreement(readings.read[layer][judged, cell], true[judged]) if readable else None,
        "error": readings.error[layer][judged, cell].double().mean().item() if readable else None,
    }


def probed_accuracy(
    kept: ProbedModels, sequences: Sequences, readings: Readings, step: int, layer: int
) -> float | None:
    """Return the accuracy of the probes of a step's tokens at a layer: 0 is chance, 1 is always right, in the mean."""
    cells, fitted = sequences.cells, fitting_half(kept.seed, len(sequences.rows))
    found = [
        _read_cell(cells, cell, readings, layer, fitted)
        for cell, (element, _) in enumerate(cells.keys)
        if element == step
    ]
    return _mean([(each["probe"] - each["chance"]) / (1 - each["chance"]) for each in found])


def child_positions(kept: ProbedModels, sequences: Sequences) -> list[Children]:
    """Return the places of each cell's children: of a word its position, of a step also the position that predicts it.

    They are known only if every word and every step is one token, at the same position in all examples.
    """
    cells = sequences.cells
    place = {element: cell for cell, (element, _) in enumerate(cells.keys)}
    nothing: list[Children] = [None] * len(cells.keys)
    prompts = {len(chain.prompt) for chain in kept.text.chains(kept.examples)}
    asked = {len(example.question.split()) for example in kept.examples}
    alike = len(prompts) == len(asked) == 1 and bool((cells.own == cells.own[0]).all())
    if kept.children is None or not alike or len(place) != len(cells.keys) or len(place) != len(kept.children):
        return nothing
    count, first = asked.pop(), kept.text.begins
    if prompts.pop() != first + count + 1:
        return nothing

    def positions(child: int) -> tuple[int, ...]:
        if child < count:
            return (first + child,)
        cell = place[child - count]
        return int(cells.own[0, cell]), int(cells.predicted[0, cell])

    return [list(map(positions, kept.children[element])) for element, _ in cells.keys]


def _child_steps(kept: ProbedModels) -> list[list[int]] | None:
    """Return for each step, and last for the answer, the steps that are its children, from 1; None if not known."""
    asked = {len(example.question.split()) for example in kept.examples}
    if kept.children is None or len(asked) != 1 or len(kept.children) != len(kept.levels) + 1:
        return None
    (count,) = asked
    return [[child - count + 1 for child in own if child >= count] for own in kept.children]


def fitting_half(seed: int, count: int) -> Tensor:
    """Return a mask of the examples that fit the probes; the others judge them."""
    order = words(seed, "order", 0, count).argsort(kind="stable")
    fitted = torch.zeros(count, dtype=torch.bool)
    fitted[torch.from_numpy(order[: count // 2])] = True
    return fitted


def _agreement(read: Tensor, true: Tensor) -> float | None:
    """Return the share of equal entries, or None for empty tensors."""
    return (read == true).double().mean().item() if len(read) else None


def _mean(values: Sequence[Any]) -> Any:
    """Return the mean of the values that are not None. A single value, which may be a list, is returned unchanged."""
    found = [value for value in values if value is not None]
    return statistics.fmean(found) if len(found) > 1 else found[0] if found else None
