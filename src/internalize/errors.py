"""Three kinds of errors and their exit statuses: mistakes of the user, failures of the machine, and our bugs."""

import errno
import re
from typing import ClassVar, Final, Literal, get_args, get_origin, get_type_hints

WRONG: Final = 2
"""Exit status after an `InputError`."""
BUG: Final = 70
"""Exit status after a bug of ours."""
MACHINE: Final = 71
"""Exit status if the machine or a library ended the work: no threads, no processes, a killed process."""
NOT_WRITTEN: Final = 74
"""Exit status if the work is done and stored, but the answer could not be written to standard output."""
INTERRUPTED: Final = 130
"""Exit status after Ctrl-C or SIGTERM, with everything saved."""


class InputError(ValueError):
    """The request or its files are wrong: the message names the value, the limit and the reason.

    The command line turns it into one line and exit status 2. A plain ``ValueError`` from a library stays a traceback,
    because it is then our bug.
    """

    status: ClassVar = WRONG


class MachineError(Exception):
    """The machine or a library ended the work, and finished results are kept: one line and exit status 71."""

    status: ClassVar = MACHINE


_NOTHING_LEFT: Final = re.compile(
    "start new thread|allocate memory|out of memory|map segment|temporarily unavailable|too many open files",
    re.IGNORECASE,
)
"""Messages of libraries that have no memory, thread or file handle left; there is no common class for this error."""


def is_of_machine(error: BaseException) -> bool:
    """Return whether an error says that the machine has run out of something, or that a library in Rust gave up."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
    named = isinstance(error, MemoryError) or type(error).__name__ == "PanicException"
    return named or _NOTHING_LEFT.search(str(error)) is not None


class KilledReason(str):
    """Why the machine ended a job. The reason of a refused job is a plain string, and leads to another exit status."""


def check_choices(options: object) -> None:
    """Raise an error if a value is not among the choices of its field. Python itself does not check this."""
    for name, kind in get_type_hints(type(options)).items():
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        if choices and (value := getattr(options, name)) not in choices:
            raise InputError(f"{name}={value!r} is not one of {', '.join(map(str, choices))}")
