"""Training a language model: a batch means the same on any arrangement, and nothing that is kept is lost."""

import json
import math
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Trainer, TrainingArguments

from internalize.errors import InputError
from internalize.lm import Example, Internalization, LmTrainOptions, of_examples
from internalize.lm.evaluation.evaluate import open_subject
from internalize.lm.options import options_from_json
from internalize.lm.training.flops import model_size
from internalize.lm.training.models import PromptSpec
from internalize.lm.training.train import train
from internalize.storage.files import read_json
from internalize.storage.runs import Run, find_runs
from tests.asking import ask, call, refused
from tests.lm_runs import TINY, assert_same_weights, forget_digests, untrained, weights, words
from tests.processes import ACCELERATE, TORCHRUN, run_on_two_processes


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train `TINY` with seed 0."""
    path = tmp_path_factory.mktemp("tiny") / "run"
    train(TINY, 0, Run(path))
    return path


def test_options_survive_the_command_line_and_the_config(tmp_path: Path):
    options = replace(TINY, steps=1, eval_every=1, smoothing=4.0, reset_optimizer=True, method="icot")
    call(words(options, tmp_path / "run", "--seed", "3"))
    config = Run(tmp_path / "run").config
    assert options_from_json(LmTrainOptions, config, tmp_path) == replace(
        options, replay_of="scattered", hidden_loss=1.0
    )  # defaults that depend on others are resolved
    assert config["seed"] == 3
    assert config["kind"] == "lm-train"


def test_result_and_metrics(tiny: Path, tmp_path: Path):
    result = ask(words(TINY, tmp_path / "run"))
    run = Run(tmp_path / "run")
    assert result == run.result
    assert [(s["stage"], s["hidden"], s["steps"]) for s in result["stages"]] == [(1, 0, 8), (2, 2, 16)]
    assert [b["hidden"] for b in result["budgets"]] == [0, 2]
    assert result["steps"] == 24
    assert result["samples"] == 24 * 8
    assert result["tokens"] == 24 * 8 * (6 + 1 + 2 + 3)  # bits, separator, chain, answer with its separator and end
    assert 0 <= result["exact_match_low"] <= result["exact_match"] <= result["exact_match_high"] <= 1
    assert [m["step"] for m in run.metrics()] == [6, 8, 12, 18, 24]  # and at the end of the stage
    assert [m["stage"] for m in run.metrics()] == [1, 1, 2, 2, 2]
    assert all(math.isfinite(m["loss"]) for m in run.metrics())
    assert not (run.path / "checkpoint").exists()
    assert_same_weights(tiny, run.path)  # the same seed gives the same bits
    assert [found.path for found in find_runs(tmp_path)] == [run.path]  # the config.json of the model is not a run


def test_another_seed_gives_other_weights(tiny: Path, tmp_path: Path):
    train(TINY, 1, Run(tmp_path / "seed-1"))
    with pytest.raises(AssertionError):
        assert_same_weights(tiny, tmp_path / "seed-1")


def test_accumulated_parts_make_the_same_update(tmp_path: Path):
    options = replace(TINY, layers=2, layer_loss=1.0)
    train(options, 0, Run(tmp_path / "whole"))
    train(replace(options, accumulate=8), 0, Run(tmp_path / "parts"))
    assert_same_weights(tmp_path / "whole", tmp_path / "parts", atol=2e-4)
    for one, other in zip(Run(tmp_path / "whole").metrics(), Run(tmp_path / "parts").metrics(), strict=True):
        assert one["tokens"] == other["tokens"]
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-3)


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_two_processes_make_the_same_update(launcher: Sequence[str], tmp_path: Path):
    options = replace(TINY, method="adaptive", advance="accuracy", layers=2, layer_loss=1.0, eval_every=2)
    options = replace(options, threshold=1.0, first_steps=6, patience=4, stage_steps=6, eval_examples=17)
    train(options, 0, Run(tmp_path / "one"))
    printed = run_on_two_processes(words(options, tmp_path / "two", "--json"), launcher)
    assert len(printed.strip().splitlines()) == 1  # only the first process prints
    assert_same_weights(tmp_path / "one", tmp_path / "two", atol=2e-4)
    one, two = Run(tmp_path / "one"), Run(tmp_path / "two")
    assert [m["tokens"] for m in one.metrics()] == [m["tokens"] for m in two.metrics()]
    assert [s["steps"] for s in one.result["stages"]] == [s["steps"] for s in two.result["stages"]]
    assert [s["hidden"] for s in one.result["stages"]] == [0, 2, 1, 2]  # both returned to stage 1
    losses = [[m["held_out_loss"] for m in run.metrics() if "held_out_loss" in m] for run in (one, two)]
    assert losses[0]
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)  # of 17 examples, shared by the processes


def test_two_processes_need_a_batch_that_can_be_shared(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"WORLD_SIZE": "3", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="batch=8 cannot be split into accumulate=1 parts on 3 processes"):
        train(TINY)


def test_bfloat16(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from torch.nn import functional

    attend, asked = functional.scaled_dot_product_attention, list[torch.dtype]()

    def watched(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        asked.append(query.dtype)
        return attend(query, *args, **kwargs)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    train(replace(TINY, steps=1), 0)
    assert set(asked) == {torch.float32}  # this is the watched function
    asked.clear()
    train(replace(TINY, dtype="bfloat16"), 0, Run(tmp_path / "bfloat16"))
    assert not asked  # its backward pass in bfloat16 is slow on a CPU
    found = weights(tmp_path / "bfloat16")
    configs = [read_json(folder / "model" / "config.json") for folder in (tiny, tmp_path / "bfloat16")]
    assert configs[0] == configs[1]  # the attention of training is not stored
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    assert all(bool(tensor.isfinite().all()) for tensor in found.values())
    assert_same_weights(tiny, tmp_path / "bfloat16", atol=0.05)
    with pytest.raises(AssertionError):
        assert_same_weights(tiny, tmp_path / "bfloat16")


def test_lora_trains_adapters_only_and_merges_them(tmp_path: Path):
    train(replace(TINY, layers=2, steps=4), 0, Run(tmp_path / "base"))
    base = tmp_path / "base" / "model"
    train(replace(TINY, model=str(base), lora_rank=2, lr=1e-2, layer_loss=0.5), 0, Run(tmp_path / "adapted"))
    before, after = weights(tmp_path / "base"), weights(tmp_path / "adapted")
    assert before.keys() == after.keys()  # adapters are merged
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.endswith("weight") and ("attn" in name or "mlp" in name) for name in changed)
    for name in changed:
        assert torch.linalg.matrix_rank((after[name] - before[name]).double(), rtol=1e-4) <= 2


def test_optimizer_is_new_at_each_increment(monkeypatch: pytest.MonkeyPatch):
    is_new: list[bool] = []
    step = torch.optim.AdamW.step

    def watched(self: torch.optim.AdamW, closure=None):
        is_new.append(not any("step" in state for state in self.state.values()))
        return step(self, closure)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    for reset, new in ((True, [0, 4, 8]), (False, [0])):  # the stages hide 0, 1 and 2 tokens
        is_new.clear()
        train(replace(TINY, method="icot", steps=12, stage_steps=4, reset_optimizer=reset))
        assert [update for update, found in enumerate(is_new) if found] == new


def test_a_model_folder_needs_no_code_of_ours(tiny: Path):
    folder = tiny / "model"
    code = (
        "import sys; sys.modules['internalize'] = None\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(folder)!r})\n"
        f"tokenizer = AutoTokenizer.from_pretrained({str(folder)!r})\n"
        "ids = tokenizer('0 1 1 0 1 0 ||', return_tensors='pt')\n"
        "print(tokenizer.decode(model.generate(**ids, max_new_tokens=4)[0]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 1 1 0 1 0 ||")
    assert {path.suffix for path in folder.iterdir()} == {".json", ".md", ".safetensors"}
    assert PromptSpec.read(folder).stage_slots == (0, 2)


def test_another_architecture_from_its_config(tmp_path: Path):
    sizes: dict[str, Any] = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, num_hidden_layers=1, max_position_embeddings=64, dtype="bfloat16")
    config.to_json_file(tmp_path / "llama.json")
    result = train(replace(TINY, model=str(tmp_path / "llama.json")), 0, Run(tmp_path / "run"))
    assert result["steps"] == 24
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").config.model_type == "llama"
    assert {tensor.dtype for tensor in weights(tmp_path / "run").values()} == {torch.float32}


def test_no_connection_is_made(tmp_path: Path, forbid: Callable[..., None]):
    forbid(socket, "getaddrinfo")
    forbid(socket.socket, "connect")
    train(TINY, 0, Run(tmp_path / "new"))
    train(replace(TINY, model=str(tmp_path / "new" / "model")), 0, Run(tmp_path / "more"))
    call(f"lm eval --model {tmp_path / 'more'} --examples 16")


def test_the_result_has_the_operations_of_training(tmp_path: Path):
    """Each token of this parity is a slot or shown, so all sequences have the same length; deleting makes them shorter."""
    for removal, shorter in (("pad", False), ("delete", True)):
        options = replace(TINY, removal=removal, method="log-icot")
        result = train(options, 0, Run(tmp_path / removal))
        work = Internalization(options)
        (length,) = {len(chain) for chain in work.text.chains(work.source.training_sample(8))}
        size, sequences = model_size(options, work.config), result["samples"]
        most = size.training_flops(length * sequences, length**2 * sequences)
        assert len(result["stages"]) == 2
        assert result["flops"] < most if shorter else result["flops"] == pytest.approx(most)
        assert result["tokens"] < length * sequences if shorter else result["tokens"] == length * sequences
        expected = size.training_flops(result["tokens"], result["tokens"] ** 2 / sequences)
        assert result["flops"] == pytest.approx(expected, rel=0.05)


def test_plain_trainer(tmp_path: Path):
    """The objects of the README work with a user's own Trainer, which also resumes by itself."""
    examples = [Example(f"{a} {b}", (f"<<{a}+{b}={a + b}>>", f"<<{a + b}*2={2 * (a + b)}>>"), str(2 * (a + b)))
                for a in range(12) for b in range(12)]  # fmt: skip
    options = replace(TINY, steps=12, stage_steps=4, advance="accuracy", first_steps=6, layers=2, layer_loss=1.0)

    def trainer(out: Path, **more: object) -> tuple[Internalization, Trainer]:
        work = Internalization(options, source=of_examples(examples, 0, held_out=16))
        torch.manual_seed(0)
        arguments = {**work.arguments(), "save_steps": 3, "report_to": "none", "use_cpu": True, "disable_tqdm": True}
        args = TrainingArguments(str(out), **{**arguments, **more})  # pyright: ignore[reportArgumentType]
        model = AutoModelForCausalLM.from_config(work.config)
        own: Any = {"callbacks": [work.callback], "compute_loss_func": work.loss(model)}
        return work, Trainer(model, args, work.collator, work.dataset, **own)

    work, whole = trainer(tmp_path / "whole")
    assert work.levels == "graph"
    whole.train()
    assert len(work.schedule.begins) == 3
    _, again = trainer(tmp_path / "whole")
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-9"))
    torch.testing.assert_close(whole.model.state_dict(), again.model.state_dict(), rtol=0, atol=0)  # pyright: ignore
    fewer, short = trainer(tmp_path / "short", max_steps=11)
    short.train()
    assert sum(stage["steps"] for stage in fewer.callback.finished_stages) == 11
    for wrong, reason in (
        ({"train_sampling_strategy": "random"}, "sequential"),
        ({"per_device_train_batch_size": 3}, "batches of 3"),
        ({"dataloader_num_workers": 2}, "dataloader_num_workers=0"),
        ({"max_steps": 13}, "make 13 updates, the options 12"),
        ({"max_steps": -1, "num_train_epochs": 2}, "make 24 updates, the options 12"),
        ({"ignore_data_skip": True}, "ignore_data_skip=False"),
    ):
        with pytest.raises(InputError, match=reason):
            trainer(tmp_path / "wrong", **wrong)[1].train()
    work.save(tmp_path / "model", whole.model)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").eos_token == "[EOS]"


def test_the_trainer_of_trl(tmp_path: Path):
    """SFTTrainer takes the same data set, collator and callback, and ends with the same weights up to rounding."""
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    prepared = partial(SFTConfig, dataset_kwargs={"skip_prepare_dataset": True})

    def trained(arguments: Any, trainer: Any) -> tuple[Internalization, Any]:
        work = Internalization(TINY)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(work.config)
        args = arguments(str(tmp_path), **work.arguments(), report_to="none", use_cpu=True, disable_tqdm=True)
        data = {"train_dataset": work.dataset, "data_collator": work.collator, "processing_class": work.tokenizer}
        made = trainer(model=model, args=args, **data)
        work.attach(made)
        made.train()
        return work, made

    (ours, plain), (theirs, sft) = trained(TrainingArguments, Trainer), trained(prepared, SFTTrainer)
    assert ours.callback.finished_stages == theirs.callback.finished_stages
    assert len(ours.callback.finished_stages) == 2
    torch.testing.assert_close(plain.model.state_dict(), sft.model.state_dict(), rtol=0, atol=2e-4)
    logs = [[e["eval_exact_match"] for e in t.state.log_history if "eval_exact_match" in e] for t in (plain, sft)]
    assert len(logs[0]) == len(logs[1]) >= TINY.steps // TINY.eval_every


def test_weights_are_float32_whatever_the_file_has(tmp_path: Path):
    base = untrained(tmp_path / "base")
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(base)
    options = replace(TINY, model=str(base))
    with pytest.raises(InputError, match="if they were changed on purpose, remove `weights`"):
        train(options, 0, Run(tmp_path / "run"))
    forget_digests(base)
    train(options, 0, Run(tmp_path / "run"))
    assert {tensor.dtype for tensor in weights(tmp_path / "run").values()} == {torch.float32}


def test_a_nan_loss_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="the loss is nan after"):
        train(replace(TINY, lr=1e30, clip=0.0), 0, Run(tmp_path / "run"))


def test_changed_data_are_another_run(tmp_path: Path):
    data = tmp_path / "data.txt"
    lines = [f"{a} {b}||{a} {b} #### {a + b}\n" for a in range(9) for b in range(9)]
    data.write_text("".join(lines))
    options = replace(TINY, data=str(data), advance="epochs", stages_per_epoch=1, levels="steps")
    result = train(options, 0, Run(tmp_path / "run"))
    assert result["examples"] == 8  # a tenth for validation, another for test
    work = Internalization(options)
    assert not {e.question for e in work.source.validation} & {e.question for e in work.source.test()}
    data.write_text("".join(lines[1:]))
    with pytest.raises(InputError, match="holds another run: its data_sha256"):
        train(options, 0, Run(tmp_path / "run"), resume=True)
    with pytest.raises(InputError, match="the held-out examples are no longer known; restore it, or give --data"):
        open_subject(tmp_path / "run")
    assert len(open_subject(tmp_path / "run", str(data)).examples) == 80
    data.write_text("".join(lines))
    assert open_subject(tmp_path / "run").examples == work.source.test()


def test_levels_hold_for_held_out_examples(tmp_path: Path):
    """If too many chains are no equations, auto takes steps, wherever they fall, and the run finishes."""
    data = tmp_path / "data.txt"
    lines = [f"{a} 3||<<{a}+3={a + 3}>> <<{a + 3}*2={2 * (a + 3)}>> #### {2 * (a + 3)}\n" for a in range(25)]
    data.write_text("".join([*lines, *(f"{a} 7||<<so>> <<then>> #### 28\n" for a in (7, 8, 9))]))
    options = replace(TINY, data=str(data))
    held_out: set[str] = set()
    for seed in range(12):
        work = Internalization(options, seed=seed)
        assert work.levels == "steps"
        assert work.leveled(work.source.test())
        held_out |= {e.question for e in (*work.source.test(), *work.source.validation)}
    assert "7 7" in held_out
    with pytest.raises(InputError, match="is not an equation"):
        Internalization(replace(options, levels="graph"))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "bert"}, "reads in both directions"),
        ({"model_type": "t5", "vocab_size": 99}, "T5Config"),
        ({"model_type": "vit"}, "vocab_size=0"),
        ({"model_type": "gpt2", "vocab_size": 99, "n_positions": 7}, "has 7 positions"),
    ],
)
def test_configs_that_are_no_causal_model(tmp_path: Path, config: dict, reason: str):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=reason):
        train(replace(TINY, model=str(tmp_path / "config.json")))


@pytest.mark.parametrize("wrong", [{"advance": "epoch"}, {"removal": "Pad"}, {"dtype": "bf16"}, {"replay_of": "x"}])
def test_choices_are_checked_in_python_too(wrong: dict[str, str]):
    with pytest.raises(InputError, match=f"{next(iter(wrong))}='{next(iter(wrong.values()))}' is not one of"):
        LmTrainOptions(**wrong)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--batch", "10", "--accumulate", "4"], "batch=10 cannot be split into accumulate=4"),
        (["--model", "./nowhere-at-all"], "./nowhere-at-all"),
        (["--data", "parity:n=4,k=8"], "n=4"),
        (["--data", "./missing.txt"], "missing.txt"),
        (["--heads", "5"], "width=64 is not a multiple of heads=5"),
        (["--side", "right"], "side"),
        (["--method", "icot", "--side", "right"], "needs --removal delete"),
        (["--removal", "delete", "--hidden-loss", "0.5"], "deletion leaves no slots"),
        (["--method", "cot", "--smoothing", "4"], "cot hides none"),
        (["--method", "adaptive", "--advance", "steps"], "advance=steps does not work with adaptive"),
        (["--method", "adaptive", "--cutoff", "3"], "adaptive has its own removal"),
        (["--patience", "0"], "patience=0 must be at least 1"),
        (["--device", "cpu:0"], "CUDA_VISIBLE_DEVICES"),
        (["--method", "log-icot", "--advance", "epochs"], "needs data with an end"),
        (["--replay", "1.5"], "replay=1.5"),
        (["--smoothing", "0"], "smoothing=0"),
        (["--slot-token", "zebra"], "slot_token='zebra'"),
        (["--lr", "nan"], "lr=nan"),
    ],
)
def test_refusals(tmp_path: Path, argv: list[str], reason: str):
    refused(["lm", "train", "--out", str(tmp_path / "run"), *argv], reason)
    assert not (tmp_path / "run").exists()
