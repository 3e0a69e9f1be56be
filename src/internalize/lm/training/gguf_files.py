"""GGUF files, in which llama.cpp keeps a model: one file with the config, the tokenizer and quantized weights.

transformers reads them with the package gguf, which believes every length in a file. So the file is walked first: each
name, list and tensor must lie inside it, and what it asks for must fit into memory.
"""

import mmap
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from internalize.environment import check_memory
from internalize.errors import InputError
from internalize.lm.model_options import MAX_LAYERS
from internalize.storage.files import present, reading

SUFFIX: Final = ".gguf"
_VERSIONS: Final = (2, 3)
_STRING: Final = 8
_ARRAY: Final = 9
_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of each kind of number in the metadata."""
_BYTES_PER_ENTRY: Final = 1000
"""Memory that the package gguf needs for an entry of a list in the metadata."""
_MAX_DIMENSIONS: Final = 4


def gguf_file(name: str) -> Path | None:
    """Return the GGUF file that a model's name stands for: the file itself, or the only one in a folder without a
    config.json. None if the name stands for something else.
    """
    path = Path(name)
    if path.suffix == SUFFIX and not path.is_dir():
        return path
    if not name or not path.is_dir() or present(path / "config.json"):
        return None
    with reading(path):
        found = sorted(path.glob(f"*{SUFFIX}"))
    if len(found) > 1:
        raise InputError(
            f"{path} holds {len(found)} GGUF files; name one of them: {', '.join(f.name for f in found[:3])}"
        )
    return found[0] if found else None


def check_gguf(path: Path) -> None:
    """Refuse a file that is not a complete GGUF file, or whose content does not fit into this machine's memory."""
    if not path.is_file():
        raise InputError(f"model {str(path)!r} cannot be loaded: there is no such file")
    if find_spec("gguf") is None:
        raise InputError(f"{path}: reading GGUF files needs the package gguf (pip install gguf)")
    with reading(path), path.open("rb") as file:
        if not file.read(1):
            raise InputError(f"{path} is not a GGUF file: it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Walk(path, data).all()


class _Walk:
    """A walk through the header of a GGUF file, from its first byte to the place of its last tensor."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at, self.entries = path, data, 0, 0

    def all(self) -> None:
        """Check everything."""
        from gguf.constants import GGML_QUANT_SIZES

        if self.skip(4) != b"GGUF":
            raise InputError(f"{self.path} is not a GGUF file: it does not begin with GGUF")
        version, tensors, pairs = self.number(4), self.number(8), self.number(8)
        if version not in _VERSIONS:
            raise InputError(f"{self.path}: GGUF version {version} is not one of {_VERSIONS}")
        alignment = 32
        for _ in range(pairs):  # each takes bytes of the file, so a false number ends at its end
            key, value = self.text(), self.value()
            if key.endswith(b".block_count") and not (isinstance(value, int) and 1 <= value <= MAX_LAYERS):
                raise InputError(f"{self.path}: {value} layers, and 1 to {MAX_LAYERS} are allowed")
            if key == b"general.alignment":
                alignment = value or 0
        sizes: dict[int, tuple[int, int]] = {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
        ends, weights = 0, 0
        for _ in range(tensors):
            name = self.text().decode(errors="replace")
            dimensions = self.number(4)
            if dimensions > _MAX_DIMENSIONS:
                raise InputError(f"{self.path}: tensor {name!r} has {dimensions} dimensions")
            count = 1
            for _ in range(dimensions):
                count *= self.number(8)
            kind, offset = self.number(4), self.number(8)
            if kind not in sizes:
                raise InputError(f"{self.path}: tensor {name!r} has the unknown type {kind}")
            block, taken = sizes[kind]
            weights += count
            ends = max(ends, offset + -(-count // block) * taken)
        if alignment < 1 or alignment & (alignment - 1):
            raise InputError(f"{self.path}: alignment {alignment} is not a power of two")
        begins = -(-self.at // alignment) * alignment
        if begins + ends > len(self.data):
            raise InputError(f"{self.path} is not complete: it has {len(self.data)} of {begins + ends} bytes")
        # The weights in float32, twice: as read, and in the model.
        check_memory(8 * weights + _BYTES_PER_ENTRY * self.entries, f"{self.path}: its {weights} weights")

    def skip(self, count: int) -> bytes:
        """Return the next bytes, at most 4096 of them, and go behind them."""
        if count > len(self.data) - self.at:
            raise InputError(f"{self.path} is damaged: it ends in its header")
        found = self.data[self.at : self.at + min(count, 4096)]
        self.at += count
        return found

    def number(self, size: int) -> int:
        """Return the next unsigned number."""
        return int.from_bytes(self.skip(size), "little")

    def text(self) -> bytes:
        """Return the next text."""
        return self.skip(self.number(8))

    def value(self) -> int | None:
        """Go behind the next value of the metadata, and return it if it is a number (a whole one, as its bytes say)."""
        kind = self.number(4)
        if kind in _SIZES:
            return self.number(_SIZES[kind])
        if kind == _STRING:
            self.text()
        elif kind == _ARRAY:
            inner, count = self.number(4), self.number(8)
            self.entries += count
            if inner in _SIZES:
                self.skip(count * _SIZES[inner])
            elif inner == _STRING:
                for _ in range(count):
                    self.text()
            else:
                raise InputError(f"{self.path}: its metadata have a list of type {inner}, which is not known")
        else:
            raise InputError(f"{self.path}: its metadata have a value of type {kind}, which is not known")
        return None


def settled(model: Any) -> Any:
    """Return a model from a GGUF file as an ordinary one, which can be trained and saved."""
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    build: Any = AutoModelForCausalLM  # transformers leaves its types half open
    config = model.config
    del config.quantization_config
    with no_init_weights():
        fresh = build.from_config(config, dtype=model.dtype)
    fresh.load_state_dict(model.state_dict())
    fresh.tie_weights()
    fresh.generation_config = model.generation_config
    return fresh.eval()


def without_bar() -> None:
    """Turn off the progress bar that transformers shows while it reads GGUF files, which no setting of it turns off."""
    from tqdm import tqdm
    from transformers import modeling_gguf_pytorch_utils

    reader: Any = modeling_gguf_pytorch_utils
    reader.tqdm = partial(tqdm, disable=True)
