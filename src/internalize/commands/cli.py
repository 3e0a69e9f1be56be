"""The command line: the subcommands of ``commands/`` under one name.

Exit status 0: done, and everything that was checked holds. Status 1: done, and something does not hold. `errors.py` has
the others.
"""

import contextlib
import difflib
import errno
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from types import TracebackType
from typing import Any, Final, NoReturn

import tyro

from internalize import __version__
from internalize.commands.bench import Bench
from internalize.commands.certify import Certify
from internalize.commands.compare import Compare
from internalize.commands.console import print_text, say
from internalize.commands.help import command_help, options_of, overview
from internalize.commands.lm_ask import LmAsk
from internalize.commands.lm_certify import LmCertify
from internalize.commands.lm_compare import LmCompare
from internalize.commands.lm_data import LmData
from internalize.commands.lm_eval import LmEval
from internalize.commands.lm_patch import LmPatch
from internalize.commands.lm_plan import LmPlan
from internalize.commands.lm_probe import LmProbe
from internalize.commands.lm_train import LmTrain
from internalize.commands.paper import Paper
from internalize.commands.predict import Predict
from internalize.commands.runs import Runs
from internalize.commands.solve import Solve
from internalize.commands.standard_streams import leave, protect, settle_environment
from internalize.commands.sweep import SweepShow, SweepSolve, SweepTrain
from internalize.commands.train import Train
from internalize.errors import BUG, INTERRUPTED, MACHINE, WRONG, InputError, MachineError, is_of_machine
from internalize.parallel.interrupt import Interrupted

_EXTRAS: Final = {"transformers": "lm", "accelerate": "lm", "datasets": "lm", "peft": "lm", "ray": "ray"}
"""Packages that only some commands need, and the extra that installs each."""
_UNUSABLE = (errno.ENAMETOOLONG, errno.EACCES)
"""Errors that a check whether a path exists may raise. Reading and writing have their own messages (`files.py`)."""

COMMANDS: Final[dict[str, dict[str, type]]] = {
    "The paper's model": {
        "train": Train,
        "solve": Solve,
        "predict": Predict,
        "certify": Certify,
        "compare": Compare,
        "sweep solve": SweepSolve,
        "sweep train": SweepTrain,
        "sweep show": SweepShow,
    },
    "Language models": {
        "lm data": LmData,
        "lm plan": LmPlan,
        "lm train": LmTrain,
        "lm eval": LmEval,
        "lm ask": LmAsk,
        "lm probe": LmProbe,
        "lm patch": LmPatch,
        "lm certify": LmCertify,
        "lm compare": LmCompare,
    },
    "Reports": {"paper": Paper, "runs": Runs, "bench": Bench},
}
"""Every command by its words, in the groups that `internalize --help` shows."""
_BY_NAME: Final = {name: command for commands in COMMANDS.values() for name, command in commands.items()}
DESCRIPTION: Final = (
    "Train transformers to reason step by step, then remove the steps until they answer in one forward pass: "
    'Log-ICoT, the curriculum of "Transformers Provably Learn to Internalize Chain-of-Thought".'
)
FAMILIES: Final = {
    "sweep": "Run every setting of a grid with every seed, on processes or a Ray cluster, into one store of rows. "
    'The store opens as Parquet: polars.read_parquet("OUT/cells/*.parquet").',
    "lm": "Internalize the chain of thought of any causal language model of Hugging Face transformers.",
}
"""Descriptions of the commands with two words, by their first word."""
NOTES: Final = (
    "`internalize COMMAND --help` explains a command, `internalize --version` prints the version.",
    "Start with: internalize paper, or internalize lm train --stop-at 0.99",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. A bug of ours raises an exception."""
    try:
        command = parse(sys.argv[1:] if argv is None else list(argv))
        return command()
    except (InputError, MachineError) as error:
        say(str(error))
        return error.status
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        say(f"this command needs {error.name}: pip install 'internalize[{extra}]'")
        return WRONG
    except OSError as error:
        if error.errno not in _UNUSABLE or error.filename is None:
            raise
        say(f"cannot use {os.fsdecode(error.filename)!r}: {error.strerror}")
        return WRONG
    except Interrupted as how:
        say(f"interrupted; progress is saved; {how}")
        return INTERRUPTED
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED


def run() -> NoReturn:
    """Run the `internalize` command and end the process with its exit status."""
    settle_environment()
    protect()
    sys.excepthook = _end_with_error
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM interrupts like Ctrl-C
    try:
        status = main()
    except SystemExit as stop:
        status = 0
        if stop.code:  # a library gave up
            say(f"a library ended the command: {stop.code}")
            status = MACHINE
    leave(status)


_RENAMED: Final[dict[str, dict[str, str]]] = {
    "compare": {"--of": "--study"},
    "lm plan": {"--by": "--updates-from", "--utilisation": "--utilization"},
    "paper": {"--processes": "--jobs"},
    "predict": {"--K": "--amplitude"},
    "solve": {"--K": "--amplitude", "--update": "--gradients"},
    "sweep show": {"--by": "--group-by"},
    "sweep solve": {"--on": "--backend"},
    "sweep train": {"--on": "--backend"},
}
"""Former names of options by command. They still work, and `--help` does not show them."""


def parse(argv: list[str]) -> Any:
    """Return the command for the words: a callable that runs it and returns the exit status."""
    for word in argv:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise InputError(f"{word!r} is not UTF-8, so no file could store it as an option; rename it") from None
    name = _command_name(argv)
    if isinstance(name, Notice):
        return name
    command = _BY_NAME[name]
    words = _with_new_names(name, argv[len(name.split()) :])
    if not {"-h", "--help"}.isdisjoint(words):
        return Notice(command_help(name, command))
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            run: Any = tyro.cli  # its overloads do not cover a class in a variable
            parsed, unknown = run(command, prog=f"internalize {name}", args=words, return_unknown_args=True)
    except SystemExit as stop:
        if stop.code != WRONG:
            raise
        raise InputError(f"{_first_sentence(said.getvalue())}; see internalize {name} --help") from None
    if unknown:  # tyro would search every command for similar options, which takes seconds
        guess = _guess(unknown[0].partition("=")[0], [flag for option in options_of(command) for flag in option.flags])
        raise InputError(f"unrecognized: {', '.join(map(repr, unknown))}{guess}; see internalize {name} --help")
    return parsed


@dataclass(frozen=True)
class Notice:
    """A text to print instead of running a command."""

    text: str

    def __call__(self) -> int:
        """Print the text."""
        print_text(self.text)
        return 0


def _command_name(argv: Sequence[str]) -> str | Notice:
    """Return the name of the command, or a text to print instead."""
    if not argv or argv[0] in ("-h", "--help"):
        return Notice(overview(COMMANDS, DESCRIPTION, NOTES))
    if argv[0] == "--version":
        return Notice(f"internalize {__version__}")
    for words in (1, 2):
        if (name := " ".join(argv[:words])) in _BY_NAME:
            return name
    family = [name for name in _BY_NAME if name.startswith(f"{argv[0]} ")]
    if family and (len(argv) == 1 or argv[1] in ("-h", "--help")):
        (title,) = (title for title, commands in COMMANDS.items() if family[0] in commands)
        return Notice(overview({title: {name: _BY_NAME[name] for name in family}}, FAMILIES[argv[0]], NOTES))
    wrong = " ".join(argv[:2] if family else argv[:1])
    guess = _guess(wrong, family or [*_BY_NAME, *FAMILIES, "--help", "--version"])
    raise InputError(f"{wrong!r} is not a command{guess}; see internalize{' ' + argv[0] if family else ''} --help")


def _guess(word: str, known: Sequence[str]) -> str:
    guesses = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {guesses[0]}?" if guesses else ""


def _with_new_names(command: str, words: Sequence[str]) -> list[str]:
    """Replace former names of options, also in words like --name=value."""
    renamed = _RENAMED.get(command, {})
    parts = (word.partition("=") for word in words)
    return [f"{renamed.get(name, name)}{equals}{value}" for name, equals, value in parts]


def _first_sentence(box: str) -> str:
    """Return the text of tyro's box between its title and its first rule. On a plain terminal, rules are hyphens."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()]
    body = dropwhile(_is_rule, filter(None, lines[1:]))
    message = " ".join(takewhile(lambda line: not _is_rule(line), body))
    for pattern, words in _TYRO:
        message = re.sub(pattern, words, message)
    return message.rstrip(".")


_TYRO: Final = (
    (r"^Error parsing __tyro\S*: ", ""),  # its internal name for the command
    (r"^Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)", r"\1 \2 is not an integer"),
    (r"^Error parsing (\S+): could not convert string to float: (.*)", r"\1 \2 is not a number"),
    (r"^Missing from internalize [a-z ]+: (\S+) .*", r"\1 is missing"),
    (r"^Missing value for argument '(\S+)'.*", r"\1 needs a value"),
)
"""Patterns of tyro's messages, and what we say instead."""


def _is_rule(line: str) -> bool:
    return not line.strip("─-")


def _end_with_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End the process after an uncaught error: a bug of ours, or a machine out of memory, threads or files."""
    if machine := is_of_machine(error):
        reason = str(error).strip().partition("\n")[0]
        say(f"the machine ended the work: {reason or 'no memory is left'}; finished runs are kept")
    else:
        traceback.print_exception(kind, error, trace)
        say("this is a bug; please report it with the lines above")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(MACHINE if machine else BUG)  # Python's own status 1 would mean that something does not hold
