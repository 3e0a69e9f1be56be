"""Run folders: one per run, every file written whole or not at all, one writer at a time.

| file                  | content                                                                     |
| --------------------- | --------------------------------------------------------------------------- |
| `config.json`         | version, kind, all options resolved; its presence makes the folder a run    |
| `env.json`            | package version, commit, Python, torch, CPU, threads, start time            |
| `metrics.jsonl`       | one object per evaluation                                                   |
| `weights.safetensors` | final weights                                                               |
| `model/`              | `lm train`: the model in the format of transformers                         |
| `stages/`             | `lm train --keep-stages`: the model at the end of every stage               |
| `first-stage/`        | `lm compare`: the first stage, while other runs continue from it            |
| `snapshots/`          | weights at evaluations, named by step                                       |
| `checkpoint/`         | what a resumed run needs; the newest `….json` names its tensors             |
| `result.json`         | what `--json` prints; written last, so its presence means finished          |
| `.lock`               | held by the process that writes                                             |

Nothing is pickled. Reading takes no lock.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypedDict, TypeVar

from filelock import FileLock, Timeout
from msgspec import Meta

from internalize.environment import check_open_files, describe_environment
from internalize.errors import InputError
from internalize.storage.earlier_configs import completed
from internalize.storage.files import (
    Json,
    as_json,
    check_schema,
    check_seal,
    check_version,
    foreign_name,
    free_name,
    load_tensors,
    numbered,
    parse_json,
    present,
    read_file,
    read_json,
    refuse_link,
    refuse_links,
    remove_temporary_files,
    save_tensors,
    sealed,
    write_json,
    writing,
)

if TYPE_CHECKING:
    import polars as pl
    from torch import Tensor

VERSION = 1
"""Version of the folder's layout. A reader refuses any other version."""
T = TypeVar("T")


class Config(TypedDict, total=False):
    """Fields that the `config.json` of any run may have. The kind of the run decides which others there are."""

    version: int
    kind: str
    n: int
    k: int
    seed: int
    secret: list[int]


class Checkpoint(TypedDict):
    """Fields that the JSON of every checkpoint has."""

    step: int
    metrics_bytes: Annotated[int, Meta(ge=0)]


_OWN_FILES = {
    *("config.json", "env.json", "metrics.jsonl", "answers.jsonl", "weights.safetensors", "result.json", ".lock"),
    *("model", ".model.tmp", "first-stage", ".first-stage.tmp", "stages", "snapshots", "checkpoint"),
}
_CHECKPOINT_FILE: Final = re.compile(r"([0-9]{8}|[1-9][0-9]{8,})\.(json|safetensors)")
_SNAPSHOT: Final = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,})\.safetensors")
_TRAINER_FOLDER: Final = re.compile(r"checkpoint-([0-9]+)")
_TRAINER_TEMPORARY: Final = re.compile(r"\.checkpoint-([0-9]+)\.tmp")
"""Unfinished copy of a Trainer's checkpoint, left by a killed process."""
_RESERVED: Final = ("path", "finished", "broken")
"""Columns of `list_runs` that no file of a run can fill."""


class Run:
    """A run folder. Reading needs no lock; writing needs `with run.locked():`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an existing run."""
        run = cls(Path(path))
        if not run.exists:
            raise InputError(f"{path} is not a run folder: it has no config.json")
        run.config  # noqa: B018  (raises an error now if it is broken)
        return run

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run, finished or not."""
        return present(self.path / "config.json")

    @property
    def finished(self) -> bool:
        """Whether the run has written its result."""
        return present(self.path / "result.json")

    @property
    def config(self) -> Json:
        """The resolved options with `kind` and `version`."""
        config = read_json(self.path / "config.json", Config)
        check_version(config, VERSION, self.path / "config.json")
        return completed(config)

    @property
    def env(self) -> Json:
        """The machine and the package versions that the run used."""
        return read_json(self.path / "env.json")

    @property
    def result(self) -> Json:
        """The object that `--json` printed."""
        if not self.finished:
            raise InputError(f"{self.path} is not finished: it has no result.json; continue it with --resume")
        return read_json(self.path / "result.json")

    def result_as(self, schema: type[T]) -> T:
        """Return the result converted to ``schema``. Raise an error if it does not fit."""
        return check_schema(self.result, schema, self.path / "result.json")

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Lock the folder against other writers. Create it if it is missing."""
        lock = FileLock(self.path / ".lock", timeout=0)
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire()
            except Timeout:
                message = f"{self.path} is in use by another process; wait for it or choose another --out"
                raise InputError(message) from None
        try:
            yield
        finally:
            lock.release()

    def check(self, kind: str, config: Mapping[str, Any], *, resume: bool) -> None:
        """Raise an error if the folder cannot become this run's.

        That is a folder with other files, with another run, with this run but without ``resume``, or one that is not
        finished and has links in it, which lead to files that are not the run's.
        """
        if not self.finished:
            refuse_links(self.path, _OWN_FILES)
        wanted = as_json({"version": VERSION, "kind": kind, **config}, self.path / "config.json")
        if self.exists:
            found = self.config
            # The kind and the seed first, because a difference in them explains the others.
            for key in sorted({*wanted, *found}, key=lambda key: (key != "kind", key != "seed", key)):
                if (want := wanted.get(key)) != found.get(key):
                    raise InputError(
                        f"{self.path} holds another run: its {key} is {found.get(key)!r}, not {want!r}; "
                        "choose another --out"
                    )
            if not resume:
                state = "is already finished" if self.finished else "has already started"
                raise InputError(f"{self.path}: this run {state}; add --resume, or choose another --out")
        elif name := foreign_name(self.path, _OWN_FILES):
            raise InputError(f"{self.path} is not a run folder and holds {name!r}; choose another --out")

    def begin(self, kind: str, config: Mapping[str, Any]) -> None:
        """Make the folder this run's. Call `check` and lock the folder first; `begin_runs` does all three."""
        if not self.exists:
            write_json(self.path / "env.json", describe_environment())
            write_json(self.path / "config.json", {"version": VERSION, "kind": kind, **config})

    def set_aside(self) -> Path:
        """Rename the folder, whatever is in it, to make room for another run. Raise an error if it is locked."""
        with self.locked(), writing(self.path):
            return self.path.rename(free_name(self.path))

    def finish(self, result: Json) -> None:
        """Write the result, and delete the checkpoint, which is no longer needed."""
        write_json(self.path / "result.json", result)
        self.tidy()

    def tidy(self) -> None:
        """Remove the checkpoints of a finished run. A process killed after it wrote the result may have left them."""
        self.drop_checkpoints()
        self._remove_temporary_files()
        with contextlib.suppress(OSError):  # the folder holds a file that is not ours: leave it
            (self.path / "checkpoint").rmdir()

    def drop_trainer(self) -> None:
        """Remove the Trainer's checkpoints, and what `tidy` removes, from a finished run of `lm train`."""
        refuse_link(self.path / "checkpoint", self.path)
        for pattern in (_TRAINER_FOLDER, _TRAINER_TEMPORARY):
            for _, folder in numbered(self.path / "checkpoint", pattern):
                shutil.rmtree(folder, ignore_errors=True)
        self.tidy()

    # Metrics

    def append_metrics(self, metrics: Json) -> None:
        """Append one line to the metrics."""
        line = (json.dumps(metrics, allow_nan=False) + "\n").encode()
        path = self.path / "metrics.jsonl"
        with writing(path), path.open("ab") as file:
            file.write(line)

    def metrics(self, size: int | None = None, schema: object = Json) -> list[Json]:
        """Return the evaluations in order. An unfinished last line, left by a killed process, is ignored.

        Args:
            size: read only that many bytes, which must be whole lines.
            schema: the type of a line. Raise an error if one does not fit.
        """
        path = self.path / "metrics.jsonl"
        if not present(path):
            return []
        *lines, rest = read_file(path)[:size].split(b"\n")
        if rest and size is not None:
            raise InputError(f"{path} is damaged: the {size} bytes that the checkpoint recorded are not whole lines")
        return [parse_json(line, path, schema) for line in lines]

    # Weights

    def save_weights(self, weights: "Mapping[str, Tensor]") -> None:
        """Write the final weights."""
        save_tensors(self.path / "weights.safetensors", weights)

    def weights(self) -> "dict[str, Tensor]":
        """Return the final weights by name."""
        return load_tensors(self.path / "weights.safetensors")

    def save_snapshot(self, step: int, weights: "Mapping[str, Tensor]") -> None:
        """Write the weights at an evaluation."""
        with writing(self.path / "snapshots"):
            (self.path / "snapshots").mkdir(exist_ok=True)
        save_tensors(self.path / "snapshots" / f"step-{step:08d}.safetensors", weights)

    def snapshots(self) -> "Iterator[tuple[int, dict[str, Tensor]]]":
        """Yield the steps and weights of the snapshots, sorted by step."""
        for step, path in numbered(self.path / "snapshots", _SNAPSHOT):
            yield step, load_tensors(path)

    # Checkpoints. First the tensors are written under a new name, then the JSON that names them, which commits the
    # checkpoint. The previous checkpoint is deleted last; runs trained together keep it until all of them have the new
    # one.

    def save_checkpoint(self, step: int, tensors: "Mapping[str, Tensor]", state: Json) -> None:
        """Add a checkpoint at a step, with the size of the metrics so far. `drop_checkpoints` removes older ones."""
        folder, metrics = self.path / "checkpoint", self.path / "metrics.jsonl"
        with writing(folder):
            folder.mkdir(exist_ok=True)
            size = metrics.stat().st_size if metrics.exists() else 0
            if size:
                with metrics.open("rb") as file:
                    os.fsync(file.fileno())  # the checkpoint records these bytes, so they must be on the disk before it
        save_tensors(folder / f"{step:08d}.safetensors", tensors)
        write_json(folder / f"{step:08d}.json", sealed({**state, "step": step, "metrics_bytes": size}))

    def checkpoint_steps(self) -> set[int]:
        """Return the steps that have a complete checkpoint."""
        return {step for step, path in self._checkpoint_files() if path.suffix == ".json"}

    def drop_checkpoints(self, *, but: int | None = None) -> None:
        """Remove all checkpoints except the one at step ``but``."""
        refuse_link(self.path / "checkpoint", self.path)
        for step, path in self._checkpoint_files():
            if step != but:
                with writing(path):
                    path.unlink(missing_ok=True)

    def load_checkpoint(self, step: int) -> "tuple[dict[str, Tensor], Json]":
        """Return the tensors and state of a checkpoint. Nothing changes; call `rewind_metrics` once both are valid."""
        path = self.path / "checkpoint" / f"{step:08d}.json"
        state = read_json(path)
        check_seal(state, path)
        check_schema(state, Checkpoint, path)
        if state["step"] != step:
            raise InputError(f"{path} is damaged: its step is {state['step']}")
        metrics, size = self.path / "metrics.jsonl", state["metrics_bytes"]
        found = metrics.stat().st_size if present(metrics) else 0
        if found < size:
            raise InputError(f"{metrics} is damaged: it has {found} bytes, and had {size} when the checkpoint was made")
        self.metrics(size)
        return load_tensors(path.with_suffix(".safetensors")), state

    def rewind_metrics(self, state: Json | None, say: Callable[[str], None] = lambda line: None) -> None:
        """Truncate the metrics to their size at a checkpoint. Without a checkpoint, empty them and say so."""
        if (self.path / "checkpoint").exists() and not (self.path / "checkpoint").is_dir():
            raise InputError(f"{self.path / 'checkpoint'} is not a folder")
        metrics = self.path / "metrics.jsonl"
        if metrics.exists():
            if state is None and metrics.stat().st_size:
                say(f"{self.path} has no checkpoint: it starts from the beginning")
            with writing(metrics):
                os.truncate(metrics, state["metrics_bytes"] if state else 0)
        self._remove_temporary_files()

    def _remove_temporary_files(self) -> None:
        """Remove temporary files of a killed writer. Call it only for a valid run, so that others stay unchanged."""
        remove_temporary_files(self.path, _OWN_FILES.__contains__)
        remove_temporary_files(self.path / "checkpoint", _CHECKPOINT_FILE.fullmatch)
        remove_temporary_files(self.path / "snapshots", _SNAPSHOT.fullmatch)

    def _checkpoint_files(self) -> list[tuple[int, Path]]:
        # JSON first: a checkpoint without its JSON does not exist, while one without its tensors is damaged
        files = numbered(self.path / "checkpoint", _CHECKPOINT_FILE)
        return sorted(files, key=lambda file: file[1].suffix != ".json")


@contextlib.contextmanager
def begin_runs(
    runs: Sequence[Run], kind: str, configs: Sequence[Mapping[str, Any]], *, resume: bool
) -> Generator[None]:
    """Lock the folders of runs that are trained together and begin them. If one cannot be used, change none of them."""

    def check_all() -> None:
        for run, config in zip(runs, configs, strict=True):
            run.check(kind, config, resume=resume)

    check_all()  # before any folder or lock is created
    check_open_files(len(runs))
    with contextlib.ExitStack() as locks:
        for run in sorted(runs, key=lambda run: run.path):  # sorted, so that two commands never each hold half
            locks.enter_context(run.locked())
        check_all()
        for run, config in zip(runs, configs, strict=True):
            run.begin(kind, config)
        yield


def trainer_checkpoints(folder: Path) -> list[Path]:
    """Return a Trainer's checkpoints, complete or not, sorted by their number of updates."""
    return [path for _, path in numbered(folder, _TRAINER_FOLDER)]


def find_runs(root: str | Path) -> list[Run]:
    """Return every run in or below a folder, sorted by path."""
    found: dict[Path, Run] = {}
    paths = [Path(here) / "config.json" for here, below, files in os.walk(root) if "config.json" in (*below, *files)]
    for path in sorted(paths, key=lambda path: (len(path.parts), path)):
        runs = found.keys() & set(path.parent.parents)
        if not any((run / "env.json").exists() for run in runs):  # not the config.json of a model inside a run
            found[path.parent] = Run(path.parent)
    return [found[folder] for folder in sorted(found)]


def list_runs(root: str | Path, /, **where: object) -> "pl.DataFrame":
    """Return every run in or below a folder as a frame: its path, whether it is finished, its options and its results.

    The option ``steps`` has its own column, so the number of steps that a run took is in the column ``steps_made``.
    Keywords keep the runs whose option or result of that name has that value: ``list_runs("runs", n=30)``. Runs that
    cannot be read stay in the frame, with the reason in the column ``broken``.
    """
    import polars as pl

    rows: list[Json] = []
    for run in find_runs(root):
        path = str(run.path).encode(errors="backslashreplace").decode()
        row: Json = {"path": path, "finished": False, "broken": None}
        try:
            if path != str(run.path):
                raise InputError(f"{path} has a name that is not UTF-8; rename it")
            row["finished"] = run.finished
            row |= _scalars(run.config)
            for name, value in _scalars(run.result if run.finished else {}).items():
                row["steps_made" if name == "steps" and name in row else name] = value
        except InputError as error:
            row["broken"] = str(error)
        if all(row.get(key) == value for key, value in where.items()):
            rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None, strict=False)


def _scalars(values: Json) -> Json:
    """Return the values that fit a cell, without our own columns. Integers too large for a column become text."""
    scalars = {key: value for key, value in values.items() if isinstance(value, str | int | float)}
    return {
        key: str(value) if type(value) is int and abs(value) >= 2**63 else value
        for key, value in scalars.items()
        if key not in _RESERVED
    }
