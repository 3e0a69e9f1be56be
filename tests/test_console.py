"""What a user sees on a terminal: tables that fit, a bar beside long words, units, and the next command."""

import io
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from internalize.commands import cli
from internalize.commands.console import format_cell, print_table, use_device
from internalize.commands.help import options_of
from internalize.commands.progress import ProgressDisplay
from tests.asking import call, refused
from tests.lm_runs import TINY, words


class Terminal(io.StringIO):
    """A terminal that remembers what was written to it."""

    def isatty(self) -> bool:
        return True


OUT, REASON = "runs/" + "long-name/" * 3, "word " * 30
ROW = {"seed": 0, "accuracy": 0.98765, "l2_error": 1e-3, "reason": REASON, "out": OUT}


@pytest.mark.parametrize(("columns", "dropped"), [(200, ""), (60, "L2 error"), (40, "accuracy, L2 error")])
def test_a_table_drops_its_last_columns_but_no_path(
    columns: int, dropped: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    print_table([ROW], ("seed", "accuracy", "l2_error", "out"), note="reason")
    lines = terminal.getvalue().splitlines()
    assert OUT in lines[1]
    assert max(map(len, lines)) <= max(columns, len(f"0     {OUT}"))
    assert " ".join(" ".join(lines[2:]).split()) == REASON.strip()  # below its row, whole
    said = capsys.readouterr().err
    assert said == (f"internalize: not shown, for lack of width: {dropped}; --json has everything\n" if dropped else "")


def test_nothing_is_dropped_in_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "40")
    print_table([ROW], ("seed", "accuracy", "l2_error", "out"))
    assert capsys.readouterr() == (f"seed  accuracy  L2 error  folder\n0     0.9877    0.001     {OUT}\n", "")


def test_large_numbers_and_times_have_units():
    cells = {
        "tokens": (7.2e6, "7.2 M"),
        "flops": (1.7e12, "1.7 TFLOP"),
        "GPU time": (10_800, "3 h"),
        "passed": (True, "yes"),
    }
    for name, (value, text) in cells.items():
        assert format_cell(name, value) == text


@pytest.mark.parametrize("columns", [60, 80])
def test_the_bar_stays_beside_long_words(columns: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")  # the lines below are compared as text
    shown = Terminal()
    with ProgressDisplay("compare curricula", shown) as progress:
        progress.note("stage 1/2 passed: 291 updates, exact match 1.000")
        progress.show(1250, 2500, f"curricula/n8-k4/{'adamw-lr0.1/' * 5}seed-0  stage 2/2  accuracy 0.990")
        assert progress._bar
        (frame,) = progress._bar.console.render_lines(progress._bar.get_renderable(), new_lines=False)
    line = "".join(segment.text for segment in frame)
    assert len(line) <= columns
    assert line.startswith("━" * 8)  # half of the bar
    assert line.index("1250/2500 …") == 17
    assert "accuracy 0.990 " in line
    assert "stage 1/2 passed: 291 updates, exact match 1.000\n" in shown.getvalue()


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("lm eval", "--model is missing; see internalize lm eval --help"),
        ("lm probe", "PATH is missing; see internalize lm probe --help"),
        ("solve --n", "--n needs a value; see internalize solve --help"),
        ("train --steps many", "--steps 'many' is not an integer; see internalize train --help"),
        ("train --lr big", "--lr 'big' is not a number; see internalize train --help"),
        ("--vershun", "'--vershun' is not a command; did you mean --version?; see internalize --help"),
    ],
)
def test_mistakes_in_a_line_are_in_plain_words(typed: str, message: str):
    refused(typed, f"internalize: {message}")


def test_help_has_no_second_default_and_no_group_without_a_name():
    for group in cli.COMMANDS.values():
        for name, command in group.items():
            for option in options_of(command):
                assert not ("Default:" in option.text and option.default), (name, option)
                assert option.title != "Options", (name, option)


@pytest.mark.parametrize("columns", [80, 100])
def test_examples_keep_an_option_beside_its_value(columns: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    seen = 0
    for group in cli.COMMANDS.values():
        for name in group:
            for line in cli.parse([*name.split(), "--help"]).text.splitlines():
                if line.endswith(" \\"):
                    assert not line.split()[-2].startswith("--") or line.split()[-2] == "--json", line
                    seen += 1
    assert seen > 3


def test_auto_is_the_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch):
    """No GPU is here, so the test pretends one. Every command on text looks for it by default."""
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    for has_cuda, has_mps, device in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=has_cuda: found)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda found=has_mps: found)
        assert use_device("auto", 1) == device
    for line in ("lm train", "lm eval --model m", "lm probe r", "lm certify r", "lm compare"):
        assert cli.parse(shlex.split(line)).device == "auto"


SMALL = "--n 8 --k 4"
STUDY = "--sizes 4,2 --seeds 0 --steps 1 --batch 2 --eval-samples 3 --repeats 1 --jobs 1"


def test_each_command_ends_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The next command is one that can be typed; it names the folders of this one, quoted if they need it."""
    monkeypatch.chdir(tmp_path)
    text = words(replace(TINY, data="parity:n=8,k=4"), "on text", "--steps", "4")  # a folder whose name has a blank
    steps: list[tuple[str | list[str], str]] = [
        (f"predict {SMALL}", "solve --n 8 --k 4"),
        ("predict --amplitude 14 --grid 1 --rate paper", "predict --n 30 --k 16"),  # no number of samples is enough
        (f"solve {SMALL} --out 'a b'", "certify --run 'a b'"),
        (f"certify {SMALL} --only gating", "paper"),
        (f"train {SMALL} --steps 1 --eval-samples 9 --out t", "certify --run t"),
        ("runs .", "certify --run 'a b'"),
        (f"compare {STUDY} --methods icot --optimizers adamw --lr 0.1 --out c", "runs c"),
        ("sweep solve n=4,5 k=2 samples=5,9 --seeds 0 --jobs 1 --out s", "sweep show s"),
        ("sweep show s", "sweep show s --group-by n samples --figure figures"),
        ("lm data --data parity:n=6,k=4 --count 1", "lm plan --data parity:n=6,k=4"),
        ("lm data --data parity:n=6,k=4 --count 40 --out 'my data.txt'", "lm plan --data 'my data.txt'"),
        ("lm data --check 'my data.txt'", "lm plan --data 'my data.txt'"),
        ("lm plan --data parity:n=6,k=4", "lm train --data parity:n=6,k=4"),
        (text, "lm eval --stages all --chain --model 'on text'"),
        ("lm eval --model 'on text' --examples 4", "lm probe 'on text/model'"),
        ("lm probe 'on text/model' --examples 64", "lm probe 'on text/model' --figure figures"),
        ("lm certify 'on text' --only answer --examples 64", "lm probe 'on text/model' --figure figures"),
    ]
    for typed, following in steps:
        status = 1 if "certify" in typed and "answer" in typed else 0
        line = call(typed, status).err.splitlines()[-1]
        assert line == f"internalize: next: internalize {following}", typed
        assert callable(cli.parse(shlex.split(following)))
