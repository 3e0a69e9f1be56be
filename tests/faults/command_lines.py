"""Generated command lines, mostly right with one thing wrong, and runs resumed with other options: as docs/contract.md has it.

Exit status, one line that names what is wrong, one JSON object, no hang, nothing outside of --out.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import hypothesis
from hypothesis import strategies as st

from internalize.commands import cli
from tests.faults.harness import LIMIT, Answer, Outcome, ask, complaints
from tests.faults.line_strategies import PATIENT, Line, absurd, commands, lines, typical
from tests.faults.sandbox import MADE, RESUME, Sandbox, sandbox


def wrong_of_line(line: Line, box: Sandbox) -> list[str]:
    """Ask a line, and say what was wrong about the answer."""
    answer = ask(line.argv)
    parts = [part for word in line.argv for part in (word, word.lstrip("-").replace("-", "_"), word.partition("=")[0])]
    names = line.wrong or (*filter(None, parts), "[PATH]")
    found = [*complaints(line.argv, answer, *names), *_changed_outside(line, answer, box)]
    if line.right and answer.status == cli.WRONG:
        found.append(f"refused, and nothing is wrong with it: {answer.err!r}")
    return found


def wrong_of_process(line: Line, box: Sandbox) -> list[str]:
    """The same as a process of its own."""
    command = [sys.executable, "-c", "from internalize.commands.cli import run; run()", *line.argv]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=10 * LIMIT, check=False)
    answer = Answer(ended.returncode, ended.stdout, ended.stderr)
    shutil.rmtree(box.home / ".cache", ignore_errors=True)  # what libraries keep there is theirs
    return [*complaints(line.argv, answer), *_changed_outside(line, answer, box)]


def _changed_outside(line: Line, answer: Answer, box: Sandbox) -> list[str]:
    """What a line has changed outside of what it was told to make; everything is put back."""
    places = [box.cwd / "runs"]
    for word, value in zip(line.argv, line.argv[1:], strict=False):
        if word in ("--out", "--figure"):
            places.append((box.cwd / value).resolve())

    def told(path: Path) -> bool:  # in a place, or on the way to one
        return any(path.is_relative_to(place) or place.is_relative_to(path) for place in places)

    outside = [str(path) for path in box.put_back() if not told(path)]
    return [f"changed outside of --out, with status {answer.status}: {', '.join(outside[:3])}"] if outside else []


Resumed = tuple[str, list[str], list[str], dict[str, Any] | None]
"""A begun or finished run, its command, other options, another document for its config.json."""


def wrong_of_resumed(asked: Resumed, box: Sandbox) -> list[str]:
    """Continue a run with other options, or after its config.json has become another document."""
    run, argv, more, document = asked
    if document is not None:
        (box.made / run / "config.json").write_text(json.dumps(document))
    before = box.tree()
    answer = ask([*argv, *more])
    found = complaints(argv, answer, run, *more)
    if answer.status == cli.WRONG and box.tree() != before:
        found.append("refused, and something was changed")
    box.put_back()
    return found


_JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def resumes(draw: st.DrawFn, made: Path) -> Resumed:
    """A run of ours with its command, and other options or another config.json."""
    run = draw(st.sampled_from([*sorted(RESUME), "train", "solve"]))
    argv = RESUME[run]
    options = commands()[("lm", "train") if argv[0] == "lm" else (argv[0],)]
    free = [option for option in options if option.name not in {"out", "resume", *PATIENT}]
    if draw(st.booleans()):
        option = draw(st.sampled_from(free))
        return run, argv, draw(typical(option) | absurd(option)), None
    document: dict[str, Any] = json.loads((made / run / "config.json").read_text())
    for key in draw(st.lists(st.sampled_from(sorted(document)), min_size=1, max_size=2)):
        document[key] = draw(_JSON)
    if draw(st.integers(0, 3)) == 0:
        document.pop(draw(st.sampled_from(sorted(document))))
    certify = ["certify", "--only", "gating", "--run", f"{MADE}/{run}"]
    return run, draw(st.sampled_from((argv, ["runs", MADE], certify))), [], document


def ask_lines(count: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Lines in this process, resumed runs with other options, and some lines as processes of their own."""
    resumed, as_processes = resumes(folder / "pristine"), max(1, count // 400)
    with sandbox(folder) as box:
        yield from _each("generated command lines", lines(), count * 4 // 5, seed, wrong_of_line, box)
        row = "resumed with other options or another config.json"
        yield from _each(row, resumed, count // 5, seed, wrong_of_resumed, box)
        yield from _each("generated command lines as processes", lines(), as_processes, seed + 1, wrong_of_process, box)


def _each(
    row: str, strategy: st.SearchStrategy[Any], count: int, seed: int, judge: Callable[..., list[str]], box: Sandbox
) -> list[Outcome]:
    """Judge `count` examples of a strategy."""
    outcomes: dict[str, Outcome] = {}

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),  # pyright: ignore[reportArgumentType]
    )
    @hypothesis.given(strategy)
    def run(drawn: Any) -> None:
        hypothesis.assume(str(drawn) not in outcomes)  # hypothesis likes to draw alike
        found = judge(drawn, box)
        outcomes[str(drawn)] = Outcome(row, f"{drawn}: {'; '.join(found)}" if found else "")

    run()
    return list(outcomes.values())
