"""The store of a sweep: one row per cell, append-only, readable as Parquet at any time.

| file                   | content                                                                                    |
| ---------------------- | ------------------------------------------------------------------------------------------ |
| `sweep.json`           | version and kind; its presence makes the folder a sweep's                                  |
| `env.json`             | the machine and versions when the sweep started                                            |
| `cells/part-….parquet` | finished cells, about `ROWS_PER_PART` per part or fewer; a part never changes              |
| `journal.jsonl`        | cells that finished since: a line per cell or per set of cells; becomes the next part      |
| `.lock`                | held by the process that writes                                                            |

A cell is in the store once its line is complete; cells computed together share a line. If a writer is killed after it
wrote a part and before it emptied the journal, rows are in both. A reader then ignores the second copy, and the next
writer removes it from the journal. There is one writer, so no cell is added twice.
"""

import contextlib
import io
import json
import os
import re
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict

from msgspec import Meta, Struct, defstruct, to_builtins

from internalize.environment import describe_environment
from internalize.errors import InputError
from internalize.storage.files import (
    Json,
    check_schema,
    check_version,
    foreign_name,
    numbered,
    parse_json,
    present,
    read_file,
    read_json,
    refuse_links,
    remove_temporary_files,
    write_atomically,
    write_json,
    writing,
)
from internalize.storage.parquet import read_tables
from internalize.storage.runs import Run

if TYPE_CHECKING:
    import polars as pl

VERSION: Final = 1
STORE: Final = "sweep.json"
"""The file whose presence makes a folder a sweep's."""
ROWS_PER_PART: Final = 1000
"""Rows in the journal at which they become a part."""
_INT64: Final = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_SECONDS_PER_SYNC: Final = 1.0
_CELLS: Final = "cells"
"""Key of a journal line that holds several rows, which were added together."""
_OWN_FILES: Final = frozenset((STORE, "env.json", "cells", "journal.jsonl", ".lock"))
_PART: Final = re.compile(r"part-([0-9]{6,})\.parquet")

_NEEDED: Final = ("cell", "status")
"""Columns that must have a value in every row."""

Schema = Mapping[str, type]
"""The columns in order, each with its type: bool, int, float or str."""
Kind = Literal["train", "solve"]


class StoreFile(TypedDict):
    """The content of `sweep.json`."""

    version: int
    kind: Kind


class CellStore:
    """The folder of a sweep. Reading needs no lock; writing needs ``with store.locked(…):``.

    Args:
        path: the folder.
        kind: the command that each cell runs, train or solve.
        schema: the columns. `cell` must be one of them; it identifies a cell.
    """

    def __init__(self, path: Path, kind: Kind, schema: Schema) -> None:
        self.path, self.kind, self.schema = path, kind, schema
        self._row = _row_schema(schema)
        self._rows: list[Json] = []
        self._known: set[str] = set()
        self._synced = 0.0

    # Reading

    def frame(self) -> "pl.DataFrame":
        """Return all finished cells, each once, in the order in which they finished."""
        import polars as pl

        return pl.concat([self._parts(), self._as_frame(self._journal())]).unique(
            "cell", keep="first", maintain_order=True
        )

    def _parts(self) -> "pl.DataFrame":
        return read_tables(self._part_files(), self._as_frame([]).schema, _NEEDED)

    def _part_files(self) -> list[Path]:
        folder = self.path / "cells"
        for path in folder.glob("part-*.parquet"):
            if not _PART.fullmatch(path.name):
                raise InputError(f"{path} is not named like a part, such as part-000000.parquet")
        return [path for _, path in numbered(folder, _PART)]

    def _journal(self) -> list[Json]:
        """Return the rows in the journal's complete lines."""
        path = self.path / "journal.jsonl"
        if not present(path):
            return []
        rows: list[Struct] = []
        for number, line in enumerate(read_file(path).split(b"\n")[:-1], start=1):
            found = parse_json(line, path)
            cells: Any = found.get(_CELLS, [found])
            rows += check_schema(cells, list[self._row], f"{path} is damaged: line {number}")
        return to_builtins(rows)

    def _as_frame(self, rows: Sequence[Json]) -> "pl.DataFrame":
        import polars as pl

        dtypes = {bool: pl.Boolean, int: pl.Int64, float: pl.Float64, str: pl.String}
        return pl.DataFrame(rows, schema={name: dtypes[kind] for name, kind in self.schema.items()})

    # Writing

    @contextlib.contextmanager
    def locked(self, *, resume: bool) -> Generator[set[str]]:
        """Lock the folder for adding cells, and yield those it already has. At the end, the journal becomes a part."""
        self._check(resume=resume)
        with Run(self.path).locked():
            self._check(resume=resume)
            self._load()  # a damaged store is refused before anything is changed
            with writing(self.path):
                (self.path / "cells").mkdir(exist_ok=True)
                remove_temporary_files(self.path, _OWN_FILES.__contains__)
                remove_temporary_files(self.path / "cells", _PART.fullmatch)
            if not present(self.path / STORE):
                write_json(self.path / "env.json", describe_environment())
                write_json(self.path / STORE, {"version": VERSION, "kind": self.kind})
            write_atomically(self.path / "journal.jsonl", _lines(self._rows))
            try:
                yield set(self._known)
            finally:
                self._seal()

    def add(self, rows: Sequence[Json]) -> None:
        """Add finished cells, all or none: after a partial write, the rest would be trained with other seeds."""
        new: list[Json] = [{name: row.get(name) for name in self.schema} for row in rows]
        path = self.path / "journal.jsonl"
        assert self._known.isdisjoint(row["cell"] for row in new), "a cell was computed twice"
        with writing(path), path.open("ab") as file:
            file.write(_lines(new if len(new) == 1 else [{_CELLS: new}]))
            if time.monotonic() - self._synced > _SECONDS_PER_SYNC:
                file.flush()
                os.fsync(file.fileno())
                self._synced = time.monotonic()
        self._known.update(row["cell"] for row in new)
        self._rows += new
        if len(self._rows) >= ROWS_PER_PART:
            self._seal()

    def _check(self, *, resume: bool) -> None:
        """Raise an error if the folder cannot become this sweep's, or has links, which lead to files of others."""
        refuse_links(self.path, _OWN_FILES)
        if present(self.path / STORE):
            if (kind := kind_of(self.path)) != self.kind:
                raise InputError(f"{self.path} holds a sweep of `{kind}`, not of `{self.kind}`; choose another --out")
            if not resume:
                raise InputError(f"{self.path}: this sweep has already started; add --resume, or choose another --out")
            return
        if name := foreign_name(self.path, _OWN_FILES):
            raise InputError(f"{self.path} is not the folder of a sweep and holds {name!r}; choose another --out")

    def _load(self) -> None:
        """Read the finished cells, without an incomplete last line of the journal and rows that a part already has."""
        in_parts = set(self._parts()["cell"])
        self._rows = [row for row in self._journal() if row["cell"] not in in_parts]
        self._known = in_parts | {row["cell"] for row in self._rows}

    def _seal(self) -> None:
        """Write the journal's rows as a part, then empty the journal."""
        if not self._rows:
            return
        content = io.BytesIO()
        self._as_frame(self._rows).write_parquet(content)
        number = 1 + max((number for number, _ in numbered(self.path / "cells", _PART)), default=-1)
        write_atomically(self.path / "cells" / f"part-{number:06d}.parquet", content.getvalue())
        write_atomically(self.path / "journal.jsonl", b"")
        self._rows = []


def kind_of(path: Path) -> Kind:
    """Return the command that the cells of a sweep run: train or solve."""
    if not present(path / STORE):
        raise InputError(f"{path} is not the folder of a sweep: it has no sweep.json")
    found = read_json(path / STORE, StoreFile)
    check_version(found, VERSION, path / STORE)
    return found["kind"]


def _row_schema(schema: Schema) -> type[Struct]:
    """Return the schema of a row of the journal. A row may lack columns that were added later; they are empty."""
    kinds: dict[type, Any] = {kind: kind for kind in schema.values()} | {int: _INT64}
    fields = [
        (name, kinds[kind]) if name in _NEEDED else (name, kinds[kind] | None, None) for name, kind in schema.items()
    ]
    return defstruct("Cell", fields, kw_only=True)


def _lines(rows: Sequence[Json]) -> bytes:
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
