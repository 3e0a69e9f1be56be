"""`internalize bench`: both sides of a ratio compute the same thing; repeats are stored, resumed and summarized."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from internalize import Curriculum
from internalize.bench.plain import PlainTask, PlainTransformer, stage_gradient, stage_loss, train
from internalize.bench.profile import _rows
from internalize.bench.ratios import Measurement, matmul_seconds, peak_memory
from internalize.bench.run import REPEATS, RESULT, Sizes, all_measurements, asked_for, bench, chosen, keep_profile
from internalize.bench.timing import Seconds, one_over_other, over_repeats, slope
from internalize.commands.bench import shown
from internalize.errors import InputError
from internalize.parallel.interrupt import Interrupted
from internalize.parity import BlockTransformer, Levels, ParityTree, add_trace, draw_bits, parity_stages, stage_input
from internalize.parity.model.loss import stage_loss as package_loss
from internalize.parity.options import TrainOptions
from internalize.storage.files import Json
from internalize.storage.runs import Run
from tests.asking import ask, call, refused
from tests.spoiling import spoiled

SMALL = Sizes(solve=16, literal=(6, 4, 3), plain=16, chains=(4,), growth=(8, 16), memory=(8,))
TRAIN = TrainOptions(n=8, k=4, batch=10, eval_samples=10)
Measured = tuple[Path, list[Measurement], Json]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_plain_is_the_same_model(stage: int):
    tree = ParityTree.draw(10, 8, 1)
    task = PlainTask(10, list(tree.secret))
    bits = draw_bits(10, 0, 0, 40)
    sequence = add_trace(tree, bits)
    assert torch.equal(task.complete(bits), sequence)
    mine, theirs = BlockTransformer(10, 8), PlainTransformer(task)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for w, other in zip(mine.parameters(), theirs.parameters(), strict=True):
            w.copy_(other.normal_(generator=generator))
    now = parity_stages(tree.levels, Curriculum("log-icot"))[stage - 1]
    loss = package_loss(mine(stage_input(sequence, now), now.layers), sequence, now)
    torch.testing.assert_close(stage_loss(theirs, sequence, stage), loss)
    expected = torch.autograd.grad(loss, list(mine.parameters())[:stage])
    torch.testing.assert_close(stage_gradient(theirs, sequence, stage), list(expected), rtol=1e-4, atol=1e-6)


def test_plain_training_learns():
    torch.manual_seed(0)
    tree = ParityTree.draw(8, 4, 0)
    model = train(PlainTask(8, list(tree.secret)), steps=60, batch=200, eval_every=30, eval_samples=200, lr=0.1)
    attention = torch.softmax(model.W[1][: 8 + 2, -1].detach(), dim=0)
    assert attention[[8, 9]].min() > 0.3


def test_ratios_and_spread():
    asked: list[str] = []

    def side(name: str, seconds: Seconds) -> Seconds:
        asked.append(name)
        return seconds

    for number in (0, 1):
        found = one_over_other(
            number, lambda: side("a", Seconds(6.0, 4.0)), lambda: side("b", Seconds(2.0, 1.0)), ("a", "b")
        )
        assert (found["value"], found["cpu"], found["seconds"]) == (3.0, 4.0, {"a": 6.0, "b": 2.0})
    assert asked == ["a", "b", "b", "a"]  # so that neither side always has warm caches
    repeats = [{"value": v, "cpu": 2 * v, "seconds": {"a": v}, "extra": v} for v in (3.0, 1.0, 10.0)]
    of_value, of_cpu = {"median": 3.0, "low": 1.0, "high": 10.0}, {"cpu_median": 6.0, "cpu_low": 2.0, "cpu_high": 20.0}
    assert over_repeats(repeats) == {**of_value, **of_cpu, "repeats": 3, "extra": 3.0, "seconds": {"a": 3.0}}


def test_slope_is_the_exponent():
    x = [128.0, 256.0, 512.0, 1024.0]
    exponent, error = slope(x, [5 * v**2.5 for v in x])
    assert exponent == pytest.approx(2.5)
    assert error == pytest.approx(0.0, abs=1e-9)
    assert slope(x, [v**2.5 * (1.3 if v == 256 else 1) for v in x])[1] > 0.05


def test_products_are_of_the_gradients_shapes(monkeypatch: pytest.MonkeyPatch):
    shapes: list[tuple[torch.Size, torch.Size]] = []
    real = torch.mm

    def mm(X: torch.Tensor, R: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        shapes.append((X.shape, R.shape))
        return real(X, R, out=out)

    monkeypatch.setattr(torch, "mm", mm)
    found = matmul_seconds(Levels(16, 8), B=10_000)
    assert shapes == [((16, 8192), (8192, 4)), ((20, 8192), (8192, 2)), ((22, 8192), (8192, 1))]
    assert found.clock > 0


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    out = tmp_path_factory.mktemp("bench") / "out"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_RUNS", 4), ("_PLAIN_RUNS", 2), ("_UPDATES", 3)):
            patch.setattr(f"internalize.bench.ratios.{name}", value)
        found = all_measurements(SMALL, 0, 1, TRAIN)
        return out, found, bench(found, out, asked=asked_for(SMALL, 0, 1), repeats=1, resume=False)


def test_every_measurement(measured: Measured):
    out, measurements, found = measured
    assert json.loads((out / RESULT).read_text()) == found
    names = [own.name for own in measurements]
    assert len(names) == len(set(names)) == 7
    for name in names:
        row = found[name]
        assert 0 < row["low"] <= row["median"] <= row["high"] < math.inf or name == "growth"
        assert row["repeats"] == 1
        assert shown(name, row)["measurement"] == name
    assert found["literal_over_level"]["goal"] == 100
    assert 0.05 < found["peak_memory_8"]["median"] < 2
    assert (found["peak_memory_8"]["met"], found["peak_memory_8"]["solved"]) == (True, 1.0)
    assert set(found["growth"]["seconds"]) == {"8", "16"}
    assert 2 < found["growth"]["goal"] < 5
    assert found["environment"]["torch"] == torch.__version__


def test_nothing_is_measured_twice(measured: Measured):
    out, measurements, found = measured

    again = [replace(own, once=lambda number: pytest.fail("measured again")) for own in measurements]
    asked = asked_for(SMALL, 0, 1)
    assert bench(again, out, asked=asked, repeats=1, resume=True) == found
    with Run(out).locked(), pytest.raises(InputError, match="in use by another process"):
        bench(again, out, asked=asked, repeats=1, resume=True)
    with pytest.raises(InputError, match="has already started; add --resume"):
        bench(again, out, asked=asked, repeats=1, resume=False)
    with pytest.raises(InputError, match="holds a bench with .*'threads': 1.*, not .*'threads': 2"):
        bench(again, out, asked=asked_for(SMALL, 0, 2), repeats=1, resume=True)


def test_interrupted_and_resumed(tmp_path: Path):
    """Finished repeats are kept, and the remaining ones are added."""
    made: list[int] = []

    def once(number: int) -> Json:
        if len(made) == 2:
            made.append(-1)
            raise KeyboardInterrupt
        made.append(number)
        return {"value": float(number)}

    own = Measurement("x", "…", once, goal=1.0, at_most=True, repeats=4)
    with pytest.raises(Interrupted):
        bench([own], tmp_path / "b", asked={}, repeats=9, resume=False)
    assert not (tmp_path / "b" / RESULT).exists()
    found = bench([own], tmp_path / "b", asked={}, repeats=9, resume=True)
    assert made == [0, 1, -1, 2, 3]
    assert (found["x"]["median"], found["x"]["met"]) == (1.5, False)
    other = Measurement("y", "…", lambda number: {"value": 7.0}, goal=1.0, at_most=True, repeats=1)
    both = bench([other], tmp_path / "b", asked={}, repeats=1, resume=True)  # as with --only y
    assert (both["x"], both["y"]["median"]) == (found["x"], 7.0)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "mine.txt").touch()
    with pytest.raises(InputError, match="holds 'mine.txt', which does not belong to a bench"):
        bench([own], tmp_path / "c", asked={}, repeats=1, resume=False)


def test_kept_repeats_are_used_or_refused_in_one_line(tmp_path: Path):
    """Whatever is wrong in repeats.json, there is either a result or one line that names the file."""
    whole = {"value": 1.5, "cpu": 1.0, "seconds": {"a": 3.0, "b": 2.0}, "goal": 2.0}
    own = Measurement("x", "…", lambda number: whole, goal=1.0, repeats=3)
    bench([own], tmp_path, asked={"seed": 0}, repeats=2, resume=False)
    path, used = tmp_path / REPEATS, 0
    kept = json.loads(path.read_text())
    kept["environment"] = {}
    for place, changed in spoiled(kept):
        path.write_text(json.dumps(changed))
        try:
            bench([own], tmp_path, asked={"seed": 0}, repeats=3, resume=True)
        except InputError as error:
            assert str(tmp_path) in str(error), place  # noqa: PT017  (some are taken)
        else:
            used += 1
    assert used > 5
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match=f"{path} is not a file"):
        bench([own], tmp_path, asked={"seed": 0}, repeats=3, resume=True)


@pytest.mark.parametrize(
    ("goal", "at_most", "value", "met"),
    [
        (5.0, False, 4.9, False),
        (5.0, False, 5.0, True),
        (1.0, True, 1.0, True),
        (1.0, True, 1.1, False),
        (None, False, 3.0, None),
    ],
)
def test_goals(goal: float | None, at_most: bool, value: float, met: bool | None):
    assert Measurement("x", "", lambda number: {}, goal, at_most).met(value) is met


def test_only():
    measurements = all_measurements(SMALL, 0, 1)
    assert [own.name for own in chosen(measurements, ["cot", "growth"])] == ["cot_over_internalised_4", "growth"]
    assert chosen(measurements, []) == measurements
    with pytest.raises(InputError, match="only='matmul' is none of solve_over_matmul, "):
        chosen(measurements, ["matmul"])


def test_a_process_that_fails_is_no_measurement(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.executable", "/bin/ls")  # which has no option --n
    with pytest.raises(RuntimeError, match="solve at n = 8 ended with status"):
        peak_memory(8, 0, 1).once(0)


def test_profiles_are_kept_beside(tmp_path: Path):
    keep_profile(tmp_path / "b", "solve", [{"function": "f"}])
    own = Measurement("x", "…", lambda number: {"value": 1.0})
    bench([own], tmp_path / "b", asked={}, repeats=1, resume=False)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [".lock", RESULT, "profile-solve.json", REPEATS]


def test_profile_rows():
    stats = {("~", 0, "<built-in method cos>"): (3, 3, 1.5, 1.5, {}), ("/x/y.py", 7, "f"): (1, 1, 0.5, 2.0, {})}
    rows = _rows(stats)
    shares = {"built-in method cos": 0.75, "y.py: f": 0.25, "all others": 0.0}
    assert [(row["function"], row["share"]) for row in rows] == list(shares.items())


def test_command(tmp_path: Path):
    command = f"bench --only cot_over_internalised_16 --repeats 1 --threads 1 --out {tmp_path / 'b'}"
    assert ask(command)["cot_over_internalised_16"]["repeats"] == 1
    assert "15 sequential passes over one pass" in call(f"{command} --resume").out
    refused(command, "has already started; add --resume")
    refused("bench --repeats 0", "repeats=0 is outside 1 … 1000")
