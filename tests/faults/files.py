"""Hostile and broken files before every command that reads any: refused in one line that names them, and nothing changed.

What is promised of a flipped bit: in weights and checkpoints of ours it is noticed, for they carry digests. `result.json` and
`metrics.jsonl` are text for people and have none: a digit that became another digit is not noticed, and nothing else goes wrong.
"""

import contextlib
import itertools
import os
import random
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load

from internalize.commands import cli
from internalize.errors import InputError
from internalize.report import stored as results
from tests.faults.asking import Answer, ask, complaints, rooms, tree
from tests.faults.damages import ANY, DAMAGES, Damage, Kind, code, run_mark
from tests.faults.made import COMPARE, LM, SOLVE, SWEEP, TRAIN, make, write_data
from tests.faults.tally import Tally
from tests.lm_runs import words

LONG: Final = 3000


@dataclass(frozen=True)
class Reading:
    """A file, and a command that reads it."""

    what: str
    file: str
    kind: Kind
    argv: tuple[str, ...]
    tolerant: bool = False
    """The command lists what it cannot read and goes on: `runs`, `lm data --check`."""


_MADE: Final = "../made"
_TRAIN: Final = tuple(words(TRAIN, f"{_MADE}/train", "--resume"))
_BEGUN: Final = tuple(words(TRAIN, f"{_MADE}/train-begun", "--resume"))
_SOLVE: Final = tuple(words(SOLVE, f"{_MADE}/solve", "--resume", "--threads", "1"))
_SOLVE_BEGUN: Final = tuple(words(SOLVE, f"{_MADE}/solve-begun", "--resume", "--threads", "1"))
_SWEEP: Final = (*SWEEP, "--out", f"{_MADE}/sweep", "--resume")
_SHOW: Final = ("sweep", "show", f"{_MADE}/sweep")
_COMPARE: Final = (*COMPARE, "--out", f"{_MADE}/compare", "--resume")
_CERTIFY: Final = ("certify", "--only", "gating", "--run")
_LM: Final = tuple(words(LM, f"{_MADE}/lm", "--resume"))
_LM_BEGUN: Final = tuple(words(LM, f"{_MADE}/lm-begun", "--resume"))
_EVAL: Final = ("lm", "eval", "--examples", "3", "--data", "data.txt", "--model")
_PROBE: Final = ("lm", "probe", "--examples", "64", "--data", "data.txt")
_ON: Final = tuple(words(LM, "new", "--steps", "1", "--stage-steps", "1"))
_PLAN: Final = ("lm", "plan", "--methods", "log-icot", "--steps", "1", "--stage-steps", "1", "--batch", "2")
_LM_CHECKPOINT: Final = "lm-begun/checkpoint/checkpoint-3"

READINGS: Final = (
    Reading("run folders", "train/config.json", "json", _TRAIN),
    Reading("run folders", "train/config.json", "json", (*_CERTIFY, f"{_MADE}/train")),
    Reading("run folders", "train/result.json", "text", _TRAIN),
    Reading("run folders", "train/metrics.jsonl", "lines", _TRAIN),
    Reading("run folders", "train/weights.safetensors", "weights", _TRAIN),
    Reading("run folders", "train/weights.safetensors", "weights", (*_CERTIFY, f"{_MADE}/train")),
    Reading("run folders", "train-begun/checkpoint/00000002.json", "json", _BEGUN),
    Reading("run folders", "train-begun/checkpoint/00000002.safetensors", "weights", _BEGUN),
    Reading("run folders", "train-begun/metrics.jsonl", "lines", _BEGUN),
    Reading("run folders", "train-begun/config.json", "json", _BEGUN),
    Reading("run folders", "solve/config.json", "json", _SOLVE),
    Reading("run folders", "solve/config.json", "json", (*_CERTIFY, f"{_MADE}/solve")),
    Reading("run folders", "solve/result.json", "text", _SOLVE),
    Reading("run folders", "solve/weights.safetensors", "weights", _SOLVE),
    Reading("run folders", "solve/weights.safetensors", "weights", (*_CERTIFY, f"{_MADE}/solve")),
    Reading("run folders", "solve-begun/checkpoint/00000001.json", "json", _SOLVE_BEGUN),
    Reading("run folders", "solve-begun/checkpoint/00000001.safetensors", "weights", _SOLVE_BEGUN),
    Reading("run folders", "train/config.json", "json", ("runs", _MADE), tolerant=True),
    Reading("run folders", "solve/result.json", "text", ("runs", _MADE), tolerant=True),
    Reading("stores of sweeps", "sweep/sweep.json", "json", _SHOW),
    Reading("stores of sweeps", "sweep/sweep.json", "json", _SWEEP),
    Reading("stores of sweeps", "sweep/cells/part-000000.parquet", "rows", _SHOW),
    Reading("stores of sweeps", "sweep/cells/part-000000.parquet", "rows", _SWEEP),
    Reading("stores of sweeps", "sweep/journal.jsonl", "lines", _SHOW),
    Reading("stores of sweeps", "sweep/journal.jsonl", "lines", _SWEEP),
    Reading("comparisons", "compare/rows.json", "text", _COMPARE),
    Reading("comparisons", "compare/ablations/n4-k2/adamw/mask-causal/seed-0/weights.safetensors", "weights", _COMPARE),
    Reading("comparisons", "compare/ablations/n4-k2/adamw/mask-causal/seed-0/result.json", "text", _COMPARE),
    Reading("language models", "lm/model/model.safetensors", "weights", (*_EVAL, f"{_MADE}/lm")),
    Reading("language models", "lm/model/model.safetensors", "weights", (*_ON, "--model", f"{_MADE}/lm/model")),
    Reading(
        "language models", "foreign/model/model.safetensors", "weights", (*_ON, "--model", f"{_MADE}/foreign/model")
    ),
    Reading("language models", "lm/model/config.json", "json", (*_EVAL, f"{_MADE}/lm/model")),
    Reading(
        "language models",
        "lm/model/config.json",
        "json",
        (*_PLAN, "--data", "data.txt", "--model", f"{_MADE}/lm/model"),
    ),
    Reading("language models", "lm/model/config.json", "json", (*_ON, "--model", f"{_MADE}/lm/model/config.json")),
    Reading("language models", "lm/model/tokenizer.json", "json", (*_EVAL, f"{_MADE}/lm/model")),
    Reading("language models", "lm/model/tokenizer_config.json", "json", (*_EVAL, f"{_MADE}/lm/model")),
    Reading("language models", "lm/model/internalize.json", "json", (*_EVAL, f"{_MADE}/lm")),
    Reading("language models", "lm/stages/stage-1/model.safetensors", "weights", (*_PROBE, f"{_MADE}/lm")),
    Reading("language models", "lm/stages/stage-1/internalize.json", "json", (*_PROBE, f"{_MADE}/lm")),
    Reading("language models", "lm/config.json", "json", (*_EVAL, f"{_MADE}/lm")),
    Reading("language models", "lm/result.json", "text", _LM),
    Reading("language models", f"{_LM_CHECKPOINT}/internalize.json", "json", _LM_BEGUN),
    Reading("language models", f"{_LM_CHECKPOINT}/model.safetensors", "weights", _LM_BEGUN),
    Reading("language models", f"{_LM_CHECKPOINT}/optimizer.pt", "weights", _LM_BEGUN),
    Reading("language models", f"{_LM_CHECKPOINT}/trainer_state.json", "json", _LM_BEGUN),
    Reading("language models", "lm-begun/metrics.jsonl", "lines", _LM_BEGUN),
    Reading("data", "../cwd/data.txt", "data", ("lm", "data", "--check", "data.txt"), tolerant=True),
    Reading("data", "../cwd/data.txt", "data", _ON),
    Reading("data", "../cwd/data.txt", "data", (*_PLAN, "--data", "data.txt")),
    Reading("data", "../cwd/data.jsonl", "data", (*_ON, "--data", "data.jsonl")),
    Reading("data", "../cwd/data.jsonl", "data", (*_ON, "--validation", "data.jsonl")),
    Reading("data", "../cwd/data.jsonl", "data", (*_EVAL, f"{_MADE}/lm", "--data", "data.jsonl")),
    Reading("data", "../cwd/data.jsonl", "data", (*_PROBE, f"{_MADE}/lm", "--data", "data.jsonl")),
)


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
        return (damage == "another precision" and (theirs or "certify" in reading.argv)) or (
            damage == "a bit flipped" and theirs
        )
    if reading.kind == "data":
        return damage in ("truncated", "a bit flipped", "CRLF and BOM")
    if "journal" in reading.file:
        # what does not end in a line break is a line that was being written; an older package has fewer columns
        return damage in (
            "empty",
            "truncated",
            "a bit flipped",
            "a key missing",
            "another type",
            "NUL bytes",
            "noise",
            "a pickle",
        )
    if reading.file.endswith(f"{_LM_CHECKPOINT}/internalize.json") and damage == "a dangling link":
        return True  # without that file a checkpoint is not whole, and the run goes on from the beginning
    if "checkpoint" in reading.file:  # these have digests
        return False
    if reading.kind == "text" and damage == "another version":  # they have none
        return True
    return damage in ("a bit flipped", "a key missing", "a key more", "another type") or (
        "lm/model" in reading.file and damage in ("not finite", "another version", "code")
    )


class Broken:
    """Rooms in which files are broken, one at a time, and asked about."""

    def __init__(self, folder: Path, cwd: Path) -> None:
        self.folder, self.made, self.cwd = folder, folder / "made", cwd
        write_data(cwd)
        make(self.made)
        rows = self.made / "compare" / "rows.json"
        for stored in results.STORED:  # what `paper --full` would have made, had it run these commands
            if stored.makes == rows.name and (kept := results.FOLDER / stored.file).is_file():
                (self.made / "full" / stored.name).mkdir(parents=True)
                shutil.copy(kept, self.made / "full" / stored.name / stored.makes)
        shutil.copytree(self.made, folder / "pristine")

    def readings(self) -> list[Reading]:
        """Every file that is read, those of a page among them: they have no command of their own that is quick."""
        page = sorted((self.made / "full").glob("*/*.json"))
        of_page = [Reading("results of a page", str(path.relative_to(self.made)), "text", ()) for path in page]
        return [*READINGS, *of_page]

    def answer(self, reading: Reading, name: str, chance: random.Random) -> list[str]:
        """Break a file, ask, and say what was wrong about the answer."""
        top = Path(reading.file).parts[0]
        file = self.made / reading.file
        if top == "..":
            file = self.cwd / Path(reading.file).name
        damages_of(reading)[name](file, chance)
        before = tree(self.made, self.cwd)
        answer = ask(reading.argv) if reading.argv else _ask_page(self.made / "full")
        found = self._judged(reading, name, file, answer)
        if answer.status == cli.WRONG and tree(self.made, self.cwd) != before:
            found.append("refused, and something was changed")
        if run_mark().exists():
            found.append("code out of the file was run")
        self._put_back(top)
        return found

    def _judged(self, reading: Reading, name: str, file: Path, answer: Answer) -> list[str]:
        names = (file.name, f"{file.parent.parent.name}/{file.parent.name}")
        if file.name.startswith("tokenizer"):
            names = (*names, "the tokenizer has")
        if reading.kind == "data" and answer.status == cli.WRONG and "example" in answer.err:
            names = ()  # read, and not of the kind that the model was trained on
        found = complaints(reading.argv, answer, *names)
        if found or answer.status == cli.WRONG or may_pass(reading, name):
            return found
        if reading.tolerant:
            told = answer.status == 1 if reading.kind == "data" else file.name in answer.err or reading.kind == "text"
            return [] if told else [f"not told of it: status {answer.status}, {answer.err[:200]!r}"]
        flipped = name == "a bit flipped" and reading.kind == "weights"
        if flipped and _same(file, self.folder / "pristine" / reading.file):
            return []  # in a part of the header that says nothing
        return [f"taken, status {answer.status}"]

    def _put_back(self, top: str) -> None:
        shutil.rmtree(self.cwd)
        self.cwd.mkdir()
        os.chdir(self.cwd)
        write_data(self.cwd)
        if top != "..":
            shutil.rmtree(self.made / top)
            shutil.copytree(self.folder / "pristine" / top, self.made / top)


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


def campaign(count: int, seed: int, folder: Path) -> Iterator[Tally]:
    """So many files broken: kinds of damage in turn, each to a file that the seed decides, until every file has had all."""
    chance = random.Random(seed)
    with rooms(folder) as (cwd, _, _):
        broken = Broken(folder, cwd)
        cases = [(reading, name) for reading in broken.readings() for name in damages_of(reading)]
        chance.shuffle(cases)
        turns: dict[Damage, Iterator[int]] = defaultdict(itertools.count)
        # the first of every kind, then the second, …
        cases.sort(key=lambda case: next(turns[damages_of(case[0])[case[1]]]))
        tallies = {reading.what: Tally(f"broken files: {reading.what}") for reading in broken.readings()}
        for number in range(count):
            reading, name = cases[number % len(cases)]
            tally = tallies[reading.what]
            tally.tried += 1
            state = chance.getrandbits(32)
            if found := broken.answer(reading, name, random.Random(state)):
                asked = " ".join(reading.argv) or "the page"
                tally.lost.append(f"{reading.file}, {name} ({state}), read by `{asked}`: {'; '.join(found)}")
        yield from tallies.values()
