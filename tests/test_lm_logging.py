"""What a Trainer's loggers see, how many examples an evaluation asks, which weights a run ends with, and the hub."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from internalize.errors import InputError
from internalize.lm import Example, Internalization, LmTrainOptions
from internalize.lm.training.callback import StageCallback
from internalize.lm.training.evaluations import measured
from internalize.lm.training.models import PromptSpec
from internalize.lm.training.train import train
from internalize.storage.runs import Run
from tests.lm_runs import TINY, assert_same_weights


def trainer_of(options: LmTrainOptions, out: Path, *, attached: bool = True, **more: Any) -> tuple[Any, Any]:
    """Return the objects for a user's own Trainer."""
    work = Internalization(options)
    torch.manual_seed(0)
    arguments: dict[str, Any] = {**work.arguments(), "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    arguments = {"logging_steps": 1, "save_strategy": "no", **arguments, **more}
    args = TrainingArguments(str(out), **arguments)
    callbacks: Any = None if attached else [work.callback]
    trainer = Trainer(
        AutoModelForCausalLM.from_config(work.config), args, work.collator, work.dataset, callbacks=callbacks
    )
    if attached:
        work.attach(trainer)
    return work, trainer


class Logger(TrainerCallback):
    """A logger such as that of wandb: it keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(dict(kwargs["logs"]))


@pytest.mark.parametrize("attached", [True, False])
def test_evaluations_are_in_the_trainers_log(tmp_path: Path, attached: bool):
    work, trainer = trainer_of(TINY, tmp_path, attached=attached)
    logger = Logger()
    trainer.callback_handler.callbacks.insert(1, logger)  # where a Trainer puts its loggers: before other callbacks
    found: list[Any] = []
    work.callback.hooks = replace(work.callback.hooks, on_metrics=found.append)
    trainer.train()
    lines = {line["step"]: line for line in trainer.state.log_history if "eval_exact_match" in line}
    assert list(lines) == [metrics["step"] for metrics in found] == [6, 8, 12, 18, 24]
    for metrics in found:
        line = lines[metrics["step"]]
        assert (line["eval_exact_match"], line["stage"]) == (metrics["exact_match"], metrics["stage"])
        assert line["hidden"] == metrics["hidden"]
    assert sum("eval_exact_match" in line for line in logger.seen) == (5 if attached else 0)


def test_tensorboard_files_hold_exact_match_and_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tensorboardX.proto import event_pb2

    events: Any = event_pb2
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    train(TINY, 0, Run(tmp_path / "run"), report_to=["tensorboard"])
    train(TINY, 0, Run(tmp_path / "silent"))
    assert_same_weights(tmp_path / "run", tmp_path / "silent")
    (file,) = (tmp_path / "logs").rglob("events*")
    found: dict[str, list[tuple[int, float]]] = {}
    data, at = file.read_bytes(), 0
    while at < len(data):  # a record is its length, a checksum, its bytes, a checksum
        size = int.from_bytes(data[at : at + 8], "little")
        event = events.Event.FromString(data[at + 12 : at + 12 + size])
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
        at += size + 16
    metrics = Run(tmp_path / "run").metrics()
    assert found["train/stage"] == [(line["step"], line["stage"]) for line in metrics]
    assert [step for step, _ in found["eval/exact_match"]] == [line["step"] for line in metrics]
    torch.testing.assert_close([v for _, v in found["eval/exact_match"]], [line["exact_match"] for line in metrics])
    assert len(found["train/loss"]) == 24


def test_an_unknown_logger_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="report_to=zebra"):
        train(TINY, 0, Run(tmp_path / "run"), report_to=["zebra"])


# How many examples are asked


@pytest.mark.parametrize(
    ("right", "limits", "asked"),
    [
        (0, [0.99], 10),  # clearly below
        (10, [0.99], 100),  # not clear
        (5, [0.5], 100),
        (5, [], 10),  # nothing depends on it
        (10, [0.2], 10),  # clearly above
    ],
)
def test_examples_are_asked_as_decisions_need_them(right: int, limits: list[float], asked: int):
    def of(examples: Sequence[Example]) -> int:
        return round(right / 10 * len(examples))

    examples = [Example(str(i), (), "1") for i in range(100)]
    found = measured(of, examples, 10, limits)
    assert found == (right / 10, asked)
    assert measured(of, examples, 0, limits).examples == 100


def test_a_run_asks_fewer_while_it_is_far_from_the_threshold(tmp_path: Path):
    options = replace(TINY, eval_first=4, eval_examples=32, advance="accuracy", method="adaptive", first_steps=12)
    train(options, 0, Run(tmp_path / "run"))
    metrics = Run(tmp_path / "run").metrics()
    assert {line["examples"] for line in metrics} == {4, 32}
    assert metrics[-1]["examples"] == 32  # the end of training
    train(replace(options, eval_first=0), 0, Run(tmp_path / "all"))
    assert not any("examples" in line for line in Run(tmp_path / "all").metrics())


def test_stage_ends_need_not_be_evaluated(tmp_path: Path):
    options = replace(TINY, method="icot", stage_steps=4, eval_every=10, skip_stage_ends=True)
    run = Run(tmp_path / "run")
    result = train(options, 0, run)
    assert [line["step"] for line in run.metrics()] == [4, 10, 20, 24]  # the end of the first stage, and of training
    assert [stage["steps"] for stage in result["stages"]] == [4, 4, 16]
    assert [stage["exact_match"] is None for stage in result["stages"]] == [False, True, False]
    assert [stage["passed"] is None for stage in result["stages"]] == [False, True, False]


# Which weights are kept


def test_the_best_weights_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The exact match of each evaluation is set by hand: the best one is after 18 updates, and is kept across a stop."""
    scores = {6: 0.9, 8: 0.9, 12: 0.25, 18: 0.5, 24: 0.0}

    def run(out: Path, **changes: Any) -> Any:
        work, trainer = trainer_of(replace(TINY, consolidate=0, **changes), out, save_strategy="steps", save_steps=20)
        monkeypatch.setattr(StageCallback, "_right", lambda self, *_: round(16 * scores[trainer.state.global_step]))
        return work, trainer

    work, trainer = run(tmp_path / "best", keep_best=True)
    trainer.train()
    assert work.callback.best == (0.5, 18)
    _, short = run(tmp_path / "short", steps=24)
    short.args.max_steps = 18
    short.train()
    torch.testing.assert_close(trainer.model.state_dict(), short.model.state_dict())
    work, again = run(tmp_path / "best", keep_best=True)
    again.train(resume_from_checkpoint=str(tmp_path / "best" / "checkpoint-20"))
    torch.testing.assert_close(trainer.model.state_dict(), again.model.state_dict(), rtol=0, atol=0)


def test_resuming_into_another_folder(tmp_path: Path):
    _, whole = trainer_of(TINY, tmp_path / "whole", save_strategy="steps", save_steps=9)
    whole.train()
    old = str(tmp_path / "whole" / "checkpoint-9")
    _, again = trainer_of(TINY, tmp_path / "again", resume_from_checkpoint=old)
    again.train(resume_from_checkpoint=old)
    torch.testing.assert_close(whole.model.state_dict(), again.model.state_dict(), rtol=0, atol=0)
    _, lost = trainer_of(TINY, tmp_path / "lost")
    with pytest.raises(InputError, match="resume_from_checkpoint of TrainingArguments"):
        lost.train(resume_from_checkpoint=old)


# The hub


def test_push_to_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stand-in for the hub gets the weights, the tokenizer and the prompt format. A real hub was not tried."""
    uploaded: dict[str, bytes] = {}

    class Hub:
        def create_repo(self, name: str, **_: object) -> huggingface_hub.RepoUrl:
            return huggingface_hub.RepoUrl(f"https://huggingface.co/{name}")

        def upload_folder(self, *, folder_path: str, **_: object) -> None:
            uploaded.update({path.name: path.read_bytes() for path in Path(folder_path).iterdir() if path.is_file()})

    monkeypatch.setattr("transformers.trainer.hf_api", Hub)
    work, trainer = trainer_of(TINY, tmp_path / "out", push_to_hub=True, hub_model_id="me/mine", hub_token="none")
    trainer.train()
    trainer.push_to_hub()
    assert {"model.safetensors", "tokenizer.json", "internalize.json", "README.md"} <= uploaded.keys()
    (tmp_path / "got").mkdir()
    for name, content in uploaded.items():
        (tmp_path / "got" / name).write_bytes(content)
    assert PromptSpec.read(tmp_path / "got").as_json() == work.asking.as_json()
    assert json.loads(uploaded["config.json"])["model_type"] == "gpt2"


def test_a_saved_model_has_a_card(tmp_path: Path):
    result = train(TINY, 0, Run(tmp_path / "run"))
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert f"| exact match | {result['exact_match']:.3f}" in card
    assert "library_name: transformers" in card
    assert "2 times `[PAD]`" in card
