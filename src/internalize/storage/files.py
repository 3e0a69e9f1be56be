"""Files written whole or not at all, and read with errors that say what is wrong with them."""

import codecs
import contextlib
import glob
import hashlib
import json
import os
import re
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from internalize.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Json = dict[str, Any]
"""A JSON object."""
TEMPORARY_FILE: Final = re.compile(r"\..+\.(\d+)\.tmp")
"""What `write_atomically` leaves behind when it is killed, with the number of its process."""


@contextlib.contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn a full disk, a read-only or vanished folder into one clear line. What was there before is still there."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def reading(path: Path) -> Generator[None]:
    """Turn a missing or unreadable file into one clear line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def present(path: Path) -> bool:
    """Whether a file is there. What is in its place and is none would be taken for its absence, and is refused."""
    if path.is_file():
        return True
    if os.path.lexists(path):
        raise InputError(f"{path} is no file, but a {'folder' if path.is_dir() else 'link to nowhere, or a device'}")
    return False


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the file, flush to the disk, and rename over it. What a killed process has left there goes. A link stays one;
    a device is not replaced by a file.
    """
    with writing(path):
        if path.exists():
            present(path)
            path = path.resolve()
        for litter in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
            if (whose := TEMPORARY_FILE.fullmatch(litter.name)) and not _is_alive(int(whose[1])):
                litter.unlink(missing_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with beside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    """Whether there is such a process, on this machine."""
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # there is, and it is somebody else's
    return True


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """One JSON object, finite numbers only."""
    write_atomically(path, (json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode())


def read_json(path: Path, schema: object = Json) -> Json:
    """Return the JSON object in a file. One that does not fit the schema is refused."""
    with reading(path):
        content = path.read_bytes()
    return parse_json(content, path, schema)


def parse_json(content: bytes, path: Path, schema: object = Json) -> Json:
    """Return the JSON object in some bytes of a file: finite numbers only, and what the schema says of its keys.

    Args:
        content: the bytes, with or without a byte-order mark.
        path: the file, for the message.
        schema: any type that msgspec knows, such as a ``TypedDict``. Keys it does not name are kept as they are.
    """
    import msgspec

    try:
        value: object = msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} is not a JSON object")
    check_schema(cast("Json", value), schema, path)
    return cast("Json", value)


def check_schema(value: object, schema: object, path: Path) -> Any:
    """Refuse a value read from a file if it does not fit the schema, with the place in it and what stands there.

    Return it as the schema has it, a dataclass for instance.
    """
    import msgspec

    try:
        return msgspec.convert(value, schema)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {explain(error)}") from None


def explain(error: Exception) -> str:
    """Return the message of msgspec with the place first: "rows[0].n: expected `int`, got `str`"."""
    message, _, place = str(error).partition(" - at ")
    place = place.strip("`").removeprefix("$").removeprefix(".")
    return (f"{place}: " if place else "") + message[:1].lower() + message[1:]


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a digest of itself, so that damage is noticed."""
    return {**value, "sha256": _json_digest(value)}


def check_seal(value: Mapping[str, Any], path: Path) -> None:
    """Refuse an object that is not what it was sealed as. One without a digest is taken."""
    if "sha256" in value and value["sha256"] != _json_digest({k: v for k, v in value.items() if k != "sha256"}):
        raise InputError(f"{path} is damaged: it does not have the digest that it was written with")


def _json_digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


_LARGE = 2**30


def file_digests(paths: Iterable[Path]) -> dict[str, str]:
    """What each file is known by, by its name: its digest, or its size if reading it would take as long as writing it."""
    digests: dict[str, str] = {}
    for path in sorted(paths):
        if (size := path.stat().st_size) > _LARGE:
            digests[path.name] = f"{size} bytes"
            continue
        with path.open("rb") as file:
            digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def save_tensors(path: Path, tensors: "Mapping[str, Tensor]") -> None:
    """Tensors as safetensors, with a digest of their bytes so that damage is noticed."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(plain, metadata={"sha256": _digest(plain)}))


def load_tensors(path: Path) -> "dict[str, Tensor]":
    """Tensors by name. Damaged, not finite or not floating point: refused. A file without our digest is taken."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    with reading(path):
        content = path.read_bytes()
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise InputError(f"{path} is not a whole safetensors file: {error}") from None
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    digest = header.get("__metadata__", {}).get("sha256")
    if digest is not None and digest != _digest(tensors):
        raise InputError(f"{path} is damaged: its bytes do not have the digest that it was written with")
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise InputError(f"{path}: {name} has dtype {tensor.dtype}; weights are floating-point numbers")
        if not bool(tensor.isfinite().all()):
            raise InputError(f"{path}: {name} has entries that are not finite")
    return tensors


def _digest(tensors: "Mapping[str, Tensor]") -> str:
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
