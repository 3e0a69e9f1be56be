"""Sweeps: every cell is run once, whoever is killed, with the rows of `solve` and `train`."""

import json
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from internalize.errors import InputError
from internalize.intervals import wilson
from internalize.parallel.interrupt import Interrupted
from internalize.parallel.runner import Runner
from internalize.parity.adamw.train import train
from internalize.parity.algorithm1.solve import solve
from internalize.parity.experiments.grid import parse_grid
from internalize.parity.experiments.jobs import CellJob
from internalize.parity.experiments.phase import keep_where, read_cells, success_rates, varied
from internalize.parity.experiments.sweep import sweep
from internalize.parity.options import SolveOptions, TrainOptions
from tests.asking import call, refused

GRID = ["n=8,12", "k=4", "samples=60,300", "test_samples=50"]
TRAINED = ["n=6", "k=2,4", "steps=3", "batch=20", "eval_samples=40"]


def rows(out: Path) -> list[dict[str, Any]]:
    """Return everything that does not depend on the clock, in order."""
    return read_cells(out).drop("seconds").sort("cell").to_dicts()


def run(out: Path, grid: list[str], seeds: range, kind: Any = "solve", **more: Any) -> dict[str, Any]:
    runner = replace(more.pop("runner", Runner(1)), **({"report": more.pop("report")} if "report" in more else {}))
    return sweep(parse_grid(kind, grid).settings, seeds, out, runner, **more)


def test_rows_are_those_of_solve(tmp_path: Path):
    assert run(tmp_path, GRID, range(3)) == {"cells": 12, "done": 12, "failed": 0, "store": str(tmp_path)}
    for row in read_cells(tmp_path).to_dicts():
        options = SolveOptions(n=row["n"], k=4, samples=row["samples"], seed=row["seed"], test_samples=50)
        result = solve(options).to_json()
        for name in ("exact_recovery", "accuracy", "l2_error", "max_error", "steps", "failed_stage", "reason"):
            assert row[name] == result[name]
        assert (row["K"], row["K_used"], row["status"]) == (None, result["K"], "done")
    stopped = tmp_path / "stopped"
    run(stopped, GRID, range(3), stop_at_failure=True)
    both = (read_cells(out).sort("n", "samples", "seed").to_dicts() for out in (tmp_path, stopped))
    for whole, short in zip(*both, strict=True):
        assert short["cell"] != whole["cell"]
        assert (short["failed_stage"], short["success"]) == (whole["failed_stage"], whole["success"])
        assert short["steps"] == (whole["failed_stage"] or whole["steps"])


def test_rows_are_those_of_train(tmp_path: Path):
    """Seeds are trained together in tens, and the row names them."""
    run(tmp_path, TRAINED, range(8, 12), "train")
    found = {(row["k"], row["seed"]): row for row in read_cells(tmp_path).to_dicts()}
    assert len(found) == 8
    for k in (2, 4):
        for seeds in ((8, 9), (10, 11)):
            for result in train(TrainOptions(n=6, k=k, steps=3, batch=20, eval_samples=40), seeds):
                row = found[k, result["seed"]]
                assert row["together"] == " ".join(map(str, seeds))
                assert (row["steps"], row["steps_made"]) == (3, result["steps"])
                for name in ("accuracy", "l2_error", "max_error", "min_child_attention", "samples"):
                    assert row[name] == result[name]


def test_larger_grids_only_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[tuple[int, ...]] = []
    whole = CellJob.run

    def counted(self: CellJob, seen: Callable[[int, str], None]) -> list[dict[str, Any]]:
        made.append(self.seeds)
        return whole(self, seen)

    monkeypatch.setattr(CellJob, "run", counted)
    run(tmp_path, ["n=8", "k=4", "samples=60"], range(2))
    with pytest.raises(InputError, match="has already started; add --resume"):
        run(tmp_path, ["n=8", "k=4", "samples=60"], range(3))
    before = read_cells(tmp_path)
    assert run(tmp_path, ["n=8", "k=4", "samples=60,70", "K=default,20"], range(3), resume=True)["done"] == 12
    assert len(made) == 2 + 10
    after = read_cells(tmp_path)
    assert after[: before.height].equals(before)
    assert pl.read_parquet(tmp_path / "cells" / "*.parquet").height == 12
    assert run(tmp_path, ["n=8", "k=4", "samples=60"], range(2), resume=True)["cells"] == 2
    assert len(made) == 12
    with pytest.raises(InputError, match="holds a sweep of `solve`, not of `train`"):
        run(tmp_path, TRAINED, range(1), "train", resume=True)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.txt").touch()
    with pytest.raises(InputError, match="holds 'mine.txt'"):
        run(tmp_path / "sub", TRAINED, range(1), "train", resume=True)


def test_refused_cells_are_kept_with_their_reason(tmp_path: Path):
    command = f"sweep train {' '.join(TRAINED)} lr=0.1,1e38 --seeds 0:2 --jobs 1 --out {tmp_path} --json"
    for resume in ("", "--resume"):
        said = call(f"{command} {resume}", 1)
        assert json.loads(said.out) == {"cells": 8, "done": 4, "failed": 4, "store": str(tmp_path), "left_out": 0}
        assert "4 cells failed" in said.err
    failed = read_cells(tmp_path).filter(pl.col("status") == "failed")
    assert failed["lr"].unique().to_list() == [1e38]
    assert all("lr=1e+38 is too large" in reason for reason in failed["reason"])


def test_store_of_a_writer_that_was_killed(tmp_path: Path):
    """A kill may leave rows in a part and in the journal, half a line, or half a file."""
    run(tmp_path, GRID, range(2))
    whole = read_cells(tmp_path)
    in_part = whole.drop("success").to_dicts()[-3:]
    torn = json.dumps(in_part[0] | {"cell": "new"})[:50]
    lines = "".join(json.dumps(row) + "\n" for row in in_part) + torn
    (tmp_path / "journal.jsonl").write_text(lines)
    (tmp_path / "cells" / ".part-000001.parquet.77.tmp").write_bytes(b"PAR1")
    assert read_cells(tmp_path).equals(whole)
    run(tmp_path, GRID, range(3), resume=True)
    assert read_cells(tmp_path)[: whole.height].equals(whole)
    parts = ["part-000000.parquet", "part-000001.parquet"]
    assert [path.name for path in sorted((tmp_path / "cells").iterdir())] == parts
    assert (tmp_path / "journal.jsonl").read_bytes() == b""
    (tmp_path / "cells" / "part-000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"part-000001.parquet is damaged"):
        read_cells(tmp_path)
    with pytest.raises(InputError, match="has no sweep.json"):
        read_cells(tmp_path / "nowhere")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    run(tmp_path / "cells", ["n=8", "k=4", "samples=60,300", "test_samples=50"], range(3))
    return tmp_path / "cells"


def refused_by_readers(store: Path, words: str) -> None:
    """Check that both commands that read a store refuse it in one line."""
    refused(f"sweep show {store}", words)
    refused(f"sweep solve n=8 k=4 --jobs 1 --resume --out {store}", words)


def put(name: str, *values: object, dtype: Any = None) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Put values in the rows of a column; the last one in all further rows."""
    return lambda part: part.with_columns(
        pl.Series(name, [*values, *[values[-1]] * (part.height - len(values))], dtype, strict=False)
    )


WRONG_PARTS: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "cell": lambda part: part.drop("cell"),
    "status": put("status", None, "done"),
    "has no result": put("exact_recovery", None, dtype=pl.Boolean),
    "less than one sample": put("samples", 0),
    "not finite": put("accuracy", float("nan"), 1.0),
    "l2_error has numbers": put("l2_error", float("inf")),
    "rows, but this package writes at most": lambda part: pl.concat([part] * 2000),
    **{
        f"column {name} is of type {kind}": put(name, value, dtype=dtype)
        for name, value, kind, dtype in (
            ("n", [8], "List", None),
            ("n", "8", "String", None),
            ("n", 8.0, "Float64", None),
            ("n", 8, "Int32", pl.Int32),
            ("seed", 2**64 - 1, "UInt64", pl.UInt64),
            ("cell", b"cell", "Binary", None),
            ("cell", "cell", "Categorical", pl.Categorical),
            ("reason", "why", "Enum", pl.Enum(["why"])),
            ("status", {"done": 1}, "Struct", None),
            ("exact_recovery", 1, "Int64", None),
            ("accuracy", True, "Boolean", None),
            ("accuracy", 1, "Decimal", pl.Decimal(10, 2)),
        )
    },
}


@pytest.mark.parametrize("words", WRONG_PARTS)
def test_parts_of_others(store: Path, words: str):
    """A part with other columns than those of a sweep is refused in one line, by `show` and before cells are added."""
    part = store / "cells" / "part-000000.parquet"
    WRONG_PARTS[words](pl.read_parquet(part)).write_parquet(part)
    named = store if words in ("has no result", "less than one sample") else part
    for more in ("--json", f"--figure {store}"):
        refused(f"sweep show {store} --by n samples {more}", words, str(named))


@pytest.mark.parametrize(
    "name", ["part-.parquet", "part-x.parquet", "part-1.parquet", "part-\udce9.parquet", "part-000001 (1).parquet"]
)
def test_parts_with_odd_names(store: Path, name: str):
    before = read_cells(store)
    (store / "cells" / name).write_bytes((store / "cells" / "part-000000.parquet").read_bytes())
    refused_by_readers(store, "is not named like a part")
    (store / "cells" / name).rename(store / "cells" / f"copy-of-{name}")
    assert read_cells(store).equals(before)


def test_what_a_part_of_another_version_has(store: Path):
    """New columns are empty, former ones are ignored, and whole numbers are numbers."""
    part = store / "cells" / "part-000000.parquet"
    before = read_cells(store)
    changed = pl.read_parquet(part).drop("idle_stages", "reason").with_columns(gone=1, oracle_error=pl.lit(0, pl.Int64))
    changed.with_columns(K=pl.lit(None)).write_parquet(part)
    after = read_cells(store)
    assert after.equals(before.with_columns(idle_stages=pl.lit(None, pl.Int64), reason=pl.lit(None, pl.String)))
    call(f"sweep show {store} --group-by n samples --json")


def test_a_part_with_more_rows_than_any_machine_holds(store: Path):
    """1.5 · 10⁹ rows in a file of 5 MB are refused by the metadata of the file, which is not read further."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    some = pyarrow.table({"cell": pyarrow.nulls(100_000_000)})
    with parquet.ParquetWriter(store / "cells" / "part-000001.parquet", some.schema) as writer:
        for _ in range(15):
            writer.write_table(some, row_group_size=100_000_000)
    began = time.process_time()
    refused(f"sweep show {store}", "part-000001.parquet has 1500000000 rows")
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (r'{"cell": "\ud800", "status": "done"}', "is not JSON"),
        ('{"cell": "a", "status": "done", "n": "8"}', "line 1: [0].n: expected `int | null`, got `str`"),
        (f'{{"cell": "a", "status": "done", "n": {2**63}}}', f"line 1: [0].n: expected `int` <= {2**63 - 1}"),
        ('{"cell": "a", "status": "done", "stop_at_failure": 1}', "stop_at_failure: expected `bool | null`, got `int`"),
        ('{"cells": {"cell": "a"}}', "line 1: expected `array`, got `object`"),
        ('{"cells": [{"cell": "a"}]}', "line 1: [0]: object missing required field `status`"),
        ('{"cells": [1]}', "line 1: [0]: expected `object`, got `int`"),
    ],
)
def test_journals_of_others(store: Path, line: str, words: str):
    (store / "journal.jsonl").write_text(line + "\n")
    refused_by_readers(store, words)


def test_pipes_in_a_store(store: Path):
    for name in ("sweep.json", "journal.jsonl", "cells/part-000000.parquet"):
        whole = (store / name).read_bytes()
        (store / name).unlink()
        os.mkfifo(store / name)
        refused(f"sweep show {store}", "is not a file")
        (store / name).unlink()
        (store / name).write_bytes(whole)
    (store / "sweep.json").write_text('{"version": 1, "kind": "compare"}')
    refused(f"sweep show {store}", "kind: invalid enum value 'compare'")


def test_workers_killed(tmp_path: Path):
    """If one of two processes dies, the sweep is complete, with the rows of one process."""
    run(tmp_path / "alone", GRID, range(20))
    dead: list[int] = []

    def kill(done: float, total: float, seen: str) -> None:
        if done > 10 and not dead:
            (victim, *_) = multiprocessing.active_children()
            dead.append(victim.pid or 0)
            victim.kill()

    assert run(tmp_path / "two", GRID, range(20), runner=Runner(2, attempts=3), report=kill)["done"] == 80
    assert dead
    assert rows(tmp_path / "two") == rows(tmp_path / "alone")


def test_interrupted(tmp_path: Path):
    seen: list[str] = []

    def interrupt(done: float, total: float, text: str) -> None:
        seen.append(text)
        if done == 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=rf"--out {tmp_path} --resume continues"):
        run(tmp_path, GRID, range(20), report=interrupt)
    assert read_cells(tmp_path).height == 5
    assert re.search(r"^\S+ cells/s  n=\d+ k=4 seed \d+  ended$", seen[-1])
    assert run(tmp_path, GRID, range(20), resume=True)["done"] == 80


def test_show(tmp_path: Path):
    run(tmp_path / "cells", GRID, range(10))
    found = read_cells(tmp_path / "cells")
    assert varied(found) == ["n", "samples"]
    by_hand = found.filter((pl.col("n") == 8) & (pl.col("samples") == 300))["success"]
    row = next(row for row in success_rates(found, ["n", "samples"]) if (row["n"], row["samples"]) == (8, 300))
    assert (row["cells"], row["successes"], row["failed"]) == (10, by_hand.sum(), 0)
    assert (row["low"], row["high"]) == wilson(int(by_hand.sum()), 10)
    assert keep_where(found, ["n=8", "oracle_error=0"]).height == 20
    said = call(f"sweep show {tmp_path / 'cells'} --json --figure {tmp_path / 'figures'} --by n samples")
    shown = json.loads(said.out)
    assert shown["rows"] == success_rates(found, ["n", "samples"])
    assert [point["n"] for point in shown["half"]] == [8, 12]
    assert Path(shown["figure"]).stat().st_size > 1000
    assert "40 runs, 10 seeds per cell" in said.err
    refused(f"sweep show {tmp_path / 'cells'} --by colour", "by='colour': no such column; the cells have")
    twice = pl.concat([found, found.with_columns(stop_at_failure=~found["stop_at_failure"])])
    assert varied(twice) == ["n", "samples", "stop_at_failure"]
    with pytest.raises(InputError, match="the same seeds twice"):
        success_rates(twice, ["n"])
    refused(f"sweep show {tmp_path / 'cells'} --where colour=red", "where=colour=red: no such column; the cells have")
    refused(f"sweep solve --address 1.2.3.4:5 --out {tmp_path / 'new'}", "add --backend ray")
    refused(f"sweep solve --jobs 0 --out {tmp_path / 'new'}", "jobs=0 is outside 1")
    assert not (tmp_path / "new").exists()
