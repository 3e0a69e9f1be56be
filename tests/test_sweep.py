"""sweep.py, sweep_store.py and the command: every cell once, whoever is killed, and the rows of `solve` and `train` themselves."""

import json
import multiprocessing
import re
import signal
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
    """All that does not depend on the clock, in an order that does not depend on who was first."""
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
    both = zip(read_cells(tmp_path).sort("n", "samples", "seed").to_dicts(),
               read_cells(stopped).sort("n", "samples", "seed").to_dicts(), strict=True)  # fmt: skip
    for whole, short in both:
        assert short["cell"] != whole["cell"]
        assert (short["failed_stage"], short["success"]) == (whole["failed_stage"], whole["success"])
        assert short["steps"] == (whole["failed_stage"] or whole["steps"])


def test_rows_are_those_of_train(tmp_path: Path):
    """Seeds are trained in company of their ten, and the row names it."""
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
    with pytest.raises(InputError, match="was begun already; add --resume"):
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
        assert "4 cells were refused" in said.err
    failed = read_cells(tmp_path).filter(pl.col("status") == "failed")
    assert failed["lr"].unique().to_list() == [1e38]
    assert all("lr=1e+38 is too large" in reason for reason in failed["reason"])


def test_what_no_machine_holds_is_refused_before_its_memory_is_asked_for(tmp_path: Path):
    found = run(tmp_path, ["n=4000000", "k=4", "eval_samples=1000000"], range(2), "train")
    assert (found["done"], found["failed"]) == (0, 2)
    assert all("GiB, and this machine has" in reason for reason in read_cells(tmp_path)["reason"])


def test_store_of_a_writer_that_was_killed(tmp_path: Path):
    """Between a part and the end of its journal, with a line half written, and with a file half written."""
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


def test_workers_killed(tmp_path: Path):
    """One of two processes dies in the middle: the sweep is whole all the same, and the rows are those of one process."""
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

    with pytest.raises(Interrupted, match=rf"--out {tmp_path} --resume goes on"):
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
    assert "40 runs, 10 seeds in each place" in said.err
    refused(f"sweep show {tmp_path / 'cells'} --by colour", "by='colour': the cells have no such column")
    twice = pl.concat([found, found.with_columns(stop_at_failure=~found["stop_at_failure"])])
    assert varied(twice) == ["n", "samples", "stop_at_failure"]
    with pytest.raises(InputError, match="the same seeds twice"):
        success_rates(twice, ["n"])
    refused(f"sweep show {tmp_path / 'cells'} --where colour=red", "where=colour=red: the cells have no such column")
    refused(f"sweep solve --address 1.2.3.4:5 --out {tmp_path / 'new'}", "add --backend ray")
    refused(f"sweep solve --jobs 0 --out {tmp_path / 'new'}", "jobs=0 is outside 1")
    assert not (tmp_path / "new").exists()
