"""The loops of ``native.c``, if this machine has a C compiler, and the threads that run them.

The first use compiles them for this machine, which takes a fraction of a second. The library is not stored, so
there is no cache that could be stale or come from another machine. CC names the compiler (default ``cc``). If it
fails or takes too long, a warning says so once per process, and numpy does the work.
"""

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from numpy.typing import NDArray

Result = TypeVar("Result")

COMPILER_SECONDS: Final = 15.0
"""Seconds after which a compiler that has not finished is killed."""


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled loops, or None if they cannot be compiled."""
    compiler = os.environ.get("CC", "cc")
    try:
        return _compiled(shlex.split(compiler))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        if compiler not in ("cc", "") or not isinstance(error, FileNotFoundError):  # a missing default is no fault
            warnings.warn(f"compiler {compiler!r}: {error}; counting with numpy, which is slower", stacklevel=2)
        return None


def _compiled(compiler: Sequence[str]) -> ctypes.CDLL:
    source = Path(__file__).with_suffix(".c")
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "native.so"
        command = [*compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", str(found), str(source)]
        nothing = subprocess.DEVNULL
        # The compiler gets its own session, so that killing the group also ends the processes it started.
        with subprocess.Popen(  # noqa: S603
            command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
        ) as process:
            try:
                status = process.wait(COMPILER_SECONDS)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if status:
            raise subprocess.CalledProcessError(status, command[0])
        return ctypes.CDLL(str(found))  # stays loaded after the file is deleted


def in_threads(size: int, work: Callable[[int, int], None]) -> None:
    """Split range(size) into as many parts as torch has threads, and call ``work(first, end)`` on all at once."""
    threads = max(min(torch.get_num_threads(), size), 1)
    edges = [size * part // threads for part in range(threads + 1)]
    if threads == 1:
        work(0, size)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, edges[:-1], edges[1:]))


def one_ahead(work: Callable[[int], Result], items: Iterable[int]) -> Iterator[Result]:
    """Yield ``work(item)`` in order; if torch has several threads, compute the next result in advance."""
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
    """Call a C function. Arrays are passed as pointers, numbers as int64_t."""
    assert all(isinstance(a, int) or a.flags.c_contiguous for a in arguments), "C expects contiguous rows"
    function(*(ctypes.c_int64(a) if isinstance(a, int) else ctypes.c_void_p(a.ctypes.data) for a in arguments))
