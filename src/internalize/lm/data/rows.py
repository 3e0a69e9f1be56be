"""One row of a data file: a line of text, a JSON object or a mapping becomes an example, or is refused with a reason.

| row                             | steps                                                                    |
| ------------------------------- | ------------------------------------------------------------------------ |
| text, `question||steps #### a`  | the `<<…>>` groups or, without any, the words                            |
| `steps` is a list               | its strings                                                              |
| `steps` is one string           | the `<<…>>` groups or, without any, the lines; of a single line its words |
| no `steps`, `####` in `answer`  | GSM8K as published: the `<<…>>` groups before `####` or, without any, the lines |
| `messages`                      | the user's message is the question, the assistant's is read as GSM8K's answer |
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NotRequired, TypedDict

import msgspec

from internalize.errors import InputError
from internalize.lm.data.example import Example, Place
from internalize.storage.files import explain

MAX_LINE: Final = 1_000_000
"""Largest size of a line in bytes. A longer line is taken for a mistake."""
KEYS: Final = ("question", "answer", "levels", "steps", "messages")
"""The keys of a row that are read. Others are allowed."""
SENTENCES: Final = "examples without <<…>>, whose lines are the steps"
SYSTEM: Final = "system messages left out"
_LARGEST_WHOLE: Final = 2.0**53


class _Message(TypedDict):
    role: str
    content: str


class _Row(TypedDict):
    """A JSON object, or a row of a table. None counts as a missing value."""

    question: NotRequired[str | None]
    answer: NotRequired[str | int | float | None]
    levels: NotRequired[list[Annotated[int, msgspec.Meta(ge=0)]] | None]
    steps: NotRequired[list[str] | str | None]
    messages: NotRequired[list[_Message] | None]


_DECODER: Final = msgspec.json.Decoder(_Row)


@dataclass
class RowNotes:
    """Notes taken while rows are read: the place of the current row, and counts of rows that were read in a special way."""

    place: Place | None = None
    counts: Counter[str] = field(default_factory=Counter[str])


def from_text(line: bytes, notes: RowNotes) -> Example:
    """Return the example in a line ``question||steps #### answer``."""
    text = decoded(line)
    for mark, where in {"||": "after the question", "####": "before the answer"}.items():
        if (count := text.count(mark)) != 1:
            how = f"no {mark!r}" if not count else f"{count} times {mark!r}"
            raise InputError(f"{how}; a line has one, {where}: question||steps #### answer")
    question, _, rest = text.partition("||")
    chain, found, answer = rest.partition("####")
    if not found:
        raise InputError("'####' comes before '||'; a line is question||steps #### answer")
    return _example(question.strip(), split_chain(chain), answer.strip(), notes)


def from_json(content: bytes, notes: RowNotes) -> Example:
    """Return the example in a JSON object."""
    try:
        row = _DECODER.decode(decoded(content))
    except msgspec.ValidationError as error:
        raise InputError(explain(error)) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from None
    return _from_row(row, notes)


def from_mapping(row: Mapping[str, Any], notes: RowNotes) -> Example:
    """Return the example in the row of a table."""
    plain = {key: _plain(value) for key, value in row.items() if key in KEYS}
    try:
        return _from_row(msgspec.convert(plain, _Row), notes)
    except msgspec.ValidationError as error:
        raise InputError(explain(error)) from None


def decoded(line: bytes) -> str:
    """Return a line as text. Refuse one that is empty, too long or not UTF-8."""
    if len(line) > MAX_LINE:
        raise InputError(f"longer than {MAX_LINE} bytes")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 at byte {error.start + 1}") from None
    if not text.strip():
        raise InputError("the line is empty")
    return text


def split_chain(chain: str) -> tuple[str, ...]:
    """Return the steps of a chain in one text: `<<…>>` groups or, without any, its lines or the words of a line."""
    if "<<" not in chain and ">>" not in chain:
        lines = _lines_of(chain)
        return lines if len(lines) > 1 else tuple(chain.split())
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


def short(text: str) -> str:
    """Return a text in quotes, shortened to fit in a line of a message."""
    return repr(text if len(text) <= 60 else text[:59] + "…")


def _from_row(row: _Row, notes: RowNotes) -> Example:
    question, answer, steps, levels = row.get("question"), row.get("answer"), row.get("steps"), row.get("levels")
    if (messages := row.get("messages")) is not None and question is None and answer is None:
        return _solved(*_exchange(messages, notes), notes)
    if question is None or answer is None:
        raise InputError(f"missing required field `{'question' if question is None else 'answer'}`")
    text = _answer_text(answer)
    if steps is None and "####" in text:
        return _solved(question, text, notes)
    if steps is None:
        raise InputError("no 'steps' (a list of strings)")
    found = split_chain(steps) if isinstance(steps, str) else tuple(steps)
    return _example(question, found, text, notes, None if levels is None else tuple(levels))


def _exchange(messages: list[_Message], notes: RowNotes) -> tuple[str, str]:
    """Return the user's and the assistant's message. A system message before them is left out."""
    roles = [message["role"] for message in messages]
    if roles not in (["user", "assistant"], ["system", "user", "assistant"]):
        said = ", ".join(roles[:5]) + (", …" if len(roles) > 5 else "")
        raise InputError(f"messages of {said or 'no one'}; there must be one of the user and one of the assistant")
    asked, solved = messages[-2]["content"], messages[-1]["content"]
    if "####" not in solved:
        raise InputError("the assistant's message has no '####' before the answer")
    if len(roles) > 2:
        notes.counts[SYSTEM] += 1
    return asked.strip(), solved


def _solved(question: str, solution: str, notes: RowNotes) -> Example:
    """Return an example from a solution that ends in ``#### answer``."""
    chain, _, answer = solution.rpartition("####")
    if "####" in chain:
        raise InputError("the answer holds '####' more than once")
    groups = split_groups(chain)[0]
    found = _example(question, groups or _lines_of(chain), answer.strip(), notes)
    if found.steps and not groups:
        notes.counts[SENTENCES] += 1
    return found


def _lines_of(text: str) -> tuple[str, ...]:
    return tuple(line for line in map(str.strip, text.split("\n")) if line)


def _answer_text(answer: str | float) -> str:
    """Return an answer as text. A number is written as in the data, and a whole one without a decimal point."""
    if isinstance(answer, str):
        return answer
    if not math.isfinite(answer):
        raise InputError(f"answer: {answer} is not a finite number")
    whole = isinstance(answer, int) or (answer.is_integer() and abs(answer) < _LARGEST_WHOLE)
    return str(int(answer)) if whole else repr(answer)


def _example(
    question: str, steps: tuple[str, ...], answer: str, notes: RowNotes, levels: tuple[int, ...] | None = None
) -> Example:
    for text in (question, *steps, answer):
        if "\0" in text:
            raise InputError("the line holds a NUL character")
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError("the line holds half of a surrogate pair, which is not a character")
    if any("####" in text for text in (*steps, answer)):
        raise InputError("a step or the answer holds '####', which begins an answer; give only what follows it")
    return Example(question, steps, answer, levels, notes.place)


def _plain(value: Any) -> Any:
    """Return an array or a column of one as a list, and any other value unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value
