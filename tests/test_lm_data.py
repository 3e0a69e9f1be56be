"""Readers, levels, sources of files and `internalize lm data`."""

import dataclasses
import json
from pathlib import Path

import pytest
import tyro
from hypothesis import given, settings
from hypothesis import strategies as st

from internalize.commands.lm_data import LmData
from internalize.errors import InputError
from internalize.lm.example import Example
from internalize.lm.levels import graph_levels, resolve_levels
from internalize.lm.readers import MAX_LINE, from_dataset, json_line, read_examples, scan, text_line, write_examples
from internalize.lm.source import eval_examples, of_examples, open_source
from internalize.lm.tasks import TASKS, get_task

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
    "no JSON": (b"a||b #### 2", "not JSON: Expecting value"),
    "cut": (b'{"question": "a"', "not JSON"),
    "deep": (b"[" * 100_000, "not JSON"),
    "list": (b'["a", [], "2"]', "not a JSON object but a list"),
    "null": (b"null", "not a JSON object but null"),
    "NaN": (b'{"question": "a", "steps": [], "answer": NaN}', "NaN is no number of JSON"),
    "no question": (b'{"steps": [], "answer": "2"}', "no 'question'"),
    "no steps": (b'{"question": "a", "answer": "2"}', "no 'steps'"),
    "no answer": (b'{"question": "a", "steps": []}', "no 'answer'"),
    "number": (b'{"question": "a", "steps": [], "answer": 2}', "'answer' is a number, not a string"),
    "one string": (b'{"question": "a", "steps": "b", "answer": "2"}', "'steps' is a string, not a list"),
    "step": (b'{"question": "a", "steps": ["b", 3], "answer": "2"}', "step 2 is a number"),
    "empty step": (b'{"question": "a", "steps": ["b", " "], "answer": "2"}', "a step is empty"),
    "empty answer": (b'{"question": "a", "steps": [], "answer": ""}', "the answer is empty"),
    "few levels": (b'{"question": "a", "steps": ["b", "c"], "answer": "2", "levels": [1]}', "1 levels for 2 steps"),
    "levels": (b'{"question": "a", "steps": ["b"], "answer": "2", "levels": 1}', "'levels' is a number"),
    "float": (b'{"question": "a", "steps": ["b"], "answer": "2", "levels": [1.5]}', "the level '1.5' is a number"),
    "bool": (
        b'{"question": "a", "steps": ["b"], "answer": "2", "levels": [true]}',
        "the level 'True' is true or false",
    ),
    "below": (b'{"question": "a", "steps": ["b"], "answer": "2", "levels": [-1]}', "the level -1 is below 0"),
    "NUL": (b'{"question": "a\\u0000", "steps": ["b"], "answer": "2"}', "NUL character"),
    "surrogate": (b'{"question": "\\ud800", "steps": ["b"], "answer": "2"}', "half of a surrogate pair"),
    "latin": (b'{"question": "caf\xe9"}', "not UTF-8 at byte 18"),
    "sharps": (b'{"question": "a", "answer": "b #### 2 #### 3"}', "'####' more than once"),
    "long": (b'{"question": "' + b"a" * MAX_LINE + b'"}', f"longer than {MAX_LINE} bytes"),
}
FORMATS = [("bad.txt", GOOD_TEXT.encode(), BAD_TEXT), ("bad.jsonl", json_line(DUCKS).encode(), BAD_JSON)]
CASES = [(name, *case) for name, _, cases in FORMATS for case in cases.values()]


@pytest.mark.parametrize(("name", "line", "reason"), CASES)
def test_each_bad_line_has_its_reason(tmp_path: Path, name: str, line: bytes, reason: str):
    path = tmp_path / name
    path.write_bytes(line + b"\n")
    examples, (problem,) = scan(path)
    assert examples == []
    assert problem.line == 1
    assert problem.file == str(path)
    assert reason in problem.reason
    assert len(problem.reason) < 300


@pytest.mark.parametrize(("name", "good", "cases"), FORMATS)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_file_with_every_bad_line(
    tmp_path: Path, name: str, good: bytes, cases: dict[str, tuple[bytes, str]], end: bytes
):
    path = tmp_path / name
    lines = [line for bad, _ in cases.values() for line in (good, bad)]
    path.write_bytes(b"\xef\xbb\xbf" + end.join(lines) + end + good)  # the last line without its end
    examples, problems = scan(path)
    assert examples == [DUCKS] * (len(cases) + 1)
    assert [problem.line for problem in problems] == list(range(2, 2 * len(cases) + 1, 2))
    for problem, (_, reason) in zip(problems, cases.values(), strict=True):
        assert reason in problem.reason

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
    for end in (b"", b"\n", b"\r\n"):
        path.write_bytes(b"a" * (MAX_LINE - 10) + b"||b #### 2" + end)
        (example,), problems = scan(path)
        assert problems == []
        assert len(example.question) == MAX_LINE - 10


@pytest.mark.parametrize("name", ["missing.txt", "", "empty.txt", "empty.jsonl"])
def test_no_file_no_examples(tmp_path: Path, name: str):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match=r"cannot read .*: (No such file|Is a directory)|is empty"):
        read_examples(tmp_path / name)


def test_only_bad_lines_are_an_error_even_when_skipped(tmp_path: Path):
    path = tmp_path / "bad.txt"
    path.write_text("a\n")
    with pytest.raises(InputError, match="1 of 1 lines are bad: line 1: no '||'"):
        read_examples(path, skip_bad=True)


def test_text_steps(tmp_path: Path):
    path = tmp_path / "some.txt"
    path.write_text("a b||1 0  + 2 #### 3\nq|| #### 26\nq||<<1+1=2>><<2 * 2 = 4>> #### 1,000\n")
    assert read_examples(path) == [
        Example("a b", ("1", "0", "+", "2"), "3"),
        Example("q", (), "26"),
        Example("q", ("<<1+1=2>>", "<<2 * 2 = 4>>"), "1,000"),
    ]


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
    datasets = pytest.importorskip("datasets")
    parity = get_task("parity:n=8,k=4", 0).examples("train", 0, 5)
    rows = [dataclasses.asdict(example) for example in parity]
    assert from_dataset(datasets.Dataset.from_list(rows)) == parity
    assert from_dataset(datasets.Dataset.from_list(rows).with_format("numpy")) == parity
    assert from_dataset(datasets.Dataset.from_list([GSM8K])) == from_dataset([GSM8K])
    text = {"question": DUCKS.question, "steps": "<<16-3-4=9>> <<9*2=18>>", "answer": "18", "levels": None}
    assert from_dataset(datasets.Dataset.from_list([text])) == [DUCKS]


def test_bad_rows_have_numbers():
    rows = [{"question": "a", "steps": ("b",), "answer": "2"}, {"question": "a", "steps": None, "answer": "2"}, {}]
    with pytest.raises(InputError, match=r"2 of 3 rows are bad: row 2: no 'steps' .*; row 3: no 'question'"):
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


@pytest.mark.parametrize(
    ("chain", "levels"),
    [
        ("<<16-3-4=9>> <<9*2=18>>", (1, 2)),
        ("16-3-4=9 9*2=18", (1, 2)),
        ("<<1+1=2>> <<3+3=6>> <<2*6=12>>", (1, 1, 2)),
        ("<<4*4=16.00>> <<16/2=8>> <<8.0+16=24>>", (1, 2, 3)),
        ("<<1+1=2>> <<2+2=4>> <<4-2=2>> <<2*5=10>>", (1, 2, 3, 4)),  # the most recent 2 counts
        ("<<1+1=2>> <<2*2=4>> <<3-1=2>> <<2*5=10>>", (1, 2, 1, 2)),  # and it may be the lower one
        ("<<3-5=-2>> <<-2+10=8>> <<10-2=8>>", (1, 2, 1)),
        ("<<500+500=1,000>> <<1000*$3=$3,000>> <<3,000/2=1500>>", (1, 2, 3)),
        ("<<100*.5=50>> <<50%*10=5>> <<5*(2/3)=10/3>>", (1, 2, 3)),
        ("<<40=40>> <<40+30=70>>", (1, 2)),
        ("<<125=125=125>>", (1,)),
        ("", ()),
        ("<<x=5>>", None),
        ("<<5+4>>", None),
        ("<<5+4=>>", None),
        ("<<1/1=1/0>>", None),
        ("5 + 4", None),
        ("1=" + "9" * 5000, None),
    ],
)
def test_graph_levels(chain: str, levels: tuple[int, ...] | None):
    assert graph_levels(chain.split()) == levels


def test_blanks_in_equations_do_not_matter():
    assert graph_levels(["<< 16 - 3 = 13 >>", "13 * 2 = 26"]) == (1, 2)


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=8))
def test_graph_levels_against_dependencies(uses: list[list[int]]):
    # Step i has a result of its own, 1000 + i, and adds the results of the earlier steps it uses.
    used = [sorted({j for j in js if j < i}) for i, js in enumerate(uses)]
    steps = [f"<<{'+'.join(['7', *(str(1000 + j) for j in js)])}={1000 + i}>>" for i, js in enumerate(used)]
    levels = graph_levels(steps)
    assert levels is not None
    for level, js in zip(levels, used, strict=True):
        assert level == 1 + max((levels[j] for j in js), default=0)

    if steps:
        source, (example,) = resolve_levels([Example("q", tuple(steps), "a")], "auto")
        assert source == "graph"
        assert example.levels == tuple(sorted(levels))
        assert graph_levels(example.steps) == example.levels  # the order of the levels is a valid order


PLAIN, LEVELLED = Example("q", ("b", "c"), "2"), Example("q", ("b", "c", "d"), "2", (2, 1, 2))


def test_auto_takes_the_first_that_there_is():
    assert resolve_levels([LEVELLED], "auto") == ("given", [Example("q", ("c", "b", "d"), "2", (1, 2, 2))])
    assert resolve_levels([DUCKS], "auto") == ("graph", [dataclasses.replace(DUCKS, levels=(1, 2))])
    assert resolve_levels([LEVELLED, PLAIN], "auto") == ("steps", [dataclasses.replace(LEVELLED, levels=None), PLAIN])
    assert resolve_levels([DUCKS, PLAIN], "auto") == ("steps", [DUCKS, PLAIN])
    assert resolve_levels([Example("q", ("b",), "2")], "auto")[0] == "tokens"
    assert resolve_levels([Example("q", (), "2")], "auto")[0] == "tokens"
    assert resolve_levels([LEVELLED], "tokens") == ("tokens", [dataclasses.replace(LEVELLED, levels=None)])


def test_levels_that_are_not_there():
    with pytest.raises(InputError, match=r"example 2 \('q'\) has none"):
        resolve_levels([LEVELLED, PLAIN], "given")
    with pytest.raises(InputError, match="step 'b' of example 2 is no equation"):
        resolve_levels([DUCKS, PLAIN], "graph")
    with pytest.raises(InputError, match="levels='tree' is not one of auto, given"):
        resolve_levels([DUCKS], "tree")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="no examples"):
        resolve_levels([], "auto")
    assert resolve_levels([], "graph") == ("graph", [])


def numbered(path: Path, count: int, questions: int | None = None) -> Path:
    """A file of so many examples, whose questions repeat after so many."""
    write_examples(path, [Example(f"q{i % (questions or count)}", (f"s{i}",), f"a{i}") for i in range(count)])
    return path


def test_each_epoch_is_another_order_of_everything(tmp_path: Path):
    path = str(numbered(tmp_path / "some.txt", 50))
    source = open_source(path, 3, held_out=5)
    assert source.size == 45
    assert len(source.validation) == 5
    assert source.spec == path
    epochs = [[source.train(45 * epoch + i) for i in range(45)] for epoch in range(3)]
    every = set(read_examples(path)) - set(source.validation)
    for epoch in epochs:
        assert set(epoch) == every
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    again = open_source(path, 3, held_out=5)
    assert again.validation == source.validation == source.test() == source.test(100)
    assert source.test(2) == source.validation[:2]
    assert [again.train(position) for position in (130, 7, 60)] == [epochs[2][40], epochs[0][7], epochs[1][15]]
    other = open_source(path, 4, held_out=5)
    assert other.validation != source.validation
    assert len(source.training_sample(10)) == 10
    assert set(source.training_sample(1000)) == every
    with pytest.raises(InputError, match="position=-1 is below 0"):
        source.train(-1)


def test_copies_of_held_out_questions_do_not_train(tmp_path: Path):
    said: list[str] = []
    source = open_source(str(numbered(tmp_path / "some.txt", 60, questions=20)), 0, held_out=3, say=said.append)
    held = {example.question for example in source.validation}
    assert source.size is not None
    assert not held & {source.train(position).question for position in range(source.size)}
    copies = 60 - 3 - source.size
    assert copies == 3 * len(held) - 3
    assert said == [f"{source.spec}: {copies} examples are left out of training because their questions are held out"]


def test_a_validation_file_is_held_out(tmp_path: Path):
    data, held = numbered(tmp_path / "some.txt", 30), numbered(tmp_path / "held.txt", 10)
    said: list[str] = []
    source = open_source(str(data), 0, validation=str(held), held_out=4, say=said.append)
    assert source.validation == read_examples(held)[:4]
    assert source.test() == read_examples(held)[4:]
    assert source.size == 20
    assert "10 examples are left out" in said[0]
    with pytest.raises(InputError, match="all of its 10 examples have held-out questions"):
        open_source(str(held), 0, validation=str(data))


def test_a_validation_file_is_held_out_of_a_task(tmp_path: Path):
    task = get_task("parity:n=8,k=4", 0)
    held = task.examples("train", 0, 40)
    write_examples(tmp_path / "held.jsonl", held)
    source = open_source(task.spec, 0, validation=str(tmp_path / "held.jsonl"))
    assert source.validation == held
    assert not {e.question for e in held} & {source.train(position).question for position in range(400)}


def test_no_more_than_a_tenth_is_held_out(tmp_path: Path):
    said: list[str] = []
    source = open_source(str(numbered(tmp_path / "some.txt", 30)), 0, say=said.append)
    assert len(source.validation) == 3
    assert "3 of its 30 examples are held out for validation, not 512" in said[0]
    assert source.test() == source.validation
    assert open_source(source.spec, 0, held_out=0).size == 30
    both = open_source(source.spec, 0, tested=2)
    assert (len(both.validation), len(both.test()), both.size) == (3, 2, 25)
    assert not set(both.validation) & set(both.test())


def test_examples_at_hand_are_as_a_file(tmp_path: Path):
    path = numbered(tmp_path / "some.txt", 30)
    examples = read_examples(path)
    at_hand, of_file = of_examples(examples, 3, held_out=2), open_source(str(path), 3, held_out=2)
    assert at_hand.validation == of_file.validation
    assert [at_hand.train(i) for i in range(60)] == [of_file.train(i) for i in range(60)]
    assert of_examples(examples, 3, validation=examples[:4]).size == 26
    assert of_examples(examples, 3, validation=[]).validation == []
    with pytest.raises(InputError, match="there are none"):
        of_examples([], 3)
    with pytest.raises(InputError, match="held_out=-1"):
        of_examples(examples, 3, held_out=-1)


def test_what_to_evaluate_on(tmp_path: Path):
    path = numbered(tmp_path / "some.txt", 30)
    assert eval_examples(str(path), 0, 7) == read_examples(path)
    assert eval_examples("parity", 2, 7) == open_source("parity", 2).test(7)
    for data in ("party:n=3", str(tmp_path / "none.txt"), "a" * 5000):
        with pytest.raises(InputError, match=r"neither a file nor a task; the tasks are parity:n|cannot read"):
            open_source(data, 0)
    with pytest.raises(InputError, match="held_out=-1"):
        open_source("parity", 0, held_out=-1)
    with pytest.raises(InputError, match="say how many"):
        open_source("parity", 0).test()


def run(*argv: str) -> int:
    return tyro.cli(LmData, args=argv)()


def test_command_prints_examples(capsys: pytest.CaptureFixture[str]):
    assert run("--data", "multiply:digits=4") == 0
    lines = capsys.readouterr().out.splitlines()
    source = open_source("multiply:digits=4", 0)
    assert lines == [text_line(source.train(position)) for position in range(10)]
    assert run("--data", "parity:seed=4", "--count", "3", "--stream", "validation", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["data"] == "parity:n=16,k=8,seed=4"
    assert from_dataset(found["examples"]) == open_source("parity", 4, held_out=3).validation


def test_command_writes_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "test.jsonl"
    assert run("--data", "parity", "--count", "20", "--stream", "test", "--out", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["count"] == 20
    assert read_examples(path) == open_source("parity", 0).test(20)
    assert run("--check", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "file": str(path),
        "examples": 20,
        "problems": 0,
        "steps": 120,
        "longest_chain": 6,
        "levels_from": "given",
        "levels": 2,
        "bad": [],
    }
    text = tmp_path / "test.txt"
    assert run("--data", "multiply", "--out", str(text)) == 0
    assert "text keeps neither levels nor steps" in capsys.readouterr().err
    assert len(text.read_text().splitlines()) == 10
    assert run("--check", str(text)) == 0
    assert "steps of the longest chain  46" in capsys.readouterr().out


def test_command_lists_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"\n".join(line for line, _ in BAD_TEXT.values()))
    assert run("--check", str(path)) == 1
    shown = capsys.readouterr().out
    assert run("--check", str(path), "--json") == 1
    bad = json.loads(capsys.readouterr().out)["bad"]
    assert [problem["line"] for problem in bad] == list(range(1, len(BAD_TEXT) + 1))
    assert all(problem["reason"] in shown for problem in bad)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "give --data SPEC to write examples, or --check FILE"),
        (["--data", "parity", "--check", "x"], "give --data SPEC"),
        (["--check", "x", "--count", "3"], "--out and --count belong to --data"),
        (["--check", "no-such-file"], "cannot read no-such-file"),
        (["--data", "parity", "--count", "0"], "count=0 must be at least 1"),
        (["--data", "some.txt"], "'some.txt' is no task"),
        (["--data", "parity", "--out", "no/such/folder.txt"], "cannot write"),
    ],
)
def test_command_refuses(argv: list[str], said: str):
    with pytest.raises(InputError, match=said):
        run(*argv)


def test_help_names_every_task(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        run("--help")
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for name in TASKS:
        assert f"{name}:" in " ".join(shown)
    assert "$ internalize lm data --check test.jsonl" in shown
