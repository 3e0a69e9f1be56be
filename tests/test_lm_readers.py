"""Files and data sets of examples are read, refused with reasons and written; the command `lm data`."""

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.readers import as_json, from_dataset, read_examples, scan, text_line, write_examples
from internalize.lm.data.rows import MAX_LINE, split_groups
from internalize.lm.data.source import open_source
from internalize.lm.data.tasks import TASKS, get_task
from tests.asking import ask, call, refused

DUCKS = Example("Janet’s ducks lay 16 eggs.  How much?", ("<<16-3-4=9>>", "<<9*2=18>>"), "18")
GOOD_TEXT = "Janet’s ducks lay 16 eggs.  How much?||<<16-3-4=9>> <<9*2=18>> #### 18"

BAD_TEXT: dict[str, tuple[bytes, str]] = {
    "blank": (b"   ", "the line is empty"),
    "no bars": (b"1 + 1 #### 2", "no '||'"),
    "two bars": (b"a||b||c #### 2", "2 times '||'"),
    "no sharps": (b"a||b c", "no '####'"),
    "two sharps": (b"a||b #### 2 #### 3", "2 times '####'"),
    "wrong order": (b"a #### b || c", "'####' comes before '||'"),
    "no question": (b" ||b #### 2", "the question is empty"),
    "no answer": (b"a||b ####  ", "the answer is empty"),
    "latin": (b"caf\xe9||b #### 2", "not UTF-8 at byte 4"),
    "outside": (b"a||so <<1+1=2>> #### 2", "text outside of <<…>>: 'so'"),
    "unclosed": (b"a||<<1+1=2 #### 2", "text outside of <<…>>: '<<1+1=2'"),
    "nothing inside": (b"a||<<>> #### 2", "an empty <<>>"),
    "NUL": (b"a||b\0c #### 2", "NUL character"),
    "long": (b"a" * (MAX_LINE + 1), f"longer than {MAX_LINE} bytes"),
    "longer": (b"a" * (3 * MAX_LINE), f"longer than {MAX_LINE} bytes"),
}
BAD_JSON: dict[str, tuple[bytes, str]] = {
    "blank": (b"", "the line is empty"),
    "no JSON": (b"a||b #### 2", "not JSON: JSON is malformed"),
    "cut": (b'{"question": "a"', "not JSON"),
    "deep": (b"[" * 100_000, "expected `object`, got `array`"),
    "list": (b'["a", [], "2"]', "expected `object`, got `array`"),
    "null": (b"null", "expected `object`, got `null`"),
    "NaN": (b'{"question": "a", "steps": [], "answer": NaN}', "not JSON: JSON is malformed"),
    "no question": (b'{"steps": [], "answer": "2"}', "missing required field `question`"),
    "no steps": (b'{"question": "a", "answer": "2"}', "no 'steps'"),
    "no answer": (b'{"question": "a", "steps": []}', "missing required field `answer`"),
    "object": (
        b'{"question": "a", "steps": [], "answer": {}}',
        "answer: expected `int | float | str | null`, got `object`",
    ),
    "truth": (
        b'{"question": "a", "steps": [], "answer": true}',
        "answer: expected `int | float | str | null`, got `bool`",
    ),
    "infinite": (b'{"question": "a", "steps": [], "answer": 1e999}', "answer: number out of range"),
    "number": (b'{"question": "a", "steps": 2, "answer": "2"}', "steps: expected `str | array | null`, got `int`"),
    "string": (b'{"question": "a", "steps": "so <<1+1=2>>", "answer": "2"}', "text outside of <<…>>: 'so'"),
    "talk": (b'{"messages": [{"role": "user", "content": "a"}]}', "messages of user; there must be"),
    "turns": (
        json.dumps({"messages": [{"role": role, "content": "#### 2"} for role in ("user", "assistant") * 4]}).encode(),
        "messages of user, assistant, user, assistant, user, …; there",
    ),
    "no talk": (b'{"messages": []}', "messages of no one"),
    "talk without an answer": (
        b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "2"}]}',
        "the assistant's message has no '####'",
    ),
    "parts": (b'{"messages": [{"role": "user", "content": ["a"]}]}', "messages[0].content: expected `str`"),
    "step": (b'{"question": "a", "steps": ["b", 3], "answer": "2"}', "steps[1]: expected `str`, got `int`"),
    "empty step": (b'{"question": "a", "steps": ["b", " "], "answer": "2"}', "a step is empty"),
    "empty answer": (b'{"question": "a", "steps": [], "answer": ""}', "the answer is empty"),
    "few levels": (b'{"question": "a", "steps": ["b", "c"], "answer": "2", "levels": [1]}', "1 levels for 2 steps"),
    "levels": (
        b'{"question": "a", "steps": ["b"], "answer": "2", "levels": 1}',
        "levels: expected `array | null`, got `int`",
    ),
    "float": (
        b'{"question": "a", "steps": ["b"], "answer": "2", "levels": [1.5]}',
        "levels[0]: expected `int`, got `float`",
    ),
    "bool": (
        b'{"question": "a", "steps": ["b"], "answer": "2", "levels": [true]}',
        "levels[0]: expected `int`, got `bool`",
    ),
    "below": (b'{"question": "a", "steps": ["b"], "answer": "2", "levels": [-1]}', "levels[0]: expected `int` >= 0"),
    "NUL": (b'{"question": "a\\u0000", "steps": ["b"], "answer": "2"}', "NUL character"),
    "surrogate": (b'{"question": "\\ud800", "steps": ["b"], "answer": "2"}', "surrogate pair"),
    "latin": (b'{"question": "caf\xe9"}', "not UTF-8 at byte 18"),
    "sharps": (b'{"question": "a", "answer": "b #### 2 #### 3"}', "'####' more than once"),
    "long": (b'{"question": "' + b"a" * MAX_LINE + b'"}', f"longer than {MAX_LINE} bytes"),
}
FORMATS = [("bad.txt", GOOD_TEXT.encode(), BAD_TEXT), ("bad.jsonl", json.dumps(as_json(DUCKS)).encode(), BAD_JSON)]


@pytest.mark.parametrize(("name", "good", "cases"), FORMATS)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_file_with_every_bad_line(
    tmp_path: Path, name: str, good: bytes, cases: dict[str, tuple[bytes, str]], end: bytes
):
    path = tmp_path / name
    lines = [line for bad, _ in cases.values() for line in (good, bad)]
    path.write_bytes(b"\xef\xbb\xbf" + end.join(lines) + end + good)  # the last line has no line end
    contents = scan(path)
    examples, problems = contents.examples, contents.problems
    assert examples == [DUCKS] * (len(cases) + 1)
    assert [problem.line for problem in problems] == list(range(2, 2 * len(cases) + 1, 2))
    for problem, (_, reason) in zip(problems, cases.values(), strict=True):
        assert reason in problem.reason
        assert len(problem.reason) < 300
        assert problem.file == str(path)

    with pytest.raises(InputError) as error:
        read_examples(path)
    message = str(error.value)
    assert message.startswith(f"{path}: {len(cases)} of {2 * len(cases) + 1} lines are bad: line 2: ")
    assert f"({len(cases) - 3} more)" in message
    assert f"`internalize lm data --check {path}` lists them all; --skip-bad leaves them out" in message
    assert "\n" not in message

    said: list[str] = []
    assert read_examples(path, skip_bad=True, say=said.append) == examples
    assert said == [f"{path}: {len(cases)} of {2 * len(cases) + 1} lines are bad and left out"]


def test_a_line_of_exactly_the_limit_is_read(tmp_path: Path):
    path = tmp_path / "long.txt"
    for mark, end in ((b"", b""), (b"", b"\n"), (b"\xef\xbb\xbf", b"\r\n")):
        path.write_bytes(mark + b"a" * (MAX_LINE - 10) + b"||b #### 2" + end)
        (example,) = (contents := scan(path)).examples
        assert contents.problems == []
        assert len(example.question) == MAX_LINE - 10


@pytest.mark.parametrize("name", ["missing.txt", "", "empty.txt", "empty.jsonl"])
def test_no_file_no_examples(tmp_path: Path, name: str):
    if name:
        (tmp_path / "empty.txt").touch()
        (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match=r"cannot read .*: No such file|is a folder without data files|is empty"):
        read_examples(tmp_path / name)
    (tmp_path / "empty.txt").write_text("a\n")
    with pytest.raises(InputError, match="1 of 1 lines are bad: line 1: no '||'"):  # skipping leaves none
        read_examples(tmp_path / "empty.txt", skip_bad=True)


def test_text_steps(tmp_path: Path):
    path = tmp_path / "some.txt"
    path.write_text("a b||1 0  + 2 #### 3\nq|| #### 26\nq||<<1+1=2>><<2 * 2 = 4>> #### 1,000\n")
    assert read_examples(path) == [
        Example("a b", ("1", "0", "+", "2"), "3"),
        Example("q", (), "26"),
        Example("q", ("<<1+1=2>>", "<<2 * 2 = 4>>"), "1,000"),
    ]


class Counted(str):
    """A text that counts the characters that a search reads."""

    read = 0

    def split(self, *how: Any) -> list[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return [Counted(part) for part in super().split(*how)]

    def find(self, wanted: str, start: int = 0) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        found = super().find(wanted, start)
        Counted.read += (found + len(wanted) if found >= 0 else len(self)) - start
        return found


@pytest.mark.parametrize(
    "text",
    [
        "<<" * 40_000,
        "<<" * 40_000 + ">>",
        "<<1>>" * 20_000,
        "<<\n" * 40_000 + ">>",
        "<" * 80_001,
        "<< " * 40_000 + "\n>>",
    ],
)
def test_groups_are_found_in_linear_time(text: str):
    Counted.read = 0
    groups, outside = split_groups(Counted(text))
    assert 0 < Counted.read <= 3 * len(text)
    assert sum(map(len, groups)) + sum(map(len, outside)) + text.count("\n") == len(text)


@settings(max_examples=300)
@given(st.text("<>a\n", max_size=24))
def test_groups_are_those_of_the_pattern(text: str):
    """The pattern itself would need quadratic time for a line of <<."""
    pattern = re.compile("<<.*?>>")
    groups, outside = split_groups(text)
    assert list(groups) == pattern.findall(text)
    assert " ".join(outside).split() == pattern.sub(" ", text).split()


@pytest.mark.parametrize("name", ["fifo", "/dev/zero", "/dev/null"])
def test_pipes_and_devices_are_refused(tmp_path: Path, name: str):
    """A pipe without a writer, or a device without an end, would be read for ever."""
    path = tmp_path / name
    if name == "fifo":
        os.mkfifo(path)
    with pytest.raises(InputError, match=f"{name} is not a file but a broken link or a device"):
        read_examples(path)


GSM8K = {
    "question": "Natalia sold clips to 48 friends.  How many?",
    "answer": "She sold 48/2 = <<48/2=24>>24 clips in May.\nAltogether 48+24 = <<48+24=72>>72 clips.\n#### 1,072",
}


def test_gsm8k_as_published(tmp_path: Path):
    expected = Example(GSM8K["question"], ("<<48/2=24>>", "<<48+24=72>>"), "1,072")
    assert from_dataset([GSM8K]) == [expected]
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({**GSM8K, "id": 3}) + "\n")
    assert read_examples(path) == [expected]


def test_from_a_dataset():
    parity = get_task("parity:n=8,k=4", 0).examples("train", 0, 5)
    rows = [dataclasses.asdict(example) for example in parity]
    assert from_dataset(datasets.Dataset.from_list(rows)) == parity
    assert from_dataset(datasets.Dataset.from_list(rows).with_format("numpy")) == parity
    assert from_dataset(datasets.Dataset.from_list([GSM8K])) == from_dataset([GSM8K])
    text = {"question": DUCKS.question, "steps": "<<16-3-4=9>> <<9*2=18>>", "answer": "18", "levels": None}
    assert from_dataset(datasets.Dataset.from_list([text])) == [DUCKS]


def test_bad_rows_have_numbers():
    rows = [{"question": "a", "steps": ("b",), "answer": "2"}, {"question": "a", "steps": None, "answer": "2"}, {}]
    with pytest.raises(InputError, match=r"2 of 3 rows are bad: row 2: no 'steps' .*; row 3: .* field `question`"):
        from_dataset(rows)
    said: list[str] = []
    assert from_dataset(rows, skip_bad=True, say=said.append) == [Example("a", ("b",), "2")]
    assert "2 of 3 rows" in said[0]
    with pytest.raises(InputError, match="is empty"):
        from_dataset([])


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8).filter(
    str.strip
)


@settings(max_examples=30)
@given(st.lists(st.tuples(texts, st.lists(texts, max_size=4), texts, st.booleans()), min_size=1, max_size=4))
def test_json_lines_come_back(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, list[str], str, bool]]):
    path = tmp_path_factory.mktemp("back") / "some.jsonl"
    examples = [Example(q, tuple(s), a, tuple(range(len(s))) if levels else None) for q, s, a, levels in rows]
    write_examples(path, examples)
    assert read_examples(path) == examples


@settings(max_examples=60)
@given(texts, st.lists(texts, max_size=4), texts)
def test_text_comes_back_or_is_refused(tmp_path_factory: pytest.TempPathFactory, q: str, steps: list[str], a: str):
    path = tmp_path_factory.mktemp("back") / "some.txt"
    example = Example(q, tuple(steps), a)
    try:
        write_examples(path, [example])
    except InputError:
        assert not path.exists()
    else:
        assert read_examples(path) == [example]


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        (Example("a||b", (), "2"), "2 times '||'"),
        (Example("a", ("b c",), "2"), "its 1 steps would become 2"),
        (Example("a", ("b",), "2", (1,)), "its levels would be lost"),
        (Example(" a", ("b",), "2"), "the question ' a' would become 'a'"),
        (Example("a\nb", ("b",), "2"), "no line breaks"),
        (Example("a\ud800", ("b",), "2"), "surrogates not allowed"),
        (Example("a" * MAX_LINE, ("b",), "2"), "longer than"),
        (Example("a", ("<<1=1>> so",), "2"), "text outside of <<…>>"),
    ],
)
def test_text_that_would_not_come_back(tmp_path: Path, example: Example, reason: str):
    with pytest.raises(InputError, match="example 2 could not be read back") as error:
        write_examples(tmp_path / "some.txt", [DUCKS, example])
    assert reason in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_published_text_is_written_on_request(tmp_path: Path):
    path = tmp_path / "some.txt"
    examples = get_task("multiply:digits=4", 0).examples("train", 0, 20)
    with pytest.raises(InputError, match="steps would become"):
        write_examples(path, examples)
    write_examples(path, examples, keep_steps=False)
    assert path.read_text().splitlines() == [text_line(example) for example in examples]
    assert [len(example.steps) for example in read_examples(path)] == [46] * 20
    with pytest.raises(InputError, match="cannot write"):
        write_examples(tmp_path / "no" / "folder.jsonl", examples)


# The command `internalize lm data`


def test_command_prints_examples():
    source = open_source("multiply:digits=4", 0)
    lines = [text_line(source.train(position)) for position in range(10)]
    assert call("lm data --data multiply:digits=4").out.splitlines() == lines
    found = ask("lm data --data parity:seed=4 --count 3 --stream validation")
    assert found["data"] == "parity:n=16,k=8,seed=4"
    assert from_dataset(found["examples"]) == open_source("parity", 4, held_out=3).validation


def test_command_writes_and_checks(tmp_path: Path):
    path, text = tmp_path / "test.jsonl", tmp_path / "test.txt"
    assert ask(f"lm data --data parity --count 20 --stream test --out {path}")["count"] == 20
    assert read_examples(path) == open_source("parity", 0).test(20)
    counts = {"examples": 20, "problems": 0, "steps": 120, "longest_chain": 6, "levels": 2}
    assert ask(f"lm data --check {path}") == {
        "file": str(path),
        "levels_from": "given",
        "bad": [],
        **counts,
        **dict.fromkeys(("without_steps", "from_lines", "without_system"), 0),
    }
    assert "text cannot hold levels or steps" in call(f"lm data --data multiply --out {text}").err
    assert len(text.read_text().splitlines()) == 10
    assert "steps of the longest chain  46" in call(f"lm data --check {text}").out


def test_command_lists_every_problem(tmp_path: Path):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"\n".join(line for line, _ in BAD_TEXT.values()))
    shown = call(f"lm data --check {path}", 1).out
    bad = ask(f"lm data --check {path}", 1)["bad"]
    assert [problem["line"] for problem in bad] == list(range(1, len(BAD_TEXT) + 1))
    assert all(problem["reason"] in shown for problem in bad)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "give --data SPEC to write examples, or --check FILE"),
        ("--data parity --check x", "give --data SPEC"),
        ("--check x --count 3", "--out and --count belong to --data"),
        ("--check no-such-file", "cannot read no-such-file"),
        ("--data parity --count 0", "count=0 must be at least 1"),
        ("--data some.txt", "'some.txt' is not a task"),
        ("--data parity --out no/such/folder.txt", "cannot write"),
        ("--data parity --out ''", "--out . is a folder; name a file"),
    ],
)
def test_command_refuses(words: str, said: str):
    refused(f"lm data {words}", said)


def test_help_names_every_task():
    shown = call("lm data --help").out
    assert all(f"{name}:" in shown for name in TASKS)
