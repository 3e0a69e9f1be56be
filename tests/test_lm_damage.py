"""Damage to a model's folder is one line that names it; a bug in loading it is none."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save_file

from internalize.errors import InputError
from internalize.lm.evaluation.evaluate import open_subject
from internalize.lm.options import LmModelOptions
from internalize.lm.training.models import load_model, load_tokenizer, model_config
from tests.lm_runs import forget_digests, untrained


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return untrained(tmp_path / "model")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"version": 9}', "has version 9"),
        ('{"version": 1}', "internalize.json has no 'method'"),
        ('{"version": 1, "curriculum": 3}', "internalize.json: expected `object`, got `int`"),
    ],
)
def test_damage_to_our_file_is_one_line(folder, content, message):
    (folder / "internalize.json").write_text(content)
    with pytest.raises(InputError, match=message) as error:
        open_subject(folder, examples=3)
    assert "\n" not in str(error.value)


def test_damage_to_the_weights_is_one_line(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    tensors = load(whole)  # a file that is mapped must not shrink
    for size in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="are damaged: they are not those that") as error:
            open_subject(folder, examples=3)
        assert "\n" not in str(error.value)
    forget_digests(folder)  # as of a model that was trained on
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cannot be loaded"):
        open_subject(folder, examples=3)
    name = "transformer.wpe.weight"
    for worse, message in (
        (torch.full_like(tensors[name], torch.nan), "has entries that are not finite"),
        (torch.full_like(tensors[name], torch.inf), "has entries that are not finite"),
        (tensors[name].to(torch.int32), "has dtype I32 in its file"),
    ):
        save_file({**tensors, name: worse}, path, metadata={"format": "pt"})
        with pytest.raises(InputError, match=f"{name} {message}"):
            open_subject(folder, examples=3)
    path.unlink()
    with pytest.raises(InputError, match="cannot be loaded"):
        open_subject(folder, examples=3)


@pytest.mark.parametrize("bug", [NameError("x"), AssertionError()])
def test_a_bug_in_loading_is_not_taken_for_a_damaged_file(folder, bug, monkeypatch):
    def fail(*args, **how):
        raise bug

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", fail)
    with pytest.raises(type(bug)):
        load_model(folder)


def test_a_tokenizer_without_a_token_for_unknown_words_is_one_line(folder):
    """It is noticed when the tokenizer is loaded, not when it meets such a word."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["unk_token"] = "[none]"
    path.write_text(json.dumps(content))
    for load_it in (load_model, lambda folder: load_tokenizer(str(folder))):
        with pytest.raises(InputError, match="cannot be loaded: WordLevel error") as error:
            load_it(folder)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", [3, True, 1.5])
def test_a_dtype_that_is_none_is_one_line(folder, dtype: Any):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "dtype": dtype}))
    with pytest.raises(InputError, match=r"config.json: dtype: expected `str \| null`, got"):
        model_config(LmModelOptions(model=str(folder)), vocabulary=5, end=0, longest=5)
