"""`compare --study ablations`, `gates` and `simplifications`: rows that agree with their runs and certificates."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from internalize import InputError
from internalize.parallel.runner import RunFolders
from internalize.parity import certificates
from internalize.parity.experiments import ablations
from internalize.parity.experiments.ablations import VARIANTS, Variant, answer_scale, compare_variants
from internalize.parity.experiments.curricula import CompareOptions
from internalize.parity.model.relaxed import RelaxedTransformer
from internalize.parity.options import ParityModelOptions
from internalize.report.figures.gates import learned_gates
from internalize.storage.runs import Run, find_runs
from tests.asking import ask, call
from tests.tiny import finish_times

TINY = CompareOptions(sizes=((8, 4),), seeds=(0, 1), lr=(0.1,), steps=60, batch=100, eval_samples=200, eval_every=20)


def test_variants():
    """Each ablation differs from the paper's model in at most one option, and each optimizer has a control."""
    ablated = {(v.optimizer, v.what) for v in VARIANTS["ablations"]}
    for optimizer in ("adamw", "algorithm-1"):
        shared = ("control", "gates=ones", "gates=cot", "mask=causal", "link=quartic")
        assert {(optimizer, what) for what in shared} <= ablated
    assert {what for optimizer, what in ablated if optimizer == "adamw"} >= {"lr=0.01", "lr=0.03", "lr=0.3"}
    assert {what for _, what in ablated} >= {"grid=1", "grid=none", "rate=paper", "preset=paper"}
    assert all(len(v.changes) <= 1 for v in VARIANTS["ablations"])
    assert {v.what for v in VARIANTS["gates"]} >= {
        f"gates={gates} mask={mask}" for gates in ("learned", "input") for mask in ("level", "causal")
    }
    learned = {(name, value) for v in VARIANTS["simplifications"] for name, value in v.changes.items()}
    assert learned >= {
        *(("value", "learned"), ("output", "residual"), ("output", "streams"), ("link", "mlp"), ("gates", "learned"))
    }
    for own in VARIANTS.values():
        assert len({(v.optimizer, v.folder) for v in own}) == len(own)


def test_ablations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    changes: list[dict[str, Any]] = [{}, {"gates": "ones"}]
    few = (*(Variant("algorithm-1", own) for own in changes), *(Variant("adamw", own) for own in ({}, {"lr": 0.01})))
    monkeypatch.setitem(ablations.VARIANTS, "ablations", few)
    quick = partial(certificates.certify, only=["mask", "gating", "collapse", "hidden-states", "theorem-max"])
    monkeypatch.setattr(certificates, "certify", quick)
    found = compare_variants("ablations", TINY, RunFolders(tmp_path))
    rows = {(row.optimizer, row.what): row for row in found}
    assert json.loads((tmp_path / "rows.json").read_text())["rows"] == [row.to_json() for row in found]
    for optimizer in ("adamw", "algorithm-1"):
        control = rows[optimizer, "control"]
        assert (control.solved, control.breaks_at, control.breaks_at_median) == (2, {}, None)
        assert control.level_accuracy == [1.0, 1.0]
        assert control.turned == []
    broken = rows["algorithm-1", "gates=ones"]
    assert (broken.solved, broken.breaks_at, broken.breaks_at_median) == (0, {"2": 2}, 2)
    assert broken.level_accuracy[0] == 1.0
    assert 0.4 < broken.level_accuracy[1] == pytest.approx(broken.accuracy, abs=0.05)
    turned: dict[str, Any] = {c["statement"]: c for c in broken.turned or ()}
    assert {"gating", "hidden-states", "theorem-max"} <= set(turned) <= set(quick.keywords["only"])
    assert all(c["measured"] > c["bound"] for c in turned.values())
    slow = rows["adamw", "lr=0.01"]
    assert (slow.solved, slow.breaks_at) == (0, {"1": 2})
    last = [Run(Path(path)).metrics()[-1] for path in slow.runs]
    assert slow.level_accuracy[0] == sum(line["level_accuracy"][0] for line in last) / 2
    assert slow.turned == []  # the architecture is the paper's, only trained too briefly


def test_certificates_are_of_the_run_in_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The run of the first seed is judged; without a control none is; one without the weights of a stage is refused."""
    monkeypatch.setitem(
        ablations.VARIANTS, "ablations", (Variant("algorithm-1", {}), Variant("algorithm-1", {"gates": "ones"}))
    )
    monkeypatch.setattr(certificates, "certify", partial(certificates.certify, only=["gating"]))
    for seeds in ((1,), (0, 1)):
        compare_variants("ablations", replace(TINY, seeds=seeds), RunFolders(tmp_path, resume=True))
    judged = {run.path.name: run.config["run"] for run in find_runs(tmp_path) if run.config["kind"] == "certify"}
    assert set(judged) == {"seed-0", "seed-1"}
    assert all(run.endswith(name) for name, run in judged.items())
    (row,) = compare_variants("ablations", replace(TINY, variants=("gates=ones",)), RunFolders(tmp_path, resume=True))
    assert row.turned is None
    next((Path(row.runs[0]) / "snapshots").iterdir()).unlink()
    with pytest.raises(InputError, match="lacks the weights of some stages"):
        compare_variants("ablations", TINY, RunFolders(tmp_path, resume=True))


def test_gates(tmp_path: Path):
    """The command draws its figure, and with --resume trains nothing again."""
    command = "compare --of gates --variants 'gates=learned mask=causal' --sizes 8,4 --seeds 0:2 --steps 80 --batch 200"
    command += f" --eval-samples 200 --out {tmp_path} --jobs 1"
    said = call(command)
    assert "gates=learned mask=causal" in said.out
    assert f"drawn in {tmp_path / 'figures' / 'gates-learned-mask-causal-n8-k4.svg'}" in said.err
    before = finish_times(tmp_path)
    (row,) = ask(f"{command} --resume")["rows"]
    assert finish_times(tmp_path) == before
    runs = [Run(Path(path)) for path in row["runs"]]
    assert row["solved"] == 2
    assert (row["of"], row["seeds"]) == ("gates", 2)
    for part, distance in row["gate_distance"].items():
        assert distance == sum(run.metrics()[-1]["gate_distance"][part] for run in runs) / 2
    inputs = [learned_gates(run)[:, :8].mean() for run in runs]  # the prescribed gate is 0, which keeps the input
    assert row["gate_distance"]["inputs"] == pytest.approx(sum(inputs) / 2, rel=1e-5)


def test_unknown_variants_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="variant 'gates=open' is not one of 'gates=learned mask=level',"):
        compare_variants("gates", replace(TINY, variants=("gates=open",)), RunFolders(tmp_path))
    assert not list(tmp_path.iterdir())


def test_scale_of_answers():
    """It is 1 for the paper's streams and networks that equal φ at 0 and ±1, and 0 for a layer that is not read."""
    model = RelaxedTransformer(ParityModelOptions(n=8, k=4, output="streams"), [0], torch.float64)
    weights = {name: weight.detach()[0] for name, weight in model.named_weights().items()}
    assert answer_scale(weights) == pytest.approx([1, 1])
    assert answer_scale({**weights, "output2": torch.zeros(4)}) == pytest.approx([1, 0])
    fitted = RelaxedTransformer(ParityModelOptions(n=8, k=4, link="mlp-fitted", output="residual"), [0], torch.float64)
    weights = {name: weight.detach()[0] for name, weight in fitted.named_weights().items()}
    assert answer_scale(weights) == pytest.approx([1, 1], abs=0.05)
    assert answer_scale({**weights, "write1": torch.tensor([-3.0])}) == pytest.approx([-3, 1], abs=0.15)
    assert answer_scale({"W1_full": torch.zeros(1)}) == []


def test_simplifications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ablations.VARIANTS, "simplifications", (Variant("adamw", {"value": "learned"}),))
    (row,) = compare_variants("simplifications", TINY, RunFolders(tmp_path))
    assert (row.what, row.solved, row.breaks_at) == ("value=learned", 2, {})
    assert "turned" not in row.to_json()
    assert Run(Path(row.runs[0])).config["value"] == "learned"
