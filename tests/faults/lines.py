"""Generated command lines, mostly right with one thing wrong, and runs resumed with other options: as docs/contract.md has it.

Exit status, one line that names what is wrong, one JSON object, no hang, nothing outside of --out.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import hypothesis
from hypothesis import strategies as st

from internalize.commands import cli
from tests.faults.asking import LIMIT, Answer, ask, complaints, rooms, tree
from tests.faults.made import LM, SOLVE, TRAIN, make, write_data
from tests.faults.tally import Tally
from tests.faults.words import PATIENT, Line, absurd, commands, lines, typical
from tests.lm_runs import words

LONG: Final = 10_000


class Asked:
    """Rooms in which lines are asked, each from the same beginning."""

    def __init__(self, folder: Path, own: tuple[Path, Path, Path]) -> None:
        self.folder, self.own = folder, own
        self.cwd = own[0]
        write_data(self.cwd)
        make(folder / "made")
        shutil.copytree(folder / "made", folder / "pristine", symlinks=True)
        self._clean()

    def answer(self, line: Line) -> list[str]:
        """Ask a line, and say what was wrong about the answer."""
        before = tree(*self.own, self.folder / "made")
        answer = ask(line.argv)
        parts = [
            part for word in line.argv for part in (word, word.lstrip("-").replace("-", "_"), word.partition("=")[0])
        ]
        names = line.wrong or (*filter(None, parts), "[PATH]")
        found = [*complaints(line.argv, answer, *names), *self.left(line, before, answer)]
        if line.right and answer.status == cli.WRONG:
            found.append(f"refused, and nothing is wrong with it: {answer.err!r}")
        return found

    def left(self, line: Line, before: Mapping[str, str], answer: Answer) -> list[str]:
        """What a line has changed outside of what it was told to make; everything is put back."""
        after = tree(*self.own, self.folder / "made")
        changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
        told = [self.cwd / "runs"]
        for word, value in zip(line.argv, line.argv[1:], strict=False):
            if word in ("--out", "--figure"):
                told.append((self.cwd / value).resolve())
        outside = [path for path in changed if not any(_meet(Path(path), place) for place in told)]
        if changed:
            self._clean(everything=any(Path(path).is_relative_to(self.folder / "made") for path in changed))
        return [f"changed outside of --out, with status {answer.status}: {', '.join(outside[:3])}"] if outside else []

    def _clean(self, *, everything: bool = True) -> None:
        for room in self.own:
            shutil.rmtree(room)
            room.mkdir()
        write_data(self.cwd)
        os.mkfifo(self.cwd / "fifo")
        (self.cwd / "link").symlink_to("nowhere")
        if everything:
            shutil.rmtree(self.folder / "made")
            shutil.copytree(self.folder / "pristine", self.folder / "made", symlinks=True)
        os.chdir(self.cwd)  # the folder of this name is another one now

    def as_process(self, line: Line) -> list[str]:
        """The same as a process of its own."""
        before = tree(*self.own, self.folder / "made")
        command = [sys.executable, "-c", "from internalize.commands.cli import run; run()", *line.argv]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=10 * LIMIT, check=False)
        answer = Answer(ended.returncode, ended.stdout, ended.stderr)
        shutil.rmtree(self.own[1] / ".cache", ignore_errors=True)  # what libraries keep there is theirs
        return [*complaints(line.argv, answer), *self.left(line, before, answer)]

    def resumed(self, asked: tuple[str, list[str], list[str], dict[str, Any] | None]) -> list[str]:
        """A begun or finished run, continued with other options or after its config.json has become another document."""
        run, argv, more, document = asked
        if document is not None:
            (self.folder / "made" / run / "config.json").write_text(json.dumps(document))
        before = tree(*self.own, self.folder / "made")
        answer = ask([*argv, *more])
        found = complaints(argv, answer, run, *more)
        changed = tree(*self.own, self.folder / "made") != before
        if answer.status == cli.WRONG and changed:
            found.append("refused, and something was changed")
        if changed or document is not None:
            self._clean()
        return found


def _meet(path: Path, place: Path) -> bool:
    """Whether a path is a place, in it, or a folder on the way to it; or in the folder of a file that was to be written."""
    return path.is_relative_to(place) or place.is_relative_to(path)


_RESUMED: Final = {
    **{name: words(TRAIN, f"../made/{name}", "--resume") for name in ("train", "train-begun")},
    **{name: words(SOLVE, f"../made/{name}", "--resume", "--threads", "1") for name in ("solve", "solve-begun")},
    **{name: words(LM, f"../made/{name}", "--resume") for name in ("lm", "lm-begun")},
}
_JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def resumes(draw: st.DrawFn, made: Path) -> tuple[str, list[str], list[str], dict[str, Any] | None]:
    """A run of ours with its command, and other options or another config.json."""
    run = draw(st.sampled_from([*sorted(_RESUMED), "train", "solve"]))
    argv = _RESUMED[run]
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
    argv = draw(
        st.sampled_from((argv, ["runs", "../made"], ["certify", "--only", "gating", "--run", f"../made/{run}"]))
    )
    return run, argv, [], document


def campaign(count: int, seed: int, folder: Path) -> Iterator[Tally]:
    """So many lines in this process, a sample of them as processes of their own, and resumed runs with other options."""
    importlib.import_module(
        "internalize.report.figures.phase"
    )  # so that what matplotlib keeps in HOME is not taken for ours
    with rooms(folder) as own:
        asked = Asked(folder, own)
        yield _each("generated command lines", lines(), count * 4 // 5, seed, asked.answer)
        other = resumes(folder / "pristine")
        yield _each("resumed with other options or another config.json", other, count // 5, seed, asked.resumed)
        yield _each("generated command lines as processes", lines(), max(1, count // 400), seed + 1, asked.as_process)


def _each(
    what: str, strategy: st.SearchStrategy[Any], count: int, seed: int, judge: Callable[[Any], list[str]]
) -> Tally:
    """So many of what a strategy draws, each judged."""
    tally = Tally(what)
    asked: set[str] = set()

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
        hypothesis.assume(str(drawn) not in asked)  # hypothesis likes to draw alike
        asked.add(str(drawn))
        tally.tried += 1
        found = judge(drawn)
        if found:
            tally.lost.append(f"{drawn}: {'; '.join(found)}")

    run()
    return tally
