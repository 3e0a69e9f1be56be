"""`lm patch`: an exchange does what it says, the implied answers are right, and a trained model uses its hidden steps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from internalize.lm.data.example import Example
from internalize.lm.data.readers import write_examples
from internalize.lm.data.tasks import Task, get_task
from internalize.lm.options import CurriculumOptions, LmTrainOptions
from internalize.lm.probe.patch import exchanged, exchanges, named_place
from internalize.lm.training.generation import generate_rows
from internalize.lm.training.train import train
from internalize.report.figures.patching import draw_patching
from internalize.storage.runs import Run
from tests.asking import ask, refused
from tests.lm_ragged import ARCHITECTURES, CHAINS, TEXT, make, measured
from tests.lm_runs import untrained


def by_rest_of_the_chain(task: Task, example: Example, step: int, text: str) -> str:
    """Compute the chain again from a changed step on, from the question and the steps alone."""
    steps = [*example.steps[:step], text, *example.steps[step + 1 :]]
    if task.name == "parity":
        n = len(example.question.split())
        values = [int(bit) for bit in example.question.split()]
        for node, pair in enumerate(task.children or ()):
            values.append(int(text) if node == step else values[pair[0]] ^ values[pair[1]])
        assert len(values) == n + len(steps) + 1
        return str(values[-1])
    if task.name == "stories":
        have = None
        for number, each in enumerate(steps):
            left, result = each.strip("<>").split("=")
            sign = 1 if "+" in left else -1
            first, by = map(int, left.replace("-", "+").split("+"))
            have = int(result) if number == step else (first if have is None else have) + sign * by
        return str(have)
    written = [int("".join(filter(str.isdigit, each))[::-1]) for each in steps]
    partials = [value for value, each in zip(written, steps, strict=True) if "(" not in each]
    width = len(example.answer.split())
    if "(" not in text:
        return " ".join(f"{sum(partials):0{width}}"[::-1])
    number = sum("(" in each for each in steps[:step])
    if task.name == "multiply":  # a running sum, after the partial products up to number + 1
        return " ".join(f"{written[step] + sum(partials[number + 2 :]):0{width}}"[::-1])
    others = [pair for pair in range(2) if pair != number]  # a sum of two neighbors, of four partial products
    return " ".join(f"{written[step] + sum(partials[2 * others[0] : 2 * others[0] + 2]):0{width}}"[::-1])


@pytest.mark.parametrize("spec", ["parity:n=9,k=8", "stories:steps=4", "multiply:digits=4", "multiply-tree:digits=4"])
@given(index=st.integers(0, 500), other=st.integers(0, 500))
def test_implied_answers(spec: str, index: int, other: int):
    task = get_task(spec)
    example, source = task.example("test", index), task.example("test", other)
    for step, text in enumerate(source.steps):
        assert task.implied(example, step, text) == by_rest_of_the_chain(task, example, step, text)
        assert task.implied(example, step, example.steps[step]) == example.answer


def test_which_pairs_count():
    """Both are right, both have the step, and it changes the answer."""
    task = get_task("parity:n=4,k=4")
    values = [("0", "0"), ("1", "0"), ("1", "1"), ("0", "0")]
    some = [Example("q", steps, "0") for steps in values]
    found = exchanges(task, some, [True] * 4, 0, 1)
    assert (found.base, found.source, found.implied) == ([0, 2], [1, 3], ["1", "1"])
    assert exchanges(task, some, [True, False, True, True], 0, 1).base == [2]
    assert exchanges(task, some, [True] * 4, 1, 1).base == [1, 2]
    assert exchanges(task, [some[0], Example("q", (), "0")], [True] * 2, 0, 1).base == []


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_exchange_of_the_embedding_is_another_question(name: str):
    """Layer 0 of one position: as if the question had the other word there. In a batch with padding, row by row."""
    model, stages = make(name), measured(CurriculumOptions(levels="steps"))
    chains = [chain for chain in CHAINS if len(chain.prompt) > 2]
    word = chains[0].prompt[0]
    changed = [replace(chain, prompt=(chain.prompt[0], word, *chain.prompt[2:])) for chain in chains]
    lengths = [len(stages.prompt(chain, stages.last).tokens) for chain in chains]
    assert len(set(lengths)) > 1
    states: list[Any] = []
    for chain in changed:
        with torch.no_grad():
            states.append(model(torch.tensor([chain.prompt]), output_hidden_states=True).hidden_states[0][0, 1])
    places = torch.tensor([[1 + max(lengths) - length] for length in lengths])
    before = generate_rows(model, TEXT, stages, chains, stages.last, 8, None)
    with exchanged(model, 0, places, torch.stack(states)[:, None]):
        found = generate_rows(model, TEXT, stages, chains, stages.last, 8, None)
    if name == "gpt2":  # its embedding has the position, so the state is that of this place
        assert found == generate_rows(model, TEXT, stages, changed, stages.last, 8, None) != before
    assert generate_rows(model, TEXT, stages, chains, stages.last, 8, None) == before, "nothing is left behind"


def test_the_place_that_the_probe_names():
    rows = [{"layer": layer, "probe": probe} for layer, probe in enumerate([None, 0.5, 0.995, 1.0])]
    assert named_place(rows)["layer"] == 2
    assert named_place(rows[:2])["layer"] == 1


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers parities of four bits with everything hidden."""
    path = tmp_path_factory.mktemp("patch") / "run"
    options = LmTrainOptions(
        data="parity:n=8,k=4", layers=3, layer_loss=1.0, steps=500, stop_at=0.99, eval_every=20, eval_examples=128,
        test_examples=64, budgets="never",
    )  # fmt: skip
    assert train(options, 0, Run(path))["exact_match"] == 1
    return path


def test_a_trained_model_uses_its_hidden_steps(solved: Path, tmp_path: Path):
    found = ask(f"lm patch {solved} --examples 256 --figure {tmp_path / 'figures'} --out {tmp_path / 'kept'}")
    assert (found["steps"], found["layers"], found["levels"]) == (2, 3, [1, 1])
    assert len(found["rows"]) == 6
    for place in found["places"]:
        assert place["pairs"] > 50
        assert place["probe"] > 0.99
        assert place["interchange"] >= 0.75
        assert place["interchange"] > place["control"] + 0.5
        assert place["interchange_low"] - 1e-9 <= place["interchange"] <= place["interchange_high"] + 1e-9
    first = [row for row in found["rows"] if row["layer"] == 0]
    assert all(row["interchange"] < 0.1 for row in first), "the slots hold nothing yet"
    assert Path(found["figure"]).exists()
    again = ask(f"lm patch {solved} --examples 256")
    assert again["rows"] == found["rows"]
    drawing = draw_patching(found)
    assert "Two heat maps of 3 layers over 2 steps" in drawing.alt


def test_refusals(tmp_path: Path, solved: Path):
    model = untrained(tmp_path / "model")
    refused(
        f"lm patch {model} --data parity:n=6,k=4", "with everything hidden; exchanges need at least 64", alone=False
    )
    hops = untrained(tmp_path / "hops", data="hops:hops=4")
    refused(f"lm patch {hops}", "does not say what an exchanged step implies", alone=False)
    refused(f"lm patch {solved} --examples 10", "must be at least 64")
    bits = [Example(" ".join(f"{i:07b}"), ("1", "0"), "1", (1, 1)) for i in range(128)]
    write_examples(tmp_path / "data.jsonl", bits)
    refused(f"lm patch {model} --data {tmp_path / 'data.jsonl'}", "only a generated task says what", alone=False)
