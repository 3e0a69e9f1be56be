"""`lm eval`: models are asked as they were trained, and answers are counted."""

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.readers import write_examples
from internalize.lm.data.tasks import get_task
from internalize.lm.evaluation.evaluate import Subject, evaluate, open_subject
from internalize.lm.options import CurriculumOptions
from internalize.lm.training.generation import Answers
from internalize.lm.training.models import PromptSpec, load_model, save_model
from internalize.lm.training.train import train
from internalize.storage.runs import Run
from tests.asking import ask, call
from tests.lm_ragged import make
from tests.lm_runs import TINY, untrained


def test_word_match():
    examples = [Example("2 * 3", (), answer) for answer in ("6 0 1 2", "6 0 1 2", "6 0", "6 0", "6")]
    found = Answers(["6 0 1 2", "6 9 1", "6 0 6 0", "0 6", None], [""] * 5, 0, 0.0)
    assert found.word_match(examples) == pytest.approx((1 + 2 / 4 + 2 / 4 + 0 + 0) / 5)
    assert found.summary(examples)["word_match"] == found.word_match(examples)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return untrained(tmp_path / "model", data="parity:n=9,k=4")


def test_result_has_the_keys_of_the_contract(folder: Path, tmp_path: Path, forbid: Callable[..., None]):
    forbid(socket.socket, "connect")
    found = ask(f"lm eval --model {folder} --examples 20 --stages all --chain --out {tmp_path / 'out'}")
    assert found.keys() == {
        *("exact_match", "exact_match_low", "exact_match_high", "word_match", "examples"),
        *("examples_per_second", "generated_tokens", "answer", "written"),
        *("stages", "chain_exact_match", "chain_without_room", "chain_examples_per_second", "speedup"),
        "seconds",
    }
    assert found["examples"] == 20
    assert 0 <= found["exact_match_low"] <= found["exact_match"] <= found["exact_match_high"] <= 1
    assert [(row["stage"], row["hidden"]) for row in found["stages"]] == [(1, 0), (2, 2)]
    assert found["stages"][0]["exact_match"] == found["chain_exact_match"]
    assert found["stages"][1]["exact_match"] == found["exact_match"]
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == found
    rows = [json.loads(line) for line in (tmp_path / "out" / "answers.jsonl").read_text().splitlines()]
    assert len(rows) == 20
    assert sum(row["right"] for row in rows) / 20 == found["exact_match"]
    for row in rows:
        assert row["right"] == (row["generated"] == row["answer"])
        assert row["text"], "what the model wrote is kept, even if no answer can be read"
        assert row["generated"] is None or f"#### {row['generated']}" in row["text"]
        assert row["chain_right"] == (row["chain_generated"] == row["answer"])
    assert any(row["generated"] is None for row in rows)
    assert sum(row["chain_right"] for row in rows) / 20 == found["chain_exact_match"]
    prompt, steps, answer = 9 + 1, 2, 3  # the bits and a separator; the chain; a separator, the answer, the end
    assert found["written"] | {"flops": 0} == {"given_tokens": prompt, "generated_tokens": steps + answer, "flops": 0}
    assert found["answer"] | {"flops": 0} == {"given_tokens": prompt + steps, "generated_tokens": answer, "flops": 0}
    assert "exact match" in call(f"lm eval --model {folder} --examples 20").out


def test_slots_that_cost_more_than_the_chain_are_mentioned(tmp_path: Path):
    """So do `lm plan`, `lm train` and `lm eval`, and none of them with as many slots as the median chain has tokens."""
    lines = [f"{i} {i + 1}||{'<<1+1=2>> ' * (40 if i % 10 == 0 else 2)}#### {i % 3}" for i in range(60)]
    (tmp_path / "data.txt").write_text("\n".join(lines) + "\n")
    size = "--layers 1 --width 8 --heads 1 --batch 4 --steps 2 --eval-examples 4 --warmup 1"
    data = f"--data {tmp_path / 'data.txt'}"
    for slots, warns in (("longest", True), ("p50", False)):
        out = tmp_path / slots
        said = [
            call(f"lm plan {data} {size} --slots {slots} --methods adaptive cot").err,
            call(f"lm train {data} {size} --slots {slots} --out {out}").err,
            call(f"lm eval --model {out} {data}").err,
        ]
        for line in said:
            assert ("costs more than one with its chain written: 40 slots" in line) == warns, line
        assert ("adaptive: an answer" in said[0]) == warns
        assert "cot: an answer" not in said[0]


def test_a_foreign_model_is_asked_as_the_options_say(folder, tmp_path):
    (folder / "internalize.json").unlink()
    lines: list[str] = []
    subject = open_subject(folder, "parity:n=9,k=4", 10, options=CurriculumOptions("none"), say=lines.append)
    assert subject.stages.hidden == (2,)
    assert "prompts are those of --method none" in lines[-1]
    with pytest.raises(InputError, match="--data is missing"):
        open_subject(folder)
    with pytest.raises(InputError, match="--chain needs a model that writes its chain; method none"):
        evaluate(subject, chain=True)


def test_bfloat16_and_a_file(folder, tmp_path):
    path = tmp_path / "data.jsonl"
    write_examples(path, get_task("parity:n=9,k=4").examples("test", 0, 5))
    subject = open_subject(folder, str(path), dtype="bfloat16")
    assert subject.model.dtype == torch.bfloat16
    assert evaluate(subject).result["examples"] == 5


def test_no_examples_are_refused(folder):
    subject = open_subject(folder, examples=3)
    with pytest.raises(InputError, match="no examples to evaluate"):
        evaluate(Subject(subject.model, subject.text, subject.stages, [], subject.data))
    with pytest.raises(InputError, match="examples=0 must be at least 1"):
        open_subject(folder, examples=0)


def test_other_words_are_refused_and_another_problem_is_mentioned(folder):
    with pytest.raises(InputError, match=r"does not know, such as '\S+'"):
        open_subject(folder, "multiply:digits=2")
    lines: list[str] = []
    open_subject(folder, "parity:n=9,k=4", 5, seed=3, say=lines.append)
    assert "not what the model was trained on" in lines[0]
    with pytest.raises(InputError, match="has its prompt format in internalize.json"):
        open_subject(folder, options=CurriculumOptions("cot"))


def test_a_model_that_is_too_small_is_refused(folder):
    """A model must have enough positions for some example, and all tokens of its tokenizer."""
    model, tokenizer = load_model(folder)
    asking = PromptSpec.read(folder)
    save_model(folder, make("gpt2", vocab_size=len(tokenizer), n_positions=8), tokenizer, asking)
    with pytest.raises(InputError, match="none of the examples fits"):
        open_subject(folder, examples=3)
    model.resize_token_embeddings(3)
    save_model(folder, model, tokenizer, asking)
    with pytest.raises(InputError, match="the model has 3: they do not belong together"):
        open_subject(folder, examples=3)


def test_folders_that_hold_no_model_are_refused(tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        open_subject(tmp_path / "nothing")
    (tmp_path / "config.json").write_text('{"version": 1, "kind": "solve"}')
    with pytest.raises(InputError, match="holds a run of kind 'solve'"):
        open_subject(tmp_path)
    (tmp_path / "config.json").write_text('{"version": 1, "kind": "lm-train"}')
    with pytest.raises(InputError, match="has no model yet"):
        open_subject(tmp_path)


def test_a_run_knows_what_it_held_out(tmp_path):
    path = tmp_path / "data.jsonl"
    write_examples(path, list(dict.fromkeys(get_task("parity:n=9,k=4").examples("train", 0, 60))))
    options = replace(TINY, data=str(path), steps=2, stage_steps=1, eval_every=2, eval_examples=6)
    result = train(options, 3, Run(tmp_path / "run"))
    subject = open_subject(tmp_path / "run")
    assert evaluate(subject).result["exact_match"] == result["exact_match"]
    assert len(subject.examples) == result["examples"]
    with pytest.raises(InputError, match="only its run folder knows what was held out"):
        open_subject(tmp_path / "run" / "model")
