"""Hostile and broken files before every command that reads any: refused in one line that names them, and nothing changed.

What is promised of a flipped bit: in weights and checkpoints of ours it is noticed, for they carry digests. `result.json` and
`metrics.jsonl` are text for people and have none: a digit that became another digit is not noticed, and nothing else goes wrong.
"""

import contextlib
import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load

from internalize.commands import cli
from internalize.errors import InputError
from internalize.report import stored as results
from tests.faults.damages import ANY, DAMAGES, Damage, Kind, code, run_mark
from tests.faults.harness import Answer, Outcome, ask, complaints
from tests.faults.sandbox import COMPARE, LM, MADE, PAGE_RESULTS, RESUME, SWEEP, Sandbox, sandbox
from tests.lm_runs import words


@dataclass(frozen=True)
class Reading:
    """A file, and a command that reads it."""

    what: str
    argv: Sequence[str]
    file: str
    """Below `MADE`."""

    @property
    def kind(self) -> Kind:
        """The kind of the file."""
        if self.what == "data":
            return "data"
        if self.file.endswith(("result.json", "rows.json")):
            return "text"
        kinds: dict[str, Kind] = {".json": "json", ".jsonl": "lines", ".parquet": "rows"}
        return kinds.get(Path(self.file).suffix, "weights")

    @property
    def tolerant(self) -> bool:
        """Whether the command lists what it cannot read and goes on."""
        return self.argv[:1] == ("runs",) or "--check" in self.argv


_CERTIFY: Final = ("certify", "--only", "gating", "--run")
_STORE: Final = "sweep/sweep.json sweep/cells/part-000000.parquet sweep/journal.jsonl"
_COMPARE: Final = (*COMPARE, "--out", f"{MADE}/compare", "--resume")
_COMPARED: Final = "compare/ablations/n4-k2/adamw/mask-causal/seed-0"
_EVAL: Final = ("lm", "eval", "--examples", "3", "--data", "data.txt", "--model")
_PROBE: Final = ("lm", "probe", "--examples", "64", "--data", "data.txt", f"{MADE}/lm")
_SHORT: Final = ("--steps", "1", "--stage-steps", "1")
_TRAIN_ON: Final = words(LM, "new", *_SHORT)
_PLAN: Final = ("lm", "plan", "--methods", "log-icot", *_SHORT, "--batch", "2", "--data", "data.txt")
_LM_CHECKPOINT: Final = "lm-begun/checkpoint/checkpoint-3"
_READ_BY: Final[dict[str, list[tuple[Sequence[str], str]]]] = {
    "run folders": [
        (RESUME["train"], "train/config.json train/result.json train/metrics.jsonl train/weights.safetensors"),
        ((*_CERTIFY, f"{MADE}/train"), "train/config.json train/weights.safetensors"),
        (RESUME["train-begun"], "train-begun/config.json train-begun/metrics.jsonl"),
        (RESUME["train-begun"], "train-begun/checkpoint/00000002.json train-begun/checkpoint/00000002.safetensors"),
        (RESUME["solve"], "solve/config.json solve/result.json solve/weights.safetensors"),
        ((*_CERTIFY, f"{MADE}/solve"), "solve/config.json solve/weights.safetensors"),
        (RESUME["solve-begun"], "solve-begun/checkpoint/00000001.json solve-begun/checkpoint/00000001.safetensors"),
        (("runs", MADE), "train/config.json solve/result.json"),
    ],
    "stores of sweeps": [
        (("sweep", "show", f"{MADE}/sweep"), _STORE),
        ((*SWEEP, "--out", f"{MADE}/sweep", "--resume"), _STORE),
    ],
    "comparisons": [(_COMPARE, f"compare/rows.json {_COMPARED}/result.json {_COMPARED}/weights.safetensors")],
    "language models": [
        ((*_EVAL, f"{MADE}/lm"), "lm/config.json lm/model/internalize.json lm/model/model.safetensors"),
        ((*_EVAL, f"{MADE}/lm/model"), "lm/model/config.json lm/model/tokenizer.json lm/model/tokenizer_config.json"),
        ((*_TRAIN_ON, "--model", f"{MADE}/lm/model"), "lm/model/model.safetensors"),
        ((*_TRAIN_ON, "--model", f"{MADE}/lm/model/config.json"), "lm/model/config.json"),
        ((*_TRAIN_ON, "--model", f"{MADE}/foreign/model"), "foreign/model/model.safetensors"),
        ((*_PLAN, "--model", f"{MADE}/lm/model"), "lm/model/config.json"),
        (_PROBE, "lm/stages/stage-1/model.safetensors lm/stages/stage-1/internalize.json"),
        (RESUME["lm"], "lm/result.json"),
        (
            RESUME["lm-begun"],
            f"lm-begun/metrics.jsonl {_LM_CHECKPOINT}/internalize.json {_LM_CHECKPOINT}/model.safetensors",
        ),
        (RESUME["lm-begun"], f"{_LM_CHECKPOINT}/optimizer.pt {_LM_CHECKPOINT}/trainer_state.json"),
    ],
    "data": [
        (("lm", "data", "--check", "data.txt"), "../cwd/data.txt"),
        (_TRAIN_ON, "../cwd/data.txt"),
        (_PLAN, "../cwd/data.txt"),
        ((*_TRAIN_ON, "--data", "data.jsonl"), "../cwd/data.jsonl"),
        ((*_TRAIN_ON, "--validation", "data.jsonl"), "../cwd/data.jsonl"),
        ((*_EVAL, f"{MADE}/lm", "--data", "data.jsonl"), "../cwd/data.jsonl"),
        ((*_PROBE, "--data", "data.jsonl"), "../cwd/data.jsonl"),
    ],
    "results of a page": [((), " ".join(PAGE_RESULTS))],  # no command that reads them is quick
}
"""Commands, and the files they read, by row of the table."""
READINGS: Final = [
    Reading(what, argv, file)
    for what, readings in _READ_BY.items()
    for argv, files in readings
    for file in files.split()
]


def damages_of(reading: Reading) -> dict[str, Damage]:
    """What can be done to a file."""
    found = dict(DAMAGES[reading.kind])
    if reading.file.endswith("model/config.json"):
        found["code"] = code
    if not reading.file.endswith("model.safetensors") or "checkpoint" in reading.file:
        found.pop("a pickle alone", None)
    if reading.file.endswith("optimizer.pt"):
        found = dict(ANY)
    return found


def may_pass(reading: Reading, damage: str) -> bool:
    """Whether a command may go on: what it needs of the file may still be there."""
    if reading.kind == "weights":  # those of others have no digest, and are taken in whatever precision they come
        theirs = reading.file.startswith("foreign")
        certified = damage == "another precision" and "certify" in reading.argv
        return certified or (theirs and damage in ("another precision", "a bit flipped"))
    if reading.kind == "data":
        return damage in ("truncated", "a bit flipped", "CRLF and BOM")
    if "journal" in reading.file:
        # what does not end in a line break is a line that was being written; an older package has fewer columns
        cut = ("empty", "truncated", "a bit flipped", "NUL bytes", "noise", "a pickle")
        return damage in (*cut, "a key missing", "another type")
    if reading.file.endswith(f"{_LM_CHECKPOINT}/internalize.json") and damage == "a dangling link":
        return True  # without that file a checkpoint is not whole, and the run goes on from the beginning
    if "checkpoint" in reading.file:  # these have digests
        return False
    if reading.kind == "text" and damage == "another version":  # they have none
        return True
    return damage in ("a bit flipped", "a key missing", "a key more", "another type") or (
        "lm/model" in reading.file and damage in ("not finite", "another version", "code")
    )


def break_files(count: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Break `count` files: kinds of damage in turn, each to a file that the seed decides, until every file has had all."""
    chance = random.Random(seed)
    with sandbox(folder) as box:
        cases = [(reading, name) for reading in READINGS for name in damages_of(reading)]
        chance.shuffle(cases)
        turns: dict[Damage, Iterator[int]] = defaultdict(itertools.count)
        # the first of every kind, then the second, …
        cases.sort(key=lambda case: next(turns[damages_of(case[0])[case[1]]]))
        for reading, name in itertools.islice(itertools.cycle(cases), count):
            state = chance.getrandbits(32)
            found = wrong_after(name, reading, box, random.Random(state))
            asked = " ".join(reading.argv) or "the page"
            lost = f"{reading.file}, {name} ({state}), read by `{asked}`: {'; '.join(found)}" if found else ""
            yield Outcome(f"broken files: {reading.what}", lost)


def wrong_after(damage: str, reading: Reading, box: Sandbox, chance: random.Random) -> list[str]:
    """Break a file, ask, and say what was wrong about the answer."""
    file = (box.made / reading.file).resolve()
    damages_of(reading)[damage](file, chance)
    before = box.tree()
    answer = ask(reading.argv) if reading.argv else _ask_page(box.made / "full")
    found = _judged(reading, damage, file, box.pristine / reading.file, answer)
    if answer.status == cli.WRONG and box.tree() != before:
        found.append("refused, and something was changed")
    if run_mark().exists():
        found.append("code out of the file was run")
    box.put_back()
    return found


def _judged(reading: Reading, damage: str, file: Path, pristine: Path, answer: Answer) -> list[str]:
    names = (file.name, f"{file.parent.parent.name}/{file.parent.name}")
    if file.name.startswith("tokenizer"):
        names = (*names, "the tokenizer has")
    if reading.kind == "data" and answer.status == cli.WRONG and "example" in answer.err:
        names = ()  # read, and not of the kind that the model was trained on
    found = complaints(reading.argv, answer, *names)
    if found or answer.status == cli.WRONG or may_pass(reading, damage):
        return found
    if reading.tolerant:
        told = answer.status == 1 if reading.kind == "data" else file.name in answer.err or reading.kind == "text"
        return [] if told else [f"not told of it: status {answer.status}, {answer.err[:200]!r}"]
    if damage == "a bit flipped" and reading.kind == "weights" and _same(file, pristine):
        return []  # in a part of the header that says nothing
    return [f"taken, status {answer.status}"]


def _ask_page(full: Path) -> Answer:
    """What `paper` reads of its folder full/ for the page."""
    try:
        results.parts(full)
    except InputError as error:
        return Answer(cli.WRONG, "", f"internalize: {error}\n")
    except Exception as error:
        return Answer(cli.BUG, "", "", f"{type(error).__name__}: {error}")
    return Answer(0, "", "")


def _same(first: Path, second: Path) -> bool:
    with contextlib.suppress(Exception):
        ours, theirs = load(first.read_bytes()), load(second.read_bytes())
        return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    return False
