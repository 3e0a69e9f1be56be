"""What `tools/leads.py` adds to a run is what it says, and without an addition it is a run of `lm train`."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tools.leads import LEADS, OPTIONS, Average, Fade, Freeze, Gates, Grow, Open, predicted_levels, run, trained

from internalize.lm import Internalization
from internalize.lm.callback import trained_weights
from internalize.lm.models import make_model
from internalize.lm.removal import IGNORED
from internalize.lm.schedule import Attempt
from internalize.lm.train import train
from internalize.runs import Run
from tests.lm_runs import weights

TINY = replace(
    OPTIONS, data="parity:n=8,k=8", method="log-icot", layers=3, width=8, heads=2, steps=12, eval_every=4, batch=8,
    stage_steps=4, first_steps=4, eval_examples=8, test_examples=50, budgets="never",
)  # fmt: skip


SMALLER = replace(TINY, data="parity:n=6,k=4", layers=2)


def parts() -> tuple[Internalization, Any]:
    work = Internalization(SMALLER, seed=1)
    return work, make_model(SMALLER, work.config, 1)


def test_the_control_is_lm_train_and_no_lead_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Fade, "over", 4)
    result = train(TINY, 3, Run(tmp_path / "run"))
    own = weights(tmp_path / "run")
    assert run("control", TINY, 3)["steps"] == [stage["steps"] for stage in result["stages"]]
    for lead in LEADS:
        work, model = trained(lead, TINY, 3)
        assert work.schedule.stage(TINY.steps - 1) == work.stages.last
        found = {name: weight for name, weight in model.state_dict().items() if name in own}
        assert all(torch.equal(found[name], own[name]) for name in own) == (lead == "control"), lead


def test_stages_that_are_not_levels_are_refused():
    for lead in ("freeze", "grow"):
        with pytest.raises(SystemExit, match="--method log-icot"):
            trained(lead, replace(TINY, method="adaptive"), 3)


def test_levels_of_what_is_predicted():
    work, _ = parts()
    (chain,) = work.text.chains(work.leveled(work.source.training_sample(1)))
    two_steps, separator, answer, end = [1, 1], [0], [2], [0, 0]
    before = [0] * (len(chain.prompt) - 1)
    assert predicted_levels(chain) == [*before, *two_steps, *separator, *answer, *end]
    assert len(predicted_levels(chain)) == len(chain)


def test_gates_keep_what_is_not_of_their_level():
    work, model = parts()
    gates = Gates(work, model)
    batch = work.collator(range(8))
    states = model(input_ids=batch["input_ids"], output_hidden_states=True).hidden_states
    length = batch["input_ids"].shape[1]
    levels = gates.levels[:length]
    first = (states[1] != states[0]).any(-1).any(0)  # where the first layer changes anything
    assert torch.equal(first, (levels == 1) | ((levels == 0) & (torch.arange(length) >= gates.prompt)))
    unchanged = model.transformer.ln_f(states[1])  # the last states come with the norm
    assert torch.equal((states[2] != unchanged).any(-1).any(0), levels == 2)


def test_the_average_is_what_is_evaluated_and_is_put_back():
    work, model = parts()
    lead = Average(work, model, keep=0.75)
    start, seen = trained_weights(model), []
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)
    lead.on_step_end(None, None, None)
    lead.averaged(lambda model, stage: seen.append(trained_weights(model)))(model, 0)
    for name, weight in trained_weights(model).items():
        torch.testing.assert_close(weight, start[name] + 1)
        torch.testing.assert_close(seen[0][name], start[name] + 0.25)


def test_layers_that_have_done_their_work_are_frozen():
    work, model = parts()
    work.schedule.attempts = [Attempt(0, 0), Attempt(4, 1), Attempt(8, 2)]
    lead = Freeze(work, model)
    for done, frozen in ((7, [False, False]), (8, [True, False])):
        lead.on_step_begin(None, SimpleNamespace(global_step=done), None)
        assert [not any(w.requires_grad for w in layer.parameters()) for layer in model.transformer.h] == frozen


def test_loss_on_hidden_slots_fades():
    work, model = parts()
    Fade(work, model)
    work.schedule.attempts = [Attempt(0, 0), Attempt(4, 1)]

    def share(update: int) -> float:
        rows = work.collator._chances(range(8 * update, 8 * update + 8))
        return sum(row[3] < 1 for row in rows) / 8

    assert share(0) == share(4) == 1
    assert share(4 + Fade.over) == 0
    assert 0 < sum(share(4 + Fade.over // 2 + i) for i in range(8)) / 8 < 1


def test_the_tree_grows():
    work, model = parts()
    Grow(work, model)
    work.schedule.attempts = [Attempt(0, 0), Attempt(1, 1)]
    first, last = work.collator(range(8))["labels"], work.collator(range(8, 16))["labels"]
    steps = slice(-5, -3)
    assert (first[:, steps] != IGNORED).all()
    assert (first[:, -3:] == IGNORED).all()
    assert (last[:, -5:] != IGNORED).all()


def test_gates_that_have_opened_are_none():
    work, model = parts()
    tokens = work.collator(range(8))["input_ids"]
    plain = model(input_ids=tokens).logits
    lead = Open(work, model)
    assert not torch.allclose(model(input_ids=tokens).logits, plain)
    state = SimpleNamespace(global_step=100)
    lead.on_step_begin(None, state, None)
    assert lead.ajar == 0  # the answer is not right yet
    work.callback._stop_at, work.options = 140, replace(work.options, consolidate=60)
    lead.on_step_begin(None, state, None)
    assert lead.ajar == pytest.approx(0.5)
    state.global_step = 120
    lead.on_step_begin(None, state, None)
    torch.testing.assert_close(model(input_ids=tokens).logits, plain)
    lead.on_train_end(None, state, None)
    assert not any(layer._forward_hooks for layer in model.transformer.h)
