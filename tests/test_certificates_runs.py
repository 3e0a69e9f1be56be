"""Certificates of models that depart from the paper's, from solve or a folder, and `internalize certify`."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from internalize import InputError
from internalize.parity import ParityTree, paper_gates
from internalize.parity.algorithm1.recovery import recovered_weights
from internalize.parity.algorithm1.solve import solve
from internalize.parity.algorithm1.solve_runs import solve_kept
from internalize.parity.certificates import STATEMENTS, Certificate, World, certify
from internalize.parity.options import SolveOptions
from internalize.storage.files import save_tensors
from internalize.storage.runs import Run, begin_runs
from tests.asking import ask, call, refused

TREE = ParityTree.draw(8, 4, 0)
QUICK = [name for name in STATEMENTS if name not in ("barrier", "theorem-probability")]


def verdicts(certificates: list[Certificate], verdict: str) -> set[str]:
    return {certificate.statement for certificate in certificates if certificate.verdict == verdict}


def kept(path: Path, tensors: dict[str, Tensor], **config: object) -> Run:
    """Make the folder of a training run at n = 8, k = 4."""
    run = Run(path)
    model = {"n": 8, "k": 4, "seed": 0, "secret": list(TREE.secret), "mask": "level", "gates": "paper"}
    with begin_runs([run], "train", [model | config], resume=False):
        run.save_weights(tensors)
        run.finish({})
    return run


def recovered() -> dict[str, Tensor]:
    """Return weights in block form with every child at 12."""
    return {f"W{number}_full": w.float() for number, w in enumerate(recovered_weights(TREE, "block", 12.0), start=1)}


@pytest.mark.parametrize("zero", [False, True])
def test_open_gates_violate_gating(tmp_path: Path, zero: bool):
    """With every gate open, gating, propagation and kept inputs are violated, whatever the weights."""
    tensors = {name: w * (not zero) for name, w in recovered().items()}
    run = kept(tmp_path / "run", tensors, gates="ones")
    found = certify(World.of_run(run), QUICK)
    assert verdicts(found, "violated") >= {"gating", "propagation", "kept-inputs"}
    inputs = next(certificate for certificate in found if certificate.statement == "kept-inputs")
    assert "of −1 on average" in (inputs.reason or "")
    assert verdicts(found, "holds") >= {"mask", "softmax", "link", "curriculum", "loss"}
    call(f"certify --run {run.path} --only kept-inputs", 1)


def test_block_form_with_the_papers_gates_is_the_papers_model(tmp_path: Path):
    found = certify(World.of_run(kept(tmp_path / "run", recovered())), QUICK)
    assert not verdicts(found, "violated")
    assert verdicts(found, "holds") >= {"kept-inputs", "well-trained", "frozen-gradient", "evaluation"}


def test_learned_gates_are_those_of_the_file(tmp_path: Path):
    logits = 200 * (paper_gates(TREE.levels) - 0.5)
    closed = {f"gate{layer + 1}": logit for layer, logit in enumerate(logits)}
    run = kept(tmp_path / "closed", recovered() | closed, gates="learned")
    assert not verdicts(certify(World.of_run(run), QUICK), "violated")
    closed["gate1"][0] = 0.0  # half open at an input bit
    run = kept(tmp_path / "open", recovered() | closed, gates="learned", supervised_tokens="hidden")
    world = World.of_run(run)
    assert float(world.gates[0, 0]) == 0.5
    found = certify(world, QUICK)
    # Here the stages hide what they supervise and the loss is on one level, unlike the paper's.
    assert verdicts(found, "violated") >= {"gating", "kept-inputs", "propagation", "curriculum", "loss"}
    del closed["gate2"]
    run = kept(tmp_path / "lost", recovered() | closed, gates="learned")
    with pytest.raises(InputError, match="has no gate2 of 11 logits"):
        World.of_run(run)


@pytest.mark.parametrize("name", ["value1", "read1", "mlp1_offset", "gate_state1", "gate1"])
def test_other_learned_parts_are_refused(tmp_path: Path, name: str):
    run = kept(tmp_path / "run", recovered() | {name: torch.zeros(3)})
    words = f"has {name}: a learned part of the model that no statement covers"
    refused(f"certify --run {run.path}", words)


def test_explicit_cot_is_refused(tmp_path: Path):
    options = SolveOptions(n=8, k=4, curriculum="cot")
    with pytest.raises(InputError, match="explicit CoT has one layer"):
        World.of_solve(options)
    run = Run(tmp_path / "run")
    solve_kept(options, run)
    with pytest.raises(InputError, match="explicit CoT has one layer"):
        World.of_run(run)


EXPECTED = [
    # A node that sees its own level makes the answer depend on the chain's tokens.
    # Its nodes see different numbers of keys, so they cannot be exchanged.
    ({"mask": "causal"}, {"mask", "evaluation", "symmetry", "skipped-level"}),
    ({"curriculum": "icot"}, set()),
    ({"curriculum": "none"}, {"well-trained"}),
    ({"grid": "none"}, {"well-trained"}),
    (
        {"gates": "ones"},
        {"gating", "kept-inputs", "propagation", "frozen-derivative", "well-trained", "hidden-states", "inductive-step"}
        | {"collapse-noise", "theorem-max", "theorem-l2", "theorem-oracle"},
    ),
    (
        {"gates": "cot"},
        {"gating", "propagation", "frozen-derivative", "well-trained", "hidden-states", "inductive-step"}
        | {"frozen-gradient", "theorem-max", "theorem-l2", "theorem-oracle"},
    ),
    ({"curriculum": "icot", "gates": "ones", "mask": "causal"}, None),
    ({"curriculum": "none", "gates": "cot", "grid": "1", "samples": 1000}, None),
]


@pytest.mark.parametrize(("changes", "violated"), EXPECTED, ids=[str(changes) for changes, _ in EXPECTED])
def test_every_certificate_on_departures_of_algorithm_1(tmp_path: Path, changes: dict, violated: set[str] | None):
    """A model and its folder have the same verdicts. Other curricula are judged only by what applies to them."""
    options, run = SolveOptions(n=16, k=8, **changes), Run(tmp_path / "run")
    found = certify(World.of_solve(options), QUICK)
    assert violated is None or verdicts(found, "violated") == violated
    solve_kept(options, run, snapshots=True)
    again = certify(World.of_run(run), QUICK)
    assert [(c.statement, c.verdict, c.measured) for c in again] == [
        (c.statement, c.verdict, c.measured) for c in found
    ]
    if options.curriculum != "log-icot":
        unasked = {"curriculum", "loss", "stage-1", "inductive-step", "frozen-weights", "stage-order", "theorem-max"}
        assert verdicts(found, "not applicable") >= unasked


def test_theorem_probability_is_not_for_other_models():
    (found,) = certify(World.of_solve(SolveOptions(n=8, k=4, mask="causal")), ["theorem-probability"])
    assert found.verdict == "not applicable"
    assert "mask and gates" in (found.reason or "")


def test_the_barrier_holds_for_any_model():
    for options in (SolveOptions(n=6, k=4, gates="ones"), SolveOptions(n=13, k=4, mask="causal")):
        (found,) = certify(World.of_solve(options), ["barrier"])
        assert found.verdict == "holds"


def test_weights_in_block_form_by_hand():
    result = solve(SolveOptions(n=8, k=4, mask="causal"))
    world = World.of_weights(TREE, result.weights)
    assert [tuple(w.shape) for w in world.weights] == [(8, 2), (10, 1)]
    assert all(torch.equal(a, b) for a, b in zip(world.full(), result.weights, strict=True))
    with pytest.raises(InputError, match="not a finite number"):
        World.of_weights(TREE, [w.fill_diagonal_(torch.nan) for w in result.weights])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Solve n = 8, k = 4 with Algorithm 1."""
    solve_kept(SolveOptions(n=8, k=4, seed=3), run := Run(tmp_path / "run"))
    return run


def asked(words: str, status: int = 0) -> dict[str, str]:
    return {c["statement"]: c["verdict"] for c in ask(f"certify {words}", status)["certificates"]}


def test_all_statements_on_the_worked_example(tmp_path: Path):
    """On n = 8, k = 4 every statement has a verdict, none is violated, and the record has the contract's keys."""
    found = asked(f"--n 8 --k 4 --out {tmp_path / 'kept'}")
    assert found.keys() == STATEMENTS.keys()
    assert "violated" not in found.values()
    assert [name for name, verdict in found.items() if verdict != "holds"] == ["collapse", "skipped-level"]
    for certificate in Run(tmp_path / "kept").result["certificates"]:
        assert set(certificate) >= {"statement", "claim", "measured", "bound", "margin", "verdict", "seeds", "dtype"}


def test_enough_samples_for_the_theorem(tmp_path: Path):
    """With n^(2+ε) samples per stage the theorem's probability is judged; the kept folder says how many there were."""
    words = f"--n 16 --k 8 --only theorem-probability --out {tmp_path / 'kept'}"
    assert asked("--n 16 --k 8 --only theorem-probability") == {"theorem-probability": "not applicable"}
    assert asked(f"--samples 4096 {words}") == {"theorem-probability": "holds"}
    kept = Run(tmp_path / "kept")
    assert kept.config["samples"] == 4096
    call(f"certify --n 8 --k 4 --only mask --out {tmp_path / 'other'}")
    assert "samples" not in Run(tmp_path / "other").config  # as in folders of earlier versions
    assert "at B=4096; 0 of 25 runs" in kept.result["certificates"][0]["reason"]
    refused("certify --samples 0", "samples=0 is outside 1")


def test_certify_takes_the_options_of_the_run(run: Run, tmp_path: Path):
    kept = Run(tmp_path / "kept")
    call(f"certify --run {run.path} --only gating --out {kept.path}")
    assert [kept.config[name] for name in ("n", "k", "seed", "link", "epsilon")] == [8, 4, 3, "cosine", 1.0]
    refused(f"certify --run {run.path} --k 8", "k=8 with --run, which has its own k")
    refused(f"certify --run {run.path} --samples 9", "samples=9 with --run, which has its own samples")
    refused(f"certify --run {kept.path}", "is a run of certify, which has no weights")
    (run.path / "result.json").unlink()
    (run.path / "weights.safetensors").unlink()
    refused(f"certify --run {run.path}", "is not finished, so it has no weights yet")


@pytest.mark.parametrize("damage", ["short", "nothing", "words", "missing"])
def test_metrics_that_do_not_name_their_samples(run: Run, damage: str):
    """Without metrics the statements about samples do not apply. Incomplete or wrong metrics are damage."""
    metrics = run.path / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines[0] |= {"nothing": {"stage_samples": 0}, "words": {"first_sample": "x"}}.get(damage, {})
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in (lines[:1] if damage == "short" else lines)))
    if damage == "missing":
        metrics.unlink()
        assert set(asked(f"--run {run.path}").values()) >= {"holds", "not applicable"}
    else:
        refused(f"certify --run {run.path}", "metrics.jsonl")


def test_violations_are_status_1(run: Run):
    """If a node has other children in the file, violations are listed first and the exit status is 1."""
    weights = run.weights()
    weights["W1"][:, 0] = weights["W1"][:, 0].roll(1)
    save_tensors(run.path / "weights.safetensors", weights)
    said = call(f"certify --run {run.path}", 1)
    assert said.out.splitlines()[1].startswith("violated")
    assert "violated" in said.err.splitlines()[-2]
    lied_about = ("well-trained", "stage-1", "theorem-max")
    found = asked(f"--run {run.path} --only mask {' '.join(lied_about)}", 1)
    assert found == {"mask": "holds"} | dict.fromkeys(lied_about, "violated")


def test_folders_against_the_contract_are_refused(run: Run):
    good = run.config
    without_n = {name: value for name, value in good.items() if name != "n"}
    wrong = ({"secret": [0, 1, "a", 3]}, {"boundaries": 7, "kind": "train"}, {"K": "large"})
    for config in (without_n, *(good | change for change in wrong)):
        (run.path / "config.json").write_text(json.dumps(config))
        refused(f"certify --run {run.path}", str(run.path))
