"""`compare`: the curricula under both optimizers, interrupted and resumed, with rows that agree with their runs."""

import json
import math
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from internalize.commands import cli
from internalize.errors import MACHINE, InputError, KilledReason
from internalize.intervals import mean_interval, wilson
from internalize.parallel import runner
from internalize.parallel.interrupt import Interrupted
from internalize.parallel.pool import JobTracker, Killed, run_all
from internalize.parallel.runner import RunFolders, Runner
from internalize.parity.algorithm1.solve import solve
from internalize.parity.experiments.curricula import CompareOptions, compare, idle_stages
from internalize.parity.experiments.jobs import DescentJob
from internalize.parity.model.latency import BATCHES, measure_latency, median_rank, models_of, new_models
from internalize.parity.options import SolveOptions
from internalize.parity.task.data import draw_bits
from internalize.storage.runs import Run, find_runs
from internalize.storage.summaries import keep_rows, lower_median, over_seeds
from tests.asking import ask, call, refused
from tests.tiny import finish_times, rewrite_metrics

TINY = CompareOptions(sizes=((8, 4),), seeds=(0, 1), lr=(0.0001, 0.1), steps=40, batch=100, eval_samples=200, repeats=3)
COMMAND = (
    "compare --sizes 8,4 --seeds 0:2 --lr 0.0001 0.1 --steps 40 --batch 100 --eval-samples 200 --repeats 3 --jobs 1"
)
PROMISED = """method optimizer n k seeds accuracy accuracy_low accuracy_high solved solved_low solved_high stages idle_stages
    steps_to_99 samples_to_99 seconds_to_99 passes passes_by_level latency_ms latency_ms_1000 seconds budget_samples lr runs"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a comparison that is interrupted twice, in a run of each optimizer, and resumed."""
    out = tmp_path_factory.mktemp("compare") / "out"

    def stop_at(text: str) -> Any:
        return lambda done, total, seen: signal.raise_signal(signal.SIGINT) if text in seen else None

    for text in ("icot/seed-0  stage 1/", "algorithm-1/icot/seed-0  B="):
        before = finish_times(out)
        with pytest.raises(Interrupted, match=f"with --out {out} --resume continues"):
            compare(TINY, RunFolders(out, resume=bool(before), runner=Runner(1, report=stop_at(text))))
        assert before.items() < finish_times(out).items()
        assert not (out / "rows.json").exists()
    (begun,) = (run for run in find_runs(out) if not run.finished)
    assert begun.checkpoint_steps() == {1}  # a stage of Algorithm 1 is kept
    before = finish_times(out)
    compare(TINY, RunFolders(out, resume=True))
    assert before.items() < finish_times(out).items()
    return out


def rows(out: Path) -> dict[tuple[str, str], dict[str, Any]]:
    found = json.loads((out / "rows.json").read_text())["rows"]
    return {(row["optimizer"], row["method"]): row for row in found if row["of"] == "curricula"}


def test_rows(out: Path):
    found = rows(out)
    assert len(found) == 8
    for (optimizer, method), row in found.items():
        assert set(PROMISED.split()) <= set(row)
        assert (row["passes"], row["passes_by_level"]) == ((3, 2) if method == "cot" else (1, 1))
        assert row["stages"] == {"none": 1, "cot": 1, "icot": 3, "log-icot": 2}[method]
        assert row["idle_stages"] == (method == "icot")  # the second stage of the first level
        assert row["latency_ms_low"] <= row["latency_ms"] <= row["latency_ms_high"]
        assert ("latency_ms_by_level" in row) is (method == "cot")
        runs = [Run(Path(path)) for path in row["runs"]]
        assert all(run.finished and run.config["curriculum"] == method for run in runs)
        if optimizer == "adamw":
            assert row["lr"] == 0.1  # nothing moves at the other rate
            assert [(tried["lr"], tried["solved"]) for tried in row["tried"]] == [(0.0001, 0), (0.1, 2)]
            assert {run.result["samples"] for run in runs} == {row["budget_samples"]} == {8000}
            accuracies = [run.result["accuracy"] for run in runs]
            assert row["accuracy"] == mean_interval(accuracies)[0]
            assert row["samples_to_99"] == 100 * row["steps_to_99"] <= 8000
    assert found["adamw", "cot"]["steps_to_99"] < found["adamw", "log-icot"]["steps_to_99"]


def test_rows_of_algorithm_1(out: Path):
    """Without a chain the root has no signal. The cost of the others is what their descents measured."""
    found = {method: row for (optimizer, method), row in rows(out).items() if optimizer == "algorithm-1"}
    none = found.pop("none")
    assert (none["solved"], none["steps_to_99"], none["samples_to_99"]) == (0, None, None)
    assert none["accuracy"] < 0.7
    for row in found.values():
        results = [Run(Path(path)).result for path in row["runs"] if "/seed-1/" in path]
        enough = [result["samples_per_stage"] for result in results[1:] if result["accuracy"] >= 0.99]
        assert results[-1]["accuracy"] < 0.99  # the descent ended with the first failure
        assert results[-1]["samples_per_stage"] == pytest.approx(min(enough) / 2**0.5, abs=1)
        assert results[0]["samples_per_stage"] == row["budget_samples"] // row["stages"]
        assert row["steps_to_99"] == row["stages"]
        assert row["samples_to_99"] <= row["stages"] * min(enough)  # the lower median of two
        assert row["tried"][0]["seeds"] == 2
        assert row["solved"] == 2
    assert len({row["budget_samples"] for row in found.values()}) == 1


def test_finished_runs_are_not_trained_again(out: Path):
    before = finish_times(out)
    refused(f"{COMMAND} --out {out}", "this run is already finished; add --resume")
    said = call(f"{COMMAND} --out {out} --resume --json")
    found = json.loads(said.out)
    assert set(found) == {"rows", "failed", "out"}
    assert (found["out"], found["failed"], len(found["rows"])) == (str(out), [], 8)
    assert "n=8 k=4 adamw icot: 1 of 3 stages idle" in said.err
    assert finish_times(out) == before
    refused(f"{COMMAND} --out {out} --resume --steps 41", "holds another run: its steps is 40, not 41")


def test_damaged_runs_are_refused_by_name(out: Path, tmp_path: Path):
    """The files of a finished run are checked before its numbers are used. Damage is one line, not a traceback."""
    shutil.copytree(out, tmp_path / "copy")
    trained = next(run for run in find_runs(tmp_path / "copy") if run.config["kind"] == "train")
    solved = next(run for run in find_runs(tmp_path / "copy") if run.config["kind"] == "solve")
    for path, content, words in [
        (trained.path / "metrics.jsonl", "", "metrics.jsonl is damaged: it ends at step None"),
        (solved.path / "result.json", "{}", "object missing required field"),
    ]:
        whole = path.read_text()
        path.write_text(content)
        refused(f"{COMMAND} --out {tmp_path / 'copy'} --resume", words, str(path.parent))
        path.write_text(whole)


def test_no_stage_is_idle_because_nothing_was_learned():
    """Without a chain the only stage may change no weight, but its level is not learned, so the stage is not idle."""
    result = solve(SolveOptions(n=8, k=4, curriculum="none", seed=0, samples=4000))
    assert not result.exact_recovery
    assert result.idle_stages == 0


def test_a_refused_run_is_named(tmp_path: Path):
    with Run(tmp_path / "curricula/n8-k4/algorithm-1/cot/seed-1/samples-2396").locked():
        said = call(f"{COMMAND} --out {tmp_path} --methods cot cot --lr 0.1", cli.WRONG)
    assert re.search(r"algorithm-1/cot/seed-1: \S+ is in use by another process", said.err)
    table = said.out.splitlines()
    assert len(table) == 3
    assert table[2].split()[:4] == ["8", "4", "algorithm-1", "cot"]
    assert "1/1" in table[2]


def test_a_killed_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The other runs finish and have rows. The status says that the machine ended a run: no verdict and no bug."""
    monkeypatch.setattr(runner, "run_all", killing_the_first)
    command = f"{COMMAND} --out {tmp_path} --methods cot --lr 0.1"
    found = ask(command, MACHINE)
    (failed,) = found["failed"]
    assert failed["reason"] == "its process was killed by SIGKILL"
    assert len(found["rows"]) == 2
    monkeypatch.undo()
    call(f"{command} --resume")


def killing_the_first(tracker: JobTracker[Any], *args: Any, **more: Any) -> list[Killed[Any]]:
    """Act as `run_all` does if the process of the first job is always killed."""
    first, *tracker.jobs = tracker.jobs
    assert run_all(tracker, *args, **more) == []
    return [Killed(first, KilledReason("its process was killed by SIGKILL"))]


def test_unknown_methods_are_refused():
    with pytest.raises(InputError, match="method='magic' is not one of none, cot"):
        replace(TINY, methods=("magic",))


# The parts of a row


@pytest.mark.parametrize(
    ("count", "two_sided", "one_sided"),
    [
        (2, 12.7062, 6.3138),
        (11, 2.2281, 1.8125),
        (12, 2.2010, 1.7959),
        (20, 2.0930, 1.7291),
        (30, 2.0452, 1.6991),
        (61, 2.0003, 1.6706),
    ],
)
def test_students_interval(count: int, two_sided: float, one_sided: float):
    values = np.random.default_rng(count).normal(size=count)
    error = values.std(ddof=1) / math.sqrt(count)
    intervals = mean_interval(values.tolist()), mean_interval(values.tolist(), sides=1)
    for t, (mean, low, high) in zip((two_sided, one_sided), intervals, strict=True):
        assert mean == pytest.approx(values.mean())
        assert ((mean - low) / error, (high - mean) / error) == pytest.approx((t, t), rel=1e-3)


def test_over_seeds():
    same = over_seeds([1.0, 1.0], 100)
    assert (same.accuracy_low, same.accuracy_high) == wilson(200, 200)
    assert (same.solved, same.solved_low, same.solved_high) == (2, *wilson(2, 2))
    other = over_seeds([1.0, 0.98, 0.5], 100)
    assert (other.accuracy_low, other.accuracy_high) == (mean_interval([1.0, 0.98, 0.5])[1], 1.0)
    assert other.solved == 1
    assert lower_median([3, None, 1]) == 3
    assert lower_median([None, None, 1]) is None


def test_rows_of_other_comparisons_stay(tmp_path: Path):
    """Rows of another comparison or of another size are kept. A foreign file is refused and left as it is."""
    small, large = {"n": 30, "k": 16}, {"n": 64, "k": 32}
    rows = [{"of": of, **size, "x": x} for of, size, x in (
        ("gates", small, 1), ("latency", small, 2), ("gates", large, 3), ("gates", small, 4))]  # fmt: skip
    for row in rows:
        keep_rows(tmp_path / "new", [row])
    path = tmp_path / "new" / "rows.json"
    assert json.loads(path.read_text())["rows"] == rows[1:]  # the last row takes the place of the first
    keep_rows(tmp_path / "new", [{"of": "gates", **small, "what": "one", "x": 5}])
    assert len(json.loads(path.read_text())["rows"]) == 4  # another variant at the same size
    path.write_text('{"rows": [{"method": "icot"}]}')
    with pytest.raises(InputError, match="rows.json is not of `internalize compare`"):
        keep_rows(tmp_path / "new", [{"of": "gates", **small}])
    assert "icot" in path.read_text()


def test_idle_stages(tmp_path: Path):
    run = Run(tmp_path)
    rewrite_metrics(run, [{"stage": s, "step": t} for s, t in [(1, 0), (1, 5), (2, 5), (3, 5), (3, 10), (4, 10)]])
    assert idle_stages(run) == 1  # stage 3; stage 4 began last and had no update left


def test_descent_ends_at_one_sample(tmp_path: Path):
    """At n = k = 2 there is nothing to learn, so even one sample is enough."""
    job = DescentJob(tmp_path, Path("here"), SolveOptions(n=2, k=2, samples=3), 3)
    assert not job.finished
    job.run(lambda done, text: None)
    assert job.finished
    assert list(dict.fromkeys(run.path.name for run in job.descent())) == ["samples-3", "samples-2", "samples-1"]


def test_latency(tmp_path: Path):
    subjects = new_models(16, 8)
    assert {subject.by: subject.passes for subject in subjects} == {"node": 7, "level": 3, "direct": 1}
    before = torch.get_num_threads()
    for latency in measure_latency(subjects, 2, 4):
        assert 0 < latency.low <= latency.median <= latency.high < 1e5
        assert latency.repeats == 4
    assert torch.get_num_threads() == before
    found = ask(f"compare --of latency --sizes 16,2 16,8 8,4 --repeats 4 --out {tmp_path / 'out'}")["rows"]
    assert len(found) == 3 * 3 * len(BATCHES)
    for k, passes in ((2, {"node": 1, "level": 1, "direct": 1}), (8, {"node": 7, "level": 3, "direct": 1})):
        assert {row["by"]: row["passes"] for row in found if (row["n"], row["k"]) == (16, k)} == passes
    assert {path.name for path in (tmp_path / "out" / "figures").glob("*.svg")} == {"latency-n16.svg", "latency-n8.svg"}


def test_timed_models_are_the_trained_ones(out: Path):
    bits = draw_bits(8, 0, 0, 50, "test")
    for method in ("cot", "log-icot"):
        for optimizer in ("adamw", "algorithm-1"):
            run = Run(Path(rows(out)[optimizer, method]["runs"][0]))
            truth = bits[:, run.config["secret"]].prod(dim=1)
            for subject in models_of(run):
                assert bool((subject(bits) * truth > 0).all())


@pytest.mark.parametrize("count", [6, 9, 100, 200, 1200])
def test_the_median_lies_between_these_ranks(count: int):
    """The binomial coverage is at least 95 %, and would be less one rank further in."""

    def coverage(rank: int) -> float:
        return 1 - 2 * sum(math.comb(count, below) for below in range(rank + 1)) / 2**count

    rank = median_rank(count)
    assert coverage(rank) >= 0.95 > coverage(rank + 1)
    assert [median_rank(few) for few in (1, 2, 5)] == [0, 0, 0]  # of few values the interval is all of them
