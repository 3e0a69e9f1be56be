"""The check of tokenizer and data at the start, and examples that are too long."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.readers import read_examples, write_examples
from internalize.lm.stages.chains import TextFormat, word_tokenizer
from internalize.lm.stages.template import TEMPLATES
from internalize.lm.stages.text_check import check_text
from internalize.lm.training.internalization import Internalization
from internalize.lm.training.train import run_source
from internalize.storage.runs import Run
from tests.asking import ask, call, refused
from tests.lm_runs import TINY, untrained, words
from tests.test_lm_chains import EXAMPLES, TOKENIZERS, byte_tokenizer


def said_of(tokenizer: Any, examples: list[Example], template: str = "icot") -> list[str]:
    said: list[str] = []
    check_text(TextFormat(tokenizer, template=TEMPLATES[template]), examples, said.append)
    return said


@pytest.mark.parametrize("template", ["icot", "lines"])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_nothing_is_said_of_good_tokenizers(name: str, template: str):
    assert said_of(TOKENIZERS[name](), EXAMPLES, template) == []


def test_answers_that_cannot_be_read_back():
    tokenizer = byte_tokenizer(begin=False)
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    assert said_of(tokenizer, EXAMPLES) == [
        "the tokenizer cannot write 1 of 3 answers, so they cannot be right: 'it is Bob .' is read back as 'it is bob .'"
    ]
    with pytest.raises(
        InputError, match=r"none could be right: 'it is Bob \.' is read back as 'it is bob \.'; use another"
    ):
        said_of(tokenizer, EXAMPLES[1:2])
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("#", "")
    with pytest.raises(InputError, match="'42' is read back as nothing"):
        said_of(tokenizer, EXAMPLES)


def test_a_tokenizer_that_joins_pieces():
    """Without a pre-tokenizer, the end of one piece and the beginning of the next may be one token."""
    tokenizer = byte_tokenizer(begin=False)
    joined: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    number = len(joined["model"]["vocab"])
    joined["model"]["vocab"]["2Ġ"] = number
    joined["model"]["merges"].insert(0, ["2", "Ġ"])
    joined["pre_tokenizer"]["use_regex"] = False
    backend = type(tokenizer.backend_tokenizer).from_str(json.dumps(joined))
    own = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    [said] = said_of(own, [replace(EXAMPLES[0], question="30 + 12")])
    assert said.startswith("1 of 1 examples have other tokens in one text than in pieces")


def test_special_tokens_in_data(tmp_path: Path):
    path = tmp_path / "some.jsonl"
    write_examples(path, [EXAMPLES[0], Example("what is </s>?", (), "1")])
    examples = read_examples(path)
    [said] = said_of(byte_tokenizer(begin=True), examples)
    assert said.startswith(
        f"1 of 2 examples hold special tokens of the tokenizer, the first '</s>' (line 2 of {path});"
    )


# Examples that are too long


def ragged(path: Path, count: int = 40) -> Path:
    """Write a file in which example 4·i + 3 has a chain of 30 words."""
    examples = [Example(f"q{i}", ("s",) * (30 if i % 4 == 3 else 2), str(i)) for i in range(count)]
    write_examples(path, examples)
    return path


def test_long_examples_are_left_out_with_their_lines(tmp_path: Path):
    path = ragged(tmp_path / "some.txt")
    said: list[str] = []
    options = replace(TINY, data=str(path), max_tokens=10)
    work = Internalization(options, say=said.append)
    assert f"{path}: 10 of 40 examples are left out because they are longer than max_tokens=10: " in said[-1]
    assert f"lines 4, 8, 12, 16, 20, 24, 28, 32, 36, 40 of {path}" in said[-1]
    kept = [work.source.train(position) for position in range(work.source.size or 0)]
    kept += [*work.source.validation, *work.source.test()]
    assert {example.question for example in kept} == {f"q{i}" for i in range(40) if i % 4 != 3}
    assert (
        max(len(chain) for chain in work.text.chains(kept))
        <= 10
        < Internalization(replace(options, max_tokens=None)).longest
    )
    whole = Internalization(replace(options, max_tokens=99)).source
    assert set(work.source.validation) <= set(whole.validation), "the same examples are held out"
    with pytest.raises(InputError, match="all training examples are longer than max_tokens=3"):
        Internalization(replace(options, max_tokens=3))
    with pytest.raises(
        InputError, match="parity.* has examples that are longer than max_tokens=3; the options of a task"
    ):
        Internalization(replace(TINY, max_tokens=3))
    assert Internalization(replace(TINY, max_tokens=99)).source.size is None


def test_the_longest_example_is_named(tmp_path: Path):
    path = tmp_path / "some.txt"
    examples = [Example(f"q{i}", ("s",) * (99 if i == 22 else 2), str(i)) for i in range(40)]
    write_examples(path, examples)
    model = untrained(tmp_path / "model")
    word_tokenizer(examples).save_pretrained(model)
    said = f"positions, but the longest example (line 23 of {path}) needs 10"
    refused(words(replace(TINY, data=str(path), model=str(model)), tmp_path / "run"), said, alone=False)


def test_the_start_of_a_file_is_trained_on(tmp_path: Path):
    """The same run is resumed after the rest of the file changed, and refused after the start changed."""
    path, run = ragged(tmp_path / "some.txt"), tmp_path / "run"
    argv = words(replace(TINY, data=str(path), max_examples=30, steps=2, budgets="never"), run)
    result = ask(argv)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:30], "changed\n"]))
    assert ask([*argv, "--resume"]) == result
    assert run_source(Run(run), print).size == 30 - 3 - 3
    path.write_text("".join(["q||s #### 1\n", *lines[1:]]))
    refused([*argv, "--resume"], "its data_sha256 is")
    refused("lm train --max-examples 0", "max_examples=0 must be at least 1")


# Models


@pytest.mark.parametrize("name", ["./nonexistent", "../nonexistent", "/no/such", "a/b/c", "runs/", "~/model"])
def test_a_model_that_does_not_exist(name: str):
    refused(f"lm train --model {name}", f"model {name!r} cannot be loaded: there is no such folder", alone=False)
    assert "there is no such folder" in call(f"lm plan --model {name}", 2).err


@pytest.mark.parametrize("name", ["none.gguf", "none.json", "./none.gguf"])
def test_a_model_file_that_does_not_exist(name: str):
    refused(f"lm train --model {name}", f"model {name!r} cannot be loaded: there is no such file", alone=False)
