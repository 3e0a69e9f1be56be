"""Hostile and broken files before every command that reads any: refused in one line that names them, and nothing changed.

What is promised of a flipped bit: in weights and checkpoints of ours it is noticed, for they carry digests. `result.json` and
`metrics.jsonl` are text for people and have none: a digit that became another digit is not noticed, and nothing else goes wrong.
"""

import contextlib
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from safetensors.torch import load, save

from internalize import cli, results
from internalize.errors import InputError
from tests.faults.asking import Answer, ask, complaints, rooms, tree
from tests.faults.made import COMPARE, LM, SOLVE, SWEEP, TRAIN, line, make, write_data
from tests.faults.tally import Tally

LONG: Final = 3000

Kind = Literal["weights", "json", "text", "lines", "data", "rows"]
"""text: JSON without a digest, in which a flipped bit may go unnoticed; lines: the same, an object a line."""


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
_TRAIN: Final = tuple(line(TRAIN, f"{_MADE}/train", "--resume"))
_BEGUN: Final = tuple(line(TRAIN, f"{_MADE}/train-begun", "--resume"))
_SOLVE: Final = tuple(line(SOLVE, f"{_MADE}/solve", "--resume", "--threads", "1"))
_SOLVE_BEGUN: Final = tuple(line(SOLVE, f"{_MADE}/solve-begun", "--resume", "--threads", "1"))
_SWEEP: Final = (*SWEEP, "--out", f"{_MADE}/sweep", "--resume")
_SHOW: Final = ("sweep", "show", f"{_MADE}/sweep")
_COMPARE: Final = (*COMPARE, "--out", f"{_MADE}/compare", "--resume")
_CERTIFY: Final = ("certify", "--only", "gating", "--run")
_LM: Final = tuple(line(LM, f"{_MADE}/lm", "--resume"))
_LM_BEGUN: Final = tuple(line(LM, f"{_MADE}/lm-begun", "--resume"))
_EVAL: Final = ("lm", "eval", "--examples", "3", "--data", "data.txt", "--model")
_PROBE: Final = ("lm", "probe", "--examples", "64", "--data", "data.txt")
_ON: Final = tuple(line(LM, "new", "--steps", "1", "--stage-steps", "1"))
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
    Reading("language models", "lm/model/config.json", "json", (*_EVAL, f"{_MADE}/lm/model")),
    Reading("language models", "lm/model/config.json", "json", (*_PLAN, "--data", "data.txt", "--model", f"{_MADE}/lm/model")),
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

Damage = Callable[[Path, random.Random], None]


# Damages: to any file


def _empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def _folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _dangling(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def _truncate(path: Path, chance: random.Random) -> None:
    size = path.stat().st_size
    places = (1, 7, 8, 9, size // 2, size - 2, chance.randrange(1, size - 1))
    os.truncate(path, min(chance.choice(places), size - 2))  # the last byte of JSON is a line break


def _flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def _noise(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(path.stat().st_size))


def _nul(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


class _Payload:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def _pickle(path: Path, chance: random.Random) -> None:
    if chance.random() < 0.5:
        path.write_bytes(pickle.dumps({"W1": _Payload(_run_mark())}))
    else:
        torch.save({"W1": _Payload(_run_mark())}, path)


def _run_mark() -> Path:
    """What exists once somebody has run code out of a file."""
    return Path.cwd() / "code-was-run"


# To JSON


def _nesting(path: Path, chance: random.Random) -> None:
    depth = 5_000_000 if chance.random() < 0.1 else 100_000
    path.write_bytes(b'{"a":' + b"[" * depth + b"]" * depth + b"}\n")


def _edit(change: Callable[[dict[str, Any], random.Random], Any]) -> Damage:
    """Change the object in a file; of JSON lines, one of them."""

    def damage(path: Path, chance: random.Random) -> None:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        number = chance.randrange(len(lines))
        value = json.loads(lines[number])
        lines[number] = json.dumps(change(value, chance) or value)
        path.write_text("\n".join(lines) + "\n")

    return damage


def _put(*values: object) -> Damage:
    """Put one of the values under one of the keys."""

    def change(value: dict[str, Any], chance: random.Random) -> None:
        value[chance.choice(list(value))] = chance.choice(values)

    return _edit(change)


def _without(value: dict[str, Any], chance: random.Random) -> None:
    del value[chance.choice(list(value))]


def _version(value: dict[str, Any], chance: random.Random) -> None:
    value["version"] = chance.choice((0, 2, "1", None, 1.5, [1]))


def _code(path: Path, chance: random.Random) -> None:
    """A model's config that would have code of its own run."""
    (path.parent / "evil.py").write_text(f"import os\nos.mkdir({str(_run_mark())!r})\n")
    value = json.loads(path.read_text())
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": ["evil.Slow", "evil.Fast"]}
    value |= {"auto_map": names, "trust_remote_code": True}
    if chance.random() < 0.5:
        value["model_type"] = "__import__('os').mkdir('code-was-run')"
    path.write_text(json.dumps(value))


# To weights


def _tensors(change: Callable[[dict[str, torch.Tensor], str], None]) -> Damage:
    """Change the tensors of a file and write it as anybody could, without our digest."""

    def damage(path: Path, chance: random.Random) -> None:
        tensors = load(path.read_bytes())
        change(tensors, chance.choice(sorted(tensors)))
        path.write_bytes(save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata={"format": "pt"}))

    return damage


def _becomes(make: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    return _tensors(lambda tensors, name: tensors.__setitem__(name, make(tensors[name])))


def _bin_only(path: Path, chance: random.Random) -> None:
    path.unlink()
    _pickle(path.with_name("pytorch_model.bin"), chance)


# To data


def _line_becomes(*contents: bytes) -> Damage:
    def damage(path: Path, chance: random.Random) -> None:
        lines = path.read_bytes().splitlines()
        lines[chance.randrange(len(lines))] = chance.choice(contents)
        path.write_bytes(b"\n".join(lines) + b"\n")

    return damage


def _crlf_and_bom(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))


_ANY: Final[dict[str, Damage]] = {
    "empty": _empty,
    "a folder": _folder,
    "a dangling link": _dangling,
    "truncated": _truncate,
    "a bit flipped": _flip,
    "noise": _noise,
    "NUL bytes": _nul,
    "a pickle": _pickle,
}
_JSON: Final[dict[str, Damage]] = {
    "nesting": _nesting,
    "a list": lambda path, chance: _write(path, "[1, 2]\n"),
    "not finite": _put(float("nan"), float("inf")),
    "a number without end": lambda path, chance: _write(path, '{"version": 1' + "0" * 5000 + "}\n"),
    "another version": _edit(_version),
    "a key missing": _edit(_without),
    "a key more": _edit(lambda value, chance: value.update({"nothing": 1})),
    "another type": _put(None, "x", -1, [], {}, True, [[]], 1e308, 10**400, "__import__('os').mkdir('code-was-run')"),
}
DAMAGES: Final[dict[Kind, dict[str, Damage]]] = {
    "weights": {
        **_ANY,
        "not finite": _becomes(lambda t: torch.full_like(t, float("nan")) if t.dim() else t * float("inf")),
        "another shape": _becomes(lambda t: torch.zeros(*t.shape, 2)),
        "no entries": _becomes(lambda t: torch.zeros(0)),
        "another dtype": _becomes(lambda t: t.to(torch.int32)),
        "a tensor missing": _tensors(lambda tensors, name: tensors.__delitem__(name)),
        "a pickle alone": _bin_only,
    },
    "json": _ANY | _JSON,
    "text": _ANY | _JSON,
    "lines": _ANY | {name: _JSON[name] for name in ("nesting", "not finite", "a key missing", "another type")},
    "rows": _ANY,
    "data": {
        **_ANY,
        "bad UTF-8": _line_becomes(b"\xff\xfe||1 #### 1", b'{"question": "\xc3\x28"}'),
        "no separators": _line_becomes(b"1 + 2 = 3", b'{"question": "1"}', b"1||2", b"1 #### 2"),
        "an empty line": _line_becomes(b"", b"   "),
        "a million characters": _line_becomes(b"1" * 1_000_001, b'{"question": "' + b"1" * 1_000_000 + b'"}'),
        "a NUL": _line_becomes(b"1\0||2 #### 3", b'{"question": "\\u0000", "steps": [], "answer": "1"}'),
        "nesting": _line_becomes(b"[" * 500_000, b'{"question":' * 80_000),
        "CRLF and BOM": _crlf_and_bom,
    },
}


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def damages_of(reading: Reading) -> dict[str, Damage]:
    """What can be done to a file."""
    found = dict(DAMAGES[reading.kind])
    if reading.file.endswith("model/config.json"):
        found["code"] = _code
    if not reading.file.endswith("model.safetensors") or "checkpoint" in reading.file:
        found.pop("a pickle alone", None)
    if reading.file.endswith("optimizer.pt"):
        found = dict(_ANY)
    return found


def may_pass(reading: Reading, damage: str) -> bool:
    """Whether a command may go on: what it needs of the file may still be there."""
    if reading.kind == "weights":
        return False
    if reading.kind == "data":
        return damage in ("truncated", "a bit flipped", "CRLF and BOM")
    if "journal" in reading.file:
        return damage in ("empty", "truncated", "a bit flipped", "another type")
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
        if _run_mark().exists():
            found.append("code out of the file was run")
        self._put_back(top)
        return found

    def _judged(self, reading: Reading, name: str, file: Path, answer: Answer) -> list[str]:
        names = (file.name, f"{file.parent.parent.name}/{file.parent.name}")
        if reading.kind == "data" and answer.status == cli.WRONG and "example" in answer.err:
            names = ()  # read, and not of the kind that the model was trained on
        found = complaints(reading.argv, answer, *names)
        if found or answer.status == cli.WRONG or may_pass(reading, name):
            return found
        if reading.tolerant:
            told = answer.status == 1 if reading.kind == "data" else file.name in answer.err
            return [] if told or reading.kind == "text" else [f"not told of it: status {answer.status}, {answer.err[:200]!r}"]
        if name == "a bit flipped" and reading.kind == "weights" and _same(file, self.folder / "pristine" / reading.file):
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
    """So many files broken, every kind of damage to every file in turn, in an order that the seed decides."""
    chance = random.Random(seed)
    with rooms(folder) as (cwd, _, _):
        broken = Broken(folder, cwd)
        cases = [(reading, name) for reading in broken.readings() for name in damages_of(reading)]
        chance.shuffle(cases)
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
