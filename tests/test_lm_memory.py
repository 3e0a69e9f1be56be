"""What this machine has no memory for is refused in one line before any work, with the number and the limit."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from internalize.environment import check_memory
from internalize.errors import InputError
from internalize.lm import Internalization, LmTrainOptions
from internalize.lm.data.source import open_source
from internalize.lm.evaluation.evaluate import evaluate, open_subject
from internalize.lm.model_options import MAX_LAYERS
from internalize.lm.training import memory
from internalize.lm.training.memory import check_training_memory
from tests.asking import call
from tests.lm_runs import untrained

HUGE = str(10**12)
TRAIN = ["lm", "train", "--data", "parity:n=6,k=4", "--steps", "1"]
COMPARE = ["lm", "compare", "--data", "parity:n=6,k=4", "--steps", "8", "--methods", "cot", "--jobs", "1"]
PLAN = ["lm", "plan", "--data", "parity:n=6,k=4", "--methods", "icot"]


def machine(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let this machine have this many bytes of memory."""
    have, real = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": size}, os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: have[name] if name in have else real(name))


@pytest.fixture(autouse=True)
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 16 * 2**30)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("model") / "model", data="parity:n=9,k=4")


@pytest.mark.parametrize(
    ("argv", "number"),
    [
        ([*TRAIN, "--width", "1000000"], "width=1000000"),
        ([*TRAIN, "--width", HUGE], f"width={HUGE}"),
        ([*TRAIN, "--layers", HUGE], f"layers={HUGE} must be at most {MAX_LAYERS}"),
        ([*TRAIN, "--layers", "1001"], "layers=1001 must be at most 1000"),
        ([*TRAIN, "--lora-rank", HUGE], f"lora_rank={HUGE}"),
        ([*TRAIN, "--batch", HUGE], f"batch={HUGE}"),
        ([*TRAIN, "--batch", HUGE, "--accumulate", HUGE], f"accumulate={HUGE}"),
        ([*TRAIN, "--eval-examples", HUGE], f"{HUGE} examples of parity:n=6"),
        ([*TRAIN, "--test-examples", HUGE], f"{HUGE} examples of parity:n=6"),
        ([*TRAIN, "--steps", str(2**52), "--batch", str(2**20)], r"must be below 2^63 examples"),
        ([*TRAIN, "--eval-every", "1" + "0" * 400], f"must be at most {2**53}"),
        ([*COMPARE, "--width", "1000000"], "width=1000000"),
        ([*COMPARE, "--batch", HUGE], f"batch={HUGE}"),
        ([*COMPARE, "--test-examples", HUGE], f"{HUGE} examples of parity:n=6"),
        ([*PLAN, "--width", HUGE], f"width={HUGE}"),
        ([*PLAN, "--layers", HUGE], f"layers={HUGE}"),
        ([*PLAN, "--eval-examples", HUGE], f"{HUGE} examples of parity:n=6"),
        ([*PLAN, "--stage-steps", "1" + "0" * 400], f"must be at most {2**53}"),
        (["lm", "data", "--data", "hops:hops=4", "--count", HUGE], f"{HUGE} examples of hops:hops=4"),
        (["lm", "data", "--data", "parity", "--stream", "validation", "--count", HUGE], f"{HUGE} examples of parity"),
        (["lm", "eval", "--examples", HUGE, "--model"], f"{HUGE} examples of parity:n=9"),
        (["lm", "probe", "--examples", HUGE], f"{HUGE} examples of parity:n=9"),
        (["lm", "certify", "--examples", HUGE], f"{HUGE} examples of parity:n=9"),
    ],
    ids=lambda value: "-".join(value[1:]) if isinstance(value, list) else "",
)
def test_too_much_is_refused(argv: list[str], number: str, model: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reads = argv[1] in ("eval", "probe", "certify")
    said = call([*argv, *([str(model)] if reads else [])], 2).err.strip().splitlines()[-1]
    assert number in said
    assert re.search("this machine has 16|must be at most|cannot be built|must be below", said)
    assert list(tmp_path.iterdir()) == []


def test_the_refusal_names_numbers_of_any_size():
    with pytest.raises(InputError, match="x need about 1000 GiB, and this machine has 16"):
        check_memory(1000 * 2**30, "x")
    with pytest.raises(InputError, match="x need about more than 10.21 GiB"):
        check_memory(10**400, "x")
    check_memory(16 * 2**30, "x")


def estimate(monkeypatch: pytest.MonkeyPatch, **changes: object) -> float:
    """Return the bytes that training needs with these options."""
    seen: list[float] = []
    monkeypatch.setattr(memory, "check_memory", lambda need, what: seen.append(need))
    device = str(changes.pop("device", "cpu"))
    options = replace(LmTrainOptions(data="parity:n=6,k=4", eval_examples=4, test_examples=4), **changes)
    work = Internalization(options)
    check_training_memory(options, work.config, work.longest, device=device)
    return seen[0]


def test_the_estimate_grows_with_what_costs(monkeypatch: pytest.MonkeyPatch):
    base = estimate(monkeypatch)
    assert estimate(monkeypatch, batch=256) > 1.8 * base
    assert estimate(monkeypatch, batch=256, accumulate=2) == pytest.approx(base, rel=0.1)
    assert estimate(monkeypatch, layers=10) > 1.9 * base
    wide = estimate(monkeypatch, width=1024, batch=1)
    assert wide == pytest.approx(16 * 5 * 12 * 1024**2, rel=0.05)  # weights, gradients, two moments
    adapted = estimate(monkeypatch, width=1024, batch=1, lora_rank=8)
    assert adapted == pytest.approx(4 * 5 * 12 * 1024**2, rel=0.1)
    assert estimate(monkeypatch, width=1024, batch=1, device="cuda") == pytest.approx(wide / 4, rel=0.05)
    assert estimate(monkeypatch, batch=4096, dtype="bfloat16") < 0.6 * estimate(monkeypatch, batch=4096)


def test_answers_and_states_are_estimated(model: Path, monkeypatch: pytest.MonkeyPatch):
    """The memory for a batch of answers grows with the batch."""
    subject = open_subject(model, examples=40)
    machine(monkeypatch, 40 * 2**10)
    with pytest.raises(InputError, match="batch=100 of 40 examples need about"):
        evaluate(subject, batch=100)
    assert evaluate(subject, batch=2).result["examples"] == 40


def test_a_file_larger_than_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "data.txt"
    path.write_text("".join(f"{number:03}||2 #### 3\n" for number in range(100)))
    assert open_source(str(path), 0).size == 90
    machine(monkeypatch, 1399)
    with pytest.raises(InputError, match=r"data.txt of 1400 bytes need"):
        open_source(str(path), 0)
