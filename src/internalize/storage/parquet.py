"""Untrusted Parquet files, read as one table with a known schema.

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
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from internalize.environment import check_memory
from internalize.errors import InputError
from internalize.storage.files import read_file

if TYPE_CHECKING:
    import polars as pl

ROWS_AT_MOST: Final = 10_000
"""Largest number of rows in a file. A part of a sweep has a tenth of it."""
_BYTES_PER_VALUE: Final = 16
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


def _try_elsewhere(contents: Mapping[Path, bytes]) -> None:
    """Let another process read the new files. If it dies, raise an error that names the file it was reading."""
    new = {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}
    new = {path: digest for path, digest in new.items() if digest not in _known}
    if not new:
        return
    command = [sys.executable, "-m", "internalize.storage.parquet"]
    ended = subprocess.run(  # noqa: S603
        command,
        input=b"\0".join(map(os.fsencode, new)),
        capture_output=True,
        check=False,
        env={**os.environ, "POLARS_MAX_THREADS": "1"},
    )
    if ended.returncode:
        path = list(new)[max(len(ended.stdout) - 1, 0)]
        raise InputError(f"{path} is damaged: it cannot be read as Parquet")
    _known.update(new.values())


def _try_here(paths: Sequence[Path]) -> None:
    """Read files, and write a byte to standard output before each, so that the caller knows where this process died.

    Errors that polars raises are ignored: `read_tables` reports them.
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
            _row_count(path, content)
            pl.read_parquet(content)


if __name__ == "__main__":
    _try_here([Path(os.fsdecode(name)) for name in sys.stdin.buffer.read().split(b"\0")])
