"""runs.py, files.py and conditions.py: files are whole or absent, runs have one writer, damage is named."""

import json
import pickle
import resource
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from internalize import InputError
from internalize.parity.adamw.train import train
from internalize.storage.conditions import condition, is_value
from internalize.storage.files import load_tensors, read_json, save_tensors, write_atomically, write_json
from internalize.storage.runs import Run, find_runs, list_runs
from tests.tiny import SMALLEST


def test_list_and_filter(run: Run):
    train(SMALLEST, [1], [Run(run.path.parent / "two")])
    unfinished = Run(run.path.parent / "three")
    with unfinished.locked():
        unfinished.begin("train", {"n": 4, "seed": 9})
    frame = list_runs(run.path.parent)
    assert frame["seed"].to_list() == [0, 9, 1]
    assert frame["finished"].to_list() == [True, False, True]
    assert frame.filter(frame["finished"])["accuracy"].null_count() == 0
    assert list_runs(run.path.parent, seed=1)["path"].to_list() == [str(run.path.parent / "two")]
    assert list_runs(run.path.parent, seed=99).is_empty()
    assert len(find_runs(run.path)) == 1


def test_a_broken_run_is_listed_with_its_reason(run: Run):
    (run.path / "config.json").write_text('{"version": 1, "kin')
    frame = list_runs(run.path.parent)
    assert "is not JSON" in frame["broken"][0]
    assert list_runs(run.path.parent).height == 1


def test_second_writer_is_refused(run: Run):
    with run.locked(), pytest.raises(InputError, match="in use by another process"), run.locked():
        pass
    with run.locked():
        context = get_context("spawn")
        with context.Pool(1) as pool:
            assert "in use by another process" in pool.apply(_try_to_lock, (run.path,))
    with run.locked():
        pass


def _try_to_lock(path: Path) -> str:
    try:
        with Run(path).locked():
            return "got it"
    except InputError as error:
        return str(error)


def test_other_files_are_left_alone(tmp_path: Path):
    stranger = tmp_path / "mine"
    stranger.mkdir()
    (stranger / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"holds 'thesis.tex'"):
        train(SMALLEST, [0], [Run(stranger)])
    hidden = stranger / "sub" / ".deep.tmp"
    hidden.parent.mkdir()
    for path in (stranger / ".important.tmp", hidden):
        path.write_text("mine")
    before = sorted(stranger.rglob("*"))
    with pytest.raises(InputError, match="is not a run folder and holds"):
        train(SMALLEST, [0], [Run(stranger)])
    assert sorted(stranger.rglob("*")) == before  # and no lock


def test_the_folder_of_a_killed_start_is_used(tmp_path: Path):
    """A folder with env.json and without config.json, left by a kill, is used."""
    run = Run(tmp_path / "begun")
    with run.locked():
        write_json(run.path / "env.json", {})
        (run.path / ".config.json.123.tmp").write_text("{")
    train(SMALLEST, [0], [run])
    assert run.finished


def test_atomic_write_survives_a_full_disk(tmp_path: Path):
    """A write that fails half-way leaves the old content and no other file."""
    path = tmp_path / "file.json"
    write_json(path, {"a": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(InputError, match="cannot write .*file.json: File too large"):
            write_atomically(path, b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_vanished_folder(tmp_path: Path):
    with pytest.raises(InputError, match="cannot write .*: No such file or directory"):
        write_atomically(tmp_path / "gone" / "file", b"")


def test_no_infinities_in_json(tmp_path: Path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b"\xff\xfe", "is not JSON"),
        (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "is not JSON: .*recursion|is not JSON: .*ecursion"),
        (None, "cannot read .*: No such file"),
    ],
)
def test_broken_json(tmp_path: Path, content: bytes | None, words: str):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_json(path)


def test_config_of_another_version(run: Run):
    write_json(run.path / "config.json", {**run.config, "version": 99})
    with pytest.raises(InputError, match="version 99; this package reads version 1"):
        Run.open(run.path)


def test_not_a_run(tmp_path: Path):
    with pytest.raises(InputError, match="is not a run folder: it has no config.json"):
        Run.open(tmp_path)


def test_tensors_round_trip(tmp_path: Path):
    tensors = {"a": torch.randn(3, 4)[:, :2], "b": torch.tensor(1.5, dtype=torch.float64), "c": torch.zeros(0)}
    save_tensors(tmp_path / "t.safetensors", tensors)
    loaded = load_tensors(tmp_path / "t.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_damaged_tensors(tmp_path: Path):
    """Truncated, flipped, pickled, not finite or not floating: the file is refused and never read in part."""
    path = tmp_path / "weights.safetensors"
    tensors = {"W1": torch.randn(4, 2), "W2": torch.randn(5, 1)}
    save_tensors(path, tensors)
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="weights.safetensors"):
            load_tensors(path)
    flipped = 0
    for position in range(len(whole)):
        for bit in (0, 5):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ (1 << bit)]) + whole[position + 1 :])
            try:
                read = load_tensors(path)
            except InputError:
                flipped += 1
                continue
            # Only the space that pads the header may change without changing what is read.
            assert read.keys() == tensors.keys()
            assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    assert flipped > 1.8 * len(whole)
    for content, words in [
        (pickle.dumps({"W1": 1}), "the header of .*weights.safetensors is not JSON"),
        (save({"W1": torch.tensor([1.0, torch.nan])}), "W1 has entries that are not finite"),
        (save({"W1": torch.tensor([1, 2])}), "W1: dtype: invalid enum value 'I64'"),
    ]:
        path.write_bytes(content)
        with pytest.raises(InputError, match=words):
            load_tensors(path)


@pytest.mark.parametrize(
    ("key", "value", "listed"),
    [("n", "four", False), ("n", 10**23, True), ("seed", [1], False), ("lr", "fast", True), ("version", None, False)],
)
def test_odd_configs_do_not_break_the_list(run: Run, key: str, value: object, listed: bool):
    """The column `broken` names wrong types. A number that is too large for a column is shown as text."""
    train(SMALLEST, [1], [Run(run.path.parent / "two")])
    config = json.loads((run.path / "config.json").read_text())
    (run.path / "config.json").write_text(json.dumps({**config, key: value}))
    frame = list_runs(run.path.parent)
    assert frame.height == 2
    assert (frame["broken"][0] is None) == listed


def test_all_or_none_of_several_runs(run: Run):
    """If one of three runs is finished, all are refused, and the folders of the others are not made."""
    parent = run.path.parent
    with pytest.raises(InputError, match="is already finished"):
        train(SMALLEST, [5, 0, 6], [Run(parent / "five"), run, Run(parent / "six")])
    assert [path.name for path in parent.iterdir()] == ["one"]
    (done, *_) = train(SMALLEST, [0, 5], [run, Run(parent / "five")], resume=True)
    assert done == run.result


def test_a_run_without_newer_options_is_resumed(run: Run):
    """A config.json without newer options is resumed with the behavior of its time."""
    whole = run.config
    newer = ("value", "output", "advance", "parts_lr", "tokens")
    old = {key: value for key, value in whole.items() if key not in newer}
    (run.path / "config.json").write_text(json.dumps(old))
    assert run.config == whole
    assert train(SMALLEST, [0], [run], resume=True) == [run.result]
    with pytest.raises(InputError, match="holds another run"):
        train(replace(SMALLEST, value="learned"), [0], [run], resume=True)


def test_finished_runs_are_checked_before_they_are_shown(run: Run):
    for name, content, words in [
        ("result.json", b"{}", "result.json: object missing required field `seed`"),
        (
            "result.json",
            json.dumps({**run.result, "accuracy": "high"}).encode(),
            "accuracy: expected `float`, got `str`",
        ),
        ("metrics.jsonl", b"", "ends at step None, the result at 2"),
        ("metrics.jsonl", b'{"step": 0, "loss": 1}\n', "metrics.jsonl: object missing required field `stage`"),
        ("metrics.jsonl", json.dumps(run.metrics()[0]).encode() + b"\n", "ends at step 0, the result at 2"),
        ("weights.safetensors", save({"W1": torch.zeros(3, 3)}), "W1 has shape"),
        ("weights.safetensors", save({"V": torch.zeros(4, 1)}), "no W1"),
    ]:
        whole = (run.path / name).read_bytes()
        (run.path / name).write_bytes(content)
        with pytest.raises(InputError, match=words):
            train(SMALLEST, [0], [run], resume=True)
        (run.path / name).write_bytes(whole)
    train(SMALLEST, [0], [run], resume=True)


def test_metrics_with_a_half_written_last_line(run: Run):
    whole = run.metrics()
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "sta')
    assert run.metrics() == whole
    for line, words in [
        (b"nonsense\n", "is not JSON"),
        (b"3\n", "is not a JSON object"),
        (b'{"a": NaN}\n', "is not JSON"),
    ]:
        (run.path / "metrics.jsonl").write_bytes(line)
        with pytest.raises(InputError, match=words):
            run.metrics()


def test_a_checkpoint_that_is_later_than_the_metrics(tmp_path: Path):
    """It is refused by name. Foreign files beside it do not matter."""
    run = Run(tmp_path / "run")
    with run.locked():
        run.begin("train", {"n": 4})
        run.append_metrics({"step": 1})
        run.save_checkpoint(1, {"W1": torch.zeros(4, 1)}, {"stage": 0})
    (run.path / "metrics.jsonl").write_bytes(b"")
    with pytest.raises(InputError, match="is damaged: it has 0 bytes"):
        run.load_checkpoint(1)
    (run.path / "checkpoint" / "notes.json").write_text("{}")  # a foreign file
    assert run.checkpoint_steps() == {1}


# Conditions of the form name=value


@pytest.mark.parametrize(
    ("found", "texts", "others"),
    [
        # Numbers match by their value, or as tables print them.
        (20.0, ("20", "20.0", "2e1"), ()),
        (20, ("20", "20.0", "2e1"), ("one",)),
        (12.3456789, ("12.3456789", "12.3457"), ("12.345",)),
        # Other values match as they are written.
        ("log-icot", ("log-icot",), ()),
        (True, ("True",), ("1",)),
        (None, ("None",), ()),
    ],
)
def test_values_of_conditions(found: object, texts: tuple[str, ...], others: tuple[str, ...]):
    assert [text for text in (*texts, *others) if is_value(found, text)] == list(texts)


def test_form_of_conditions():
    assert condition("a=b=c") == ("a", "b=c")
    for text in ("a", "=1", ""):
        with pytest.raises(InputError, match="is not of the form name=value"):
            condition(text)
