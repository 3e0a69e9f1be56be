"""The commands that keep something, small enough to be run a thousand times, and what one of their folders holds."""

import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

TRAIN = "train --n 6 --k 4 --steps 4 --batch 20 --eval-every 3 --eval-samples 40 --snapshots"
SOLVE = "solve --n 8 --k 8 --samples 60 --test-samples 50 --chunk 20 --snapshots --threads 1"
CELLS = "n=6 k=2,4 samples=20,60 test_samples=50 --seeds 0:4"
TRAINED = "n=6 k=2,4 steps=3 batch=20 eval_samples=40 --seeds 6:12"
COMPARE = "--sizes 8,4 --seeds 0:1 --lr 0.1 --steps 6 --batch 50 --eval-samples 100 --repeats 3 --jobs 1"
TINY = "--data parity:n=10,k=4 --layers 1 --width 8 --heads 2 --batch 4 --warmup 2 --eval-examples 4 --test-examples 8"
LM = f"lm train {TINY} --steps 8 --stage-steps 2 --first-steps 2 --eval-every 2 --checkpoint-steps 1"


@dataclass(frozen=True)
class Command:
    """A command line without its folder."""

    name: str
    words: str
    """With MODEL in the place of the folder of a finished run of `lm train`."""
    resumes: bool = True
    """Whether it takes --resume. Without, the same command goes on by itself."""
    file: str = ""
    """What it writes, if that is a file of the folder."""
    several: bool = False
    """Whether it keeps several runs, each with a lock of its own: a second process makes those that nobody is at, and the line
    of a refusal is one for each run."""

    def argv(self, out: Path, model: Path | None = None) -> list[str]:
        """To begin in a folder, or to go on there."""
        words = [str(model) if word == "MODEL" else word for word in self.words.split()]
        return [*words, "--out", str(out / self.file), *(["--resume"] if self.resumes else [])]


LM_TRAIN: Final = Command("lm train", f"{LM} --method log-icot --advance steps --keep-stages")
COMMANDS: Final[dict[str, Command]] = {
    command.name: command
    for command in (
        Command("train", TRAIN),
        Command("train --seeds", f"{TRAIN} --seeds 0:3"),
        Command("solve", SOLVE),
        Command("solve --seeds", f"{SOLVE} --seeds 0:2"),
        Command("sweep solve", f"sweep solve {CELLS} --jobs 1"),
        Command("sweep train", f"sweep train {TRAINED} --jobs 1"),
        Command("sweep solve --jobs 2", f"sweep solve {CELLS} --jobs 2"),
        Command("paper", "paper --jobs 1", resumes=False, several=True),
        Command("compare", f"compare --methods log-icot none {COMPARE}", several=True),
        LM_TRAIN,
        Command("lm train adaptive", f"{LM} --method adaptive --advance accuracy --threshold 0.9 --patience 2"),
        Command("lm compare", f"lm compare {TINY} --methods cot none --budget steps --seeds 0:1 --steps 4 --advance steps "
                "--eval-every 2 --checkpoint-steps 1 --jobs 1", several=True),
        Command("lm eval", "lm eval --model MODEL --examples 8", resumes=False),
        Command("lm probe", "lm probe MODEL --examples 64", resumes=False),
        Command("lm plan", f"lm plan {TINY} --steps 8", resumes=False),
        Command("lm data", "lm data --data parity:n=10,k=4 --count 20", resumes=False, file="examples.jsonl"),
    )
}  # fmt: skip


def make_small() -> None:
    """Checkpoints and parts of a sweep's store as often as possible, and a paper that is made in a second."""
    from internalize.parity import certificates
    from internalize.parity.adamw import train
    from internalize.parity.options import SolveOptions, TrainOptions
    from internalize.report import page as report
    from internalize.report import reproduce as paper
    from internalize.report.figures.drawing import Drawing
    from internalize.report.figures.mask import draw_mask
    from internalize.storage import sweep_store as cells

    train.CHECKPOINT_SECONDS = -1.0
    cells.ROWS_A_PART, cells._SECONDS_A_SYNC = 7, -1.0  # pyright: ignore[reportAttributeAccessIssue]
    options = TrainOptions(n=6, k=4, steps=3, batch=20, eval_every=2, eval_samples=40)
    algorithm = paper.Algorithm(SolveOptions(n=8, k=4), 1, 2, (0.5,))
    paper.reproduce.__defaults__ = ([paper.Experiment("tiny", options, 2, explored=1)],)
    paper.reproduce.__kwdefaults__ |= {"paper": options, "algorithm": algorithm}  # pyright: ignore[reportOperatorIssue]
    whole = certificates.certify
    certificates.certify = lambda world, only=("mask", "gating"): whole(world, only)
    report.paper_drawings = lambda runs: [draw_mask()]
    report.parts = lambda full: []
    Drawing.content = lambda self, kind="svg": b"<svg></svg>"  # drawn elsewhere


_CLOCK = re.compile(r"second|latency|started|took")
"""Of a key whose value no second run has again."""


def content(out: Path) -> dict[str, Any]:
    """All that a command has left, by path, but for what depends on the clock, and without who may write."""
    from internalize.parity.experiments.phase import read_cells
    from internalize.storage.sweep_store import STORE

    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.is_dir() or path.name.endswith(".lock"):
            continue
        if (out / STORE).exists() and name.startswith(("cells/", "journal")):
            continue
        found[name] = _content(path, out)
    if (out / STORE).exists():
        found["cells"] = read_cells(out).drop("seconds").sort("cell").to_dicts()
    return found


def _content(path: Path, out: Path) -> Any:
    if path.name == "env.json":
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


def difference(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """The first thing in which two folders differ, in words."""
    for name in sorted({*found, *wanted}):
        if name not in found:
            return f"{name} is missing"
        if name not in wanted:
            return f"{name} is left over"
        if found[name] != wanted[name]:
            return f"{name} is not as it is of a run left alone"
    return None


_PROGRESS = re.compile(r"(train|solve|sweep|paper|compare|lm)\b.*: [\d.e+]+/[\d.e+]+  .*")


def told(said: str) -> list[str]:
    """What a command said on standard error, without progress."""
    return [line for line in said.splitlines() if line.strip() and not _PROGRESS.fullmatch(line)]


def one_line(said: str, path: Path, *, several: bool = False, usual: str = "") -> str | None:
    """What is wrong with a refusal: beside what is said in any case, it is one line of ours that names what is below a path, or
    several of these.
    """
    lines = [line for line in told(said) if line not in told(usual)]
    if len(lines) != 1 and not (several and lines):
        return f"it said {len(lines)} lines: {' / '.join(lines[:1] + lines[-1:])[:300]!r}"
    for line in lines:
        if not line.startswith("internalize: ") or str(path) not in line:
            return f"its line does not name {path}: {line!r}"
    return None
