"""The commands that keep something, small enough to be run a thousand times, and what an undisturbed run of one leaves."""

import csv
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from internalize.parity.experiments.phase import read_cells
from internalize.storage.sweep_store import STORE
from tests.faults.child_process import NO_FAULT, PATIENCE, USUAL, Around, Child, Ended, Fault
from tests.faults.harness import strict_json

TRAIN = "train --n 6 --k 4 --steps 4 --batch 20 --eval-every 3 --eval-samples 40 --snapshots"
SOLVE = "solve --n 8 --k 8 --samples 60 --test-samples 50 --chunk 20 --snapshots --threads 1"
CELLS = "n=6 k=2,4 samples=20,60 test_samples=50 --seeds 0:4"
TRAINED = "n=6 k=2,4 steps=3 batch=20 eval_samples=40 --seeds 6:12"
COMPARE = "--sizes 8,4 --seeds 0:1 --lr 0.1 --steps 6 --batch 50 --eval-samples 100 --repeats 3 --jobs 1"
TINY = "--data parity:n=10,k=4 --layers 1 --width 8 --heads 2 --batch 4 --warmup 2 --eval-examples 4 --test-examples 8"
LM = f"lm train {TINY} --steps 8 --stage-steps 2 --first-steps 2 --eval-every 2 --checkpoint-steps 1"


Counts = tuple[int, int]
"""Faults in the long version of the campaign, and in the short one of the suite."""


@dataclass(frozen=True)
class Command:
    """A command line without its folder, and how many faults of each family of the disk it gets."""

    name: str
    words: str
    """With a name of `MADE` in the place of a finished folder that it reads."""
    kills: Counts = (0, 0)
    writes: Counts = (0, 0)
    """At most: no more than the command has calls to fail."""
    together: Counts = (0, 0)
    resumes: bool = True
    """Whether it takes --resume. Without, the same command goes on by itself."""
    out: bool = True
    """Whether it takes --out."""
    file: str = ""
    """What it writes, if that is a file of the folder."""
    several: bool = False
    """Whether it keeps several runs, each with a lock of its own. A second process then makes the runs nobody is at, and a
    refusal has one line per run."""

    def argv(self, out: Path, made: Path) -> list[str]:
        """To begin in a folder, or to go on there; ``made`` has the folders of `MADE`."""
        words = [_placed(word, made) for word in self.words.split()]
        return [*words, *(["--out", str(out / self.file)] if self.out else []), *(["--resume"] if self.resumes else [])]

    def reads(self) -> set[str]:
        """The names of `MADE` that it needs."""
        return {name for word in self.words.split() if (name := word.partition("/")[0]) in MADE}


_LM_COMPARE = (
    f"lm compare {TINY} --methods cot none --budget steps --seeds 0:1 --steps 4 --advance steps --eval-every 2 "
    "--checkpoint-steps 1 --jobs 1"
)
_COMMANDS: Final = (
    Command("train", TRAIN, (120, 4), (200, 4), (30, 2)),
    Command("train --seeds", f"{TRAIN} --seeds 0:3", (80, 4), (100, 0), (30, 0)),
    Command("solve", SOLVE, (120, 3), (100, 3), (30, 0)),
    Command("solve --seeds", f"{SOLVE} --seeds 0:2", (80, 0), (60, 0)),
    Command("sweep solve", f"sweep solve {CELLS} --jobs 1", (120, 4), (100, 4), (30, 2)),
    Command("sweep train", f"sweep train {TRAINED} --jobs 1", (80, 4), (60, 0), (20, 0)),
    Command("sweep solve --jobs 2", f"sweep solve {CELLS} --jobs 2", (10, 0)),
    Command("paper", "paper --jobs 1", (200, 1), (60, 0), (20, 0), resumes=False, several=True),
    Command("compare", f"compare --methods log-icot none {COMPARE}", (20, 0), (60, 2), (10, 0), several=True),
    Command("lm train", f"{LM} --method log-icot --advance steps --keep-stages", (100, 2), (100, 3), (20, 1)),
    Command(
        "lm train adaptive",
        f"{LM} --method adaptive --advance accuracy --threshold 0.9 --patience 2",
        (100, 0),
        (60, 0),
    ),
    Command("lm compare", _LM_COMPARE, (20, 0), (40, 0), (10, 0), several=True),
    Command("lm eval", "lm eval --model MODEL --examples 8", writes=(40, 0), resumes=False),
    Command("lm probe", "lm probe MODEL --examples 64", writes=(30, 0), resumes=False),
    Command("lm plan", f"lm plan {TINY} --steps 8", writes=(20, 0), resumes=False),
    Command(
        "lm data", "lm data --data parity:n=10,k=4 --count 20", writes=(20, 3), resumes=False, file="examples.jsonl"
    ),
)
_READERS: Final = (
    Command("predict", "predict --n 6 --k 4", resumes=False),
    Command("certify", "certify --n 5 --k 4 --only gating frozen-gradient", resumes=False),
    Command("certify --run", "certify --run TRAIN --only gating mask", resumes=False),
    Command("sweep show", "sweep show SWEEP --group-by n k", resumes=False, out=False),
    Command("runs", "runs SEEDS", resumes=False, out=False),
    Command("bench", "bench --only literal --repeats 1"),
    Command("lm certify", "lm certify MODEL --examples 64 --only answer", resumes=False),
    Command("lm patch", "lm patch MODEL --examples 64", resumes=False),  # refused: the model answers too few questions
    Command("lm ask", "lm ask MODEL 0 1", resumes=False, file="answers.jsonl"),
    Command("lm data --check", "lm data --check EXAMPLES/examples.jsonl", resumes=False, out=False),
    Command("--help", "--help", resumes=False, out=False),
    Command("a mistake", "train --n 0", resumes=False, out=False),
)
"""What the families of the disk leave out: it writes little or nothing."""
_IN_PROCESSES: Final = (
    Command(
        "compare --jobs 2", f"compare --methods log-icot none {COMPARE.replace('--jobs 1', '--jobs 2')}", several=True
    ),
    Command("lm compare --jobs 2", _LM_COMPARE.replace("--jobs 1", "--jobs 2"), several=True),
    Command("paper --jobs 2", "paper --jobs 2", resumes=False, several=True),
)
COMMANDS: Final = {command.name: command for command in (*_COMMANDS, *_READERS, *_IN_PROCESSES)}
IN_PROCESSES: Final = ("sweep solve --jobs 2", *(command.name for command in _IN_PROCESSES))
"""The commands that others work for."""
MADE: Final = {
    "MODEL": "lm train",
    "TRAIN": "train",
    "SEEDS": "train --seeds",
    "SWEEP": "sweep solve",
    "EXAMPLES": "lm data",
}
"""Commands whose finished folders others read."""


def _placed(word: str, made: Path) -> str:
    name, slash, below = word.partition("/")
    return f"{made / name}{slash}{below}" if name in MADE else word


def make_small() -> None:
    """Checkpoints, parts of a sweep's store and lines of progress as often as possible; a paper and a bench of a second."""
    from internalize.bench import run as benching
    from internalize.commands import progress
    from internalize.parity import certificates
    from internalize.parity.adamw import train
    from internalize.parity.options import SolveOptions, TrainOptions
    from internalize.report import page as report
    from internalize.report import reproduce as paper
    from internalize.report.figures.drawing import Drawing
    from internalize.report.figures.mask import draw_mask
    from internalize.storage import sweep_store as cells

    train.CHECKPOINT_SECONDS = progress.SECONDS_BETWEEN_LINES = -1.0
    benching.Sizes.__init__.__defaults__ = (64, (4, 2, 8), 16, (4,), (16, 32), (16,))
    cells.ROWS_PER_PART, cells._SECONDS_PER_SYNC = 7, -1.0  # pyright: ignore[reportAttributeAccessIssue]
    options = TrainOptions(n=6, k=4, steps=3, batch=20, eval_every=2, eval_samples=40)
    algorithm = paper.Algorithm(SolveOptions(n=8, k=4), 1, 2, (0.5,))
    paper.reproduce.__defaults__ = ([paper.Experiment("tiny", options, 2, explored=1)],)
    paper.reproduce.__kwdefaults__ |= {"paper": options, "algorithm": algorithm}  # pyright: ignore[reportOperatorIssue]
    whole = certificates.certify
    certificates.certify = lambda world, only=("mask", "gating"): whole(world, only)
    report.paper_drawings = lambda runs: [draw_mask()]
    whole_parts = report.parts
    report.parts = lambda full: whole_parts(full) if full and full.exists() else []
    Drawing.content = lambda self, kind="svg": b"<svg></svg>"  # drawn elsewhere


_CLOCK = re.compile(r"second|latency|started|took")
"""Of a key whose value no second run has again."""


def content(out: Path) -> dict[str, Any]:
    """All that a command has left, by path, but for what depends on the clock, and without locks."""
    is_store = (out / STORE).exists()
    found: dict[str, Any] = {}
    for path in out.rglob("*"):
        name = str(path.relative_to(out))
        in_store = is_store and name.startswith(("cells/", "journal"))  # in which file a row is depends on the kills
        if not (path.is_dir() or path.name.endswith(".lock") or in_store):
            found[name] = _content(path, out)
    if is_store:
        found["cells"] = read_cells(out).drop("seconds").sort("cell").to_dicts()
    return found


def _content(path: Path, out: Path) -> Any:
    if path.name in ("env.json", "bench.json", "repeats.json"):  # these say what the machine was like
        return "there"
    whole = path.read_bytes().replace(str(out).encode(), b"OUT")
    match path.suffix:
        case ".json":
            return _timeless(json.loads(whole))
        case ".jsonl":
            return [_timeless(json.loads(line)) for line in whole.splitlines()]
        case ".csv":
            return [_timeless(row) for row in csv.DictReader(whole.decode().splitlines())]
        case ".html":  # says when its runs were made
            return re.sub(rb"\d{4}-\d\d-\d\d(T[\d:]+Z?)?", b"DAY", whole)
        case _:
            return whole


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(own) for key, own in value.items() if not _CLOCK.search(key)}
    return [_timeless(own) for own in value] if isinstance(value, list) else value


def timeless_json(text: str, out: Path) -> Any:
    """What a command has printed, but for what depends on the clock; None if it has printed nothing."""
    return _timeless(strict_json(text.replace(str(out), "OUT"))) if text else None


def difference(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """The first thing in which two folders differ, in words."""
    for name in sorted({*found, *wanted}):
        if name not in found:
            return f"{name} is missing"
        if name not in wanted:
            return f"{name} is left over"
        if found[name] != wanted[name]:
            return f"{name} is not as in an undisturbed run"
    return None


class Undisturbed:
    """A command that was run once without a fault, and the folder in which it is run again with faults."""

    def __init__(self, name: str, folder: Path, *more: str) -> None:
        self.command, self.folder, self.made, self.more = COMMANDS[name], folder / name.replace(" ", "_"), folder, more
        for needed in self.command.reads():
            if not (folder / needed).exists():
                of = COMMANDS[MADE[needed]]
                (folder / needed).mkdir(parents=True)
                assert Child(of.argv(folder / needed, folder), folder / needed).wait().status == 0, of
        out = self.fresh("undisturbed")
        self.ended = self.run(out)
        assert self.ended.status in (0, 1, 2), self.ended.said  # 1: what so small a run finds does not hold
        assert self.ended.calls or self.ended.printed or self.ended.status == 2, self.ended.said  # it came to its end
        self.content = content(out)

    def fresh(self, name: str) -> Path:
        """A folder where the command can be begun."""
        out = self.folder / name
        shutil.rmtree(out, ignore_errors=True)
        if self.command.file:
            out.mkdir(parents=True)
        return out

    def argv(self, out: Path) -> list[str]:
        """The command's words."""
        return [*self.command.argv(out, self.made), *self.more]

    def begin(self, out: Path, fault: Fault = NO_FAULT, around: Around = USUAL) -> Child:
        """The command at work in a folder, from its beginning or from where it was left."""
        return Child(self.argv(out), out, fault, around=around)

    def run(self, out: Path, fault: Fault = NO_FAULT, around: Around = USUAL, seconds: float = PATIENCE) -> Ended:
        """The command until it ends."""
        return self.begin(out, fault, around).wait(seconds)

    def wrong(self, out: Path, ended: Ended) -> str | None:
        """In which way a run that has come to its end is not as an undisturbed one."""
        if ended.status != self.ended.status:
            return f"ended with {ended.status}, saying {ended.said[-300:]!r}"
        if left := [path.name for path in out.rglob("*.tmp")]:
            return f"{left[0]} is left over"
        return self.other_content(out)

    def other_content(self, out: Path) -> str | None:
        """The first thing in which a folder is not what an undisturbed run has left."""
        return difference(content(out), self.content)

    def other_answer(self, out: Path, printed: str) -> str | None:
        """In which way what a run has printed is not what an undisturbed one has, but for what depends on the clock."""
        json = "--json" in self.argv(out) and self.command.name != "bench"  # which prints times
        mine, usual = (
            timeless_json(text, folder) if json else len(text.splitlines())
            for text, folder in ((printed, out), (self.ended.printed, self.folder / "undisturbed"))
        )
        return None if mine == usual else f"another answer: {printed[:200]!r}"
