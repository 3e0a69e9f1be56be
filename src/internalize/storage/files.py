"""Files that are written whole or not at all, and whose readers say what is wrong with a file."""

import codecs
import contextlib
import glob
import hashlib
import itertools
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict, TypeVar, cast, get_type_hints, overload

import msgspec
from msgspec import Meta

from internalize.environment import check_memory
from internalize.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Json = dict[str, Any]
"""A JSON object."""
T = TypeVar("T")
TEMPORARY_FILE: Final = re.compile(r"\.(?P<of>.+)\.(?P<process>[0-9]{1,9})\.tmp")
"""Name of a temporary file that a killed `write_atomically` leaves: it holds the file's name and the process number."""


@contextlib.contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn a full disk, or a read-only or vanished folder, into a one-line error. Old content of the file survives."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def reading(path: Path) -> Generator[None]:
    """Turn a missing or unreadable file into a one-line error."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def present(path: Path) -> bool:
    """Return whether a file exists. Raise an error if the path exists but is not a regular file."""
    with reading(path):
        if path.is_file():
            return True
        if os.path.lexists(path):
            what = "a folder" if path.is_dir() else "a broken link or a device"
            raise InputError(f"{path} is not a file but {what}")
    return False


def read_file(path: Path) -> bytes:
    """Return the bytes of a file. Raise an error for a folder, a device, or a file larger than the machine's memory."""
    with reading(path):
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{path} is not a file but a {'folder' if path.is_dir() else 'device'}")
        check_memory(found.st_size, f"the bytes of {path}")
        return path.read_bytes()


def refuse_link(path: Path, below: Path) -> None:
    """Raise an error if a path leaves the folder ``below`` through a link. The folder itself may be a link."""
    for each in (path, *path.parents):
        if each == below:
            return
        if each.is_symlink():
            raise InputError(
                f"{each} is a link, and nothing outside {below} may be written or deleted; remove the link"
            )


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Raise an error if one of these files or folders is a link, or if there is a link anywhere inside one of them."""
    for name in names:
        refuse_link(folder / name, folder)
        for here, below, files in os.walk(folder / name):
            for each in (*below, *files):
                refuse_link(Path(here) / each, Path(here))


def foreign_name(folder: Path, own: Collection[str]) -> str | None:
    """Return the first name in a folder that is neither in ``own`` nor a temporary file of one that is, or None."""
    with reading(folder):
        names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    return next((name for name in names if name not in own and not _is_temporary(name, own.__contains__)), None)


def numbered(folder: Path, form: re.Pattern[str]) -> list[tuple[int, Path]]:
    """Return the files whose names match ``form`` with the number in its first group, sorted by that number."""
    found = ((form.fullmatch(path.name), path) for path in folder.glob("*"))
    return sorted((int(name[1]), path) for name, path in found if name)


def free_name(path: Path) -> Path:
    """Return an unused path next to this one, to which it can be renamed."""
    names = (path.with_name(f"{path.name}.set-aside-{number}") for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def remove_temporary_files(folder: Path, own: Callable[[str], object]) -> None:
    """Remove temporary files that a killed writer has left, if ``own`` accepts the names of the files that it wrote."""
    for left_over in () if folder.is_symlink() else folder.glob(".*.tmp"):
        if _is_temporary(left_over.name, own):
            with writing(left_over):
                left_over.unlink(missing_ok=True)


def _is_temporary(name: str, own: Callable[[str], object]) -> bool:
    found = TEMPORARY_FILE.fullmatch(name)
    return found is not None and bool(own(found["of"]))


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file next to ``path``, flush it to the disk, and rename it to ``path``.

    Temporary files that killed processes have left are removed. Raise an error rather than replace a link or a device.
    """
    with writing(path):
        refuse_link(path, path.parent)
        present(path)
        for left_over in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
            if (whose := TEMPORARY_FILE.fullmatch(left_over.name)) and not _is_alive(int(whose["process"])):
                left_over.unlink(missing_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            beside.unlink(missing_ok=True)  # left by a killed process with the same number
            with beside.open("xb") as file:  # x: never follows a link
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    """Return whether this machine has a process with this number."""
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # it exists and belongs to another user
    return True


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object. Numbers must be finite."""
    write_atomically(path, (json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode())


def as_json(value: Json, path: Path) -> Json:
    """Return an object as it would be read back from its file: tuples become lists."""
    try:
        return json.loads(json.dumps(value, ensure_ascii=False).encode())
    except UnicodeEncodeError as error:
        raise InputError(f"{error.object!r} is not UTF-8, so it cannot be written to {path}") from None


def read_json(path: Path, schema: object = Json) -> Json:
    """Return the JSON object in a file. Raise an error if it does not fit the schema."""
    return parse_json(read_file(path), path, schema)


def parse_json(content: bytes, path: Path | str, schema: object = Json) -> Json:
    """Return the JSON object in the bytes of a file. Raise an error if a number is not finite or the schema does not
    fit.

    Args:
        content: the bytes, with or without a byte-order mark.
        path: the file, for the message.
        schema: any type that msgspec knows, such as a ``TypedDict``. Keys that it does not name are kept unchanged.
    """
    try:
        value: object = msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} is not a JSON object")
    check_schema(cast("Json", value), schema, path)
    return cast("Json", value)


@overload
def check_schema(value: object, schema: type[T], path: Path | str) -> T: ...
@overload
def check_schema(value: object, schema: object, path: Path | str) -> Any: ...
def check_schema(value: object, schema: object, path: Path | str) -> Any:
    """Convert a value read from a file to the type ``schema``, which drops other keys and builds dataclasses.

    Raise an error with the place and what is wrong there if the value does not fit.
    """
    try:
        return msgspec.convert(value, schema)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {explain(error)}") from None


def all_fields(options: type, **more: object) -> type[msgspec.Struct]:
    """Return the schema of an object that must have every field of a dataclass, even with a default, and these."""
    hints = get_type_hints(options)
    return msgspec.defstruct(
        options.__name__, [*((field.name, hints[field.name]) for field in fields(options)), *more.items()]
    )


def check_version(found: Mapping[str, Any], version: int, path: Path) -> None:
    """Raise an error if a file has another version of its format."""
    if found.get("version") != version:
        raise InputError(f"{path} has version {found.get('version')!r}; this package reads version {version}")


def explain(error: Exception) -> str:
    """Return the message of a msgspec error with the place first: "rows[0].n: expected `int`, got `str`"."""
    message, _, place = str(error).partition(" - at ")
    place = place.strip("`").removeprefix("$").removeprefix(".")
    return (f"{place}: " if place else "") + message[:1].lower() + message[1:]


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its own digest added, so that damage is noticed."""
    return {**value, "sha256": _json_digest(value)}


def check_seal(value: Mapping[str, Any], path: Path) -> None:
    """Raise an error if an object does not match its digest. An object without a digest passes."""
    if "sha256" in value and value["sha256"] != _json_digest({k: v for k, v in value.items() if k != "sha256"}):
        raise InputError(f"{path} is damaged: its content does not match its digest")


def _json_digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


_LARGE = 2**30
"""Bytes above which a file is known by its size, because reading it would take as long as writing it."""


def file_digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the digest of each file by its name; for a large file, return its size instead."""
    digests: dict[str, str] = {}
    for path in sorted(paths):
        if (size := path.stat().st_size) > _LARGE:
            digests[path.name] = f"{size} bytes"
            continue
        with path.open("rb") as file:
            digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def save_tensors(path: Path, tensors: "Mapping[str, Tensor]") -> None:
    """Write tensors as safetensors, with a digest of their bytes so that damage is noticed."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(plain, metadata={"sha256": _digest(plain)}))


def load_tensors(path: Path) -> "dict[str, Tensor]":
    """Return the tensors in a file by name. Raise an error if one is damaged, not finite or not floating point.

    A file without our digest is accepted.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    content = read_file(path)
    header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")], f"the header of {path}")
    metadata: dict[str, str] | None = check_schema(header.pop("__metadata__", None), dict[str, str] | None, path)
    for name, tensor in header.items():
        check_schema(tensor, _TensorHeader, f"{path}: {name}")
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise InputError(f"{path} is not a whole safetensors file: {error}") from None
    if metadata and "sha256" in metadata and metadata["sha256"] != _digest(tensors):
        raise InputError(f"{path} is damaged: its bytes do not match its digest")
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise InputError(f"{path}: {name} has entries that are not finite")
    return tensors


class _TensorHeader(TypedDict):
    """A tensor in the header of a safetensors file: only types and shapes that torch can hold and use as a weight."""

    dtype: Literal["F64", "F32", "F16", "BF16"]
    shape: Annotated[list[Annotated[int, Meta(le=2**63 - 1)]], Meta(max_length=64)]


def _digest(tensors: "Mapping[str, Tensor]") -> str:
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
