"""reproduce.py trains what is missing, reuses what is finished, trains damaged runs again, and can be interrupted."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from internalize import InputError
from internalize.parity import certificates
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.report import page as report
from internalize.report import reproduce as paper
from internalize.report.figures.mask import draw_mask
from internalize.report.reproduce import ALGORITHM, EXPERIMENTS, PAPER, Algorithm, Experiment, reproduce
from internalize.storage.runs import Run, find_runs
from tests.asking import refused
from tests.processes import wait_until
from tests.spoiling import spoiled
from tests.tiny import finish_times

OPTIONS = TrainOptions(n=8, k=4, steps=20, eval_every=5, eval_samples=100)
EXPERIMENT = Experiment("tiny", OPTIONS, 2, explored=1)
TINY = Algorithm(SolveOptions(n=8, k=4), 1, 2, (0.5, 2.0))


@pytest.fixture(autouse=True)
def little(monkeypatch):
    """Use two statements, one drawing and no stored results. Other tests cover the drawings."""
    whole = certificates.certify
    monkeypatch.setattr(certificates, "certify", lambda world: whole(world, ["mask", "gating"]))
    monkeypatch.setattr(report, "paper_drawings", lambda runs: [draw_mask()])
    monkeypatch.setattr(report, "parts", lambda full: [])


def quick(out: Path, said: list[str] | None = None) -> dict:
    lines: list[str] = [] if said is None else said
    return reproduce(out, [EXPERIMENT], paper=OPTIONS, algorithm=TINY, processes=1, say=lines.append)


def test_reuse_and_rebuild(tmp_path: Path):
    out = tmp_path / "report"
    result = quick(out)
    assert result["report"] == str(out / "index.html")
    assert {Path(name).suffix for name in result["figures"]} == {".svg", ".pdf"}
    page = (out / "index.html").read_bytes()
    runs = finish_times(out)
    assert len(runs) == 2 + 1 + 1 + 2  # trained, solved, success, certificates

    for run in find_runs(out):
        run.save_checkpoint(2, {"W": torch.zeros(1)}, {})  # as after a kill between writing the result and tidying
    said: list[str] = []
    quick(out, said)
    assert said == []
    assert not any((path / "checkpoint").exists() for path in runs)
    assert finish_times(out) == runs
    assert (out / "index.html").read_bytes() == page  # the same runs, the same bytes

    first, second = (out / "runs" / "tiny" / f"seed-{seed}" for seed in (0, 1))
    weights = first / "weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-5])
    quick(out, said)
    line, *renamed = said
    assert str(weights) in line
    assert line.endswith("making it again with the 1 trained together with it")
    assert renamed[:2] == [f"{path} is now {path.name}.set-aside-1" for path in (first, second)]
    assert renamed[2:] == ["certificates/tiny/seed-0 is about a run that was set aside; it is now seed-0.set-aside-1"]
    assert (first.with_name("seed-0.set-aside-1") / weights.name).read_bytes() == whole[:-5]
    assert weights.read_bytes() == whole  # bit-for-bit, because the same seeds train together
    assert Run(first).result["accuracy"] == 1.0

    config = (second / "config.json").read_text().replace('"steps": 20', '"steps": 21')
    (second / "config.json").write_text(config)
    said.clear()
    quick(out, said)
    assert "its steps is 21, not 20" in said[0]
    assert Run(second).config["steps"] == 20

    check_wrong_results(out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write_report", lambda out, inputs, paper: report.WrittenReport(out / "index.html", True))
        check_parts_that_are_rebuilt(out)
    (second / "config.json").write_text("{}")
    (second / "thesis.tex").write_text("mine")
    quick(out)
    (kept,) = second.parent.glob("seed-1.set-aside-*/thesis.tex")
    assert kept.read_text() == "mine"
    (second / "config.json").write_text("{}")
    with Run(first).locked(), pytest.raises(InputError, match="in use by another process"):
        quick(out)


def test_another_first_seed_deletes_nothing(tmp_path: Path):
    """Runs of other seeds stay, or are renamed where their folder is needed."""
    quick(tmp_path)
    before = sorted(path.read_bytes() for path in tmp_path.rglob("result.json"))
    reproduce(tmp_path, [EXPERIMENT], paper=OPTIONS, algorithm=TINY, processes=1, first_seed=1)
    after = [path.read_bytes() for path in tmp_path.rglob("result.json")]
    assert all(content in after for content in before)
    assert len(after) > len(before)


def check_wrong_results(out: Path) -> None:
    """Whatever is wrong in the results of certificates or of success, a job takes them or names the file."""
    plan = paper.ReproductionPlan(out, [EXPERIMENT], OPTIONS, TINY, 0)
    for job in (plan.success, plan.certificates[0]):
        path = job.runs[0].path / "result.json"
        whole = path.read_text()
        (key,) = found = json.loads(whole)
        refused: dict[str, str] = {}
        for place, changed in spoiled({key: found[key][:1]}):
            value = changed.get(key)
            whole_list = value and isinstance(value, list)
            path.write_text(json.dumps({**changed, key: [*value, *found[key][1:]]} if whole_list else changed))
            try:
                job.check(resume=True)
            except InputError as error:
                refused[place] = str(error)
        assert {f".{key} []", f".{key} left out", f".{key} .0 {{}}"} <= set(refused)
        assert all(str(path) in message for message in refused.values())
        assert key == "certificates" or {".points .0 .seeds 0", ".points .0 .successes -1"} <= set(refused)
        path.write_text(whole)
        job.check(resume=True)


def check_parts_that_are_rebuilt(out: Path) -> None:
    """For every kind of run, a missing or damaged one is named in one line and trained again, and no other is."""
    folder = out / "runs"

    def contents() -> dict[Path, bytes]:
        paths = (path for path in sorted(folder.rglob("*.safetensors")) if "set-aside" not in str(path))
        return {path: path.read_bytes() for path in paths}

    whole = contents()
    for damaged in (
        folder / "algorithm-1" / "seed-0" / "weights.safetensors",
        folder / "algorithm-1" / "seed-0" / "snapshots" / "step-00000002.safetensors",
        folder / "tiny" / "seed-0" / "snapshots" / "step-00000005.safetensors",
        folder / "success" / "result.json",
        folder / "certificates" / "tiny" / "seed-0" / "result.json",
    ):
        damaged.write_bytes(damaged.read_bytes()[:-9])
        said: list[str] = []
        quick(out, said)
        assert str(damaged) in said[0]
        assert "making it again" in said[0]
        assert all(" is now " in line for line in said[1:])
    for missing in (folder / "algorithm-1" / "seed-0", folder / "tiny" / "seed-1", folder / "success"):
        shutil.rmtree(missing)
        said = []
        quick(out, said)
        assert said[0].startswith(f"{missing} is missing; making it again")
    assert contents() == whole
    said = []
    quick(out, said)
    assert said == []


def test_what_the_paper_command_trains():
    """It trains 20 seeds of the paper's experiment at the settings of the appendix, and the other sizes of the page."""
    assert PAPER in EXPERIMENTS
    assert PAPER.options == TrainOptions(n=30, k=16, lr=0.1, batch=500, steps=500, eval_every=25, eval_samples=2000)
    assert PAPER.seeds == 20
    trained = {(e.options.n, e.options.k, e.options.lr, e.seeds) for e in EXPERIMENTS}
    assert (ALGORITHM.options, ALGORITHM.seeds) == (SolveOptions(n=30, k=16), 20)
    assert trained >= {(30, 2, 0.1, 20), (30, 4, 0.1, 20), (30, 8, 0.1, 20), (64, 32, 0.1, 5), (128, 64, 0.1, 3)}


SCRIPT = """
import sys
from pathlib import Path
from internalize.commands import cli
from internalize.report import reproduce as paper
from internalize.parity.options import SolveOptions, TrainOptions

if __name__ == "__main__":
    options = TrainOptions(n=12, k=4, steps=int(sys.argv[2]), eval_every=5, eval_samples=100)
    algorithm = paper.Algorithm(SolveOptions(n=8, k=4), 1, 2)
    paper.reproduce.__kwdefaults__.update(paper=options, algorithm=algorithm)
    processes = int(sys.argv[3])  # two seeds together in this process, or one in each of two
    paper.reproduce.__defaults__ = ([paper.Experiment(f"{n}", options, 2 // processes) for n in range(processes)],)
    sys.exit(cli.main(["paper", "--out", sys.argv[1], "--processes", sys.argv[3]]))
"""


def start(tmp_path: Path, steps: int, processes: int) -> subprocess.Popen[str]:
    script = tmp_path / "small_paper.py"
    script.write_text(SCRIPT)
    argv = [sys.executable, str(script), str(tmp_path / "report"), str(steps), str(processes)]
    return subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_and_continued(tmp_path: Path, number: signal.Signals):
    """After Ctrl-C every run is saved. After kill -9 of the parent its processes end and release their folders."""
    processes = 1 if number == signal.SIGINT else 2
    process = start(tmp_path, 2000, processes)
    wait_until(lambda: sum(p.stat().st_size > 0 for p in (tmp_path / "report").rglob("metrics.jsonl")) == 2)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), said
    runs = find_runs(tmp_path / "report")
    assert len(runs) == 2
    wait_until(lambda: all(run.checkpoint_steps() for run in runs), 10)
    for run in runs:
        with run.locked():
            pass
    assert not any(run.finished for run in runs)
    reached = max(runs[0].checkpoint_steps())
    again = start(tmp_path, 2000, processes)
    try:
        wait_until(lambda: any(line["step"] > reached for line in runs[0].metrics()[-1:]))
    finally:
        again.send_signal(signal.SIGTERM)
        again.communicate(timeout=60)
    places = [(m["stage"], m["step"]) for m in runs[0].metrics()]
    assert places[-1][1] > reached  # training continued from there
    assert len(set(places)) == len(places)


def test_mistakes(tmp_path: Path):
    refused(f"paper --processes 0 --out {tmp_path / 'x'}", "jobs=0")
    blocked = tmp_path / "file"
    blocked.write_text("")
    refused(f"paper --out {blocked} --processes 1", str(blocked), alone=False)
    refused(f"paper --out {tmp_path}", "holds 'file', which is not part of a report")
    assert list(tmp_path.iterdir()) == [blocked]
    (site := tmp_path / "site").mkdir()
    (site / "index.html").write_text("mine")
    refused(f"paper --out {site} --jobs 1", "holds 'index.html', which is not part of a report")
    assert (site / "index.html").read_text() == "mine"
    refused(f"paper --full --seed -1 --out {tmp_path / 'x'}", "seed=-1")  # before any work
    assert paper.SEEDS_PER_BATCH == 10  # it affects the last bits of every result
