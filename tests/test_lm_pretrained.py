"""Pretrained models: their slot token, the defaults that fit them, and adapters."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from internalize.errors import InputError
from internalize.lm import Internalization, LmTrainOptions
from internalize.lm.model_options import EPOCHS, SLOT
from internalize.lm.options import options_from_json
from internalize.lm.training.model_files import load_tokenizer, load_weights
from internalize.lm.training.models import PromptSpec
from internalize.lm.training.train import run_config, train
from internalize.lm.training.unusual import unusual
from internalize.storage.runs import Run
from tests.asking import ask
from tests.lm_runs import TINY, untrained


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model that others made: it has no prompt format of ours."""
    folder = untrained(tmp_path_factory.mktemp("pretrained") / "base")
    (folder / "internalize.json").unlink()
    return folder


def fine_tuned(base: Path, **changes: Any) -> LmTrainOptions:
    return replace(TINY, model=str(base), steps=6, stage_steps=3, **changes)


# The slot token


@pytest.mark.parametrize("changes", [{}, {"lora_rank": 2}, {"lora_rank": 2, "dtype": "bfloat16"}])
def test_a_pretrained_model_gets_a_slot_token_of_its_own(base: Path, tmp_path: Path, changes: dict):
    options = fine_tuned(base, lr=0.01, **changes)
    work = Internalization(options, load_tokenizer(options.model))
    embedding: Any = work.with_slot(load_weights(options.model)).get_input_embeddings()
    weight = embedding.weight
    rows, mean = weight[:-1], weight[-1]
    torch.testing.assert_close(mean, rows.mean(0))
    train(options, 0, Run(tmp_path / "run"))
    folder = tmp_path / "run" / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert PromptSpec.read(folder).slot_token == SLOT
    slot = tokenizer.convert_tokens_to_ids(SLOT)
    assert slot == len(rows)
    assert tokenizer(f"0 {SLOT} 1")["input_ids"][1] == slot
    trained = model.state_dict()["transformer.wte.weight"]
    assert not torch.allclose(trained[slot], mean, atol=1e-4)
    others = torch.allclose(trained[:slot], rows, atol=1e-2 if "dtype" in changes else 1e-6)
    assert others == bool(changes)  # beside adapters no other embedding is trained
    assert model.config.tie_word_embeddings
    assert ask(f"lm eval --model {tmp_path / 'run'} --examples 8")["examples"] == 8


def test_a_model_of_ours_keeps_its_slot_token(base: Path, tmp_path: Path):
    ours = untrained(tmp_path / "ours")
    train(fine_tuned(ours), 0, Run(tmp_path / "run"))
    assert PromptSpec.read(tmp_path / "run" / "model").slot_token == "[PAD]"
    train(fine_tuned(base), 0, Run(tmp_path / "first"))
    again = tmp_path / "first" / "model"
    work = Internalization(fine_tuned(again), load_tokenizer(str(again)))
    assert (work.text.slot_token, work.new_slot) == (SLOT, False)


def test_an_existing_token_can_fill_slots(base: Path, tmp_path: Path):
    train(fine_tuned(base, slot_token="[EOS]"), 0, Run(tmp_path / "run"))
    folder = tmp_path / "run" / "model"
    assert PromptSpec.read(folder).slot_token == "[EOS]"
    assert SLOT not in AutoTokenizer.from_pretrained(folder).get_vocab()


def test_a_spare_row_of_the_embeddings_is_used(base: Path):
    work = Internalization(fine_tuned(base), load_tokenizer(str(base)))
    model = load_weights(str(base))
    model.resize_token_embeddings(work.text.slot + 9)
    work.with_slot(model)
    rows: Any = model.get_input_embeddings().weight
    assert len(rows) == work.text.slot + 9
    torch.testing.assert_close(rows[work.text.slot], rows[: work.text.slot].mean(0))


# Defaults


def test_defaults_fit_the_model():
    new, tuned = LmTrainOptions(), LmTrainOptions(model="some/model", data="file.txt")
    assert (new.batch, new.lr, new.steps, new.epochs, new.eval_first) == (128, 1e-3, 3000, None, 0)
    assert (tuned.batch, tuned.lr, tuned.epochs, tuned.eval_first) == (32, 5e-5, EPOCHS, 64)
    assert LmTrainOptions(model="some/model", lora_rank=4).lr == 2e-4
    given = LmTrainOptions(model="some/model", data="file.txt", batch=128, lr=1e-3, steps=3000, eval_first=0)
    assert (given.batch, given.lr, given.steps, given.epochs, given.eval_first) == (128, 1e-3, 3000, None, 0)
    assert replace(tuned, model="") == replace(new, data="file.txt")
    task = run_config(LmTrainOptions(model="some/model", data="parity:n=6,k=4"), 0)
    assert (task["epochs"], task["steps"]) == (None, 3000)  # such data have no end


def test_epochs_give_the_number_of_updates(tmp_path: Path):
    options = LmTrainOptions(data="file.txt", epochs=2.5, batch=10, replay_of="scattered", hidden_loss=1.0)
    assert options.with_updates(33).steps == 9  # 82.5 examples
    assert options_from_json(LmTrainOptions, options.as_json(), tmp_path) == options
    assert options.as_json()["steps"] is None
    with pytest.raises(InputError, match="give steps=50 or epochs=2.5, not both"):
        replace(options, steps=50)
    with pytest.raises(InputError, match=r"epochs=2.5: the data have no end; give --steps"):
        Internalization(replace(options, data="parity:n=6,k=4"))


def test_a_run_by_epochs(tmp_path: Path):
    data = tmp_path / "data.txt"
    data.write_text("".join(f"{a} {b}||{a} {b} #### {a + b}\n" for a in range(9) for b in range(9)))
    given: dict[str, Any] = {name: value for name, value in vars(TINY).items() if name != "steps"}
    given |= {"data": str(data), "epochs": 2.0, "stage_steps": 4}
    options = LmTrainOptions(**given)
    run = Run(tmp_path / "run")
    result = train(options, 0, run)
    assert result["steps"] == -(-2 * 65 // TINY.batch)  # 81 without those held out
    assert train(options, 0, run, resume=True) == result
    assert ask(f"lm eval --model {run.path} --examples 8")["examples"] == 8


def test_what_is_unusual_is_said():
    options = LmTrainOptions(steps=3000, batch=128)
    assert unusual(options, None) == []
    (line,) = unusual(options, 160)
    assert line.startswith("3000 updates of 128 over 160 examples are 2400 epochs")
    assert "0.38 epochs, so not every example is used" in unusual(options, 10**6)[0]
    assert "lr=0.001 is high for a pretrained model" in unusual(LmTrainOptions(model="x", steps=9, lr=1e-3), None)[0]


# Adapters


def test_adapters_as_asked(base: Path, tmp_path: Path):
    from peft import PeftModel

    options = fine_tuned(
        base, lora_rank=2, lora_alpha=7.0, lora_dropout=0.1, lora_targets="c_fc", lora_keep=True, slot_token="[EOS]"
    )
    train(options, 0, Run(tmp_path / "run"))
    kept: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "run" / "adapter")
    config = kept.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout, set(config.target_modules)) == (2, 7, 0.1, {"c_fc"})
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").state_dict()
    torch.testing.assert_close(kept.merge_and_unload().state_dict(), merged)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lora_alpha": 2.0}, "need adapters: --lora-rank"),
        ({"lora_rank": 2, "lora_alpha": -1.0}, "lora_alpha=-1.0 must be positive"),
        ({"lora_rank": 2, "lora_dropout": 1.0}, "lora_dropout=1.0"),
        ({"lora_rank": 2, "lora_targets": "c_fc,"}, "lora_targets='c_fc,'"),
        ({"lora_rank": 2, "lora_targets": "zebra"}, "zebra"),
        ({"lora_rank": 2, "quantize": "4bit"}, "bitsandbytes|needs a GPU"),
    ],
)
def test_refused_adapters(base: Path, changes: dict, reason: str):
    with pytest.raises(InputError, match=reason):
        train(fine_tuned(base, **changes))


def test_gradient_checkpointing_changes_no_update(base: Path, tmp_path: Path):
    found = []
    for name, changes in (("plain", {}), ("again", {"gradient_checkpointing": True})):
        train(fine_tuned(base, lora_rank=2, **changes), 0, Run(tmp_path / name))
        found.append(AutoModelForCausalLM.from_pretrained(tmp_path / name / "model").state_dict())
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("scheduler", ["linear", "cosine"])
def test_schedulers(base: Path, scheduler: str):
    work = Internalization(fine_tuned(base, scheduler=scheduler), load_tokenizer(str(base)))
    assert work.arguments()["lr_scheduler_type"] == scheduler
    train(fine_tuned(base, scheduler=scheduler))
