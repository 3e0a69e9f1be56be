"""GGUF files: they train like any model and are saved as an ordinary one, and damaged ones are refused in one line."""

import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from internalize.errors import InputError
from internalize.lm.training.gguf_files import check_gguf, gguf_file
from internalize.lm.training.model_files import load_config, load_weights
from internalize.lm.training.train import train
from internalize.storage.runs import Run
from tests.asking import ask
from tests.gguf_models import TOKENS, WIDTH, tiny_gguf
from tests.lm_runs import TINY

SMOLLM2 = os.environ.get("INTERNALIZE_SMOLLM2", "")
"""The file SmolLM2-135M-Instruct.Q4_1.gguf, which .ci/run downloads."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_gguf_file_is_trained_and_saved_as_an_ordinary_model(tiny: Path, tmp_path: Path, lora_rank: int):
    options = replace(TINY, model=str(tiny.parent), steps=4, stage_steps=2, lora_rank=lora_rank)
    train(options, 0, Run(tmp_path / "run"))
    folder = tmp_path / "run" / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert not hasattr(model.config, "quantization_config")
    assert (
        tokenizer("1+2")["input_ids"]
        == AutoTokenizer.from_pretrained(tiny.parent, gguf_file=tiny.name)("1+2")["input_ids"]
    )
    assert tokenizer.eos_token == "<|end|>"
    assert ask(f"lm eval --model {tmp_path / 'run'} --examples 8")["examples"] == 8


def test_its_weights_are_those_of_the_file(tiny: Path):
    plain = AutoModelForCausalLM.from_pretrained(tiny.parent, gguf_file=tiny.name)
    torch.testing.assert_close(load_weights(str(tiny)).state_dict(), plain.state_dict(), rtol=0, atol=0)


def test_a_folder_with_two_is_refused(tiny: Path, tmp_path: Path):
    for name in ("one.gguf", "two.gguf"):
        (tmp_path / name).write_bytes(tiny.read_bytes())
    with pytest.raises(InputError, match=r"holds 2 GGUF files; name one of them: one.gguf, two.gguf"):
        gguf_file(str(tmp_path))
    assert gguf_file(str(tmp_path / "one.gguf"))


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="no such file"):
        load_config(str(tmp_path / "none.gguf"))


def test_a_file_that_was_cut_off_is_refused(tiny: Path, tmp_path: Path):
    whole, cut = tiny.read_bytes(), tmp_path / "cut.gguf"
    check_gguf(tiny)
    for length in [*range(0, 1500, 7), len(whole) // 2, len(whole) - 1]:
        cut.write_bytes(whole[:length])
        with pytest.raises(InputError, match="not a GGUF file|damaged|not complete|layers"):
            check_gguf(cut)


@pytest.mark.parametrize(
    ("place", "number", "reason"),
    [
        (b"GGUF", struct.pack("<I", 99), "version 99"),
        (b"GGUF\3\0\0\0", struct.pack("<Q", 2**60), "unknown type"),  # of what is behind the last tensor
        (b"llama.block_count" + struct.pack("<I", 4), struct.pack("<I", 10**9), "1000000000 layers"),
        (b"tokenizer.ggml.tokens" + struct.pack("<II", 9, 8), struct.pack("<Q", 2**60), "damaged"),
        (b"tokenizer.ggml.token_type" + struct.pack("<II", 9, 5), struct.pack("<Q", 2**60), "damaged"),
        (b"tokenizer.ggml.token_type" + struct.pack("<I", 9), struct.pack("<I", 77), "list of type 77"),
        (b"tokenizer.ggml.model", struct.pack("<I", 77), "value of type 77"),
        (b"token_embd.weight", struct.pack("<I", 99), "99 dimensions"),
        (b"token_embd.weight" + struct.pack("<I", 2), struct.pack("<Q", 2**50), "not complete"),
        (b"token_embd.weight" + struct.pack("<IQQ", 2, WIDTH, TOKENS), struct.pack("<I", 99), "unknown type 99"),
        (b"token_embd.weight" + struct.pack("<IQQI", 2, WIDTH, TOKENS, 0), struct.pack("<Q", 2**62), "not complete"),
        (b"llama.embedding_length" + struct.pack("<I", 4), struct.pack("<I", 2**31), "GiB"),
        (b"llama.vocab_size" + struct.pack("<I", 4), struct.pack("<I", 2**31), "GiB"),
    ],
)
def test_headers_that_lie_are_refused(tiny: Path, tmp_path: Path, place: bytes, number: bytes, reason: str):
    whole = tiny.read_bytes()
    at = whole.index(place) + len(place)
    spoiled = tmp_path / "spoiled.gguf"
    spoiled.write_bytes(whole[:at] + number + whole[at + len(number) :])
    with pytest.raises(InputError, match=reason) as error:
        load_weights(str(spoiled))
    assert "\n" not in str(error.value)


def test_smollm2_is_trained(tmp_path: Path):
    """A real pretrained model takes a handful of updates, and plain transformers generates with the result."""
    if not Path(SMOLLM2).is_file():
        pytest.skip("INTERNALIZE_SMOLLM2 does not name SmolLM2-135M-Instruct.Q4_1.gguf")
    options = replace(
        TINY, model=SMOLLM2, data="multiply:digits=2", batch=2, steps=4, stage_steps=2, eval_examples=2, test_examples=4
    )
    result = train(options, 0, Run(tmp_path / "run"))
    assert [stage["steps"] for stage in result["stages"]] == [2, 2]
    folder = tmp_path / "run" / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens(tokenizer("12+34")["input_ids"]) == list("12+34")
    assert "messages" in tokenizer.chat_template
    written: Any = model.generate(**tokenizer("The capital of France is", return_tensors="pt"), max_new_tokens=3)  # pyright: ignore[reportAttributeAccessIssue]
    assert tokenizer.decode(written[0]).startswith("The capital of France is")
