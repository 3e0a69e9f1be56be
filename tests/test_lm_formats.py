"""Data files as others write them: arrays, tables, data sets, chat messages; each bad item is named by its place."""

import json
import os
import re
from pathlib import Path
from typing import Any

import datasets
import polars as pl
import pytest

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.readers import from_dataset, read_examples, scan
from internalize.lm.data.rows import MAX_LINE
from internalize.lm.data.source import digests_of, open_source
from internalize.lm.options import LmTrainOptions
from tests.asking import ask, call, refused

ROWS: list[dict[str, Any]] = [
    {
        "question": f"Is Tom a {name}?",
        "steps": ["Tom is a terpus.", "Every terpus is a b."],
        "answer": "Yes",
        "edges": [[0]],
    }
    for name in ("lempus", "wumpus", "yumpus", "rorpus")
]
EXAMPLES = [Example(row["question"], tuple(row["steps"]), row["answer"]) for row in ROWS]


def reasons(path: Path | str) -> dict[int, str]:
    """Return the reasons of the bad items by their numbers."""
    return {problem.line: problem.reason for problem in scan(path).problems}


# JSON arrays


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("start", ["", "\ufeff", " \n\t"])
def test_an_array_is_read_item_by_item(tmp_path: Path, indent: int | None, start: str):
    path = tmp_path / "some.json"
    path.write_text(start + json.dumps(ROWS, indent=indent, ensure_ascii=False) + "\n")
    assert read_examples(path) == EXAMPLES
    assert [example.place and str(example.place) for example in read_examples(path)] == [
        f"item {number} of {path}" for number in (1, 2, 3, 4)
    ]
    path.write_text("[]")
    with pytest.raises(InputError, match="is empty"):
        read_examples(path)


GOOD = json.dumps(ROWS[0])
DAMAGED = {
    "no quote": (GOOD.replace('"Yes"', '"Yes'), "not JSON: "),
    "no brace": (GOOD.removesuffix("}"), "not JSON: "),
    "no key": (GOOD.replace('"question"', '"query"'), "missing required field `question`"),
    "a closing bracket too many": (GOOD.replace('b."]', 'b."]]'), "not JSON: "),
    "one word": ("null", "expected `object`, got `null`"),
    "no steps": (GOOD.replace('"steps"', '"step"'), "no 'steps'"),
    "an empty answer": (GOOD.replace('"Yes"', '" "'), "the answer is empty"),
    "not UTF-8": (GOOD.replace("Yes", "\udce9"), "not UTF-8"),
    "deep": ("[" * 100_000, "maximum recursion depth"),
    "nothing": ("", "not JSON: "),
    "long": (GOOD.replace("Yes", "a" * 2 * MAX_LINE), f"longer than {MAX_LINE} bytes"),
    "longer": (GOOD.replace("Yes", "a" * 9 * MAX_LINE), f"longer than {MAX_LINE} bytes"),
}


@pytest.mark.parametrize("case", DAMAGED)
@pytest.mark.parametrize("place", [1, 3, 4])
def test_a_damaged_item_is_named_and_the_others_are_read(tmp_path: Path, case: str, place: int):
    damaged, reason = DAMAGED[case]
    items = [json.dumps(row) for row in ROWS]
    if case == "no brace":  # the brace is also missing before the end of the array
        items.append(json.dumps(ROWS[0]))
    items[place - 1] = damaged
    path = tmp_path / "some.json"
    path.write_bytes(f"[{', '.join(items)}]".encode(errors="surrogateescape"))
    found = scan(path)
    assert [(problem.line, problem.unit) for problem in found.problems] == [(place, "item")]
    assert reason in found.problems[0].reason
    assert found.examples == [own for i, own in enumerate([*EXAMPLES, EXAMPLES[0]][: len(items)], 1) if i != place]
    with pytest.raises(InputError, match=rf"1 of {len(items)} items are bad: item {place}: "):
        read_examples(path)


@pytest.mark.parametrize(
    ("text", "number", "reason"),
    [
        (f"[{GOOD}", 2, "the array ends without ']'"),
        (f"[{GOOD},", 2, "not JSON: "),
        (f"[{GOOD},]", 2, "not JSON: "),
        (f"[{GOOD}, {GOOD[:40]}", 2, "not JSON: "),
        (f"[{GOOD}] {GOOD}", 2, "text after the ']'"),
        (f"[{GOOD} {GOOD}]", 2, "no comma before the item"),
        ("[", 1, "not JSON: "),
        ("[1, 2]", 1, "expected `object`, got `int`"),
    ],
)
def test_an_array_that_ends_badly(tmp_path: Path, text: str, number: int, reason: str):
    path = tmp_path / "some.json"
    path.write_text(text)
    assert reason in reasons(path)[number]
    assert len(scan(path).examples) == number - 1


def test_an_array_of_many_windows(tmp_path: Path):
    """Items may lie on the borders of the parts that are read."""
    rows = [{"question": f"q{i}" + "x" * (997 * i % 70_001), "steps": [], "answer": str(i)} for i in range(200)]
    path = tmp_path / "some.json"
    path.write_text(json.dumps(rows, indent=1))
    assert path.stat().st_size > 3 * MAX_LINE
    assert [example.answer for example in read_examples(path)] == [str(i) for i in range(200)]
    lines = path.read_text().splitlines()
    wrong = lines.index('  "answer": "150"')
    path.write_text("\n".join([*lines[:wrong], '  "answer": "150', *lines[wrong + 1 :]]))
    found = scan(path)
    assert [problem.line for problem in found.problems] == [151]
    assert len(found.examples) == 199


def test_the_command_names_bad_items_by_their_places(tmp_path: Path):
    """Three damaged items of an array, and a bad line beside a bad item in a folder."""
    items = [json.dumps(row) for row in ROWS * 5]
    items[2], items[9], items[19] = items[2][:-9], items[9].replace('"answer"', '"result"'), "7"
    path = tmp_path / "prosqa.json"
    path.write_text(f"[{', '.join(items)}]")
    found = ask(f"lm data --check {path}", 1)
    assert (found["examples"], found["problems"], found["steps"]) == (17, 3, 34)
    assert [(bad["file"], bad["unit"], bad["line"]) for bad in found["bad"]] == [
        (str(path), "item", n) for n in (3, 10, 20)
    ]
    assert re.match(r"place +reason *\nitem 3 +not JSON: ", call(f"lm data --check {path}", 1).out)
    (tmp_path / "more.txt").write_text("q||s #### a\nq\n")
    shown = call(f"lm data --check {tmp_path}", 1).out
    assert f"item 20 of {path} " in shown
    assert re.search(rf"line 2 of {tmp_path}/more.txt +no '\|\|'", shown)


# Tables


def test_csv(tmp_path: Path):
    path = tmp_path / "some.CSV"
    path.write_bytes(
        b'\xef\xbb\xbfid,question,steps,answer\r\n1,"Ann, 3 + 4?","3 + 4 is 7\nso 7",7\r\n2,q,<<1+1=2>><<2*2=4>>,4\n3,q,a b,c\n'
        b"4,q,,5\n"
    )
    assert read_examples(path) == [
        Example("Ann, 3 + 4?", ("3 + 4 is 7", "so 7"), "7"),
        Example("q", ("<<1+1=2>>", "<<2*2=4>>"), "4"),
        Example("q", ("a", "b"), "c"),
        Example("q", (), "5"),
    ]
    assert [example.place and example.place.number for example in read_examples(path)] == [2, 4, 5, 6]
    path.write_text("answer,question\nsay <<1+1=2>> #### 2,q\n2,q\n")
    assert scan(path).examples == [Example("q", ("<<1+1=2>>",), "2")]
    assert reasons(path) == {3: "no 'steps' (a list of strings)"}


def test_bad_lines_of_csv(tmp_path: Path):
    path = tmp_path / "some.csv"
    lines = [
        b"question,steps,answer",
        b"q,s,1",
        b"q,s",
        b"q,s,1,2",
        b'q,"s"t,1',
        b"",
        b"caf\xe9,s,1",
        b"q,s,",
        b"q,\0,1",
    ]
    path.write_bytes(b"\n".join([*lines, b'q,"s,1', b"q,s," + b"x" * 200_000, b"q,s,3"]))
    found = scan(path)
    assert [example.answer for example in found.examples] == ["1", "3"]
    assert reasons(path) == {
        3: "2 columns, and line 1 names 3",
        4: "4 columns, and line 1 names 3",
        5: "not CSV: ',' expected after '\"'",
        6: "the line is empty",
        7: "not UTF-8",
        8: "the answer is empty",
        9: "the line holds a NUL character",
        10: "not CSV: field larger than field limit (131072)",
    }


@pytest.mark.parametrize("head", ["", "a,b", "question,steps", "question,question,answer", '"question'])
def test_csv_without_the_columns(tmp_path: Path, head: str):
    path = tmp_path / "some.csv"
    path.write_text(f"{head}\nq,s,1\n")
    with pytest.raises(InputError, match=r"some.csv: line 1 (must name the columns|is not CSV)"):
        read_examples(path)


def test_parquet(tmp_path: Path):
    path = tmp_path / "some.parquet"
    pl.DataFrame(ROWS).write_parquet(path)
    assert read_examples(path) == EXAMPLES
    table = {
        "question": ["q", "q", "q", "q"],
        "answer": [18.0, 2.5, None, float("nan")],
        "steps": ["a b", "<<1>>", "c", "d"],
    }
    pl.DataFrame(table).write_parquet(path)
    assert scan(path).examples == [Example("q", ("a", "b"), "18"), Example("q", ("<<1>>",), "2.5")]
    assert reasons(path) == {3: "missing required field `answer`", 4: "answer: nan is not a finite number"}
    pl.DataFrame({"question": ["q"] * 20_000, "answer": ["1 #### 2"] * 20_000}).write_parquet(path)
    assert len(read_examples(path)) == 20_000, "more rows than a part of a sweep may have"
    assert len(read_examples(path, limit=3)) == 3
    pl.DataFrame({"text": ["q"]}).write_parquet(path)
    with pytest.raises(InputError, match="has no columns question, answer, .*, but text"):
        read_examples(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="is damaged"):
        read_examples(path)


def test_a_parquet_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A small file may hold more rows than fit in memory as Python's objects."""
    path = tmp_path / "some.parquet"
    pl.DataFrame(
        {"question": pl.repeat("q", 10**6, eager=True), "answer": pl.repeat("a", 10**6, eager=True)}
    ).write_parquet(path)
    assert path.stat().st_size < 10_000
    monkeypatch.setattr("internalize.environment.os.sysconf", lambda name: 2**14)  # a machine with 256 MiB
    with pytest.raises(InputError, match=r"1000000 rows of .* need about 1 GiB"):
        read_examples(path)


# Data sets


def test_a_data_set_saved_to_disk(tmp_path: Path):
    path = tmp_path / "saved"
    datasets.Dataset.from_list(ROWS).save_to_disk(path)
    for name in (path, f"hf:{path}"):
        assert read_examples(name) == EXAMPLES
        assert read_examples(name, limit=2) == EXAMPLES[:2]
    splits: Any = {"train": datasets.Dataset.from_list(ROWS[:1]), "test": datasets.Dataset.from_list(ROWS[1:])}
    datasets.DatasetDict(splits).save_to_disk(both := tmp_path / "both")
    assert read_examples(both) == read_examples(f"hf:{both}:train") == EXAMPLES[:1]
    assert read_examples(f"hf:{both}:test") == EXAMPLES[1:]
    with pytest.raises(InputError, match="has no split 'dev', only train, test; name one as in hf:NAME:SPLIT"):
        read_examples(f"hf:{both}:dev")
    with pytest.raises(InputError, match="has no split 'dev', only one without a name"):
        read_examples(f"hf:{path}:dev")
    datasets.Dataset.from_list([{"question": "q", "steps": None, "answer": "2"}, ROWS[0]]).save_to_disk(
        bad := tmp_path / "bad"
    )
    with pytest.raises(InputError, match=r"1 of 2 rows are bad: row 1: no 'steps'"):
        read_examples(bad)
    datasets.Dataset.from_list([{"text": "q"}]).save_to_disk(other := tmp_path / "other")
    with pytest.raises(InputError, match="no column is question, .*; its columns are text"):
        read_examples(other)


@pytest.mark.parametrize("damage", ["cut", "empty", "changed", "no state", "wrong state"])
def test_a_damaged_data_set(tmp_path: Path, damage: str):
    datasets.Dataset.from_list(ROWS * 9).save_to_disk(path := tmp_path / "saved")
    arrow, state = path / "data-00000-of-00001.arrow", path / "state.json"
    content = arrow.read_bytes()
    match damage:
        case "cut":
            arrow.write_bytes(content[:-900])
        case "empty":
            arrow.write_bytes(b"")
        case "changed":  # an offset into the texts
            arrow.write_bytes(content.replace((20).to_bytes(4, "little"), (2**31 - 1).to_bytes(4, "little")))
        case "no state":
            (path / "dataset_info.json").unlink()
        case _:
            state.write_text("{}")
    with pytest.raises(InputError, match=f"data set {path} cannot be read: "):
        read_examples(path)


def test_a_folder_of_files(tmp_path: Path):
    """Splits are words in the names; files without such words are all for training."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train-00000-of-00002.jsonl").write_text(json.dumps(ROWS[0]))
    pl.DataFrame(ROWS[1:2]).write_parquet(tmp_path / "data" / "train-00001-of-00002.parquet")
    (tmp_path / "dev.json").write_text(json.dumps(ROWS[2:]))
    (tmp_path / "README.md").write_text("data")
    assert read_examples(tmp_path) == read_examples(f"hf:{tmp_path}:train") == EXAMPLES[:2]
    assert read_examples(f"hf:{tmp_path}:validation") == EXAMPLES[2:]
    assert read_examples(tmp_path, limit=1) == EXAMPLES[:1]
    with pytest.raises(InputError, match="has no split 'test', only train, validation"):
        read_examples(f"hf:{tmp_path}:test")
    (tmp_path / "data" / "train-00000-of-00002.jsonl").write_text("{}\n" + json.dumps(ROWS[0]))
    with pytest.raises(InputError, match=r"1 of 3 lines are bad: .*00002.jsonl: line 1: missing required field"):
        read_examples(tmp_path)
    (tmp_path / "two").mkdir()
    for number in range(2):
        (tmp_path / "two" / f"{number}.txt").write_text("q||a #### b\n")
    assert len(read_examples(tmp_path / "two")) == 2


@pytest.mark.parametrize("name", ["hf:", "hf:./none", "hf:/none:train", "hf:a/b/c", "hf:~/none"])
def test_no_such_folder(name: str):
    with pytest.raises(InputError, match="there is no folder"):
        read_examples(name)


def test_the_hub_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for limit in (None, 3):
        with pytest.raises(InputError, match="data set nobody/nothing cannot be read: "):
            read_examples("hf:nobody/nothing@main:train", limit=limit)


# Rows


def test_numbers_one_string_and_messages():
    chat = [{"role": "user", "content": " 2 + 2? "}, {"role": "assistant", "content": "It is\n 2 * 2 \n#### 4"}]
    found = from_dataset(
        [
            {"question": "q", "steps": [], "answer": 4},
            {"question": "q", "steps": "first this\nthen that", "answer": 10**30},
            {"question": "q", "steps": "first this", "answer": 0.25},
            {"messages": chat, "question": None},
            {"messages": [{"role": "system", "content": "Be kind."}, *chat]},
        ],
        say=(said := list[str]()).append,
    )
    assert found == [
        Example("q", (), "4"),
        Example("q", ("first this", "then that"), str(10**30)),
        Example("q", ("first", "this"), "0.25"),
        *[Example("2 + 2?", ("It is", "2 * 2"), "4")] * 2,
    ]
    assert said == [
        "the dataset: 2 examples without <<…>>, whose lines are the steps",
        "the dataset: 1 system messages left out",
    ]


def test_a_worded_solution_keeps_its_chain(tmp_path: Path):
    """A solution of GSM8K without <<…>> has its lines as steps. Its levels are those of a sequence."""
    path = tmp_path / "train.jsonl"
    equations = {"question": "q", "answer": "so <<1+1=2>>2 and <<2*2=4>>4\n#### 4"}
    worded = {"question": "w", "answer": "Let x be 2.\n\nThen it is 4. \n#### 4"}
    path.write_text("\n".join(map(json.dumps, [*[equations] * 19, worded, {"question": "n", "answer": "#### 4"}])))
    assert read_examples(path)[19:] == [Example("w", ("Let x be 2.", "Then it is 4."), "4"), Example("n", (), "4")]
    found = ask(f"lm data --check {path}")
    assert {key: found[key] for key in ("examples", "without_steps", "from_lines", "levels_from", "levels")} == {
        "examples": 21,
        "without_steps": 1,
        "from_lines": 1,
        "levels_from": "graph",
        "levels": 2,
    }
    shown = call(f"lm data --check {path}").out
    assert re.search(r"examples without <<…>>, whose lines are the steps +1\n", shown)
    assert re.search(r"steps of all chains +40\n", shown)


@pytest.mark.parametrize("name", ["some.txt", "some.jsonl", "some.json", "some.csv", "some.parquet"])
def test_a_git_lfs_pointer(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 12345\n")
    refused(
        f"lm data --check {path}",
        f"{path} is not the data but a Git LFS pointer to it: fetch the file with `git lfs pull`",
    )


# The start of a large file


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("some.jsonl", "\n".join(map(json.dumps, ROWS)) + "\n"),
        ("some.json", json.dumps(ROWS)[:-1] + ","),
        ("some.csv", "question,steps,answer\n" + "q1,s,1\nq2,s,1\nq3,s,1\nq4,s,1\n"),
        ("some.txt", "".join(f"q{i}||s #### 1\n" for i in range(4))),
    ],
)
def test_the_start_of_a_file_is_read_alone(tmp_path: Path, name: str, head: str):
    """The file is larger than any memory; its end is a hole."""
    path = tmp_path / name
    path.write_text(head)
    os.truncate(path, 2**42)
    assert len(read_examples(path, limit=3)) == 3
    assert open_source(str(path), 0, limit=4).size == 3
    options = LmTrainOptions(data=str(path), max_examples=4)
    digest = digests_of(options)
    path.write_text(head.replace("1", "2").replace("Yes", "No"))
    assert digests_of(options).keys() == digest.keys()
    assert digests_of(options) != digest
    os.truncate(path, 2**42)
    with pytest.raises(InputError, match="need about"):
        read_examples(path)
