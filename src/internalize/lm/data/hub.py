"""Data sets in folders and on the hub: the files of a folder, a folder that `datasets` saved, or a name on the hub.

A folder of data files is read by our own readers. `datasets` reads the others; it runs no code of a data set and
unpickles nothing.
"""

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from internalize.errors import InputError
from internalize.lm.data.rows import KEYS
from internalize.storage.files import reading

_HUB: Final = "hf:"
_TRAIN: Final = "train"
_SAVED: Final = ("dataset_dict.json", "state.json")
"""Files that `save_to_disk` writes: of several splits, or of one."""
_SUFFIXES: Final = (".jsonl", ".json", ".csv", ".parquet", ".txt")
_SPLITS: Final = {
    _TRAIN: "train|training",
    "validation": "validation|valid|val|dev",
    "test": "test|testing|eval|evaluation",
}
"""Words that tell a file's split, as the hub knows them."""


class DataSet(NamedTuple):
    """A data set as the options name it."""

    where: str
    """A folder, or a name on the hub."""
    config: str
    split: str
    """Empty: train, or the only split."""

    @property
    def saved(self) -> bool:
        """Whether it is a folder that `save_to_disk` wrote."""
        return any((Path(self.where) / file).is_file() for file in _SAVED)


def is_dataset(name: str) -> bool:
    """Return whether a name in the options is a data set: ``hf:NAME``, or a folder."""
    return name.startswith(_HUB) or Path(name).is_dir()


def get_dataset(name: str) -> DataSet:
    """Return the data set of a folder's name, or of ``hf:NAME``, ``hf:NAME:SPLIT``, ``hf:NAME@CONFIG:SPLIT``."""
    if not name.startswith(_HUB):
        return DataSet(name, "", "")
    where, _, split = name.removeprefix(_HUB).partition(":")
    if Path(where or "no name").is_dir():
        return DataSet(where, "", split)
    where, _, config = where.partition("@")
    if not where or where[0] in "./~" or where.count("/") > 1:
        raise InputError(f"{name!r}: there is no folder {where!r}; a data set is a folder or a name on the hub")
    return DataSet(where, config, split)


def data_files(data: DataSet) -> list[Path]:
    """Return the files of a split in a folder, sorted by name. A file's split is a word in its name or its folder's."""
    folder = Path(data.where)
    with reading(folder):
        every = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
    if not every:
        raise InputError(f"{folder} is a folder without data files ({', '.join(_SUFFIXES)})")
    by_split: dict[str, list[Path]] = {}
    for path in every:
        by_split.setdefault(_split_of(path.relative_to(folder)), []).append(path)
    if list(by_split) == [""]:  # no file tells its split
        by_split = {_TRAIN: every}
    return _one_split({split: files for split, files in by_split.items() if split}, data)


def dataset_rows(data: DataSet, limit: int | None = None) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a folder that `save_to_disk` wrote, or of a data set on the hub.

    With a limit, no more rows are read or fetched.
    """
    with _loading(data.where):
        rows = _open(data, limit)
        if rows.column_names and not set(KEYS) & set(rows.column_names):
            raise InputError(f"no column is {', '.join(KEYS)}; its columns are {', '.join(rows.column_names[:10])}")
        yield from (
            rows.select_columns([name for name in rows.column_names if name in KEYS]) if rows.column_names else rows
        )


def _open(data: DataSet, limit: int | None) -> Any:
    """Return the split with its ``column_names``, which are None if they are not known before reading."""
    import datasets

    if not data.saved:
        found: Any = datasets.load_dataset(data.where, data.config or None, streaming=limit is not None)
        return _one_split(found, data)
    found = datasets.load_from_disk(data.where)
    if isinstance(found, datasets.DatasetDict):
        found = _one_split(found, data)
    elif data.split and str(found.split) != data.split:
        raise InputError(f"{data.where} has no split {data.split!r}, only {found.split or 'one without a name'}")
    if limit is not None:
        found = found.select(range(min(limit, len(found))))
    found.data.validate(full=True)  # Arrow itself trusts the offsets in a file
    return found


def _split_of(path: Path) -> str:
    """Return the split that a path tells, or nothing."""
    for part in reversed(path.parts):
        for split, words in _SPLITS.items():
            if re.search(rf"(?<![a-z])(?:{words})(?![a-z])", part.lower()):
                return split
    return ""


def _one_split(found: Mapping[Any, Any], data: DataSet) -> Any:
    """Return the split that is asked for, `train`, or the only one."""
    wanted = data.split or (_TRAIN if len(found) > 1 else next(iter(found), ""))
    if wanted not in found:
        raise InputError(
            f"{data.where} has no split {wanted!r}, only {', '.join(map(str, found))}; name one as in hf:NAME:SPLIT"
        )
    return found[wanted]


@contextmanager
def _loading(name: str) -> Generator[None]:
    """Turn errors of a damaged, unknown or unreachable data set into an `InputError` that names it."""
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HfHubHTTPError

    of_data = (OSError, ValueError, RuntimeError, TypeError, LookupError, AttributeError, ArithmeticError)
    try:
        yield
    except (*of_data, ImportError, StopIteration, DatasetsError, HfHubHTTPError) as error:
        reason = " ".join(str(error).split())[:500] or type(error).__name__
        raise InputError(f"data set {name} cannot be read: {reason}") from error
