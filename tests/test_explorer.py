"""The explorers show what the evaluations and weights of the runs say."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from internalize.errors import InputError
from internalize.parity.experiments.jobs import SolveJob, SuccessJob
from internalize.parity.options import SolveOptions
from internalize.parity.theory.prediction import Setting
from internalize.report.explorer import solving_story, training_story
from internalize.storage.runs import Run
from tests.tiny import OPTIONS


@pytest.fixture(scope="module")
def solved(tmp_path_factory) -> Run:
    job = SolveJob(tmp_path_factory.mktemp("solved"), Path("seed-3"), SolveOptions(n=12, k=4, seed=3))
    job.run(lambda done, text: None)
    job.check(resume=True)
    return job.runs[0]


def unpacked(story: dict[str, Any], name: str) -> np.ndarray:
    found = story["maps"][name]
    return found["lowest"] + found["unit"] * np.frombuffer(base64.b64decode(found["numbers"]), "<u2").astype(float)


def test_training_is_shown_as_evaluated(runs):
    story, metrics = training_story(runs[0], "first"), runs[0].metrics()
    assert [(m["step"], m["stage"], m["loss"]) for m in story["moments"]] == [
        (line["step"], line["stage"], line["loss"]) for line in metrics
    ]
    for moment, line in zip(story["moments"], metrics, strict=True):
        accuracy = np.array(moment["nodes"])[:, 0]
        levels = [accuracy[:2].mean(), accuracy[2:].mean()]  # n = 8, k = 4: two nodes, then the root
        assert levels == pytest.approx(line["level_accuracy"], abs=1e-3)
        assert moment["nodes"][-1][1] == pytest.approx(line["l2_error"], rel=0.02, abs=1e-5)
    assert story["moments"][-1]["nodes"][-1][0] == 1.0


def test_attention_is_the_weights_softmax(runs):
    story, weights = training_story(runs[0], "first"), runs[0].weights()
    rows = [weights[name].double().softmax(dim=0).T.flatten() for name in ("W1", "W2")]
    last = unpacked(story, "attention").reshape(len(story["moments"]), -1)[-1]
    assert last == pytest.approx(torch.cat(rows).numpy(), abs=1e-5)
    for node, (children, (_, _, elsewhere)) in enumerate(
        zip(story["children"], story["moments"][-1]["nodes"], strict=True)
    ):
        keys = 8 if node < 2 else 10
        row = last[node * 8 : node * 8 + keys]
        assert min(row[children]) > 0.4 > elsewhere
        assert np.delete(row, children).max() == pytest.approx(elsewhere, abs=1e-4)


def test_thinned_moments_keep_every_switch(runs):
    whole, thin = training_story(runs[0], "a"), training_story(runs[0], "b", every=3)
    assert len(thin["moments"]) < len(whole["moments"])
    ends = [(m["step"], m["stage"]) for m in whole["moments"] if m["step"] in (0, OPTIONS.steps, 2 * OPTIONS.steps)]
    assert set(ends) <= {(m["step"], m["stage"]) for m in thin["moments"]}


def test_without_weights_there_is_no_story(runs):
    with pytest.raises(InputError, match="snapshots has no weights; train with --snapshots"):
        training_story(runs[1], "second")


def test_algorithm_1_has_three_moments_per_stage(solved):
    story, result = solving_story(solved, "seed 3"), solved.result
    assert [(m["stage"], m["act"]) for m in story["moments"]] == [
        (stage, act) for stage in (1, 2) for act in ("gradient", "step", "rounded")
    ]
    gradient, step, rounded = (unpacked(story, act) for act in ("gradient", "step", "rounded"))
    first = 12 * 2  # layer 1: two nodes over 12 bits
    exact = Setting(12, 4).gradients[0]
    assert step[:first] == pytest.approx(-gradient[:first] * exact.paper_rate / exact.signal, abs=1e-3)
    assert rounded == pytest.approx(np.round(step), abs=1e-4)
    assert story["threshold"] == 0.5
    children = [step[node * 12 + child] for node in range(2) for child in story["children"][node]]
    assert min(children) == pytest.approx(result["stages"][0]["signal_min"], abs=1e-4)
    assert story["moments"][-1]["nodes"][-1][0] == 1.0
    assert story["moments"][0]["nodes"][-1][0] < 1.0


def test_success_is_counted_once(tmp_path):
    job = SuccessJob(tmp_path, Path("success"), SolveOptions(n=8, k=4), (1, 2000), 2)
    job.run(lambda done, text: None)
    job.check(resume=True)
    few, many = job.runs[0].result["points"]
    assert (few["samples"], many["samples"]) == (1, 2000)
    assert few["successes"] < many["successes"] == 2
    for points, words in (([3], "points[0]: expected `object`"), ([few], "lacks 2 seeds at each of")):
        (tmp_path / "success" / "result.json").write_text(json.dumps({"points": points}))
        with pytest.raises(InputError, match=re.escape(words)):
            job.check(resume=True)
