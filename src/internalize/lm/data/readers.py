"""Examples from files and datasets, and back: every bad line is named with its reason, and none is dropped in silence.

Two formats, told apart by the file's name:

- `.jsonl`, `.json`: one JSON object a line, with `question`, `steps` (a list of strings), `answer` and, if known, `levels`
  (one whole number a step). Other keys are allowed. An object without `steps` whose `answer` holds `####` is GSM8K as
  published: the `<<…>>` groups before `####` are the steps.
- anything else: text as in Deng et al., `question||steps #### answer`. The steps are the `<<…>>` groups if there are any,
  and else the words between blanks. A chain may be empty.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Final, NotRequired, TypedDict, TypeVar

import msgspec

from internalize.environment import check_memory
from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.storage.files import explain, present, reading, write_atomically

Say = Callable[[str], None]
"""Callback that receives one line a user should know."""
MAX_LINE: Final = 1_000_000
"""Bytes of a line beyond which it is no example but a mistake."""
_JSON_SUFFIXES: Final = (".jsonl", ".json")
_NAMED: Final = 3
T = TypeVar("T")


class _Row(TypedDict):
    question: str
    answer: str
    levels: NotRequired[list[Annotated[int, msgspec.Meta(ge=0)]] | None]


class _JsonRow(_Row):
    """The JSON object of an example."""

    steps: NotRequired[list[str] | None]


class _DatasetRow(_Row):
    """The row of a data set, which may have its chain in one string."""

    steps: NotRequired[list[str] | str | None]


_KEYS: Final = ("question", "answer", "levels", "steps")
_DECODER: Final = msgspec.json.Decoder(_JsonRow)


@dataclass(frozen=True)
class Problem:
    """A line that is no example, and why. Lines (and the rows of a dataset) count from 1."""

    file: str
    line: int
    reason: str


def scan(path: Path | str) -> tuple[list[Example], list[Problem]]:
    """All examples of a file and all lines that are none."""
    path = Path(path)
    parse = _parser(path)
    with reading(path):
        if present(path):  # neither a pipe nor a device, which may have no end
            check_memory(size := path.stat().st_size, f"{path} of {size} bytes")
    with reading(path), path.open("rb") as file:
        return _scan(_lines(file), lambda line: parse(_text(line)), str(path))


def read_examples(path: Path | str, *, skip_bad: bool = False, say: Say = lambda line: None) -> list[Example]:
    """The examples of a file. Bad lines are an error, or with `skip_bad` are left out and counted through `say`."""
    hint = f"`internalize lm data --check {path}` lists them all"
    return _without_bad(*scan(path), str(path), "line", hint, skip_bad=skip_bad, say=say)


def from_dataset(rows: Iterable[Any], *, skip_bad: bool = False, say: Say = lambda line: None) -> list[Example]:
    """The examples of a `datasets.Dataset` or of any mappings with the keys of a JSON line.

    `steps` may also be one string, in the format of a text chain. A value None is as good as no value.
    """

    def parse(row: Any) -> Example:
        plain = {key: _plain(value) for key, value in row.items() if key in _KEYS}
        try:
            return _from_row(msgspec.convert(plain, _DatasetRow))
        except msgspec.ValidationError as error:
            raise InputError(explain(error)) from None

    name = "the dataset"
    return _without_bad(*_scan(rows, parse, name), name, "row", "", skip_bad=skip_bad, say=say)


def write_examples(path: Path | str, examples: Sequence[Example], *, keep_steps: bool = True) -> None:
    """Write a file that `read_examples` reads back as the same examples, whole or not at all.

    The text format has no levels, and no steps of several words but `<<…>>`: examples with such are refused. With
    `keep_steps=False` they are written all the same, and only question, chain and answer come back as they were.
    """
    path = Path(path)
    parse = _parser(path)
    is_json = path.suffix.lower() in _JSON_SUFFIXES
    lines: list[bytes] = []
    for number, example in enumerate(examples, start=1):
        try:
            line = (json.dumps(as_json(example), ensure_ascii=False) if is_json else text_line(example)).encode()
            _check_same(example, parse(_text(line)), keep_steps=keep_steps or is_json)
            if b"\n" in line or len(line) > MAX_LINE:
                raise InputError(f"a line has no line breaks and at most {MAX_LINE} bytes")
        except (InputError, UnicodeEncodeError) as error:
            raise InputError(f"{path}: example {number} could not be read back: {error}") from None
        lines.append(line + b"\n")
    write_atomically(path.resolve() if path.is_symlink() else path, b"".join(lines))  # a link that the user named


def text_line(example: Example) -> str:
    """An example in the format of Deng et al."""
    return f"{example.question}||{' '.join(example.steps)} #### {example.answer}"


def as_json(example: Example) -> dict[str, Any]:
    """What the JSON object of an example holds."""
    levels = {} if example.levels is None else {"levels": list(example.levels)}
    return {"question": example.question, "steps": list(example.steps), "answer": example.answer, **levels}


def _parser(path: Path) -> Callable[[str], Example]:
    return _from_json if path.suffix.lower() in _JSON_SUFFIXES else _from_text


def _scan(items: Iterable[T], parse: Callable[[T], Example], name: str) -> tuple[list[Example], list[Problem]]:
    examples: list[Example] = []
    problems: list[Problem] = []
    for number, item in enumerate(items, start=1):
        try:
            examples.append(parse(item))
        except InputError as error:
            problems.append(Problem(name, number, str(error)))
    return examples, problems


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file without their ends; of one that is too long, little more than MAX_LINE bytes."""
    mark = b"\xef\xbb\xbf"  # before the first line
    while line := file.readline(MAX_LINE + len(mark) + 2):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE)
        yield line.removeprefix(mark).removesuffix(b"\n").removesuffix(b"\r")
        mark = b""


def _text(line: bytes) -> str:
    if len(line) > MAX_LINE:
        raise InputError(f"the line is longer than {MAX_LINE} bytes")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 at byte {error.start + 1}") from None
    if not text.strip():
        raise InputError("the line is empty")
    return text


def _from_text(line: str) -> Example:
    for mark, where in {"||": "after the question", "####": "before the answer"}.items():
        if (count := line.count(mark)) != 1:
            how = f"no {mark!r}" if not count else f"{count} times {mark!r}"
            raise InputError(f"{how}; a line has one, {where}: question||steps #### answer")
    question, _, rest = line.partition("||")
    chain, found, answer = rest.partition("####")
    if not found:
        raise InputError("'####' comes before '||'; a line is question||steps #### answer")
    return _example(question.strip(), _split_chain(chain), answer.strip(), None)


def _split_chain(chain: str) -> tuple[str, ...]:
    """The steps of a chain in text: its `<<…>>` groups, else its words."""
    if "<<" not in chain and ">>" not in chain:
        return tuple(chain.split())
    groups, rest = split_groups(chain)
    if outside := " ".join(" ".join(rest).split()):
        raise InputError(f"text outside of <<…>>: {short(outside)}; either every step is in <<…>> or none is")
    if any(not group[2:-2].strip() for group in groups):
        raise InputError("an empty <<>> is no step")
    return groups


def split_groups(text: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the `<<…>>` groups of a text, each within one line, and what is outside of them. No character is searched twice."""
    groups: list[str] = []
    outside: list[str] = []
    for line in text.split("\n"):
        end = 0
        while (begin := line.find("<<", end)) >= 0 and (close := line.find(">>", begin)) >= 0:
            outside.append(line[end:begin])
            groups.append(line[begin : (end := close + 2)])
        outside.append(line[end:])
    return tuple(groups), outside


def _from_json(line: str) -> Example:
    try:
        row = _DECODER.decode(line)
    except msgspec.ValidationError as error:
        raise InputError(explain(error)) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from None
    return _from_row(row)


def _from_row(row: _JsonRow | _DatasetRow) -> Example:
    question, answer, steps, levels = row["question"], row["answer"], row.get("steps"), row.get("levels")
    if steps is None and "####" in answer:  # GSM8K as published
        solution, _, answer = answer.rpartition("####")
        if "####" in solution:
            raise InputError("the answer holds '####' more than once")
        return _example(question, split_groups(solution)[0], answer.strip(), None)
    if steps is None:
        raise InputError("no 'steps' (a list of strings)")
    found = _split_chain(steps) if isinstance(steps, str) else tuple(steps)
    return _example(question, found, answer, None if levels is None else tuple(levels))


def _example(question: str, steps: tuple[str, ...], answer: str, levels: tuple[int, ...] | None) -> Example:
    for text in (question, *steps, answer):
        if "\0" in text:
            raise InputError("the line holds a NUL character")
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError("the line holds half of a surrogate pair, which is no character")
    if any("####" in text for text in (*steps, answer)):
        raise InputError("a step or the answer holds '####', which begins an answer; give only what follows it")
    return Example(question, steps, answer, levels)


def _plain(value: Any) -> Any:
    """A list for what is an array or a column of one."""
    return value.tolist() if hasattr(value, "tolist") else value


def _check_same(example: Example, back: Example, *, keep_steps: bool) -> None:
    for name in ("question", "answer"):
        if getattr(example, name) != getattr(back, name):
            raise InputError(f"the {name} {short(getattr(example, name))} would become {short(getattr(back, name))}")
    if " ".join(" ".join(example.steps).split()) != " ".join(" ".join(back.steps).split()):
        raise InputError("the chain would become another")
    if keep_steps and example.steps != back.steps:
        raise InputError(
            f"its {len(example.steps)} steps would become {len(back.steps)}; "
            "a text step is one word or <<…>>, and .jsonl keeps any"
        )
    if keep_steps and example.levels != back.levels:
        raise InputError("its levels would be lost; .jsonl keeps them")


def _without_bad(
    examples: list[Example],
    problems: Sequence[Problem],
    name: str,
    unit: str,
    hint: str,
    *,
    skip_bad: bool,
    say: Say,
) -> list[Example]:
    total = len(examples) + len(problems)
    if not total:
        raise InputError(f"{name} is empty; a {unit} is an example")
    if not problems:
        return examples
    if skip_bad and examples:
        say(f"{name}: {len(problems)} of {total} {unit}s are bad and left out")
        return examples
    said = [f"{unit} {problem.line}: {problem.reason}" for problem in problems[:_NAMED]]
    more = [f"({len(problems) - _NAMED} more)"] if len(problems) > _NAMED else []
    ways = [hint] * bool(hint) + ["--skip-bad leaves them out"] * bool(examples)
    raise InputError(f"{name}: {len(problems)} of {total} {unit}s are bad: {'; '.join([*said, *more, *ways])}")


def short(text: str) -> str:
    """A quoted text that fits in a line of a message."""
    return repr(text if len(text) <= 60 else text[:59] + "…")
