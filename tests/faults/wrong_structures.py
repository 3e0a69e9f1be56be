"""Files that are what they should be but for one thing: of every kind that we read, found by walking the folders of real runs.

JSON, lines of JSON, headers of safetensors, columns of Parquet and lines of text. A command that reads such a file takes it
or refuses it in one line that names it, within its time, with nothing changed and no status that means something else.
"""

import json
import random
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

import polars as pl
from safetensors.torch import load

from internalize.commands import cli
from internalize.lm.data.readers import read_examples, write_examples
from tests.faults.child_process import Child
from tests.faults.foreign_folders import Subject, subjects, tree
from tests.faults.harness import LIMIT, Outcome, complaints, outcome
from tests.faults.sandbox import PAGE_RESULTS
from tests.gguf_models import tiny_gguf
from tests.lm_runs import forget_digests

# JSON

_DEEP: Final = "nested too deep"
"""Stands for a hundred thousand lists, which no encoder writes."""
_VALUES: Final[Sequence[Any]] = (
    *(
        None,
        True,
        False,
        0,
        1,
        2,
        -1,
        0.5,
        -0.0,
        1e308,
        5e-324,
        10**7,
        2**31,
        2**63,
        10**30,
        float("nan"),
        float("inf"),
    ),
    *(
        "",
        "x",
        "1",
        "\ud800",
        "\0",
        "\x1b[31mred",
        "a\nb",
        "$\\frac{$",
        "<script>",
        "../..",
        "x" * 1_000_000,
        "[" * 10_000,
    ),
    *([], {}, [[]], [None], ["x"], [0] * 100_000, {"": {}}, {"version": 1}, _DEEP),
)
_KEYS: Final = ("", "x", "version", "\ud800", "\x1b[31m", "$\\frac{$", "path", "finished", "a\nb", "n")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in a document; of long lists only of the first and the last."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    keys = [key for key, _ in items]
    for key in keys if isinstance(value, dict) else dict.fromkeys(keys[:1] + keys[-1:]):
        yield from _places(value[key], (*path, key))


def other(document: Any, chance: random.Random) -> tuple[Any, str]:
    """The document with one thing changed, and what that is."""
    whole = [json.loads(json.dumps(document))]
    path = (0, *chance.choice(list(_places(document))))
    holder = whole
    for key in path[:-1]:
        holder = holder[key]
    key = path[-1]
    value, where = holder[key], ".".join(map(str, path[1:])) or "all of it"
    match chance.randrange(8):
        case 0 if isinstance(holder, dict):
            del holder[key]
            how = "is missing"
        case 1 if isinstance(holder, dict):
            new = chance.choice(_KEYS)
            holder[new] = holder.pop(key)
            how = f"is called {new!r}"
        case 2 if isinstance(value, dict):
            value[chance.choice(_KEYS)] = chance.choice(_VALUES)
            how = "has one key more"
        case 2 | 3 if isinstance(value, list) and value:
            holder[key] = value * 1000
            how = "is a thousand times as long"
        case 4 if isinstance(value, int | float) and not isinstance(value, bool):
            holder[key] = chance.choice((-value, value + 1, value * 10**6, str(value), float(value)))
            how = f"is {holder[key]!r}"
        case _:
            holder[key] = chance.choice(_VALUES)
            how = f"is {repr(holder[key])[:40]}"
    return whole[0], f"{where} {how}"


def _text(document: Any) -> str:
    return json.dumps(document).replace(json.dumps(_DEEP), "[" * 100_000 + "]" * 100_000)


def _json(path: Path, chance: random.Random) -> str:
    document = json.loads(path.read_text())
    if path.name == "tokenizer.json" and chance.random() < 0.25:
        bomb = {"type": "Replace", "pattern": chance.choice(({"Regex": "."}, {"String": ""})), "content": "1" * 10_000}
        size = chance.randrange(1, 5)
        document["normalizer"] = {"type": "Sequence", "normalizers": [bomb] * size}
        changed, how = document, f"normalizer is {size} bombs of {bomb['pattern']}"
    else:
        changed, how = other(document, chance)
    path.write_text(_text(changed))
    return how


def _lines(path: Path, chance: random.Random) -> str:
    *lines, rest = path.read_text().split("\n")  # what a killed process was writing stays
    number = chance.randrange(len(lines) or 1)
    changed, how = other(json.loads(lines[number]) if lines else {}, chance)
    lines[number : number + 1] = [_text(changed)]
    path.write_text("\n".join([*lines, rest]))
    return f"line {number + 1}: {how}"


def _header(path: Path, chance: random.Random) -> str:
    """The header of safetensors, which is JSON."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    if chance.random() < 0.3:
        entry = header[chance.choice(sorted(header.keys() - {"__metadata__"}))]
        key = chance.choice(sorted(entry))
        entry[key] = chance.choice(_HEADER_VALUES[key])
        changed, how = header, f"{key} is {entry[key]!r}"
    else:
        changed, how = other(header, chance)
    new = _text(changed).encode()
    path.write_bytes(struct.pack("<Q", len(new)) + new + content[8 + size :])
    return how


_HEADER_VALUES: Final[dict[str, Sequence[Any]]] = {
    "dtype": ("F8_E4M3", "F8_E5M2", "F4", "BOOL", "I64", "C64", "F64", "BF16", "U8", "f32", ""),
    "shape": ([], [0], [-1], [1] * 100, [2**62, 4], [2**31, 2**31, 2**31]),
    "data_offsets": ([0, 0], [0, 2**62], [8, 4], [-1, 1], [0], []),
}


# Text


def _line_of_text(path: Path, chance: random.Random) -> str:
    """Something in a line is repeated, as whoever wants to be slow to read would."""
    lines = path.read_text().splitlines()
    number = chance.randrange(len(lines))
    what, count = (
        chance.choice(("<<", ">>", "||", "####", " ", "<<>>", "1", "<< ||", "\x1b[31m")),
        10 ** chance.randrange(1, 6),
    )
    at = chance.randrange(len(lines[number]) + 1)
    lines[number] = lines[number][:at] + what * count + lines[number][at:]
    path.write_text("\n".join(lines) + "\n")
    return f"line {number + 1} has {count} times {what!r} at {at}"


# Parquet


def _table(path: Path, chance: random.Random) -> str:
    table = pl.read_parquet(path)
    column, new = chance.choice(table.columns), chance.choice([key for key in _KEYS if "\ud800" not in key])
    name = chance.choice(sorted(_TABLES))
    _TABLES[name](table, column, new).write_parquet(path)
    if name == "its rows" and chance.random() < 0.5:
        other_name = chance.choice(("part-x", "part--1", "part-" + "9" * 30, "part-0", "part- 1", "Part-000000", "x"))
        path.rename(path.with_stem(other_name))
        return f"is called {other_name}"
    return f"{column}: {name} {new!r}"


def _becomes(change: Callable[[pl.Expr], pl.Expr]) -> Callable[[pl.DataFrame, str, str], pl.DataFrame]:
    return lambda table, column, new: table.with_columns(change(pl.col(column).cast(pl.String)).alias(column))


_TABLES: Final[dict[str, Callable[[pl.DataFrame, str, str], pl.DataFrame]]] = {
    "its rows": lambda table, column, new: table,
    "missing": lambda table, column, new: table.drop(column),
    "called": lambda table, column, new: table.rename({column: new}) if new not in table.columns else table,
    "one more": lambda table, column, new: table.with_columns(pl.lit(1).alias(new)),
    "nulls": _becomes(lambda one: pl.lit(None).cast(pl.String)),
    "of no type": lambda table, column, new: table.with_columns(pl.lit(None).alias(column)),
    "some nulls": _becomes(lambda one: pl.when(pl.int_range(pl.len()) % 2 == 0).then(one)),
    "text": _becomes(lambda one: one),
    "empty text": _becomes(lambda one: pl.lit("")),
    "odd text": _becomes(lambda one: one + pl.lit("\x1b[31m $\\frac{$ \n")),
    "lists": _becomes(lambda one: pl.concat_list(one)),
    "structures": _becomes(lambda one: pl.struct(one)),
    "bytes": _becomes(lambda one: one.cast(pl.Binary)),
    "categories": _becomes(lambda one: one.cast(pl.Categorical)),
    "dates": _becomes(lambda one: pl.lit(date(2020, 1, 1))),
    "not finite": _becomes(lambda one: pl.lit(float("nan"))),
    "huge": _becomes(lambda one: pl.lit(2**63, dtype=pl.UInt64)),
    "truth": _becomes(lambda one: pl.lit(True)),
    "decimals": _becomes(lambda one: pl.lit(1).cast(pl.Decimal(10, 2))),
    "no rows": lambda table, column, new: table.clear(),
    "no columns": lambda table, column, new: pl.DataFrame(),
    "twice": lambda table, column, new: pl.concat([table, table]),
    "very often": lambda table, column, new: table.select(pl.all().gather(pl.lit(0).repeat_by(20_000_000).explode())),
}


# All of them

_CHANGES: Final[dict[str, Callable[[Path, random.Random], str]]] = {
    ".json": _json,
    ".jsonl": _lines,
    ".safetensors": _header,
    ".parquet": _table,
    ".txt": _line_of_text,
}


def change_structures(kind: str, count: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Change one thing in a file, ``count`` times, and let a command read it."""
    chance = random.Random(f"structures {kind} {seed}")
    for number, subject in enumerate(subjects(kind, count, chance, folder)):
        if also := _ALSO.get(subject.command.name):
            subject.makers |= also
        state, out, files = _copied_with_files(subject, number, chance)
        path = chance.choice(files)
        how = _CHANGES[path.suffix](path, chance)
        argv = [*chance.choice(subject.asked), *chance.choice(([], ["--json"]))]
        before = _unlocked(out)
        ended, wrong = subject.ask([word.replace("FILE", str(path)) for word in argv], out, path.name, path.parent.name)
        if ended.status == cli.WRONG and not subject.command.several and _unlocked(out) != before:
            wrong.append("refused, and something was changed")
        asked = f"{state} in {out}, {path.relative_to(out)}: {how}; then `{' '.join(argv)}`"
        yield outcome(f"wrong structures: {kind}", asked, wrong, out)


def _copied_with_files(subject: Subject, number: int, chance: random.Random) -> tuple[str, Path, list[Path]]:
    """Return a state of the subject, its copy and the files in it. A run that was killed early may have none yet."""
    for state in chance.sample(sorted(subject.makers), len(subject.makers)):
        out = subject.copied(state, number)
        if files := sorted(path for path in out.rglob("*") if path.suffix in _CHANGES and path.is_file()):
            return state, out, files
    raise AssertionError(f"no state of {subject.command.name} has files to change")


def _unlocked(out: Path) -> dict[Path, str]:
    return {path: known for path, known in tree(out).items() if not path.name.endswith(".lock")}


def _sharded(out: Path) -> None:
    """A model whose weights are in several files."""
    model = out / "model"
    weights, index = model / "model.safetensors", model / "model.safetensors.index.json"
    names = dict.fromkeys(load(weights.read_bytes()), "model-00001-of-00001.safetensors")
    weights.rename(model / "model-00001-of-00001.safetensors")
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": names}))
    forget_digests(model)


def _with_results(out: Path) -> None:
    """A report with the results of --full."""
    for path, kept in PAGE_RESULTS.items():
        (out / path).parent.mkdir(parents=True)
        shutil.copy(kept, out / path)


def _as_text(out: Path) -> None:
    """Examples in lines of text."""
    write_examples(out / "examples.txt", read_examples(out / "examples.jsonl"), keep_steps=False)
    (out / "examples.jsonl").unlink()


_ALSO: Final[dict[str, dict[str, Callable[[Path], None]]]] = {
    "lm train": {"sharded": _sharded},
    "paper": {"with results": _with_results},
    "lm data": {"as text": _as_text},
}
"""What we read although no command of ours leaves it."""


# GGUF, which no command of ours writes

_GGUF_READERS: Final = (
    "lm plan --data parity:n=10,k=4 --steps 8 --eval-examples 2 --test-examples 2",
    "lm train --data parity:n=10,k=4 --batch 4 --steps 1 --eval-examples 2 --test-examples 2",
)
_GGUF_NUMBERS: Final = (
    0,
    1,
    2,
    3,
    8,
    9,
    10,
    13,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**62,
    2**63,
    2**64 - 1,
)
_GGUF_KEYS: Final = (
    *(b"block_count", b"context_length", b"embedding_length", b"feed_forward_length", b"head_count", b"head_count_kv"),
    *(b"vocab_size", b"dimension_count", b"layer_norm_rms_epsilon", b"bos_token_id", b"eos_token_id", b".tokens"),
)


def _gguf(whole: bytes, chance: random.Random) -> tuple[bytes, str]:
    """Change the header: a number of the config, a byte, a number, or bytes that are missing or too many."""
    changed, at = bytearray(whole), chance.randrange(whole.index(b"output_norm"))
    number = chance.choice(_GGUF_NUMBERS)
    match chance.randrange(5):
        case 0:
            key = chance.choice(_GGUF_KEYS)
            at = whole.index(key) + len(key) + 4
            changed[at : at + 4] = struct.pack("<I", number % 2**32)
            return bytes(changed), f"{key.decode()} is {number % 2**32}"
        case 1:
            changed[at] = chance.randrange(256)
            return bytes(changed), f"byte {at} is {changed[at]}"
        case 2:
            size = chance.choice((4, 8))
            changed[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
            return bytes(changed), f"the {size} bytes at {at} are {number % 2 ** (8 * size)}"
        case 3:
            size = chance.randrange(1, 40)
            del changed[at : at + size]
            return bytes(changed), f"{size} bytes at {at} are missing"
        case _:
            more = chance.choice((b"\0" * 8, b"\xff" * 8, b"\x1b[31m", b"\xed\xa0\x80", b"x" * 1000))
            changed[at:at] = more
            return bytes(changed), f"{more[:8]!r} is inserted at {at}"


def change_gguf(count: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Change the header of a GGUF file, ``count`` times, and let a command read it."""
    chance = random.Random(f"gguf {seed}")
    folder.mkdir(parents=True, exist_ok=True)
    whole = tiny_gguf(folder / "whole.gguf").read_bytes()
    for number in range(count):
        out = folder / f"changed-{number}"
        out.mkdir()
        content, how = _gguf(whole, chance)
        (out / "model.gguf").write_bytes(content)
        argv = [*chance.choice(_GGUF_READERS).split(), "--model", str(out / "model.gguf"), "--out", str(out / "new")]
        argv += chance.choice(([], ["--json"]))
        ended = Child(argv, out).wait(2 * LIMIT)
        wrong = complaints(argv, ended.answer, "model.gguf", out.name, "the loss is nan")  # weights read from elsewhere
        yield outcome("wrong structures: GGUF files", f"{how} in {out}; then `{' '.join(argv)}`", wrong, out)
