"""Language models after Ctrl-C and damage. A resumed run is bit-for-bit identical to an uninterrupted one."""

import errno
import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from internalize.errors import InputError
from internalize.lm.training.train import train
from internalize.lm.training.trainer_checkpoints import PLACE, checkpoint_digests, whole_checkpoints
from internalize.storage.files import sealed, write_json
from internalize.storage.runs import Run
from tests.asking import refused
from tests.lm_runs import TINY, HostilePickle, content, words
from tests.processes import interrupt_command


def test_ctrl_c_saves_and_resumes(tmp_path: Path):
    options, out = replace(TINY, steps=240, stage_steps=80, eval_every=10), tmp_path / "run"
    interrupt_command(words(options, out), (out / "metrics.jsonl").exists)
    assert whole_checkpoints(out / "checkpoint")
    assert not Run(out).finished
    train(options, 0, Run(out), resume=True)
    train(options, 0, Run(tmp_path / "alone"))
    assert content(Run(out)) == content(Run(tmp_path / "alone"))


def test_a_disk_that_is_full_as_the_trainer_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make = os.makedirs

    def full(name: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        if str(name).endswith("checkpoint"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(name))
        make(name, mode, exist_ok)

    monkeypatch.setattr(os, "makedirs", full)
    with pytest.raises(InputError, match="^cannot write .*run/checkpoint: No space left on device$"):
        train(TINY, 0, Run(tmp_path / "run"))


def test_a_bug_is_not_reported_as_a_full_disk(tmp_path: Path):
    def report(now: object) -> None:
        (tmp_path / "elsewhere" / "nothing").open()

    with pytest.raises(FileNotFoundError, match="elsewhere"):
        train(TINY, 0, Run(tmp_path / "run"), report=report)


def stopped_run(out: Path, after: int = 12, checkpoint_steps: int = 5, **how: Any) -> Path:
    """Interrupt a run after some updates, and return its last checkpoint."""

    def stop(now: object) -> None:
        if now.done >= after:  # pyright: ignore[reportAttributeAccessIssue]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(TINY, 0, Run(out), checkpoint_steps=checkpoint_steps, report=stop, **how)
    return whole_checkpoints(out / "checkpoint")[-1]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json", PLACE])
def test_damaged_checkpoint_is_refused_in_one_line(tmp_path: Path, name: str):
    checkpoint = stopped_run(tmp_path)
    content = bytearray((checkpoint / name).read_bytes())
    content[len(content) // 2] ^= 1
    (checkpoint / name).write_bytes(content if name != PLACE else b"{}")
    refused(words(TINY, tmp_path, "--resume"), "damaged", name, alone=False)


def test_a_checkpoint_without_its_digest_is_refused(tmp_path: Path):
    checkpoint = stopped_run(tmp_path)
    place = json.loads((checkpoint / PLACE).read_text())
    del place["sha256"]
    (checkpoint / PLACE).write_text(json.dumps(place))
    with pytest.raises(InputError, match="missing required field `sha256`"):
        train(TINY, 0, Run(tmp_path), resume=True)


def test_half_written_checkpoint_is_ignored(tmp_path: Path):
    out = tmp_path / "stopped"
    (stopped_run(out) / PLACE).unlink()
    train(TINY, 0, Run(out), resume=True, checkpoint_steps=5)
    train(TINY, 0, Run(tmp_path / "left-alone"))
    assert content(Run(out)) == content(Run(tmp_path / "left-alone"))


def test_a_resumed_run_may_have_other_checkpoint_steps(tmp_path: Path):
    assert stopped_run(tmp_path).name == "checkpoint-10"
    assert stopped_run(tmp_path, 18, checkpoint_steps=2, resume=True).name == "checkpoint-16"


def test_a_run_of_an_earlier_version_keeps_its_slots(tmp_path: Path):
    """Its config has no number of slots, because the longest chain gave it. Today's default continues it."""
    lines = [f"{i} {i + 1}||{'<<1+1=2>> ' * (1 + i % 4)}#### {i % 3}" for i in range(80)]
    (tmp_path / "data.txt").write_text("\n".join(lines) + "\n")
    options = replace(TINY, data=str(tmp_path / "data.txt"), eval_examples=8, test_examples=8)
    for name in ("earlier", "whole"):
        train(replace(options, slots=None, steps=24), 0, Run(tmp_path / name))
    earlier = Run(tmp_path / "earlier")
    assert earlier.config["slots"] is None
    (earlier.path / "result.json").unlink()
    train(options, 0, earlier, resume=True)
    assert content(earlier) == content(Run(tmp_path / "whole"))
    train(options, 0, Run(tmp_path / "today"))
    assert content(earlier) != content(Run(tmp_path / "today"))
    assert Run(tmp_path / "today").config["slots"] == "p50"
    with pytest.raises(InputError, match="its slots is None, not 'p90'"):
        train(replace(options, slots="p90"), 0, earlier, resume=True)


def test_killed_after_an_early_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run that was killed after --stop-at ended its training, but before its result, does not train further."""
    options = replace(TINY, steps=40, method="none", stop_at=0.01, consolidate=10, eval_every=5)
    from internalize.lm.training import train as module

    def fail(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(module, "_result", fail)
        with pytest.raises(KeyboardInterrupt):
            train(options, 0, Run(tmp_path / "killed"), checkpoint_steps=5)
    train(options, 0, Run(tmp_path / "killed"), resume=True, checkpoint_steps=5)
    train(options, 0, Run(tmp_path / "left-alone"))
    assert content(Run(tmp_path / "killed")) == content(Run(tmp_path / "left-alone"))
    assert Run(tmp_path / "killed").result["steps"] < 40


def reseal(checkpoint: Path, **changes: Any) -> None:
    """Change a checkpoint and give it the digests of its files: whoever changes files can do that, too."""
    place = json.loads((checkpoint / PLACE).read_text())
    del place["sha256"]
    write_json(checkpoint / PLACE, sealed({**place, "files": checkpoint_digests(checkpoint), **changes}))


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
@pytest.mark.parametrize("content", ["pickle", "torch", "list", "empty"])
def test_a_hostile_pickle_in_a_checkpoint_is_refused(tmp_path: Path, name: str, content: str):
    """torch's restricted unpickler reads the Trainer's own files and refuses other pickles."""
    checkpoint = stopped_run(tmp_path / "run")
    payload = HostilePickle(tmp_path / "code-was-run")
    if content in ("torch", "list"):
        torch.save(payload if content == "torch" else [1, "x"], checkpoint / name)
    else:
        (checkpoint / name).write_bytes(pickle.dumps(payload, protocol=2) if content == "pickle" else b"")
    reseal(checkpoint)
    refused(words(TINY, tmp_path / "run", "--resume"), f"internalize: {checkpoint} is damaged: ", alone=False)
    assert not (tmp_path / "code-was-run").exists()


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path):
    checkpoint = stopped_run(tmp_path)
    kept = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    kept["state"][0]["exp_avg"] = torch.zeros(3)
    torch.save(kept, checkpoint / "optimizer.pt")
    reseal(checkpoint)
    with pytest.raises(InputError, match=r"optimizer.pt is damaged: it belongs to another model"):
        train(TINY, 0, Run(tmp_path), resume=True)


def test_weights_of_a_checkpoint_are_safetensors(tmp_path: Path):
    checkpoint = stopped_run(tmp_path)
    torch.save(load_file(checkpoint / "model.safetensors"), checkpoint / "pytorch_model.bin")
    (checkpoint / "model.safetensors").unlink()
    reseal(checkpoint)
    with pytest.raises(InputError, match=r"pytorch_model.bin is not a safetensors file"):
        train(TINY, 0, Run(tmp_path), resume=True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attempts": []}, "attempts: expected `array` of length >= 1"),
        ({"attempts": [[0, "x"]]}, r"attempts\[0\]\[1\]: expected `int`, got `str`"),
        ({"attempts": [[0, 0], [4, 9]]}, "is damaged: there are 2 stages"),
        ({"best": [0.5]}, "best: expected `array` of length 3"),
        ({"latest": [1]}, "latest: expected `object`, got `array`"),
        ({"metrics_bytes": -1}, "metrics_bytes: expected `int` >= 0"),
        ({"files": {"x": 1}}, r"files\[\.\.\.\]: expected `str`, got `int`"),
        ({"step": 9}, "is damaged: its files are from updates 10 and 9"),
    ],
)
def test_a_checkpoint_that_says_nonsense_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str):
    checkpoint = stopped_run(tmp_path)
    reseal(checkpoint, **changes)
    with pytest.raises(InputError, match=reason):
        train(TINY, 0, Run(tmp_path), resume=True)


@pytest.mark.parametrize(
    ("file", "changes", "reason"),
    [
        ("result.json", {"exact_match": "all"}, "exact_match: expected `float`, got `str`"),
        ("result.json", {"exact_match": 7}, "exact_match: expected `float` <= 1"),
        ("result.json", {"examples": 0}, "examples: expected `int` >= 1"),
        ("result.json", {"stages": []}, "stages: expected `array` of length >= 1"),
        ("result.json", {"stages": [{"stage": 1}]}, r"stages\[0\]: object missing required field `steps`"),
        ("metrics.jsonl", {"stage": "x"}, r"\[0\].stage: expected `int`, got `str`"),
        ("config.json", {"replay": "x"}, "its replay is 'x'"),
    ],
)
def test_a_finished_run_that_says_nonsense_is_refused(tmp_path: Path, file: str, changes: dict[str, Any], reason: str):
    train(TINY, 0, Run(tmp_path))
    path = tmp_path / file
    first, *rest = path.read_text().splitlines() if file.endswith("l") else [path.read_text()]
    path.write_text("\n".join([json.dumps({**json.loads(first), **changes}), *rest]) + "\n")
    with pytest.raises(InputError, match=reason):
        train(TINY, 0, Run(tmp_path), resume=True)
