"""What can be done to a file: any, JSON, weights, data."""

import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import torch
from safetensors.torch import load, save

Kind = Literal["weights", "json", "text", "lines", "data", "rows"]
"""text: JSON without a digest, in which a flipped bit may go unnoticed; lines: the same, one object per line."""
Damage = Callable[[Path, random.Random], None]


# To any file


def _bytes(change: Callable[[bytes, random.Random], bytes]) -> Damage:
    """Change the content of a file."""
    return lambda path, chance: _write(path, change(path.read_bytes(), chance))


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _truncated(content: bytes, chance: random.Random) -> bytes:
    size = len(content)
    places = (1, 7, 8, 9, size // 2, size - 2, chance.randrange(1, size - 1))
    return content[: min(chance.choice(places), size - 2)]  # the last byte of JSON is a line break


def _flipped(content: bytes, chance: random.Random) -> bytes:
    flipped = bytearray(content)
    flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(flipped)


def _folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _dangling(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.symlink_to("nowhere")


class _Payload:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def _pickle(path: Path, chance: random.Random) -> None:
    if chance.random() < 0.5:
        path.write_bytes(pickle.dumps({"W1": _Payload(run_mark())}))
    else:
        torch.save({"W1": _Payload(run_mark())}, path)


def run_mark() -> Path:
    """What exists once somebody has run code out of a file."""
    return Path.cwd() / "code-was-run"


# To JSON


_DEEP: Final = 5_000_000
"""Brackets that open, and as many that close: 10 MB."""


def _edit(change: Callable[[dict[str, Any], random.Random], Any]) -> Damage:
    """Change the object in a file; of JSON lines, one of them."""

    def damage(path: Path, chance: random.Random) -> None:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        number = chance.randrange(len(lines))
        value = json.loads(lines[number])
        change(value, chance)
        lines[number] = json.dumps(value)
        path.write_text("\n".join(lines) + "\n")

    return damage


def _put(*values: object) -> Damage:
    """Put one of the values under one of the keys."""

    def change(value: dict[str, Any], chance: random.Random) -> None:
        value[chance.choice(list(value))] = chance.choice(values)

    return _edit(change)


def code(path: Path, chance: random.Random) -> None:
    """A model's config that would have code of its own run."""
    (path.parent / "evil.py").write_text(f"import os\nos.mkdir({str(run_mark())!r})\n")
    value = json.loads(path.read_text())
    tokenizers = ["evil.Slow", "evil.Fast"]
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": tokenizers}
    value |= {"auto_map": names, "trust_remote_code": True}
    if chance.random() < 0.5:
        value["model_type"] = "__import__('os').mkdir('code-was-run')"
    path.write_text(json.dumps(value))


# To weights


def _tensors(change: Callable[[dict[str, torch.Tensor], str, random.Random], None]) -> Damage:
    """Change one of the tensors of a file and write it as anybody could, without our digest."""

    def damage(path: Path, chance: random.Random) -> None:
        tensors = load(path.read_bytes())
        change(tensors, chance.choice(sorted(tensors)), chance)
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        path.write_bytes(save(whole, metadata={"format": "pt"}))

    return damage


def _becomes(make: Callable[[torch.Tensor, random.Random], torch.Tensor]) -> Damage:
    return _tensors(lambda tensors, name, chance: tensors.__setitem__(name, make(tensors[name], chance)))


def _not_finite(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """One entry is NaN or infinite."""
    spoilt = tensor.clone()
    spoilt.view(-1)[chance.randrange(tensor.numel())] = chance.choice((float("nan"), float("inf"), -float("inf")))
    return spoilt


def _bin_only(path: Path, chance: random.Random) -> None:
    path.unlink()
    _pickle(path.with_name("pytorch_model.bin"), chance)


# To data


def _line_becomes(*contents: bytes) -> Damage:
    def damaged(content: bytes, chance: random.Random) -> bytes:
        lines = content.splitlines()
        lines[chance.randrange(len(lines))] = chance.choice(contents)
        return b"\n".join(lines) + b"\n"

    return _bytes(damaged)


ANY: Final[dict[str, Damage]] = {
    "empty": _bytes(lambda content, chance: b""),
    "a folder": _folder,
    "a dangling link": _dangling,
    "truncated": _bytes(_truncated),
    "a bit flipped": _bytes(_flipped),
    "noise": _bytes(lambda content, chance: chance.randbytes(len(content))),
    "NUL bytes": _bytes(lambda content, chance: bytes(len(content))),
    "a pickle": _pickle,
}
_JSON: Final[dict[str, Damage]] = {
    "nesting": _bytes(lambda content, chance: b'{"a":' + b"[" * _DEEP + b"]" * _DEEP + b"}\n"),
    "a list": _bytes(lambda content, chance: b"[1, 2]\n"),
    "not finite": _put(float("nan"), float("inf")),
    "a number without end": _bytes(lambda content, chance: b'{"version": 1' + b"0" * 5000 + b"}\n"),
    "another version": _edit(lambda value, chance: value.update(version=chance.choice((0, 2, "1", None, 1.5, [1])))),
    "a key missing": _edit(lambda value, chance: value.pop(chance.choice(list(value)))),
    "a key more": _edit(lambda value, chance: value.update(nothing=1)),
    "another type": _put(None, "x", -1, [], {}, True, [[]], 1e308, 10**400, "__import__('os').mkdir('code-was-run')"),
}
DAMAGES: Final[dict[Kind, dict[str, Damage]]] = {
    "weights": {
        **ANY,
        "not finite": _becomes(_not_finite),
        "another shape": _becomes(lambda t, _: torch.zeros(*t.shape, 2)),
        "no entries": _becomes(lambda t, _: torch.zeros(0)),
        "another dtype": _becomes(lambda t, chance: t.to(chance.choice((torch.int32, torch.int64, torch.bool)))),
        "another precision": _becomes(lambda t, chance: t.to(chance.choice((torch.float16, torch.bfloat16)))),
        "a tensor missing": _tensors(lambda tensors, name, _: tensors.__delitem__(name)),
        "a pickle alone": _bin_only,
    },
    "json": ANY | _JSON,
    "text": ANY | _JSON,
    "lines": ANY | {name: _JSON[name] for name in ("nesting", "not finite", "a key missing", "another type")},
    "rows": ANY,
    "data": {
        **ANY,
        "bad UTF-8": _line_becomes(b"\xff\xfe||1 #### 1", b'{"question": "\xc3\x28"}'),
        "no separators": _line_becomes(b"1 + 2 = 3", b'{"question": "1"}', b"1||2", b"1 #### 2"),
        "an empty line": _line_becomes(b"", b"   "),
        "a million characters": _line_becomes(b"1" * 1_000_001, b'{"question": "' + b"1" * 1_000_000 + b'"}'),
        "a NUL": _line_becomes(b"1\0||2 #### 3", b'{"question": "\\u0000", "steps": [], "answer": "1"}'),
        "nesting": _line_becomes(b"[" * 2 * _DEEP, b'{"question":' * 800_000),
        "CRLF and BOM": _bytes(lambda content, chance: b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n")),
    },
}
