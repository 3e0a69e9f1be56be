"""What our process owes its caller: streams whose loss does no harm, and a status that only we decide.

Losing standard error changes nothing. Losing standard output changes the status at most: the work is finished and stored.
A library that ends the process by itself (OpenMP does, with status 1, when it cannot start a thread) must not be taken for a
verdict, so every end that is not ours has the status `MACHINE`. docs/contract.md lists all of them.
"""

import contextlib
import io
import os
import sys
from collections.abc import Generator
from typing import NoReturn

from internalize.errors import MACHINE, NOT_WRITTEN
from internalize.parallel.exit_status import end_with


class LossTolerantStream(io.TextIOWrapper):
    """A text stream that continues into nothing after the first failed write and keeps the error in `lost`."""

    lost: OSError | None = None

    def write(self, text: str, /) -> int:
        """Write ``text`` while anybody can receive it."""
        with self._tolerate_loss():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Hand on what is buffered, likewise."""
        with self._tolerate_loss():
            super().flush()

    @contextlib.contextmanager
    def _tolerate_loss(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            self.lost = self.lost or error
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())  # also for what is still buffered and for what C libraries write
            os.close(nothing)


def settle_environment() -> None:
    """Take from libraries what the environment may ask of them and they cannot do. For processes of the command only."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy waits for ever for threads that could not be started
    os.environ.update(MPLBACKEND="agg", MATPLOTLIBRC=os.devnull)  # our figures have one style and no window
    os.environ.pop("SOURCE_DATE_EPOCH", None)  # nor a date, which matplotlib would read here


def protect() -> None:
    """Let standard output and standard error be lost, and no library choose the status. For processes of the command only."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        closed: OSError | None = None
        try:
            os.fstat(number)
        except OSError as error:
            closed = error
            # Takes the lowest free number, so that no file of ours becomes a stream; in processes that we start neither.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if name == "stdin":
            continue
        before = getattr(sys, name)
        if isinstance(before, LossTolerantStream):
            continue
        stream = LossTolerantStream(
            open(number, "wb", closefd=False),  # noqa: SIM115  (a descriptor, open as long as the process)
            encoding=before.encoding if before and _extends_ascii(before.encoding) else "utf-8",
            errors="backslashreplace",  # no terminal is too plain for an answer
            line_buffering=name == "stderr" or (before is not None and before.isatty()),
        )
        stream.lost = closed
        setattr(sys, name, stream)
    end_with(MACHINE)


def _extends_ascii(encoding: str) -> bool:
    """Return whether ASCII text stays as it is in an encoding: PYTHONIOENCODING may name any, and JSON has to remain JSON."""
    try:
        return "{}→".encode(encoding, "backslashreplace").startswith(b"{}")
    except (LookupError, UnicodeError):
        return False


def leave(status: int) -> NoReturn:
    """End the process with this status, or with `NOT_WRITTEN` if there is an answer that could not be written."""
    sys.stdout.flush()
    lost = sys.stdout.lost if isinstance(sys.stdout, LossTolerantStream) else None
    unread = isinstance(lost, BrokenPipeError)  # `internalize … | head`: the reader has had enough
    if lost and not unread and status in (0, 1):
        print(f"internalize: cannot write to standard output: {lost.strerror}", file=sys.stderr)  # noqa: T201
        status = NOT_WRITTEN
    sys.stderr.flush()
    end_with(status)
    if sys.flags.inspect:  # PYTHONINSPECT hands SystemExit to our excepthook
        os._exit(status)
    sys.exit(status)
