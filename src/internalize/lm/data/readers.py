"""Reads examples from files and datasets, and writes them. Every bad line is reported with its reason; none is silently
dropped.

The file's name tells which of two formats it has:

- `.jsonl`, `.json`: one JSON object per line, with `question`, `steps` (a list of strings), `answer` and, if known,
  `levels` (one whole number per step). Other keys are allowed. An object without `steps` whose `answer` contains `####`
  is GSM8K as published: the `<<…>>` groups before `####` are the steps.
- any other name: text as in Deng et al., `question||steps #### answer`. The steps are the `<<…>>` groups if there are
  any, otherwise the words separated by spaces. A chain may be empty.
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
"""Callback that receives one line that the user should see."""
MAX_LINE: Final = 1_000_000
"""Largest size of a line in bytes. A longer line is taken for a mistake."""
_JSON_SUFFIXES: Final = (".jsonl", ".json")
_NAMED: Final = 3  # bad lines that an error message quotes
T = TypeVar("T")


class _Row(TypedDict):
    question: str
    answer: str
    levels: NotRequired[list[Annotated[int, msgspec.Meta(ge=0)]] | None]


class _JsonRow(_Row):
    """The JSON object of an example."""

    steps: NotRequired[list[str] | None]


class _DatasetRow(_Row):
    """The row of a dataset. Its chain may be one string."""

    steps: NotRequired[list[str] | str | None]


_KEYS: Final = ("question", "answer", "levels", "steps")
_DECODER: Final = msgspec.json.Decoder(_JsonRow)


@dataclass(frozen=True)
class Problem:
    """A line that is not an example, and the reason. Lines of a file and rows of a dataset count from 1."""

    file: str
    line: int
    reason: str


def scan(path: Path | str) -> tuple[list[Example], list[Problem]]:
    """Return all examples of a file, and all its bad lines."""
    path = Path(path)
    parse = _parser(path)
    with reading(path):
        if present(path):  # not a pipe or a device, whose size is unknown
            check_memory(size := path.stat().st_size, f"{path} of {size} bytes")
    with reading(path), path.open("rb") as file:
        return _scan(_lines(file), lambda line: parse(_text(line)), str(path))


def read_examples(path: Path | str, *, skip_bad: bool = False, say: Say = lambda line: None) -> list[Example]:
    """Return the examples of a file. Bad lines are an error; `skip_bad` leaves them out and reports their number."""
    hint = f"`internalize lm data --check {path}` lists them all"
    return _without_bad(*scan(path), str(path), "line", hint, skip_bad=skip_bad, say=say)


def from_dataset(rows: Iterable[Any], *, skip_bad: bool = False, say: Say = lambda line: None) -> list[Example]:
    """Return the examples of a `datasets.Dataset` or of any mappings with the keys of a JSON line.

    `steps` may also be one string, in the format of a text chain. None counts as a missing value.
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
    """Write a file that `read_examples` reads back as the same examples. The file is written completely or not at all.

    The text format has no levels, and its steps are single words or `<<…>>` groups. Other examples are refused. With
    `keep_steps=False` they are written, and only question, chain and answer are read back unchanged.
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
                raise InputError(f"a line must have no line breaks and at most {MAX_LINE} bytes")
        except (InputError, UnicodeEncodeError) as error:
            raise InputError(f"{path}: example {number} could not be read back: {error}") from None
        lines.append(line + b"\n")
    # A symbolic link that the user names is followed, not replaced.
    write_atomically(path.resolve() if path.is_symlink() else path, b"".join(lines))


def text_line(example: Example) -> str:
    """Return an example in the format of Deng et al."""
    return f"{example.question}||{' '.join(example.steps)} #### {example.answer}"


def as_json(example: Example) -> dict[str, Any]:
    """Return the JSON object of an example."""
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
    """Yield the lines of a file without line ends. A line that is too long is cut a little beyond MAX_LINE bytes."""
    mark = b"\xef\xbb\xbf"  # byte order mark, before the first line
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
    """Return the steps of a chain in text: its `<<…>>` groups, or its words if there are no groups."""
    if "<<" not in chain and ">>" not in chain:
        return tuple(chain.split())
    groups, rest = split_groups(chain)
    if outside := " ".join(" ".join(rest).split()):
        raise InputError(f"text outside of <<…>>: {short(outside)}; either every step is in <<…>> or none is")
    if any(not group[2:-2].strip() for group in groups):
        raise InputError("an empty <<>> is not a step")
    return groups


def split_groups(text: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the `<<…>>` groups of a text, each within one line, and the text outside of them.

    Each character is searched once, so the time is linear.
    """
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
            raise InputError("the line holds half of a surrogate pair, which is not a character")
    if any("####" in text for text in (*steps, answer)):
        raise InputError("a step or the answer holds '####', which begins an answer; give only what follows it")
    return Example(question, steps, answer, levels)


def _plain(value: Any) -> Any:
    """Return an array or a column of one as a list, and any other value unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def _check_same(example: Example, back: Example, *, keep_steps: bool) -> None:
    """Refuse an example that would be read back as another one."""
    for name in ("question", "answer"):
        if getattr(example, name) != getattr(back, name):
            raise InputError(f"the {name} {short(getattr(example, name))} would become {short(getattr(back, name))}")
    if " ".join(" ".join(example.steps).split()) != " ".join(" ".join(back.steps).split()):
        raise InputError("the chain would become another")
    if keep_steps and example.steps != back.steps:
        raise InputError(
            f"its {len(example.steps)} steps would become {len(back.steps)}; "
            "in the text format a step is one word or <<…>>, and .jsonl keeps any step"
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
    """Return the examples. Refuse the bad lines, or with ``skip_bad`` report how many there are."""
    total = len(examples) + len(problems)
    if not total:
        raise InputError(f"{name} is empty; each {unit} should be one example")
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
    """Return a text in quotes, shortened to fit in a line of a message."""
    return repr(text if len(text) <= 60 else text[:59] + "…")
