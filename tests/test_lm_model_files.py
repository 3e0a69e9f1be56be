"""Hostile or broken configs, tokenizers, weights and prompt files are refused in one line, and run no code."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file, save_file

from internalize.errors import InputError
from internalize.lm.evaluation.evaluate import open_subject
from internalize.lm.model_options import MAX_LAYERS, LmModelOptions
from internalize.lm.training.memory import check_training_memory
from internalize.lm.training.model_files import load_config, load_tokenizer, load_weights, outline
from internalize.lm.training.models import PromptSpec, load_model, make_model
from tests.asking import refused
from tests.lm_runs import TINY, HostilePickle, forget_digests, untrained
from tests.test_lm_memory import machine

DATA = "parity:n=6,k=4"
SHORT = f"--data {DATA} --steps 1 --stage-steps 1 --batch 4 --eval-examples 4"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("written") / "model")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = untrained(tmp_path / "model")
    forget_digests(path)  # as of a model that somebody else wrote
    return path


def change(file: Path, **values: Any) -> None:
    """Change keys of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


BAD_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "no heads": ({"n_head": 0}, "n_head: expected `int` >= 1"),
    "a negative number of heads": ({"n_head": -1}, "n_head: expected `int` >= 1"),
    "heads that do not divide": ({"n_head": 3}, "cannot be"),
    "a negative width": ({"n_embd": -4}, "n_embd: expected `int` >= 1"),
    "no width": ({"n_embd": 0}, "n_embd: expected `int` >= 1"),
    "a negative layer": ({"n_inner": -1}, "n_inner: expected `int` >= 1"),
    "an unknown activation": ({"activation_function": "x"}, "cannot be"),
    "an activation that is a number": ({"activation_function": 3}, "cannot be"),
    "too many layers": ({"n_layer": 10**7}, f"n_layer: expected `int` <= {MAX_LAYERS}"),
    "a negative number of layers": ({"n_layer": -1}, "n_layer: expected `int` >= 1"),
    "half a layer": ({"n_layer": 1.5}, "n_layer: expected `int | null`, got `float`"),
    "layers in words": ({"n_layer": "two"}, "n_layer: expected `int | null`, got `str`"),
    "too large a vocabulary": ({"vocab_size": 10**12}, "need about"),
    "a vocabulary beyond 64 bits": ({"vocab_size": 10**30}, "cannot be"),
    "too many positions": ({"n_positions": 10**12}, "need about"),
    "no positions": ({"n_positions": 0}, "cannot be"),
    "too many labels": ({"num_labels": 10**9}, "num_labels: expected `int` <= 1000000"),
    "a kind that is a number": ({"model_type": 3}, "model_type: expected `str`, got `int`"),
    "an unknown kind": ({"model_type": "x"}, "cannot be loaded"),
    "no causal model": ({"model_type": "t5"}, "cannot be"),
    "negative padding": ({"pad_token_id": -5}, "cannot be loaded: GenerationConfig is invalid"),
    "padding beyond the vocabulary": ({"pad_token_id": 10**9}, "pad_token_id=1000000000 must be below vocab_size="),
    "attention that is a number": ({"_attn_implementation": 3}, "cannot be"),
    "attention not installed": ({"attn_implementation": "flash_attention_2"}, "cannot be"),
    "dropout above 1": ({"attn_pdrop": 3.0}, "cannot be"),
    "a dtype that is a number": ({"dtype": 3}, "dtype: expected `str | null`, got"),
    "a config that cannot be saved": ({"output_attentions": True}, "Class validation error"),
}


@pytest.mark.parametrize(("values", "reason"), BAD_CONFIGS.values(), ids=BAD_CONFIGS.keys())
def test_a_config_that_fits_no_model(values: dict[str, Any], reason: str, written: Path, tmp_path: Path):
    """A new model with such a config is refused before there is a run."""
    config = tmp_path / "config.json"
    config.write_text((written / "config.json").read_text())
    change(config, vocab_size=200)
    change(config, **values)
    refused(f"lm train --model {config} --out {tmp_path / 'run'} {SHORT}", reason, "config.json", alone=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["no heads", "a negative width", "an unknown activation", "too many layers"])
def test_the_same_of_a_model_that_is_asked_or_planned(name: str, folder: Path):
    values, _ = BAD_CONFIGS[name]
    change(folder / "config.json", **values)
    for command in (
        "eval --examples 3 --data " + DATA + " --model",
        "probe --examples 64",
        f"plan --methods icot {SHORT} --model",
    ):
        refused(f"lm {command} {folder}", "model", alone=False)


def test_a_model_without_its_weights_is_not_given_memory(folder: Path):
    """A config that asks for more than the machine has is refused, even if the weights beside it are small."""
    change(folder / "config.json", n_embd=2**20, n_head=1)
    with pytest.raises(InputError, match=r"its \d+ weights need about \d+ GiB, and this machine has"):
        load_weights(str(folder))


def test_an_outline_has_no_weights_and_draws_nothing(written: Path):
    config = load_config(str(written))
    before = torch.random.get_rng_state()
    model = outline(config, "x")
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    assert torch.equal(torch.random.get_rng_state(), before)
    real = load_weights(str(written))
    assert {name: w.shape for name, w in real.named_parameters()} == {n: w.shape for n, w in model.named_parameters()}
    assert torch.equal(torch.random.get_rng_state(), before)  # adapters are drawn after it
    assert not real.training


def test_the_memory_of_a_given_model_is_checked(written: Path, monkeypatch: pytest.MonkeyPatch):
    config = load_config(str(written))
    machine(monkeypatch, 1000)
    with pytest.raises(InputError, match=r"model '.*', lora_rank=0, batch=8, accumulate=1 need about 0 GiB"):
        check_training_memory(replace(TINY, model=str(written)), config, 10)


# Weights


def index(folder: Path, file: str) -> None:
    """Move the weights into an index that names this file."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = dict.fromkeys(weights, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


@pytest.mark.parametrize("hostile", [False, True])
def test_an_index_that_names_a_pickle(folder: Path, tmp_path: Path, hostile: bool):
    """The file is refused, although torch's restricted unpickler would read a pickle of tensors."""
    weights = load_file(folder / "model.safetensors")
    index(folder, "weights.bin")
    torch.save({"x": HostilePickle(tmp_path / "run")} if hostile else weights, folder / "weights.bin")
    refused(f"lm eval --model {folder} --examples 3", "weights.bin is not a safetensors file", alone=False)
    assert not (tmp_path / "run").exists()


def test_damaged_weights(written: Path, tmp_path: Path):
    """Truncated files are refused, with digests and without them; so are tensors that are not finite or not floating."""
    folder = shutil.copytree(written, tmp_path / "model")
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    tensors = load(whole)  # a file that is mapped must not shrink
    for size in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"\A.* are damaged: their digests differ from.*\Z"):
            open_subject(folder, examples=3)
    forget_digests(folder)
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
def test_a_bug_in_loading_is_not_taken_for_damage(folder: Path, bug: Exception, monkeypatch: pytest.MonkeyPatch):
    def fail(*args: object, **how: object) -> None:
        raise bug

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", fail)
    with pytest.raises(type(bug)):
        load_model(folder)


def test_an_index_that_names_safetensors_is_taken(folder: Path):
    save_file(load_file(folder / "model.safetensors"), folder / "part-1.safetensors", metadata={"format": "pt"})
    index(folder, "part-1.safetensors")
    assert load_weights(str(folder)).config.n_layer == TINY.layers
    assert torch.load.__module__ == "torch.serialization"  # put back


def test_a_config_that_names_a_pickle(folder: Path):
    change(folder / "config.json", transformers_weights="adapter_model.bin")
    torch.save(load_file(folder / "model.safetensors"), folder / "adapter_model.bin")
    refused(f"lm eval --model {folder} --examples 3", "adapter_model.bin is not a safetensors file", alone=False)


# Tokenizers


def replaces(old: str, new: str, times: int) -> dict[str, Any]:
    """Return a normalizer that replaces a text by another, several times."""
    one = {"type": "Replace", "pattern": {"String": old}, "content": new}
    return {"type": "Sequence", "normalizers": [one] * times}


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", replaces("0", "0" * 10, 12)),
        ("normalizer", replaces("0", "0" * 1000, 1)),
        ("normalizer", {"type": "Sequence", "normalizers": [replaces("1", "11", 4), replaces("1", "11", 4)]}),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "."}, "content": "x" * 200}),
        ("normalizer", {"type": "Prepend", "prepend": "x" * 200}),
        ("decoder", {"type": "Sequence", "decoders": [replaces("0", "00", 1)["normalizers"][0]] * 40}),
    ],
)
def test_a_tokenizer_that_multiplies_text(part: str, value: dict[str, Any], folder: Path):
    change(folder / "tokenizer.json", **{part: value})
    refused(f"lm eval --model {folder} --examples 3", f"tokenizer.json: its {part} can make a text", alone=False)


@pytest.mark.parametrize(
    "normalizer",
    [
        None,
        {"type": "NFKC"},
        replaces(" ", "▁", 1),
        {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replaces(" ", "▁", 1)]},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
    ],
)
def test_usual_tokenizers_are_taken(normalizer: dict[str, Any] | None, folder: Path):
    change(folder / "tokenizer.json", normalizer=normalizer)
    assert load_tokenizer(str(folder)) is not None


def test_a_tokenizer_of_another_version_is_checked_too(folder: Path):
    """tokenizer_config.json may name another file in place of tokenizer.json."""
    worse = {**json.loads((folder / "tokenizer.json").read_text()), "normalizer": replaces("0", "00", 40)}
    (folder / "tokenizer.4.0.0.json").write_text(json.dumps(worse))
    change(folder / "tokenizer_config.json", fast_tokenizer_files=["tokenizer.json", "tokenizer.4.0.0.json"])
    with pytest.raises(InputError, match="tokenizer.4.0.0.json: its normalizer can make a text"):
        load_tokenizer(str(folder))


def test_a_tokenizer_without_a_token_for_unknown_words(folder: Path):
    """It is refused when the tokenizer is loaded, not when the first unknown word comes."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    change(folder / "tokenizer.json", model={**model, "unk_token": "[none]"})
    for load_it in (load_model, lambda folder: load_tokenizer(str(folder))):
        with pytest.raises(InputError, match=r"\A.*cannot be loaded: WordLevel error.*\Z"):
            load_it(folder)


# Our own file


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "is not JSON"), ("[]", "is not a JSON object"), ('{"version": 9}', "has version 9")],
)
def test_a_damaged_prompt_file(content: str, message: str, folder: Path):
    (folder / "internalize.json").write_text(content)
    with pytest.raises(InputError, match=message):
        open_subject(folder, examples=3)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"data": 3}, "data: expected `str`, got `int`"),
        ({"levels": "x"}, "levels: invalid enum value 'x'"),
        ({"unit": "word"}, "unit: invalid enum value 'word'"),
        ({"hidden": []}, "hidden: expected `array` of length >= 1"),
        ({"hidden": [0, -1]}, r"hidden\[1\]: expected `int` >= 0"),
        ({"hidden": [0, "2"]}, r"hidden\[1\]: expected `int`, got `str`"),
        ({"count_slots": []}, "count_slots: expected `array` of length >= 1"),
        ({"stage_slots": [0]}, "2 stages and 1 slot counts"),
        ({"weights": [1]}, "weights: expected `object | null`, got `array`"),
        ({"curriculum": 3}, "expected `object`, got `int`"),
        ({"curriculum": {}}, "has no 'method'"),
    ],
)
def test_a_prompt_file_of_other_types(values: dict[str, Any], reason: str, folder: Path):
    change(folder / "internalize.json", **values)
    with pytest.raises(InputError, match=f"internalize.json.*{reason}"):
        open_subject(folder, examples=3)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("smoothing", "much", "smoothing: expected `float`, got `str`"),
        ("method", "x", "method: invalid enum value 'x'"),
        ("replay", 2.0, "replay=2.0 is a fraction"),
        ("keep_positions", 1, "keep_positions: expected `bool`, got `int`"),
        ("slots", 1.5, "slots=1.5 is neither a number"),
        ("slots", [], "slots: expected `int | float | str | null`, got `array`"),
    ],
)
def test_a_curriculum_of_other_types(name: str, value: Any, reason: str, folder: Path):
    own = json.loads((folder / "internalize.json").read_text())["curriculum"]
    change(folder / "internalize.json", curriculum={**own, name: value})
    with pytest.raises(InputError, match=f"internalize.json: {reason}"):
        PromptSpec.read(folder)


def test_a_prompt_file_comes_back(folder: Path):
    asking = PromptSpec.read(folder)
    kept = json.loads((folder / "internalize.json").read_text())
    assert json.loads(json.dumps(asking.as_json())).items() <= kept.items()


def test_trying_a_model_draws_nothing(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Adapters drawn after a model was tried are the same as without trying it."""
    config = tmp_path / "config.json"
    config.write_text((written / "config.json").read_text())
    options = LmModelOptions(model=str(config), lora_rank=2)
    first = make_model(options, load_config(str(config)), 3).state_dict()
    monkeypatch.setattr("internalize.lm.training.models.tried", lambda model, name: model)
    second = make_model(options, load_config(str(config)), 3).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
