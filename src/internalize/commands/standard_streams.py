"""Standard streams whose loss does no harm, and an exit status that only we decide.

Losing standard error changes nothing. Losing standard output changes at most the status: the work is finished and
stored. A library may end the process itself; OpenMP does so with status 1 if it cannot start a thread. This must not be
mistaken for a verdict, so every end that is not ours has the status `MACHINE`. docs/contract.md lists all statuses.
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
    """A text stream that discards everything after the first failed write, and keeps the error in `lost`."""

    lost: OSError | None = None

    def write(self, text: str, /) -> int:
        """Write ``text``, or discard it after a failure."""
        with self._tolerate_loss():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the buffer, or discard it after a failure."""
        with self._tolerate_loss():
            super().flush()

    @contextlib.contextmanager
    def _tolerate_loss(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            self.lost = self.lost or error
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())  # also discards buffered text and the output of C libraries
            os.close(nothing)


def settle_environment() -> None:
    """Set environment variables so that libraries work with any environment. Only for processes of the command."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy waits forever for threads that could not be started
    os.environ.update(MPLBACKEND="agg", MATPLOTLIBRC=os.devnull)  # our figures have one style and no window
    os.environ.pop("SOURCE_DATE_EPOCH", None)  # matplotlib would read a date from it, and our figures have none
    # Log levels of libraries, which fail on a name that they do not know.
    for name in ("TORCH_LOGS", "ACCELERATE_LOG_LEVEL"):
        os.environ.pop(name, None)


def protect() -> None:
    """Make standard streams tolerate their loss, and keep libraries from choosing the exit status.

    Only for processes of the command.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        closed: OSError | None = None
        try:
            os.fstat(number)
        except OSError as error:
            closed = error
            # This takes the lowest free number, so that no file becomes a standard stream, here or in our child
            # processes.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if name == "stdin":
            continue
        before = getattr(sys, name)
        if isinstance(before, LossTolerantStream):
            continue
        stream = LossTolerantStream(
            open(number, "wb", closefd=False),  # noqa: SIM115  (a descriptor that stays open until the process ends)
            encoding=before.encoding if before and _extends_ascii(before.encoding) else "utf-8",
            errors="backslashreplace",  # so that an answer can be printed in any encoding
            line_buffering=name == "stderr" or (before is not None and before.isatty()),
        )
        stream.lost = closed
        setattr(sys, name, stream)
    end_with(MACHINE)


def _extends_ascii(encoding: str) -> bool:
    """Return whether an encoding leaves ASCII unchanged. PYTHONIOENCODING may name any, but JSON must remain JSON."""
    try:
        return "{}→".encode(encoding, "backslashreplace").startswith(b"{}")
    except (LookupError, UnicodeError):
        return False


def leave(status: int) -> NoReturn:
    """End the process with this status, or with `NOT_WRITTEN` if the answer could not be written."""
    sys.stdout.flush()
    lost = sys.stdout.lost if isinstance(sys.stdout, LossTolerantStream) else None
    unread = isinstance(lost, BrokenPipeError)  # `internalize … | head`: the reader has closed the pipe
    if lost and not unread and status in (0, 1):
        print(f"internalize: cannot write to standard output: {lost.strerror}", file=sys.stderr)  # noqa: T201
        status = NOT_WRITTEN
    sys.stderr.flush()
    end_with(status)
    if sys.flags.inspect:  # with PYTHONINSPECT, our excepthook would get SystemExit
        os._exit(status)
    sys.exit(status)
