"""Behind links in a received folder nothing is written, cut off or deleted. Only our own files are deleted."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from internalize.errors import InputError
from internalize.lm.training import train as lm_training
from internalize.parallel.interrupt import Interrupted
from internalize.parity.adamw.train import train
from internalize.parity.options import TrainOptions
from internalize.storage.files import write_atomically
from internalize.storage.runs import Run
from tests.asking import call, refused
from tests.lm_runs import TINY as LM
from tests.lm_runs import words
from tests.tiny import stop_training

TINY = TrainOptions(n=4, k=2, steps=40, batch=20, eval_every=5, eval_samples=50)
CELLS = ["sweep", "solve", "n=6", "k=2", "samples=20", "test_samples=20", "--jobs", "1"]
COMPARE = shlex.split("compare --sizes 4,2 --methods none --optimizers algorithm-1 --seeds 0:1 --repeats 1 --jobs 1")
FOLDERS = ("checkpoint", "snapshots", "model", "stages", "first-stage", "cells", "figures", "curricula")
PRECIOUS = ("2024.txt", "00000001.json", "00000001.safetensors", ".00000001.json.1.tmp", "checkpoint-1/notes.txt")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Make a user's folder with files that are named like ours."""
    folder = tmp_path / "elsewhere"
    for name in PRECIOUS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("precious")
    return folder


def link(path: Path, elsewhere: Path) -> Path:
    """Replace a path by a link to the user's folder or file, which is made longer than a log that would be cut off."""
    if path.is_dir():
        shutil.rmtree(path)
    if path.exists() and path.suffix == ".jsonl":
        (elsewhere / "2024.txt").write_bytes(2 * path.read_bytes())
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(elsewhere if path.name in FOLDERS else elsewhere / "2024.txt")
    return path


def state(folder: Path) -> dict[str, bytes | str]:
    """Return the content of all files below a folder but locks, and the targets of links."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if (path.is_symlink() or path.is_file()) and not path.name.endswith(".lock")
    }


def begun(out: Path) -> Path:
    """Interrupt a run of `train`."""
    with pytest.raises(Interrupted):
        train(TINY, [0], [Run(out)], report=stop_training(10))
    return out


def swept(out: Path) -> Path:
    """Make the store of a sweep."""
    call([*CELLS, "--seeds", "0:2", "--out", str(out)])
    return out


def empty(out: Path) -> Path:
    """Make an empty folder."""
    out.mkdir()
    return out


RESUMED = (*words(TINY, "OUT"), "--resume")
SWEPT = (*CELLS, "--seeds", "0:3", "--out", "OUT", "--resume")
OF_RUNS = "metrics.jsonl weights.safetensors checkpoint checkpoint/00000010.json snapshots stages model env.json"


@pytest.mark.parametrize(
    ("make", "argv", "name"),
    [
        *((begun, RESUMED, name) for name in OF_RUNS.split()),
        *((empty, RESUMED, name) for name in ("env.json", ".lock", "metrics.jsonl", "checkpoint")),
        *((swept, SWEPT, name) for name in ("journal.jsonl", "cells", "env.json", "sweep.json", ".lock")),
        (empty, (*words(TINY, "OUT"), "--snapshots"), "snapshots"),
        (empty, (*COMPARE, "--out", "OUT"), "rows.json"),
        (empty, (*COMPARE, "--out", "OUT"), "curricula"),
        (empty, (*COMPARE, "--study", "latency", "--out", "OUT"), "figures"),
        (empty, ["certify", "--only", "mask", "--n", "4", "--k", "2", "--out", "OUT"], "env.json"),
        (empty, ["paper", "--out", "OUT"], "figures"),
        (empty, ["paper", "--out", "OUT"], "runs"),
        (empty, ["paper", "--out", "OUT"], "index.html"),
        (empty, words(LM, "OUT"), "checkpoint"),
        (empty, words(LM, "OUT"), "metrics.jsonl"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", "") or " ".join(value[:2]),
)
def test_a_link_is_not_followed(
    make: Callable[[Path], Path], argv: tuple[str, ...], name: str, tmp_path: Path, elsewhere: Path
):
    out = make(tmp_path / "received")
    link(out / name, elsewhere if name != "runs" else elsewhere / "checkpoint-1")
    before = state(tmp_path)
    asked = [str(out) if word == "OUT" else word for word in argv]
    refused(asked, name, alone=False)
    assert state(tmp_path) == before


def test_folders_of_seeds_are_not_behind_links(tmp_path: Path, elsewhere: Path):
    begun(elsewhere / "run")
    out = empty(tmp_path / "received")
    (out / "seed-0").symlink_to(elsewhere / "run")
    before = state(tmp_path)
    refused([*words(TINY, out), "--seeds", "0:2", "--resume"], "seed-0")
    assert state(tmp_path) == before


def test_what_a_user_names_may_be_a_link(tmp_path: Path):
    """The folder of --out and the file of `lm data` may be links, because the user named them."""
    begun(tmp_path / "disk")
    (tmp_path / "run").symlink_to("disk")
    call([*words(TINY, tmp_path / "run"), "--resume"])
    assert Run(tmp_path / "disk").finished
    (tmp_path / "file.txt").write_text("")
    (tmp_path / "data.txt").symlink_to("file.txt")
    call(f"lm data --data parity:n=4,k=2 --count 3 --out {tmp_path / 'data.txt'}")
    assert len((tmp_path / "file.txt").read_text().splitlines()) == 3


def test_a_finished_run_may_be_read_through_links(tmp_path: Path):
    """Users may keep large files elsewhere. The run is shown, and nothing is written to them."""
    run = Run(tmp_path / "run")
    train(TINY, [0], [run])
    weights = run.path / "weights.safetensors"
    weights.rename(tmp_path / "kept")
    weights.symlink_to(tmp_path / "kept")
    assert train(TINY, [0], [run], resume=True) == [run.result]
    assert weights.is_symlink()


def test_a_file_is_not_written_through_a_link(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for _ in range(2):
        with pytest.raises(InputError, match="link is a link"):
            write_atomically(tmp_path / "link", b"new")
        assert not (tmp_path / "file").exists() or (tmp_path / "file").read_bytes() == b"old"
        (tmp_path / "file").write_bytes(b"old")


MINE = ("2024.txt", "7.json", "00000001.txt", "notes.json", "1.safetensors", "checkpoint-old/a.txt", ".thesis.7.tmp")


def test_the_checkpoint_folder_keeps_what_is_not_ours(tmp_path: Path):
    run = Run(begun(tmp_path / "run"))
    for name in MINE:
        (run.path / "checkpoint" / name).parent.mkdir(exist_ok=True)
        (run.path / "checkpoint" / name).write_text("mine")
    (run.path / ".thesis.7.tmp").write_text("mine")
    train(TINY, [0], [run], resume=True)
    train(TINY, [0], [run], resume=True)
    assert sorted(state(run.path / "checkpoint")) == sorted(MINE)
    assert (run.path / ".thesis.7.tmp").exists()


def test_the_store_of_a_sweep_keeps_what_is_not_ours(tmp_path: Path):
    out = swept(tmp_path / "cells")
    mine = [out / "cells" / ".thesis.7.tmp", out / ".thesis.tmp", out / "cells" / "notes.txt"]
    for path in mine:
        path.write_text("mine")
    (out / "cells" / ".part-000009.parquet.7.tmp").write_text("left by a kill")
    call([str(out) if word == "OUT" else word for word in SWEPT])
    assert all(path.exists() for path in mine)
    assert not list(out.rglob(".part*"))


def test_a_trainers_folder_keeps_what_is_not_ours(tmp_path: Path):
    """They stay while checkpoints come and go, at a resumption, at the end, and when a model is replaced."""
    run = Run(tmp_path / "run")
    mine = [run.path / "checkpoint" / name for name in ("checkpoint-old", "checkpoint-3b", "notes", "2024")]

    def begin(now: lm_training.LmTrainProgress) -> None:
        for folder in mine:
            folder.mkdir(exist_ok=True)
            (folder / "mine.txt").write_text("mine")
        if now.done == 18:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lm_training.train(LM, run=run, checkpoint_steps=2, report=begin)
    assert len(list((run.path / "checkpoint").glob("checkpoint-[0-9]*[02468]"))) <= 2
    assert all((folder / "mine.txt").exists() for folder in mine)
    (run.path / "model").mkdir()
    (run.path / "model" / "README.md").write_text("mine")
    lm_training.train(LM, run=run, resume=True)
    lm_training.train(LM, run=run, resume=True)
    assert run.finished
    assert sorted(path.name for path in (run.path / "checkpoint").iterdir()) == sorted(folder.name for folder in mine)
    assert (run.path / "model.set-aside-1" / "README.md").read_text() == "mine"
    assert json.loads((run.path / "model" / "internalize.json").read_text())["weights"]
