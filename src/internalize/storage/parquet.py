"""Untrusted Parquet files, read as one table with a known schema, or row by row.

On a damaged file polars may panic, which prints a page of Rust, or abort the process. Therefore another process reads
each new file first (``python -m internalize.storage.parquet``), and this one looks only at how it ended.
"""

import contextlib
import hashlib
import io
import os
import resource
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from internalize.environment import check_memory
from internalize.errors import InputError
from internalize.storage.files import read_file

if TYPE_CHECKING:
    import polars as pl

ROWS_AT_MOST: Final = 10_000
"""Largest number of rows in a file. A part of a sweep has a tenth of it."""
_BYTES_PER_VALUE: Final = 16
_BYTES_PER_ROW: Final = 1000
"""Of an object of Python for each row."""
_PORTION: Final = 1000
"""Rows that are turned into Python's objects at a time."""
_MEMORY: Final = 4 * 2**30
_SECONDS: Final = 60
"""Limits of the other process: memory in bytes, and processor time."""
_known: set[str] = set()
"""Digests of the files that the other process could read."""


def read_tables(paths: Sequence[Path], schema: "pl.Schema", needed: Collection[str]) -> "pl.DataFrame":
    """Return the rows of all files. A column that a file lacks is empty, and one that is not in the schema is ignored.

    Args:
        paths: the files.
        schema: the type of every column. A file may store floats as integers, and any column as nulls.
        needed: columns that must have a value in every row.
    """
    import polars as pl

    contents = {path: read_file(path) for path in paths}
    _try_elsewhere(contents)
    rows = sum(_row_count(path, content) for path, content in contents.items())
    check_memory(rows * len(schema) * _BYTES_PER_VALUE, f"{rows} rows in {len(contents)} files")
    tables = (_read_table(path, content, schema, needed) for path, content in contents.items())
    return pl.concat([pl.DataFrame(schema=schema), *tables])


def parquet_rows(path: Path, names: Collection[str], limit: int | None = None) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a file that others made, at most ``limit``, with those of the named columns that it has."""
    import polars as pl

    content = read_file(path)
    _try_elsewhere({path: content}, [str(limit or 0), *names])
    try:
        table = _some_columns(path, content, names, limit)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path} is damaged: {error}") from None
    check_memory(len(table) * _BYTES_PER_ROW, f"{len(table)} rows of {path}")
    for part in table.iter_slices(_PORTION):
        yield from part.iter_rows(named=True)


def _some_columns(path: Path, content: bytes, names: Collection[str], limit: int | None) -> "pl.DataFrame":
    """Return the first rows of a file, all without a limit, with those of the named columns that it has."""
    import polars as pl

    own = pl.read_parquet_schema(io.BytesIO(content))
    if not (columns := [name for name in names if name in own]):
        raise InputError(f"{path} has no columns {', '.join(names)}, but {', '.join(list(own)[:10])}")
    return pl.read_parquet(content, columns=columns, n_rows=limit)


def _row_count(path: Path, content: bytes) -> int:
    """Return the number of rows in a file's metadata. Raise an error if it is more than this package writes."""
    import polars as pl

    try:
        rows: int = pl.scan_parquet(io.BytesIO(content)).select(pl.len()).collect().item()
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path} is damaged: {error}") from None
    if rows > ROWS_AT_MOST:
        raise InputError(f"{path} has {rows} rows, but this package writes at most {ROWS_AT_MOST}")
    return rows


def _read_table(path: Path, content: bytes, schema: "pl.Schema", needed: Collection[str]) -> "pl.DataFrame":
    import polars as pl

    try:
        found = pl.read_parquet_schema(io.BytesIO(content))
        for name, dtype in schema.items():
            if (own := found.get(name, pl.Null())) not in (dtype, pl.Null) and (dtype, own) != (pl.Float64, pl.Int64):
                raise InputError(f"{path} is damaged: its column {name} is of type {own}, not {dtype}")
        table = pl.read_parquet(content, columns=[name for name in schema if name in found])
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path} is damaged: {error}") from None
    lacking = [pl.lit(None).alias(name) for name in schema if name not in found]
    table = table.with_columns(lacking).select(pl.col(name).cast(dtype) for name, dtype in schema.items())
    for column in table:
        if column.name in needed and column.has_nulls():
            raise InputError(f"{path} is damaged: its column {column.name} is empty in {column.null_count()} rows")
        if column.dtype == pl.Float64 and not column.is_finite().all():
            raise InputError(f"{path} is damaged: its column {column.name} has numbers that are not finite")
    return table


def _try_elsewhere(contents: Mapping[Path, bytes], part: Sequence[str] = ()) -> None:
    """Let another process read the new files. If it dies, raise an error that names the file it was reading.

    With ``part``, a number of rows (0: all) and names of columns, it reads only these. Otherwise it reads whole files,
    which may have `ROWS_AT_MOST` rows.
    """
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}
    new = {path: " ".join((digest, *part)) for path, digest in digests.items()}
    new = {path: digest for path, digest in new.items() if digest not in _known}
    if not new:
        return
    command = [sys.executable, "-m", "internalize.storage.parquet", *part]
    ended = subprocess.run(  # noqa: S603
        command,
        input=b"\0".join(map(os.fsencode, new)),
        capture_output=True,
        check=False,
        env={**os.environ, "POLARS_MAX_THREADS": "1"},
    )
    if ended.returncode:
        path = list(new)[max(len(ended.stdout) - 1, 0)]
        limits = f" within {_MEMORY // 2**30} GiB and {_SECONDS} s" if part else ""
        raise InputError(f"{path} is damaged: it cannot be read as Parquet{limits}")
    _known.update(new.values())


def _try_here(paths: Sequence[Path], part: Sequence[str]) -> None:
    """Read files, and write a byte to standard output before each, so that the caller knows where this process died.

    Errors that polars raises are ignored: the caller reports them.
    """
    import polars as pl

    for limit, most in ((resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_CPU, _SECONDS)):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    for path in paths:
        sys.stdout.buffer.write(b".")
        sys.stdout.buffer.flush()
        content = path.read_bytes()
        with contextlib.suppress(pl.exceptions.PolarsError, InputError):
            if part:
                _some_columns(path, content, part[1:], int(part[0]) or None)
                continue
            _row_count(path, content)
            pl.read_parquet(content)


if __name__ == "__main__":
    _try_here([Path(os.fsdecode(name)) for name in sys.stdin.buffer.read().split(b"\0")], sys.argv[1:])
