"""The loops of ``native.c``, if this machine has a C compiler.

They are compiled for this machine when first needed, which takes a fraction of a second, and not kept: there is no cache to go
stale or to be another machine's. CC names the compiler, by default ``cc``. One that fails or takes too long is named in a
warning, once per process, and numpy does the work.
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
"""After which a compiler is taken to hang."""


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled loops; None if there is no compiler, or none that can compile them."""
    compiler = os.environ.get("CC", "cc")
    try:
        return _compiled(shlex.split(compiler))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        if compiler not in ("cc", "") or not isinstance(error, FileNotFoundError):  # nobody has to have one
            warnings.warn(f"compiler {compiler!r}: {error}; counting with numpy, which is slower", stacklevel=2)
        return None


def _compiled(compiler: Sequence[str]) -> ctypes.CDLL:
    source = Path(__file__).with_suffix(".c")
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "native.so"
        command = [*compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", str(found), str(source)]
        nothing = subprocess.DEVNULL
        # In a session of its own, so that what it starts ends with it.
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
        return ctypes.CDLL(str(found))  # stays loaded when the file is gone


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
