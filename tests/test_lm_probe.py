"""`lm probe`: a step is found where it is and nowhere else; what a run keeps for it; accounts of a run; its figure;
refusals, with those of `lm certify`."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from internalize.lm.certificates.world import LmWorld
from internalize.lm.data.example import Example
from internalize.lm.data.readers import write_examples
from internalize.lm.probe.gradient_signal import _on_children, measure_signals
from internalize.lm.probe.probe import child_positions, probe, sequences_of
from internalize.lm.probe.probed_models import ProbedModels, open_probed_models
from internalize.lm.probe.states import Budget, read_states
from internalize.lm.stages.removal import IGNORED
from internalize.lm.training.train import train
from internalize.report.figures.reading import above_chance, draw_reading
from internalize.storage.files import write_json
from internalize.storage.runs import Run
from tests.asking import ask, call, refused
from tests.lm_runs import TINY, content, untrained
from tests.test_lm_certificates import Changed

OPTIONS = replace(
    TINY,
    data="parity:n=8,k=4",
    method="icot-steps",
    replay_of="counts",
    layers=2,
    steps=12,
    stage_steps=4,
    keep_stages=True,
    layer_loss=1.0,
)
ANSWER = 3
"""The number of the answer: there are two steps."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("probe") / "run")
    train(OPTIONS, 0, run)
    return run


@pytest.fixture(scope="module")
def kept(run: Run) -> ProbedModels:
    return open_probed_models(run.path, examples=256)


class Stub(nn.Module):
    """Three layers of noise, but layer 2 has the value of step 2 where it is predicted."""

    device = "cpu"

    def __init__(self, left: int, right: int, at: int) -> None:
        super().__init__()
        self.left, self.right, self.at = left, right, at
        self.ln_f = nn.LayerNorm(24)
        self.head = nn.Linear(24, 8)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_attn_implementation(self, name: str) -> None:
        assert name == "eager"

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        drawn = torch.Generator().manual_seed(int(input_ids.sum()))
        states = [torch.randn(*input_ids.shape, 24, generator=drawn) for _ in range(4)]
        states[2][:, self.at, 5] = 1.0 * (input_ids[:, self.left] == input_ids[:, self.right])
        states = [state.requires_grad_() for state in states]
        attention = torch.zeros(len(input_ids), 2, input_ids.shape[1], input_ids.shape[1])
        attention[:, 1, self.at, self.left], attention[:, 0, self.at, self.right] = 0.75, 0.25
        logits = self.head(states[3] + 0 * (states[0] + states[1] + states[2]))
        return SimpleNamespace(logits=logits, hidden_states=tuple(states), attentions=(attention,) * 3)


def test_a_step_is_found_where_it_is_and_nowhere_else(kept: ProbedModels):
    assert kept.children is not None
    left, right = kept.children[1]
    stub = Stub(left, right, 8 + 1)  # after bits and separator; the slot of step 1 predicts step 2
    result = probe(Changed(**vars(kept), lie=lambda *_: stub), hidden=[2])
    assert [(row["stage"], row["hidden"]) for row in result["rows"][:: 4 * 3]] == [(1, 2), (2, 2), (3, 2)]
    seen = 0
    for row in result["rows"]:
        assert row["tokens"] == 1
        assert row["shown"] == (row["step"] == ANSWER)
        assert 0.5 <= row["chance"] < 0.65
        if (row["layer"], row["step"]) == (2, 2):
            assert row["probe"] == 1
            seen += 1
        else:
            assert abs(row["probe"] - 0.5) < 4 * (0.25 / 118) ** 0.5
        if row["step"] == 1:  # its slot has the value of step 2, which does not help
            assert abs(row["probe_slot"] - 0.5) < 4 * (0.25 / 118) ** 0.5
        assert (row["probe_slot"] is None) == (row["step"] == ANSWER)
        looked = None if row["layer"] == 0 else [0.75, 0.25] if row["step"] == 2 else [0, 0]
        assert row["child_attention"] == looked
        if row["layer"] == 3:
            assert row["gradient"] > row["gradient_error"] > 0 if row["step"] == ANSWER else row["gradient"] == 0
    assert seen == 3


def test_agreement_is_about_steps_hidden_before(kept: ProbedModels):
    same = kept.model(3)
    rows = probe(Changed(**vars(kept), lie=lambda *_: same))["rows"]  # the model before each stage is the same
    assert {(r["stage"], r["step"]) for r in rows if r["agreement"] is not None} == {(3, 1)}  # stage 2 hides step 1
    assert {r["agreement"] for r in rows} == {None, 1.0}
    other = probe(replace(kept, asked=[3]))["rows"]
    assert min(r["agreement"] for r in other if r["step"] == 1) < 1


def test_the_last_layers_lens_is_the_models_own_prediction(kept: ProbedModels):
    model, sequences = kept.model(3), sequences_of(kept, Budget(1, 1))
    readings = read_states(model, sequences)
    assert len(readings.states) == len(readings.read) == 3
    cells = sequences.cells
    with torch.no_grad():
        logits = model(torch.tensor([row.tokens for row in sequences.rows])).logits
    every = torch.arange(len(logits))[:, None]
    torch.testing.assert_close(readings.read[-1], logits[every, cells.predicted].argmax(-1))
    true = logits.softmax(-1)[every, cells.predicted].gather(2, cells.tokens[:, :, None])[:, :, 0]
    torch.testing.assert_close(readings.error[-1], 1 - true)


def on_different_keys(values: torch.Tensor) -> list[float]:
    """Return the best values on two keys: the slots or predicting positions of the two steps. 9 is the slot of one
    and predicts the other."""
    pairs = [(9, 10), (8, 10), (8, 9)]
    return max(([values[a].item(), values[b].item()] for a, b in pairs), key=lambda pair: (min(pair), sum(pair)))


def test_a_key_stands_for_one_child():
    values = torch.tensor([[0.0, 0.9, 0.2, 0.3]])  # one head
    assert _on_children(values, [(1, 0), (2, 1)]) == pytest.approx([0.9, 0.2])
    assert _on_children(values, [(1, 0), (3, 1)]) == pytest.approx([0.9, 0.3])
    assert _on_children(values, [(1,), (1,)]) == pytest.approx([0.9, 0.9])  # the only key, since there are no slots
    assert _on_children(values, None) is None


def test_attention_is_the_models_own(kept: ProbedModels):
    row = next(r for r in probe(replace(kept, asked=[3]))["rows"] if (r["layer"], r["step"]) == (2, ANSWER))
    model, sequences = kept.model(3), sequences_of(kept, Budget(2, 2))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        rows = torch.tensor([each.tokens for each in sequences.rows])
        looks = model(rows, output_attentions=True).attentions[1].mean(0)[:, 8 + 1 + 2]  # at the answer's separator
    # Slots of the two steps, and the positions that predict them.
    assert child_positions(kept, sequences)[2] == [(9, 8), (10, 9)]
    best = looks.max(0).values
    assert row["child_attention"] == pytest.approx(on_different_keys(best), rel=1e-5)


def test_pull_is_the_gradient_of_the_attention_score(kept: ProbedModels):
    """With one head the pull is the gradient of a number added to each score through the model's own mask."""
    sequences = sequences_of(kept, Budget(2, 2))
    torch.manual_seed(0)
    config = kept.model(3).config
    config.n_layer = config.n_head = 1
    config.initializer_range = 0.5
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    children = child_positions(kept, sequences)
    found = measure_signals(model, sequences, children)
    tokens = torch.tensor([row.tokens for row in sequences.rows])
    labels = torch.tensor([row.labels for row in sequences.rows])
    count, length = tokens.shape
    causal = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)
    mask = causal.expand(count, 1, length, length).clone().requires_grad_()
    logits = model(tokens, attention_mask=mask).logits[:, :-1].transpose(1, 2)
    each = cross_entropy(logits, labels[:, 1:], ignore_index=IGNORED, reduction="none").sum(1)
    loss = each / (labels[:, 1:] != IGNORED).sum(1)
    pull = -torch.autograd.grad(loss.sum(), mask)[0][:, 0].double()
    scores = pull.mean(0) / (pull.var(0, correction=0) / count).sqrt()
    answer = scores[8 + 1 + 2]  # from its separator
    assert found[1][2].child_pull == pytest.approx(on_different_keys(answer), rel=1e-3)
    others = [answer[key].item() for key in range(8 + 1 + 3) if key not in (8, 9, 10)]
    assert found[1][2].other_pull == pytest.approx(sorted(others)[(len(others) - 1) // 2], rel=1e-3)
    assert {(each.child_pull, each.other_pull) for each in found[0]} == {(None, None)}


def test_kept_stages_do_not_change_training(run: Run, tmp_path: Path):
    train(replace(OPTIONS, keep_stages=False), 0, Run(tmp_path / "plain"))
    found, metrics, result = content(run)
    plain = content(Run(tmp_path / "plain"))
    assert found.keys() == {"model", "stage-1", "stage-2", "stage-3"}
    assert ({"model": found["model"]}, metrics, result) == plain
    assert found["stage-3"] == found["model"] != found["stage-2"]
    assert {path.suffix for path in (run.path / "stages" / "stage-1").iterdir()} == {".json", ".md", ".safetensors"}
    adapted = replace(OPTIONS, model=str(run.path / "model"), lora_rank=2, lr=1e-2)
    for keep in (True, False):  # adapters are merged in the kept copy and continue to train
        train(replace(adapted, keep_stages=keep), 0, Run(tmp_path / f"lora-{keep}"))
    kept, plain = content(Run(tmp_path / "lora-True")), content(Run(tmp_path / "lora-False"))
    assert (kept[0]["model"], kept[1]) == (plain[0]["model"], plain[1])
    assert kept[0]["stage-3"] == kept[0]["model"]


def test_command(run: Run, tmp_path: Path):
    command = f"lm probe {run.path} --examples 128 --stage last"
    result = ask(f"{command} --out {tmp_path / 'out'} --figure {tmp_path}")
    assert result == Run(tmp_path / "out").result
    assert Path(result["figure"]) == tmp_path / "reading.svg"
    assert (result["examples"], result["layers"], result["steps"], result["levels"]) == (128, 2, 2, [1, 1])
    assert [(r["layer"], r["step"], r["level"]) for r in result["rows"]] == [
        (layer, step, level) for layer in range(3) for step, level in ((1, 1), (2, 1), (3, None))
    ]
    assert ask(command)["rows"] == result["rows"]
    table, accounts = call(f"lm probe {run.path / 'stages' / 'stage-2'} --examples 64 --seed 1").out.split("\n\n")
    assert accounts.startswith("stage 2")
    assert [line.split()[:3] for line in table.splitlines()[1:]] == [
        ["2", h, s] for h in ("1", "2") for s in ("1", "2", "3")
    ]


def test_steps_with_several_tokens(tmp_path: Path):
    """Of products, tokens that never differ (marks and zeros) are left out."""
    folder = untrained(tmp_path / "model", data="multiply:digits=2")
    result = probe(open_probed_models(folder, examples=200))
    assert {(r["step"], r["tokens"]) for r in result["rows"]} == {(1, 3), (2, 3), (3, 4)}  # 3 2 1, + 0 3 2 1, 4 digits
    assert {r["child_attention"] for r in result["rows"]} == {None}
    last = {row["step"]: row for row in result["rows"] if row["layer"] == 1}
    assert all(0 <= row[key] <= 1 for row in last.values() for key in ("chance", "probe", "lens", "error"))
    drawing = draw_reading(result)
    assert "multiply:digits=2" in drawing.caption


def test_every_number_of_hidden_steps_is_read_once(tmp_path: Path):
    """Two stages hide all steps of the longest chain, but the first of them shows a step of another chain."""
    drawn = random.Random(0)
    choose = drawn.choices
    examples = [
        Example(" ".join(choose("abcdef", k=6)), tuple(choose("uv", k=len(levels))), drawn.choice("xy"), levels)
        for levels in ((1, 1, 1, 2), (1, 2, 3)) * 60
    ]
    write_examples(data := tmp_path / "data.jsonl", examples)
    train(replace(TINY, data=str(data), steps=4, stage_steps=1, keep_stages=True), 0, Run(tmp_path / "run"))
    rows = probe(open_probed_models(tmp_path / "run", examples=100))["rows"]
    keys = [(r["stage"], r["hidden"], r["layer"], r["step"]) for r in rows]
    assert len(set(keys)) == len(keys)
    assert {r["shown"] > 0 for r in rows if (r["stage"], r["hidden"], r["step"]) == (3, 4, 3)} == {True}
    assert {r["shown"] > 0 for r in rows if (r["stage"], r["hidden"], r["step"]) == (2, 4, 3)} == {False}


def test_other_data_than_in_training_are_mentioned(run: Run):
    lines: list[str] = []
    open_probed_models(run.path, "parity:n=8,k=4,seed=5", examples=64, say=lines.append)
    assert "parity:n=8,k=4,seed=5 is not what the model was trained on, which is parity:n=8,k=4,seed=0" in lines


def row(stage: int, hidden: int, layer: int, step: int, **more: Any) -> dict[str, Any]:
    level = {1: 1, 2: 1, 3: 2, 4: None}[step]
    found = {"level": level, "shown": float(step > hidden), "chance": 0.5, "probe": 0.5, "lens": None}
    return {"stage": stage, "hidden": hidden, "layer": layer, "step": step, **found, **more}


def test_figure():
    places = [(s, h, y, x) for s, hidden in ((1, (0, 3)), (2, (2, 3)), (3, (3,))) for h in hidden for y in range(3)
              for x in (1, 2, 3, 4)]  # fmt: skip
    rows = [row(*place, probe=0.5 + 0.01 * i, lens=1.0 if i == 7 else 0.5) for i, place in enumerate(places[:40])]
    rows += [row(*place, chance=0.2, probe=0.1) for place in places[40:]]
    result = {"rows": rows, "layers": 2, "steps": 3, "data": "some", "examples": 9}
    drawing = draw_reading(result)
    panels = [axes for axes in drawing.figure.axes if axes.get_title()]
    wanted = [(1, 0), (2, 2), (3, 3), (1, 3), (2, 3), (3, 3)]
    assert [axes.get_title() for axes in panels] == [f"stage {s}, {h} hidden" for s, h in wanted]
    for axes, (stage, hidden) in zip(panels, wanted, strict=True):
        (mesh,) = (found for found in axes.collections if isinstance(found, QuadMesh))
        own = [r for r in rows if (r["stage"], r["hidden"]) == (stage, hidden)]
        values: Any = mesh.get_array()
        np.testing.assert_array_equal(np.asarray(values), above_chance(own, [1, 2, 3, 4], 3))
    assert [label.get_text() for label in panels[-1].get_xticklabels()] == ["1", "2", "3", "A"]
    borders = [[line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "-"] for axes in panels]  # pyright: ignore
    assert borders == [[], [1.5], [2.5], [2.5], [2.5], [2.5]]
    grid = above_chance(rows[:12], [1, 2, 3, 4], 3)
    assert grid[1, 2] == pytest.approx(0.12)  # 0.56 is 12 % of the way from 0.5 to 1
    assert np.isnan(above_chance(rows[1:2], [1, 2], 1)[0]).tolist() == [True, False]
    assert above_chance(rows[-1:], [4], 3)[2, 0] == 0  # below chance counts as chance
    assert "stage 3 with 3 hidden: none, none, none, none" in drawing.alt
    assert drawing.content() == draw_reading(result).content()


def test_accounts_of_a_run(run: Run, kept: ProbedModels, tmp_path: Path):
    assert kept.before == {2: 1, 3: 2}
    found = probe(kept)["accounts"]
    assert [(each["stage"], each["hidden"], each["steps"]) for each in found] == [(1, 0, 3), (2, 1, 3), (3, 2, 3)]
    assert [each["found"] is None for each in found] == [True, False, False]
    printed = call(f"lm probe {run.path} --examples 256").out
    assert all(f"stage {each['stage']}, {each['hidden']} hidden, 3 steps with the answer" in printed for each in found)
    assert [each["stage"] for each in probe(kept, hidden=[1])["accounts"]] == [2]
    read = probe(replace(kept, asked=[3]))
    assert read["accounts"] == found[2:]  # the model before is read for this
    assert {row["stage"] for row in read["rows"]} == {3}
    for name in ("stage-9", "stage-0"):  # names that training never gives
        (run.path / "stages" / "stage-2").rename(tmp_path / name)
        assert open_probed_models(tmp_path / name, examples=256).asked == [3]
        (tmp_path / name).rename(run.path / "stages" / "stage-2")


def test_order_is_that_of_training(run: Run):
    """Attempts that were given up are left out, and the model of a stage is that of its last attempt."""
    result = run.result
    order = [1, 3, 2, 3]
    write_json(run.path / "result.json", {**result, "stages": [{**result["stages"][0], "stage": s} for s in order]})
    kept = open_probed_models(run.path, examples=256)
    assert (kept.before, kept.final, kept.lineage) == ({2: 1, 3: 2}, 3, [(2, 3), (1, 2)])
    write_json(run.path / "result.json", {**result, "stages": [{**result["stages"][0], "stage": s} for s in order[:3]]})
    kept = open_probed_models(run.path, examples=256)
    assert (kept.before, kept.final, kept.lineage) == ({2: 1, 3: 1}, 2, [(1, 2)])  # 3 was given up
    assert open_probed_models(run.path, examples=256, stage="last").asked == [2]
    assert same_weights(LmWorld.of_folder(run.path, 256).model, kept.model(2))
    read = {(row["stage"], row["hidden"]) for row in probe(kept)["rows"]}
    assert {(1, 1), (1, 2), (2, 1), (3, 2)} <= read
    write_json(run.path / "result.json", result)
    assert open_probed_models(run.path, examples=256, stage="last").asked == [3]


@pytest.mark.parametrize(
    ("order", "before", "final"),
    [([1, 3, 2], {2: 1, 3: 1}, 2), ([1, 3, 2, 3], {2: 1, 3: 1}, 2), ([1, 2, 3], {2: 1, 3: 2}, 3)],
)
def test_order_of_a_run_that_is_not_finished(
    run: Run, tmp_path: Path, order: list[int], before: dict[int, int], final: int
):
    """The order is that of the evaluations. A stage that is tried again has kept the model of its first attempt."""
    begun = tmp_path / "begun"
    shutil.copytree(run.path, begun, ignore=shutil.ignore_patterns("result.json", "model"))
    line = run.metrics()[0]
    lines = [{**line, "step": step, "stage": stage} for step, stage in enumerate(order, 1)]
    (begun / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    kept = open_probed_models(begun, examples=256)
    assert (kept.before, kept.final) == (before, final)


def same_weights(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        *(
            ([command, *argv], reason)
            for command in ("probe", "certify")
            for argv, reason in (
                (["{tmp}/nowhere"], "is not a folder"),
                (["{tmp}"], "neither a run of lm train nor a model"),
                (["{tmp}/other"], f"holds a run of kind 'train'; lm {command} takes a run of lm train"),
                (["{run}", "--examples", "63"], "examples=63 must be at least 64"),
                (["{run}", "--out", "{run}"], "holds another run: its kind is 'lm-train'"),
            )
        ),
        (["probe", "{tmp}/bare"], "has kept no stages: train it with --keep-stages, or probe"),
        (["probe", "{run}", "--stage", "9"], "stage='9' is not all, last or one of the kept stages: 1, 2, 3"),
        (["probe", "{run}", "--stage", "first"], "stage='first'"),
        (["probe", "{run}", "--hidden", "0", "3"], "hidden=3 is outside 0 … 2"),
        (["probe", "{run}", "--data", "parity:n=4,k=4"], "examples are left, but a probe needs 64"),
        (["certify", "{tmp}/bare"], "has no model yet"),
        (
            ["certify", "{run}", "--only", "theorem-1"],
            "no statement 'theorem-1'",
        ),
        (["certify", "{run}", "--seed", "-1"], "seed=-1"),
    ],
)
def test_refusals(run: Run, tmp_path: Path, argv: list[str], reason: str):
    for name, kind in (("bare", "lm-train"), ("other", "train")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({**run.config, "kind": kind}))
    refused(["lm", *(word.format(tmp=tmp_path, run=run.path) for word in argv)], reason, alone=False)
