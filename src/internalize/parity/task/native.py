"""The loops of ``native.c``, if this machine has a C compiler.

They are compiled for this machine when first needed, which takes a fraction of a second, and not kept: there is no cache to go
stale or to be another machine's. CC names the compiler, by default ``cc``.
"""

import ctypes
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray

Result = TypeVar("Result")


@cache
def library() -> ctypes.CDLL | None:
    """The compiled loops; None if there is no compiler, or none that can compile them."""
    source = Path(__file__).with_suffix(".c")
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "native.so"
        command = [*shlex.split(os.environ.get("CC", "cc")), "-O3", "-march=native", "-shared", "-fPIC"]
        try:
            subprocess.run([*command, "-o", str(found), str(source)], check=True, capture_output=True)  # noqa: S603
            return ctypes.CDLL(str(found))  # stays loaded when the file is gone
        except (OSError, subprocess.CalledProcessError):
            return None


def in_threads(size: int, work: Callable[[int, int], None]) -> None:
    """Call ``work(first, end)`` on parts of range(size), as many as torch has threads, at once."""
    threads = max(min(torch.get_num_threads(), size), 1)
    edges = [size * part // threads for part in range(threads + 1)]
    if threads == 1:
        work(0, size)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, edges[:-1], edges[1:]))


def one_ahead(work: Callable[[int], Result], items: Iterable[int]) -> Iterator[Result]:
    """``work`` of the items in turn; if torch has several threads, the next one is begun before it is asked for."""
    if torch.get_num_threads() == 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(1) as pool:
        begun: Future[Result] | None = None
        for item in items:
            begun, before = pool.submit(work, item), begun
            if before is not None:
                yield before.result()
        if begun is not None:
            yield begun.result()


def call(function: Callable[..., Any], *arguments: NDArray[Any] | int) -> None:
    """Call a C function; arrays go as what they point to, numbers as int64_t."""
    assert all(isinstance(a, int) or a.flags.c_contiguous for a in arguments), "C takes rows for whole"
    function(*(ctypes.c_int64(a) if isinstance(a, int) else ctypes.c_void_p(a.ctypes.data) for a in arguments))
