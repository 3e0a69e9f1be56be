"""Every `internalize` command of the README is run, and prints what the README says of it."""

import re
import shlex
from pathlib import Path

import pytest

from tests.asking import call
from tests.documentation_pages import BY_NAME, commands
from tests.lm_runs import untrained

TYPED = [shlex.join(words) for words, _ in commands(BY_NAME["README.md"].read_text(encoding="utf-8"))]
LM_SMALL = "--steps 4 --stage-steps 2 --eval-examples 4 --test-examples 8 --eval-every 2"
STUDY_SMALL = "--seeds 0:1 --sizes 4,2 --steps 2 --batch 4 --eval-samples 9 --repeats 1 --jobs 1"
PRINTED = {
    "lm data --check train.txt": (
        "",
        r"examples +100\n(.*\n)*steps of all chains +200\n(.*\n)*levels come from +graph",
    ),
    "lm plan --data train.txt": ("", r"method .*stages +updates +tokens.*\n(.*\n)*icot .*\n(.*\n)*adaptive "),
    "lm train --data train.txt": (LM_SMALL, r"exact match .*\n0 .* runs/mine\n"),
    "lm eval --model runs/mine": ("--examples 8", r"stage +hidden steps +exact match(.*\n)*speedup +\d"),
    "lm ask runs/mine": ("", r"^.+\n$"),
    "train --n 12 --k 4": ("", r"accuracy .*\n0 +1 "),
    "solve --n 128 --k 64": ("", r"recovered +accuracy.*\n0 +yes +1 "),
    "predict --n 1024 --k 512": ("", r"samples per stage for 50 % +233126\n"),
    "certify --n 8 --k 4": ("", r"^verdict +statement(?s:.*)\nholds +theorem-max"),
    "--help": ("", r"^usage: internalize COMMAND(.*\n)*  lm compare "),
    "compare --seeds 0:20": (STUDY_SMALL, r"n  k  optimizer +method +solved seeds.*\n4  2  adamw +none "),
    "paper": (None, ""),  # `make paper` of test_paper.py
}
"""By the beginning of a command: options that make it small, and a pattern of its output."""


def test_every_command_is_here():
    assert len(TYPED) >= len(PRINTED) - 1
    for typed in TYPED:
        assert any(typed.startswith(start) for start in PRINTED), typed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the README's reader has: a data file and a pretrained model with its tokenizer."""
    made = tmp_path_factory.mktemp("readme")
    sums = [(a, b, a + b) for a in range(10) for b in range(10)]
    lines = [f"{a} + {b}||<<{a}+{b}={c}>> <<{c}*1={c}>> #### {c}\n" for a, b, c in sums]
    (made / "train.txt").write_text("".join(lines))
    (untrained(made / "my-model", data=str(made / "train.txt")) / "internalize.json").unlink()
    return made


@pytest.mark.parametrize("start", [start for start, (small, _) in PRINTED.items() if small is not None])
def test_a_command_prints_what_is_said_of_it(start: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The five commands on text build on each other, in this order."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    small, pattern = PRINTED[start]
    assert small is not None
    (typed,) = [typed for typed in dict.fromkeys(TYPED) if typed.startswith(start)]
    changed = {word for word in small.split() if word.startswith("--")}
    kept = re.sub(r"(--\S+) [^-]\S*", lambda given: "" if given[1] in changed else given[0], typed)
    assert re.search(pattern, call(f"{kept} {small}").out), kept
