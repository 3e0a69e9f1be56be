"""Models of others: configs, tokenizers and weights that are hostile or broken are refused in one line, with nothing run."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from internalize.commands.cli import main
from internalize.errors import InputError
from internalize.lm.evaluation.evaluate import open_subject
from internalize.lm.options import MAX_LAYERS, LmModelOptions
from internalize.lm.training.memory import check_training_memory
from internalize.lm.training.model_files import load_config, load_tokenizer, load_weights, outline
from internalize.lm.training.models import PromptSpec, make_model
from tests.lm_runs import TINY, forget_digests, untrained
from tests.test_lm_memory import machine

DATA = "parity:n=6,k=4"
SHORT = ["--data", DATA, "--steps", "1", "--stage-steps", "1", "--batch", "4", "--eval-examples", "4"]


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


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line with which a command is refused."""
    capsys.readouterr()
    assert main(argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    *_, line = said.err.strip().splitlines()
    assert line.startswith("internalize: ")
    assert "Traceback" not in said.err
    return line


BAD_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "no heads": ({"n_head": 0}, "n_head: expected `int` >= 1"),
    "fewer heads than none": ({"n_head": -1}, "n_head: expected `int` >= 1"),
    "heads that do not divide": ({"n_head": 3}, "cannot be"),
    "a negative width": ({"n_embd": -4}, "n_embd: expected `int` >= 1"),
    "no width": ({"n_embd": 0}, "n_embd: expected `int` >= 1"),
    "a negative layer": ({"n_inner": -1}, "n_inner: expected `int` >= 1"),
    "an activation that is none": ({"activation_function": "x"}, "cannot be"),
    "an activation that is a number": ({"activation_function": 3}, "cannot be"),
    "layers without end": ({"n_layer": 10**7}, f"n_layer: expected `int` <= {MAX_LAYERS}"),
    "less than no layers": ({"n_layer": -1}, "n_layer: expected `int` >= 1"),
    "half a layer": ({"n_layer": 1.5}, "n_layer: expected `int | null`, got `float`"),
    "layers in words": ({"n_layer": "two"}, "n_layer: expected `int | null`, got `str`"),
    "a vocabulary without end": ({"vocab_size": 10**12}, "need about"),
    "a vocabulary beyond numbers": ({"vocab_size": 10**30}, "cannot be"),
    "positions without end": ({"n_positions": 10**12}, "need about"),
    "no positions": ({"n_positions": 0}, "cannot be"),
    "labels without end": ({"num_labels": 10**9}, "num_labels: expected `int` <= 1000000"),
    "a kind that is a number": ({"model_type": 3}, "model_type: expected `str`, got `int`"),
    "a kind that is none": ({"model_type": "x"}, "cannot be loaded"),
    "no kind": ({"model_type": "t5"}, "cannot be"),
    "padding that is none": ({"pad_token_id": -5}, "cannot be loaded: GenerationConfig is invalid"),
    "padding beyond the words": ({"pad_token_id": 10**9}, "pad_token_id=1000000000 is none of vocab_size="),
    "attention that is none": ({"_attn_implementation": 3}, "cannot be"),
    "attention not installed": ({"attn_implementation": "flash_attention_2"}, "cannot be"),
    "dropout beyond all": ({"attn_pdrop": 3.0}, "cannot be"),
    "not to be saved": ({"output_attentions": True}, "Class validation error"),
}


@pytest.mark.parametrize(("values", "reason"), BAD_CONFIGS.values(), ids=BAD_CONFIGS.keys())
def test_a_config_that_fits_no_model(values: dict[str, Any], reason: str, written: Path, tmp_path: Path, capsys):
    """A new model of the config is refused before there is a run."""
    config = tmp_path / "config.json"
    config.write_text((written / "config.json").read_text())
    change(config, vocab_size=200)
    change(config, **values)
    line = refused(["lm", "train", "--model", str(config), "--out", str(tmp_path / "run"), *SHORT], capsys)
    assert reason in line
    assert "config.json" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["no heads", "a negative width", "an activation that is none", "layers without end"])
def test_the_same_of_a_model_that_is_asked_or_planned(name: str, folder: Path, capsys):
    values, _ = BAD_CONFIGS[name]
    change(folder / "config.json", **values)
    for argv in (
        ["lm", "eval", "--model", str(folder), "--data", DATA, "--examples", "3"],
        ["lm", "probe", str(folder), "--examples", "64"],
        ["lm", "plan", "--model", str(folder), "--methods", "icot", *SHORT],
    ):
        assert "model" in refused(argv, capsys)


def test_a_model_without_its_weights_is_not_given_memory(folder: Path):
    """A config asks for more than the machine has; the weights beside it are small."""
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


class Payload:
    """What runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.mark,)


def index(folder: Path, file: str) -> None:
    """Make the folder one whose weights an index names."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = dict.fromkeys(weights, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


@pytest.mark.parametrize("hostile", [False, True])
def test_an_index_that_names_a_pickle(folder: Path, tmp_path: Path, hostile: bool, capsys):
    """torch's restricted unpickler would take it."""
    weights = load_file(folder / "model.safetensors")
    index(folder, "weights.bin")
    torch.save({"x": Payload(tmp_path / "run")} if hostile else weights, folder / "weights.bin")
    line = refused(["lm", "eval", "--model", str(folder), "--examples", "3"], capsys)
    assert "weights.bin is not safetensors" in line
    assert not (tmp_path / "run").exists()


def test_an_index_that_names_safetensors_is_taken(folder: Path):
    save_file(load_file(folder / "model.safetensors"), folder / "part-1.safetensors", metadata={"format": "pt"})
    index(folder, "part-1.safetensors")
    assert load_weights(str(folder)).config.n_layer == TINY.layers
    assert torch.load.__module__ == "torch.serialization"  # put back


def test_a_config_that_names_a_pickle(folder: Path, capsys):
    change(folder / "config.json", transformers_weights="adapter_model.bin")
    torch.save(load_file(folder / "model.safetensors"), folder / "adapter_model.bin")
    assert "adapter_model.bin is not safetensors" in refused(
        ["lm", "eval", "--model", str(folder), "--examples", "3"], capsys
    )


# Tokenizers


def replaces(old: str, new: str, times: int) -> dict[str, Any]:
    """A normalizer that replaces a text by another, several times."""
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
def test_a_tokenizer_that_multiplies_text(part: str, value: dict[str, Any], folder: Path, capsys):
    change(folder / "tokenizer.json", **{part: value})
    argv = ["lm", "eval", "--model", str(folder), "--examples", "3"]
    assert f"tokenizer.json: its {part} can make a text" in refused(argv, capsys)


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
    """A file that tokenizer_config.json may name in place of tokenizer.json."""
    worse = {**json.loads((folder / "tokenizer.json").read_text()), "normalizer": replaces("0", "00", 40)}
    (folder / "tokenizer.4.0.0.json").write_text(json.dumps(worse))
    change(folder / "tokenizer_config.json", fast_tokenizer_files=["tokenizer.json", "tokenizer.4.0.0.json"])
    with pytest.raises(InputError, match="tokenizer.4.0.0.json: its normalizer can make a text"):
        load_tokenizer(str(folder))


# Our own file


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
        ("slots", 1.5, "slots: expected `int | null`, got `float`"),
    ],
)
def test_a_curriculum_of_other_types(name: str, value: Any, reason: str, folder: Path):
    own = json.loads((folder / "internalize.json").read_text())["curriculum"]
    change(folder / "internalize.json", curriculum={**own, name: value})
    with pytest.raises(InputError, match=f"internalize.json: {reason}"):
        PromptSpec.read(folder)


def test_a_prompt_file_comes_back(folder: Path):
    asking = PromptSpec.read(folder)
    assert (
        json.loads(json.dumps(asking.as_json())).items()
        <= json.loads((folder / "internalize.json").read_text()).items()
    )


def test_trying_a_model_draws_nothing(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The adapters that are drawn after it are the same with and without it."""
    config = tmp_path / "config.json"
    config.write_text((written / "config.json").read_text())
    options = LmModelOptions(model=str(config), lora_rank=2)
    first = make_model(options, load_config(str(config)), 3).state_dict()
    monkeypatch.setattr("internalize.lm.training.models.tried", lambda model, name: model)
    second = make_model(options, load_config(str(config)), 3).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
