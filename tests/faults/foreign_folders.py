"""Folders that others had in their hands: links out of them in the place of what is ours, and runs of their own in a report.

Nothing outside a folder changes because of a link in it, and `paper` deletes no run, whosever it is.
"""

import hashlib
import itertools
import json
import os
import random
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.faults.child_process import NO_FAULT, Child, Ended, Fault
from tests.faults.harness import LIMIT, Outcome, complaints, outcome
from tests.faults.small_commands import Undisturbed
from tests.faults.surroundings import drawn

KINDS: Final[dict[str, Sequence[str]]] = {
    "run folders": ("train", "train --seeds", "solve", "predict", "certify", "bench"),
    "stores of sweeps": ("sweep solve", "sweep train"),
    "comparisons": ("compare", "lm compare"),
    "reports": ("paper",),
    "language models": ("lm train", "lm train adaptive", "lm eval", "lm probe", "lm plan", "lm certify"),
    "data": ("lm data",),
}
"""The commands whose folders are of a kind."""
READERS: Final[dict[str, Sequence[str]]] = {
    "train": ("certify --only gating --run OUT", "runs OUT"),
    "solve": ("certify --only gating --run OUT", "runs OUT"),
    "train --seeds": ("runs OUT",),
    "compare": ("runs OUT",),
    "lm compare": ("runs OUT",),
    "paper": ("runs OUT",),
    "sweep solve": ("sweep show OUT",),
    "sweep train": ("sweep show OUT",),
    "lm data": (
        *(
            "lm data --check FILE",
            "lm plan --data FILE --layers 1 --width 8 --heads 2 --eval-examples 2 --test-examples 2",
        ),
        "lm train --data FILE --layers 1 --width 8 --heads 2 --batch 4 --steps 2 --eval-examples 2 --test-examples 2 --out OUT/new",
    ),
    "lm train": (
        *("lm eval --examples 8 --model OUT", "lm probe OUT --examples 64", "runs OUT"),
        *("lm certify OUT --examples 64 --only answer", "lm plan --data parity:n=10,k=4 --steps 8 --model OUT/model"),
    ),
}
"""What else reads the folder OUT of a command, or a FILE in it."""


class Subject(Undisturbed):
    """A command with the folders it leaves: a finished one and, if there are such, some that were begun."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        self.makers: dict[str, Callable[[Path], object]] = {"finished": lambda out: None}
        if self.command.resumes or self.command.several:
            self.makers |= {"begun": partial(self._kill, 0.35), "nearly finished": partial(self._kill, 0.85)}
        itself = [] if self.command.file else [self.argv(Path("OUT"))]
        self.asked = [*itself, *(line.split() for line in READERS.get(name, ()))]

    def _kill(self, share: float, out: Path) -> None:
        shutil.rmtree(out)
        self.run(out, Fault("kill", round(self.ended.calls * share)))

    def state(self, name: str) -> Path:
        """One of the folders; a maker is given a finished one."""
        found = self.folder / name.replace(" ", "_")
        if not found.exists():
            shutil.copytree(self.folder / "undisturbed", found)
            self.makers[name](found)
        return found

    def copied(self, state: str, number: int) -> Path:
        """A copy of one of the folders."""
        out = self.folder / f"{state.replace(' ', '_')}-{number}"
        shutil.copytree(self.state(state), out)
        return out

    def ask(self, argv: Sequence[str], out: Path, *names: str, fault: Fault = NO_FAULT) -> tuple[Ended, list[str]]:
        """Ask about a folder in its place; what came of it, and what is wrong with that whatever is in the folder."""
        words = [word.replace("OUT", str(out)) for word in argv]
        ended = Child(words, out, fault).wait(LIMIT + 2 * self.ended.seconds)
        return ended, complaints(words, ended.answer, str(out), *names)


# Links


def _make_folder(victim: Path, there: Path) -> Path:
    """A folder of somebody's, with names that we use and numbers that we might take for steps."""
    victim.mkdir()
    for name in (
        "2024.txt",
        "00000002.json",
        "00000002.safetensors",
        "step-00000001.safetensors",
        "part-000000.parquet",
    ):
        (victim / name).write_text("mine")
    (victim / ".result.json.1.tmp").write_text("mine")
    (victim / "checkpoint-2").mkdir()
    (victim / "checkpoint-2" / "thesis.txt").write_text("mine")
    return victim


def _make_twin(victim: Path, there: Path) -> Path:
    """The same as what the link is in the place of."""
    if there.is_dir():
        shutil.copytree(there, victim)
    elif there.exists():
        shutil.copy(there, victim)
    else:
        victim.write_text("mine")
    return victim


def _make_file(victim: Path, there: Path) -> Path:
    victim.write_text("2024: mine\n")
    return victim


def _make_device(victim: Path, there: Path) -> Path:
    """A device of our own; a pipe for whoever may not make one."""
    try:
        os.mknod(victim, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except OSError:
        os.mkfifo(victim)
    return victim


def _make_pipe(victim: Path, there: Path) -> Path:
    os.mkfifo(victim)
    return victim


VICTIMS: Final[dict[str, Callable[[Path, Path], Path]]] = {
    "a file": _make_file,
    "a folder": _make_folder,
    "a copy of it": _make_twin,
    "nowhere": lambda victim, there: victim,
    "itself": lambda victim, there: there,
    "a device": _make_device,
    "a pipe": _make_pipe,
}


def plant_links(kind: str, count: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Put ``count`` links in the place of files and folders, also of those that are not there yet; what they point to stays."""
    chance = random.Random(f"links {kind} {seed}")
    for number, (subject, to) in enumerate(
        zip(subjects(kind, count, chance, folder), itertools.cycle(VICTIMS), strict=False)
    ):
        state = chance.choice(sorted(subject.makers))
        out, outside = subject.copied(state, number), folder / f"outside-{number}"
        paths = {path.relative_to(whole) for whole in (out, subject.state("finished")) for path in whole.rglob("*")}
        path = chance.choice([path for path in sorted(paths) if (out / path).parent.is_dir()])
        outside.mkdir()
        target = VICTIMS[to](outside / "victim", out / path)
        if (out / path).is_dir():
            shutil.rmtree(out / path)
        (out / path).unlink(missing_ok=True)
        (out / path).symlink_to(target)
        before = tree(outside)
        argv = [*chance.choice(subject.asked), *chance.choice(([], ["--json"]))]
        _, wrong = subject.ask(argv, out)
        if changed := dict(before.items() ^ tree(outside).items()):
            wrong.append(f"changed outside: {', '.join(str(own.relative_to(outside)) for own in sorted(changed)[:3])}")
        asked = f"{state} in {out}, {path} is a link to {to}, then `{' '.join(argv)}`"
        yield outcome(f"links in {kind}", asked, wrong, out, outside)


def subjects(kind: str, count: int, chance: random.Random, folder: Path) -> Iterator[Subject]:
    """The commands of a kind in turn, each made when it is first its turn."""
    made: dict[str, Subject] = {}
    for name in drawn(KINDS[kind], count, chance):
        if name not in made:
            made[name] = Subject(name, folder)
        yield made[name]


def tree(folder: Path) -> dict[Path, str]:
    """Every path of a folder with what tells that it was changed."""
    found: dict[Path, str] = {}
    for path in folder.rglob("*"):
        known = path.lstat()
        if path.is_file() and not path.is_symlink():
            found[path] = f"{known.st_ino} {known.st_mtime_ns} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        else:
            found[path] = f"{known.st_ino} {known.st_mode}"
    return found


# Reports


def visit_report(count: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Make the page ``count`` times of a folder that somebody else was in, or on a disk that once fails to read."""
    chance = random.Random(f"report {seed}")
    paper = Subject("paper", folder)
    theirs = {
        name: Undisturbed(name, folder).folder / "undisturbed" for name in ("train", "solve", "lm train", "sweep solve")
    }
    whole = paper.state("finished")
    runs = sorted(path.parent.relative_to(whole) for path in whole.rglob("config.json"))
    changes = [
        *((_other_value, run) for run in runs for _ in range(6)),
        *((_other_file, run) for run in runs for _ in range(6)),
        *((_other_folder, run) for run in runs for _ in theirs),
        *((_stranger, run) for run in (*runs, Path(), Path("runs"), Path("runs/mine"), *{run.parent for run in runs})),
        *((_cannot_read, Path()),) * 30,
    ]
    reads: dict[str, int] = {}
    for number, (change, run) in enumerate(drawn(changes, count, chance)):
        state, fault = chance.choice(sorted(paper.makers)), NO_FAULT
        out = paper.copied(state, number)
        if state not in reads:
            reads[state] = paper.run(paper.copied(state, -1)).reads
        if change is _cannot_read:
            fault = Fault("unreadable", chance.randint(1, reads[state]))
        elif run in runs:
            (out / run).mkdir(parents=True, exist_ok=True)
        what = change(out / run, theirs, chance)
        before = _contents(out)
        argv = [*paper.asked[0], *chance.choice(([], ["--seed", "1"]))]
        _, wrong = paper.ask(argv, out, fault=fault)
        if gone := before - _contents(out) - _goes_on(paper.state(state)):
            wrong.append(f"deleted: {', '.join(sorted(name for name, _ in gone)[:3])}")
        asked = f"{state} in {out}, {run} {what} {fault.at or ''}, then `{' '.join(argv)}`"
        yield outcome("foreign folders and reads that fail: paper", asked, wrong, out)


Change = Callable[[Path, dict[str, Path], random.Random], str]


def _other_value(run: Path, theirs: dict[str, Path], chance: random.Random) -> str:
    """Another value in the run's config, as of other settings, another version, or another program."""
    path = run / "config.json"
    config: dict[str, object] = json.loads(path.read_text()) if path.exists() else {"version": 1}
    key = chance.choice(sorted(config))
    config[key] = chance.choice((None, "other", 2, 999, [], {}, True))
    path.write_text(json.dumps(config))
    return f"has {key}={config[key]!r} in its config.json"


def _other_file(run: Path, theirs: dict[str, Path], chance: random.Random) -> str:
    """One of its files is empty, cut, missing, or a note of somebody's."""
    path = chance.choice(sorted(path for path in run.rglob("*") if path.is_file()) or [run / "config.json"])
    whole = path.read_bytes() if path.exists() else b""
    how = chance.choice(("empty", "cut", "missing", "a note"))
    path.unlink(missing_ok=True)
    if how != "missing":
        path.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "a note": b"remember the milk\n"}[how])
    return f"has {path.name} {how}"


def _other_folder(run: Path, theirs: dict[str, Path], chance: random.Random) -> str:
    """Somebody's run, sweep or notes are in its place."""
    name = chance.choice((*theirs, "notes", "a file"))
    shutil.rmtree(run)
    if name in theirs:
        shutil.copytree(theirs[name], run)
    elif name == "notes":
        run.mkdir()
        (run / "notes.txt").write_text("mine")
    else:
        run.write_text("mine")
    return f"is {name} of somebody"


def _stranger(run: Path, theirs: dict[str, Path], chance: random.Random) -> str:
    """Somebody keeps something beside what is ours."""
    name = chance.choice((*theirs, "notes.txt", "config.json.orig", "checkpoint"))
    run.mkdir(parents=True, exist_ok=True)
    if name in theirs:
        shutil.copytree(theirs[name], run / "mine", dirs_exist_ok=True)
    else:
        (run / name).write_text("mine") if not (run / name).exists() else None
    return f"holds {name} of somebody"


def _cannot_read(run: Path, theirs: dict[str, Path], chance: random.Random) -> str:
    """Nobody was there, and the disk fails once."""
    return "is there, and reading fails at call"


def _contents(out: Path) -> Counter[tuple[str, bytes]]:
    """Name and content of every file of a report, wherever it is; but for the page's own, and what is there for a moment."""
    paths = [path for path in out.rglob("*") if path.is_file() and path.name != ".lock" and path.suffix != ".tmp"]
    own = {path for path in paths if path.relative_to(out).parts[0] in ("index.html", "figures", "tables")}
    return Counter((path.name, path.read_bytes()) for path in paths if path not in own)


def _goes_on(out: Path) -> Counter[tuple[str, bytes]]:
    """The same of runs that were begun: what they need to go on is not needed at their end."""
    begun = [path.parent for path in out.rglob("config.json") if not (path.parent / "result.json").exists()]
    return sum((_contents(run) for run in begun), Counter[tuple[str, bytes]]())
