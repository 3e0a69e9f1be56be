"""What a process finds around it: streams that are lost, a machine that gives too little, an odd environment.

No command may end differently because nobody hears its messages, none may take the machine's refusal for a verdict or for a
bug of ours, and whatever has to be given up goes on with the same command, to the same bits, once the machine gives again.
"""

import itertools
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

from internalize.commands import cli
from internalize.errors import MACHINE, NOT_WRITTEN
from tests.faults.child_process import PATIENCE, Around, Limit, Stream
from tests.faults.harness import LIMIT, Answer, Outcome, complaints, outcome
from tests.faults.line_strategies import commands
from tests.faults.small_commands import COMMANDS, IN_PROCESSES, Undisturbed, timeless_json

NAMES: Final = [name for name in COMMANDS if name not in IN_PROCESSES[1:]]
"""Of the commands that others work for only one: they take seconds to begin."""
_FEW: Final = 10
"""Up to so many attacks, that one is left out, too."""


def _names(count: int) -> list[str]:
    return [name for name in NAMES if count > _FEW or name not in IN_PROCESSES]


class Usual:
    """Undisturbed runs of the commands, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._made = folder, dict[tuple[str, ...], Undisturbed]()

    def __call__(self, name: str, *more: str) -> Undisturbed:
        key = (name, *more)
        if key not in self._made:
            self._made[key] = Undisturbed(name, self.folder / ("_".join(more) or "plain"), *more)
        return self._made[key]


def drawn(cases: Sequence[Any], count: int, chance: random.Random) -> Iterator[Any]:
    """Every case in a random order, and again, until there are ``count``."""
    order = chance.sample(cases, len(cases))
    return itertools.islice(itertools.cycle(order), count)


# Streams

_LOST: Final[Mapping[str, Sequence[tuple[Any, ...]]]] = {
    "closed": list(itertools.product(("heard", "closed"), repeat=3)),
    "full": list(itertools.product(("heard",), ("heard", "full"), ("heard", "full"))),
    "broken": list(itertools.product(("heard",), *[("heard", *get_args(Stream)[3:])] * 2)),
}
"""Input, output and error; the first of each kind loses nothing, and is left out."""


def lose_streams(kind: str, count: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Close, fill or break ``count`` sets of streams: work and status are those of a command that is heard.

    But if there is an answer that standard output cannot take, which has a status of its own.
    """
    chance, usual = random.Random(f"{kind} {seed}"), Usual(folder)
    cases = list(itertools.product(_names(count), ((), ("--json",)), _LOST[kind][1:]))
    cases = [case for case in cases if case[:2] != ("--help", ("--json",))]
    for number, (name, json, streams) in enumerate(drawn(cases, count, chance)):
        command = usual(name, *json)
        out = command.fresh(f"lost-{number}")
        ended = command.run(out, around=Around(streams), seconds=LIMIT + 2 * command.ended.seconds)
        answers = {command.ended.status}
        if streams[1] in ("closed", "full") and command.ended.status in (0, 1):
            answers = {NOT_WRITTEN} if command.ended.printed else {NOT_WRITTEN, command.ended.status}
        wrong = [ended.answer.bug] if ended.answer.bug else []
        if not wrong and ended.status not in answers:
            wrong.append(f"status {ended.status}, not {' or '.join(map(str, answers))}, saying {ended.said[-300:]!r}")
        if "Traceback" in ended.said + ended.printed:
            wrong.append("a traceback")
        if not wrong and streams[1] == "heard" and (other := command.other_answer(out, ended.printed)):
            wrong.append(other)
        if not wrong and command.command.out and (other := command.other_content(out)):
            wrong.append(other)
        asked = f"{' '.join((name, *json))}, input {streams[0]}, output {streams[1]}, error {streams[2]}"
        yield outcome(f"streams {kind}", asked, wrong, out)


# Limits


def _few(chance: random.Random) -> int:
    return chance.randrange(8)


def _bytes(low: int, high: int, chance: random.Random) -> int:
    return int(math.exp(chance.uniform(math.log(low), math.log(high))))


_LIMITS: Final[Mapping[Limit, Any]] = {
    "threads": _few,
    "processes": _few,
    "memory": partial(_bytes, 2**20, 2**30),
    "files": lambda chance: chance.randrange(40),
}
"""How much of it there is."""


def limit(kind: Limit, count: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Give commands too little of something, ``count`` times: it suffices, or the command says why it ends, in a status for that.

    With enough of it the same command then goes on to the bits of an undisturbed run.
    """
    chance, usual = random.Random(f"{kind} {seed}"), Usual(folder)
    names = [
        name for name in _names(count) if name != "--help" and (kind, name) != ("processes", "paper")
    ]  # its page has a commit
    for number, name in enumerate(drawn(names, count, chance)):
        threads = chance.choice(("1", "2", "4", "16")) if kind == "threads" and _has_threads(name) else ""
        command = usual(name, *(["--threads", threads] if threads else []), *chance.choice(([], ["--json"])))
        out, amount = command.fresh(f"limited-{number}"), _LIMITS[kind](chance)
        around = Around(limits={kind: amount})
        ended = command.run(out, around=around, seconds=LIMIT + 2 * command.ended.seconds)
        argv = command.argv(out)
        wrong = complaints(argv, ended.answer, others=(MACHINE,), noise=True)
        if kind == "memory" and ended.status in _WITHOUT_MEMORY:
            wrong = []
        if not wrong and ended.status in (0, 1) and ended.status != command.ended.status:
            wrong.append(f"status {ended.status}, not {command.ended.status}")
        if not wrong and command.command.out:
            if ended.status != command.ended.status:
                if command.command.file:
                    out.mkdir(exist_ok=True)
                again = command.wrong(out, command.run(out))
                wrong += [f"status {ended.status}; then, with enough of it: {again}"] if again else []
            elif other := command.other_content(out):
                wrong.append(other)
        yield outcome(f"too few or too little: {kind}", f"{' '.join(argv)}, {kind} {amount}", wrong, out)


_WITHOUT_MEMORY: Final = (-signal.SIGABRT, 127)
"""How libraries of C++ and Rust, and the loader of libraries, end a process that can have no more memory. Nobody hears of it."""


def _has_threads(name: str) -> bool:
    words = COMMANDS[name].words.split()
    options = next(own for path, own in commands().items() if words[: len(path)] == list(path))
    return any(option.name == "threads" for option in options) and "--threads" not in words


# Environments

_VALUES: Final[Mapping[str, Sequence[str | None]]] = {
    **dict.fromkeys(("FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"), ("", "0", "1", "x")),
    **dict.fromkeys(("COLUMNS", "LINES"), ("", "0", "-1", "1", "abc", "999999999999")),
    "TERM": ("", "dumb", "nonsense", None),
    "CC": ("'", "", "false", "nowhere", "cc -Wnonsense", "cat", "echo '", "sleep 1000"),
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS"),
        ("", "0", "-1", "abc", "1", "64"),
    ),
    **dict.fromkeys(("OMP_PROC_BIND", "OMP_SCHEDULE", "OMP_STACKSIZE", "KMP_AFFINITY"), ("abc", "0", "true")),
    **dict.fromkeys(("WORLD_SIZE", "RANK", "LOCAL_RANK"), ("", "0", "1", "2", "-1", "abc")),
    **dict.fromkeys(("MASTER_ADDR", "MASTER_PORT"), ("", "nowhere.invalid", "0", "99999999")),
    **dict.fromkeys(
        ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR", "HF_HOME", "HF_HUB_CACHE", "TORCH_HOME"),
        (None, "", "/proc/nowhere", "/dev/null", "relative", "/proc", "\udcff"),
    ),
    **dict.fromkeys(("LC_ALL", "LANG", "LC_NUMERIC", "LANGUAGE"), ("", "C", "POSIX", "nonsense", "de_DE.UTF-8", "tr_TR")),
    "PYTHONIOENCODING": ("ascii", "latin-1", "utf-16", "utf-8:strict", ":nonsense"),
    **dict.fromkeys(("PYTHONUTF8", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"), ("0", "1")),
    "PYTHONOPTIMIZE": ("1", "2"),
    "PYTHONHASHSEED": ("0", "1", "random"),
    "MPLBACKEND": ("nonsense", "", "agg", "tkagg", "module://nonsense"),
    **dict.fromkeys(
        ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "TOKENIZERS_PARALLELISM", "HF_TOKEN"),
        ("", "0", "1", "abc"),
    ),
    **dict.fromkeys(
        ("TRANSFORMERS_VERBOSITY", "HF_HUB_VERBOSITY", "DATASETS_VERBOSITY", "ACCELERATE_LOG_LEVEL"), ("", "loud", "debug")
    ),
    **dict.fromkeys(("HF_ENDPOINT", "http_proxy", "ALL_PROXY"), ("", "nonsense", "http://nowhere.invalid")),
    **dict.fromkeys(
        ("ACCELERATE_USE_CPU", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_MIXED_PRECISION",
         "ACCELERATE_TORCH_DEVICE", "ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
        ("", "1", "true", "nonsense"),
    ),
    **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "TORCH_LOGS", "TORCH_SHOW_CPP_STACKTRACES", "TORCHDYNAMO_DISABLE"), ("", "1", "abc")),
    **dict.fromkeys(("PATH", "USER", "LOGNAME", "SHELL", "PWD"), (None, "", "/proc/nowhere")),
    "TZ": ("", "nonsense", "Asia/Kathmandu"),
    "SOURCE_DATE_EPOCH": ("", "abc", "-1", "0"),
    **dict.fromkeys(("GIT_DIR", "GIT_CONFIG_GLOBAL", "GIT_TRACE"), ("", "/proc/nowhere", "1")),
    "POLARS_VERBOSE": ("1", "abc"),
    "POLARS_FMT_MAX_ROWS": ("abc", "-1"),
    "DISPLAY": ("nonsense",),
}  # fmt: skip
"""By variable, what it may be; None: it is not set. What the interpreter itself refuses to begin with is left out."""
_ASKED: Final = (
    *(
        "predict",
        "train",
        "solve",
        "certify --run",
        "sweep solve",
        "sweep show",
        "runs",
        "lm data",
        "lm plan",
        "lm train",
    ),
    *("lm eval", "lm probe", "sweep solve --jobs 2", "a mistake"),
)


def put_into(variables: int, count: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Give commands an environment with so many odd variables, ``count`` times: the answer is the usual one, or a refusal."""
    chance, usual = random.Random(f"{variables} {seed}"), Usual(folder)
    answers, times = dict[str, Answer](), dict[str, float]()
    for number, variable in enumerate(drawn(sorted(_VALUES), count, chance)):
        names = [variable, *chance.sample(sorted(_VALUES.keys() - {variable}), variables - 1)]
        changed = {each: chance.choice(_VALUES[each]) for each in names}
        name, out = _ASKED[number % len(_ASKED)], folder / f"odd-{number}"
        command = usual(name, "--json")
        if name not in answers:
            began = time.monotonic()
            answers[name] = _ask(command, folder / "usual" / name, {}, PATIENCE)
            times[name] = time.monotonic() - began  # of importing most of all, on a machine that may be busy
        answer = _ask(command, out, changed, 1.5 * LIMIT + 2 * times[name])
        wrong = complaints(command.argv(out), answer, noise=True)
        if not wrong and answer.status not in (answers[name].status, cli.WRONG):
            wrong.append(f"status {answer.status}, not {answers[name].status}")
        if not wrong and answer.status in (0, 1):
            mine, other = timeless_json(answer.out, out), timeless_json(answers[name].out, folder / "usual" / name)
            wrong += [] if mine == other else [f"another answer: {answer.out[:200]!r}"]
        said = " ".join(f"-u {each}" if value is None else f"{each}={value!r}" for each, value in changed.items())
        yield outcome(
            f"odd environments: {_HOW_MANY[variables]}", f"env {said} {' '.join(command.argv(out))}", wrong, out
        )


_HOW_MANY: Final = {1: "one variable", 2: "pairs of variables"}


def _ask(command: Undisturbed, out: Path, changed: Mapping[str, str | None], seconds: float) -> Answer:
    """The answer of a command in a process that begins in a changed environment, and has this time."""
    rooms = {"HOME": out / "home", "TMPDIR": out / "tmp", "": out / "cwd"}
    for room in rooms.values():
        room.mkdir(parents=True)
    if command.command.file:
        (out / "run").mkdir()
    all_of_them = {**os.environ, "HOME": str(rooms["HOME"]), "TMPDIR": str(rooms["TMPDIR"]), **changed}
    environment = {name: value for name, value in all_of_them.items() if value is not None}
    argv = [sys.executable, "-m", "internalize", *command.argv(out / "run")]
    try:
        ended = subprocess.run(
            argv,
            cwd=rooms[""],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return Answer(cli.BUG, "", "", f"no end in {late.timeout:g} s: {(late.stderr or b'')[-200:]!r}")
    said, printed = (heard.decode(errors="replace") for heard in (ended.stderr, ended.stdout))
    return Answer(ended.returncode, printed, said, f"signal {-ended.returncode}" if ended.returncode < 0 else "")
