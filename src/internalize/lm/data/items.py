"""Numbered items of a data file, before they are read as examples: lines, items of a JSON array, rows of a table.

Every container is read from the front and in portions, so that the first items of a large file can be read alone. An
item that is damaged is an `InputError` in its place, and the items after it are still read where that is possible.
"""

import codecs
import csv
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

from internalize.environment import check_memory
from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.rows import KEYS, MAX_LINE, RowNotes, from_json, from_mapping, from_text
from internalize.storage.files import present, reading
from internalize.storage.parquet import parquet_rows

JSON_SUFFIXES: Final = (".jsonl", ".json")
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark, before the first line."""
_ITEM: Final = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)
"""Finds the end of an item. Its numbers are not needed."""
_BLANK: Final = re.compile(r"[ \t\r\n]*")
_USUAL_KEY: Final = r'\{\s*"(?:question|messages)"\s*:'
_FIRST_KEY: Final = re.compile(r'\{\s*"(?:[^"\\]|\\.){0,100}"\s*:')


@dataclass(frozen=True)
class Items:
    """The items of a data file or data set in order, and how one of them becomes an example."""

    unit: str
    """The unit that the numbers count: line, item or row."""
    numbered: Iterable[tuple[int, Any]]
    """Numbers from 1 with raw items. One that is damaged is an `InputError`."""
    parse: Callable[[Any, RowNotes], Example]


@contextmanager
def open_items(path: Path, limit: int | None = None) -> Generator[Items]:
    """Open a file. With a limit, only its first items are read."""
    with reading(path):
        if present(path) and limit is None:  # not a pipe or a device, whose size is unknown
            check_memory(size := path.stat().st_size, f"{path} of {size} bytes")
    with reading(path), path.open("rb") as file:
        start = file.read(MAX_LINE)
        if start.startswith(_POINTER):
            raise InputError(f"{path} is not the data but a Git LFS pointer to it: fetch the file with `git lfs pull`")
        file.seek(0)
        suffix = path.suffix.lower()
        if suffix == ".parquet":
            items = Items("row", enumerate(parquet_rows(path, KEYS, limit), start=1), from_mapping)
        elif suffix == ".csv":
            items = Items("line", _table_rows(file, path), from_mapping)
        elif suffix in JSON_SUFFIXES and start.removeprefix(_MARK).lstrip()[:1] == b"[":
            items = Items("item", _array_items(file), from_json)
        else:
            items = Items("line", enumerate(_lines(file), start=1), from_json if suffix in JSON_SUFFIXES else from_text)
        yield Items(items.unit, islice(items.numbered, limit), items.parse)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file without line ends. A line that is too long is cut a little beyond MAX_LINE bytes."""
    mark = _MARK
    while line := file.readline(MAX_LINE + len(mark) + 2):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE)
        yield line.removeprefix(mark).removesuffix(b"\n").removesuffix(b"\r")
        mark = b""


def _table_rows(file: IO[bytes], path: Path) -> Iterator[tuple[int, Mapping[str, str] | InputError]]:
    """Yield the rows of a CSV file with the number of the line on which they begin."""
    lines = (line.decode("utf-8", "surrogateescape") + "\n" for line in _lines(file))
    reader = csv.reader(lines, strict=True)
    try:
        names = next(reader, list[str]())
    except csv.Error as error:
        raise InputError(f"{path}: line 1 is not CSV: {error}") from None
    if missing := [name for name in ("question", "answer") if names.count(name) != 1]:
        raise InputError(f"{path}: line 1 must name the columns, with one {missing[0]!r} (and steps, if there are any)")
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            yield number, InputError(f"not CSV: {error}")
            continue
        if row is None:
            return
        if not row:
            yield number, InputError("the line is empty")
        elif len(row) != len(names):
            yield number, InputError(f"{len(row)} columns, and line 1 names {len(names)}")
        elif any("\udc80" <= character <= "\udcff" for cell in row if not cell.isascii() for character in cell):
            yield number, InputError("not UTF-8")
        else:
            yield number, {name: cell for name, cell in zip(names, row, strict=True) if name in KEYS}


class _Window:
    """The part of a text file that is being read: at least two items of the largest size, or all that is left."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._decoder = file, codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self.text, self.at, self.ended = "", 0, False

    def fill(self) -> None:
        """Read on, and forget what was read."""
        while not self.ended and len(self.text) - self.at < 2 * MAX_LINE:
            part = self._file.read(2 * MAX_LINE)
            self.ended = not part
            self.text, self.at = self.text[self.at :] + self._decoder.decode(part, final=self.ended), 0

    def skip(self, count: int = 0) -> str:
        """Skip characters and the white space after them, and return the next character, empty at the end."""
        self.at += count
        self.fill()
        while (end := _BLANK.match(self.text, self.at)) and end.end() > self.at:  # white space may be long
            self.at = end.end()
            self.fill()
        return self.text[self.at : self.at + 1]

    def item(self) -> bytes:
        """Return the JSON value that begins here, and skip it."""
        try:
            _, end = _ITEM.raw_decode(self.text, self.at)
        except json.JSONDecodeError as error:
            cut = error.msg.startswith("Unterminated string") or error.pos >= len(self.text) - 1
            if cut and not self.ended:
                raise InputError(f"longer than {MAX_LINE} bytes") from None
            raise InputError(f"not JSON: {error.msg} (character {error.pos - self.at + 1} of the item)") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"not JSON: {error}") from None
        content = self.text[self.at : end].encode("utf-8", "surrogateescape")
        self.at = end
        return content

    def find_item(self, begins: str) -> bool:
        """Skip to the next comma before an item that begins like this. Return whether there is one."""
        following = re.compile(rf",\s*(?={begins})")
        while True:
            if found := following.search(self.text, self.at):
                self.at = found.start()
                return True
            self.at = max(self.at + 1, len(self.text) - 1000)  # a comma may stand here, and its item beyond
            if self.ended:
                return False
            self.fill()


def _array_items(file: IO[bytes]) -> Iterator[tuple[int, bytes | InputError]]:
    """Yield the items of a JSON array.

    After a damaged item, reading continues at the next item that begins with the same key.
    """
    window, number, begins = _Window(file), 0, ""
    following = window.skip()
    assert following == "["
    if window.skip(1) == "]":
        following = "]"
    while following != "]":
        number += 1
        own = _FIRST_KEY.match(window.text, window.at)
        key = re.sub(r"\\?\s+", r"\\s*", re.escape(own[0])) if own else ""
        try:
            if following not in ("[", ","):
                raise InputError("no comma before the item" if following else "the array ends without ']'")
            content = window.item()
        except InputError as error:
            yield number, error
            if not window.find_item(begins or key or _USUAL_KEY):
                return
        else:
            begins = key or begins
            yield number, content
        following = window.skip()
        if following == ",":
            window.skip(1)
    if window.skip(1):
        yield number + 1, InputError("text after the ']' that ends the array")
