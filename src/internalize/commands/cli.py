"""The command line: the subcommands of ``commands/`` under one name.

Exit status: 0 done and it holds; 1 done and it does not hold; 2 the request or its files are wrong, one line on standard
error; 130 interrupted, state saved; 70 a bug of ours, with its traceback; 71 the machine or a library ended the work; 74 the
answer could not be written to standard output.
"""

import contextlib
import errno
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from itertools import dropwhile, takewhile
from types import TracebackType
from typing import Annotated, Any, Final, NoReturn

import tyro

from internalize.commands.bench import Bench
from internalize.commands.certify import Certify
from internalize.commands.compare import Compare
from internalize.commands.console import say
from internalize.commands.lm import Lm
from internalize.commands.paper import Paper
from internalize.commands.predict import Predict
from internalize.commands.runs import Runs
from internalize.commands.solve import Solve
from internalize.commands.standard_streams import leave, protect
from internalize.commands.sweep import Sweep
from internalize.commands.train import Train
from internalize.errors import BUG, INTERRUPTED, MACHINE, WRONG, InputError, MachineError
from internalize.parallel.interrupt import Interrupted

_UNUSABLE = (errno.ENAMETOOLONG, errno.EACCES)
"""What merely to look whether a path exists may end in; reading and writing have messages of their own (`files.py`)."""

Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Solve, tyro.conf.subcommand("solve")]
    | Annotated[Predict, tyro.conf.subcommand("predict")]
    | Annotated[Certify, tyro.conf.subcommand("certify")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Paper, tyro.conf.subcommand("paper")]
    | Annotated[Runs, tyro.conf.subcommand("runs")]
    | Annotated[Lm, tyro.conf.subcommand("lm")]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. Bugs come out as exceptions."""
    try:
        command = parse(sys.argv[1:] if argv is None else list(argv))
        return command()
    except InputError as error:
        say(
            "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in str(error))
        )  # one line, whatever a name holds
        return WRONG
    except OSError as error:
        if error.errno not in _UNUSABLE or error.filename is None:
            raise
        say(f"cannot use {os.fsdecode(error.filename)!r}: {error.strerror}")
        return WRONG
    except MachineError as error:
        say(str(error))
        return MACHINE
    except Interrupted as how:
        say(f"interrupted, and saved up to here; {how}")
        return INTERRUPTED
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED


def run() -> NoReturn:
    """The `internalize` command."""
    protect()
    sys.excepthook = _report_bug
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to be asked to end is to be interrupted
    try:
        status = main()
    except SystemExit as stop:
        status = 0
        if stop.code:  # a library gives up; --help has 0
            say(f"a library ended the command: {stop.code}")
            status = MACHINE
    leave(status)


_RENAMED: Final[dict[str, dict[str, str]]] = {
    "compare": {"--of": "--study"},
    "lm": {"--by": "--updates-from"},
    "paper": {"--processes": "--jobs"},
    "solve": {"--update": "--gradients"},
    "sweep": {"--by": "--group-by", "--on": "--backend"},
}
"""Former names of options by command. They still work, and `--help` does not show them."""


def _with_new_names(argv: Sequence[str]) -> list[str]:
    """Replace former names of options, also where the value follows after an equals sign."""
    renamed = _RENAMED.get(argv[0], {}) if argv else {}
    names = (word.partition("=") for word in argv)
    return [f"{renamed.get(name, name)}{equals}{value}" for name, equals, value in names]


def parse(argv: list[str]) -> Any:
    """The command that the words ask for. tyro explains mistakes in a box; the contract wants a line.

    Words that no option takes are asked back: tyro would look for similar ones in every command, which takes seconds.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            command, unknown = tyro.cli(
                Command,  # pyright: ignore[reportArgumentType]  (a union is fine for tyro)
                prog="internalize",
                description="Internalize chain-of-thought: the curricula of the Log-ICoT paper, exact and in one command.",
                args=_with_new_names(argv),
                return_unknown_args=True,
            )
    except SystemExit as stop:
        if stop.code != WRONG:
            raise
        message = _first_sentence(said.getvalue())
        raise InputError(
            f"{' '.join(argv)!r}: {message}" if message.startswith("Expected one of") else message
        ) from None
    if unknown:
        raise InputError(f"unrecognized: {', '.join(map(repr, unknown))}; see internalize --help")
    return command


def _first_sentence(box: str) -> str:
    """What tyro's box says between its title and its first rule. A plain terminal gets another box, ruled by hyphens."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()]
    body = dropwhile(_is_rule, filter(None, lines[1:]))
    message = " ".join(takewhile(lambda line: not _is_rule(line), body))
    message = re.sub(r"^Error parsing __tyro\S*: ", "", message).rstrip(".")  # tyro's name for what has none
    return f"{message}; see internalize --help"


def _is_rule(line: str) -> bool:
    return not line.strip("─-")


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, error, trace)
    say("this is a bug; please report it with the lines above")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(BUG)  # an exception would end in status 1, which means "done, and it does not hold"
