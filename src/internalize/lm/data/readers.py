"""Reads examples from files and data sets, and writes them. Every bad item is reported with its reason; none is silently
dropped.

The file's name tells its format:

| name               | content                                                                       |
| ------------------ | ----------------------------------------------------------------------------- |
| `.jsonl`, `.json`  | JSON objects, one per line or in one array                                    |
| `.csv`             | a table whose first line names the columns                                    |
| `.parquet`         | a table                                                                       |
| a folder, `hf:…`   | a data set of the `datasets` library                                          |
| any other name     | text as in Deng et al., one `question||steps #### answer` per line            |

Objects and rows have `question`, `steps`, `answer` and, if known, `levels` (one whole number per step), or the forms
that `rows.py` lists. Other keys are allowed.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from internalize.errors import InputError
from internalize.lm.data.example import Example, Place
from internalize.lm.data.hub import data_files, dataset_rows, get_dataset, is_dataset
from internalize.lm.data.items import JSON_SUFFIXES, Items, open_items
from internalize.lm.data.rows import MAX_LINE, RowNotes, from_json, from_mapping, from_text, short
from internalize.storage.files import write_atomically

Say = Callable[[str], None]
"""Callback that receives one line that the user should see."""
_NAMED: Final = 3  # bad lines that an error message quotes


@dataclass(frozen=True)
class Problem:
    """A line that is not an example, and the reason. Lines, items of an array and rows of a table count from 1."""

    file: str
    line: int
    reason: str
    unit: str = "line"
    """The unit that the number counts: line, item or row."""

    def __str__(self) -> str:
        return f"{self.unit} {self.line}: {self.reason}"


@dataclass(frozen=True)
class Contents:
    """The examples of a file and its bad lines, with counts."""

    examples: list[Example]
    problems: list[Problem]
    counts: Counter[str]
    """Number of examples read in each special way. The key is a phrase that names the way."""

    @property
    def total(self) -> int:
        """The number of items, good and bad."""
        return len(self.examples) + len(self.problems)


def scan(name: Path | str, limit: int | None = None) -> Contents:
    """Return all examples of a file or a data set, or the first ones, and all its bad items."""
    found = Contents([], [], Counter())
    if not is_dataset(str(name)):
        files = [Path(name)]
    elif (data := get_dataset(str(name))).saved or not Path(data.where).is_dir():
        _scan(
            found, Items("row", islice(enumerate(dataset_rows(data, limit), start=1), limit), from_mapping), str(name)
        )
        return found
    else:
        files = data_files(data)
    for file in files:
        left = None if limit is None else limit - found.total
        if left != 0:
            with open_items(file, left) as items:
                _scan(found, items, str(file))
    return found


def read_examples(
    name: Path | str, *, limit: int | None = None, skip_bad: bool = False, say: Say = lambda line: None
) -> list[Example]:
    """Return the examples of a file or a data set. Bad items are an error; `skip_bad` leaves them out and says how many.

    Args:
        name: the file, the folder of a data set, or ``hf:NAME``.
        limit: number of items to read. The rest is not read. Default: all.
        skip_bad: leave out bad items.
        say: called with a line about items that are left out or were read in a special way.
    """
    hint = f"`internalize lm data --check {name}` lists them all"
    return _without_bad(scan(name, limit), str(name), hint, skip_bad=skip_bad, say=say)


def from_dataset(rows: Iterable[Any], *, skip_bad: bool = False, say: Say = lambda line: None) -> list[Example]:
    """Return the examples of a `datasets.Dataset` or of any mappings with the keys of a JSON line."""
    name = "the dataset"
    found = Contents([], [], Counter())
    _scan(found, Items("row", enumerate(rows, start=1), from_mapping), name)
    return _without_bad(found, name, "", skip_bad=skip_bad, say=say)


def write_examples(path: Path | str, examples: Sequence[Example], *, keep_steps: bool = True) -> None:
    """Write a file that `read_examples` reads back as the same examples. The file is written completely or not at all.

    The text format has no levels, and its steps are single words or `<<…>>` groups. Other examples are refused. With
    `keep_steps=False` they are written, and only question, chain and answer are read back unchanged.
    """
    path = Path(path)
    if path.suffix.lower() in (".csv", ".parquet"):
        raise InputError(f"{path}: examples are written as .jsonl or as text")
    is_json = path.suffix.lower() in JSON_SUFFIXES
    parse = from_json if is_json else from_text
    lines: list[bytes] = []
    for number, example in enumerate(examples, start=1):
        try:
            line = (json.dumps(as_json(example), ensure_ascii=False) if is_json else text_line(example)).encode()
            _check_same(example, parse(line, RowNotes()), keep_steps=keep_steps or is_json)
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


def _scan(found: Contents, items: Items, name: str) -> None:
    """Add the items of a file to what was found."""
    notes = RowNotes(counts=found.counts)
    for number, item in items.numbered:
        notes.place = Place(name, items.unit, number)
        try:
            if isinstance(item, InputError):
                raise item
            found.examples.append(items.parse(item, notes))
        except InputError as error:
            found.problems.append(Problem(name, number, str(error), items.unit))


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


def _without_bad(found: Contents, name: str, hint: str, *, skip_bad: bool, say: Say) -> list[Example]:
    """Return the examples. Refuse the bad items, or with ``skip_bad`` report how many there are."""
    problems, total = found.problems, found.total
    if not total:
        raise InputError(f"{name} is empty; each line or row should be one example")
    unit = problems[0].unit if problems else ""
    if problems and not (skip_bad and found.examples):
        said = [f"{'' if problem.file == name else f'{problem.file}: '}{problem}" for problem in problems[:_NAMED]]
        more = [f"({len(problems) - _NAMED} more)"] if len(problems) > _NAMED else []
        ways = [hint] * bool(hint) + ["--skip-bad leaves them out"] * bool(found.examples)
        raise InputError(f"{name}: {len(problems)} of {total} {unit}s are bad: {'; '.join([*said, *more, *ways])}")
    if problems:
        say(f"{name}: {len(problems)} of {total} {unit}s are bad and left out")
    for what, count in found.counts.items():
        if count:
            say(f"{name}: {count} {what}")
    return found.examples
