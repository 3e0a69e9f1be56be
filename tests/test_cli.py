"""The command line: exit statuses, one line per mistake, one JSON object, and a help that does not import torch."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from internalize.commands import cli
from internalize.commands.console import default_out
from internalize.commands.help import option_lines, options_of
from internalize.errors import InputError
from internalize.parity.adamw import train as train_module
from internalize.storage.runs import Run
from tests.asking import ask, call, refused

TINY = "train --n 4 --k 2 --steps 2 --eval-samples 50"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("train --k 12 --arity 4", "k=12 must be 1 more than a multiple of 3 and at least 4: a node has 4 children"),
        ("train --k 64", "n=30 is less than k=64"),
        ("train --steps -1", "steps=-1 must be at least 0"),
        ("train --steps many", "--steps"),
        ("train --curriculum linear", "'linear'"),
        ("train --lr nan", "lr=nan"),
        ("train --link sine", "link 'sine'"),
        ("train --seed -1", "seed=-1"),
        ("train --seeds 5:2", "seeds='5:2'"),
        ("train --device quantum", "device='quantum' cannot be used"),
        ("train --device meta", "device='meta' is not cpu, cuda or mps"),
        ("train --threads 99999999999", "threads=99999999999"),
        ("train --batch 1000000000000", "batch=1000000000000"),
        ("train --n 4000000 --eval-samples 1000000", "GiB, and this machine has"),
        ("train --seeds 0:10000000000", "more than 100000"),
        ("train --seed 5 --seeds 0:2", "not both"),
        ("train --resume", "--resume needs --out"),
        ("train --chunk 3", "belong to icot"),
        ("train --stepz 3", "--stepz"),
        ("trian", "'trian' is not a command; did you mean train?"),
        ("lm tran", "did you mean lm train?"),
        ("sweep shov", "see internalize sweep --help"),
        ("lm train --metod icot", "did you mean --method?; see internalize lm train --help"),
        ("runs nowhere", "nowhere is not a folder"),
        ("runs . --where n", "where='n' is not of the form"),
        ("solve --samples 0", "samples=0 is outside 1"),
        ("solve --K nan", "K=nan"),
        ("solve --grid 2", "--grid"),
        ("solve --grid 1 --K 2.5", "K=2.5 is not an integer"),
        ("solve --oracle random", "oracle=random and oracle_error=0.0"),
        ("solve --preset paper --samples 5", "the paper's preset sets both"),
        ("solve --threads 0", "threads=0"),
        ("predict --samples -1", "samples=-1"),
        ("predict --epsilon 1e-6", "epsilon=1e-06 is outside"),
        ("solve --preset paper --epsilon 1000", "epsilon=1000"),
        ("solve --preset paper --epsilon 16", "epsilon=16: n^(2+ε) = 3.87e+26 samples are more than"),
        ("train --n 1000000 --k 2 --gates ones", "this machine has"),
        ("solve --samples 1 --n 1000000 --k 2 --gates ones", "this machine has"),
        ("solve --n 1000000 --k 524288 --samples 1 --K 20", "in level form need about"),
        ("predict --n 10000000000 --k 2", "n=10000000000, k=2 need about"),
        ("solve --K 1e308", "K=1e+308 is outside"),
        ("solve --samples 99999999999999999999999", "samples=99999999999999999999999"),
        ("predict --oracle random --oracle-error 1e200", "oracle_error=1e+200"),
        ("predict --link sine", "link 'sine'"),
        ("predict --grid none", "grid=none is not 1 or K"),
        ("solve --curriculum cot --gates ones", "mask=level, gates=ones: --curriculum cot has its own"),
        ("solve --chunk 0", "chunk=0 is outside 1"),
        ("predict --oracle-error 0.1", "contradict each other"),
        ("predict --hidden-loss", "hidden_loss needs --curriculum none"),
        ("predict --skip 4", "skip=(4,) names level 4"),
        ("predict --oracle random --oracle-error -1", "oracle_error=-1.0 is outside"),
        ("solve --preset paper --K 3", "the paper's preset sets both from epsilon"),
        ("solve --curriculum cot --mask causal", "mask=causal, gates=paper: --curriculum cot has its own"),
        ("certify --only theorem-2", "there is no statement 'theorem-2'; the statements are barrier"),
        ("certify --run nowhere", "nowhere is not a run folder"),
        ("compare --sizes 30", "sizes='30' is not a pair of numbers n,k"),
        ("compare --sizes 8,3", "k=3 is not a power of two"),
        ("compare --seeds 0,0", "none twice"),
        ("compare --lr 0.1 0.1", "lr=(0.1, 0.1) must name at least one value, and no value twice"),
        ("compare --lr nan --out x", "lr=nan"),
        ("compare --jobs 0 --out x", "jobs=0 is outside"),
        ("compare --repeats 0", "repeats=0 must be at least 1"),
        ("compare --of everything", "everything"),
        ("compare --of gates --sizes 8,4 16,8 --out x", "--study gates takes one size"),
        ("compare --of gates --optimizers algorithm-1 --out x", "--study gates has variants under adamw only"),
        ("compare --optimizers", "optimizers=() must name at least one"),
        ("compare --eval-every 0 --out x", "eval_every=0"),
        ("compare --of latency --variants gates=learned", "variants=gates=learned: --study latency has none"),
    ],
)
def test_mistakes_are_one_line_and_status_2(argv: str, words: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(argv, words)
    assert not list(tmp_path.iterdir())  # no file was made


def test_a_device_without_the_precision_asked_for_is_refused(tmp_path, monkeypatch):
    """Apple's GPU has no float64. No such GPU is here, so the test raises torch's error itself."""

    def empty(*_: int, device: str, dtype: torch.dtype) -> None:
        if dtype == torch.float64:
            raise TypeError(f"Cannot convert a {device} Tensor to float64 dtype\nand more")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "empty", empty)
    for command in ("train", "solve"):
        words = "device='mps' cannot be used: Cannot convert a mps Tensor to float64 dtype"
        refused(f"{command} --device mps --dtype float64", words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "other", "reason"),
    [(TINY, "--seed 1", "holds another run"), ("solve --n 8 --k 4", "--K 20", "its K is None, not 20.0")],
)
def test_out_of_another_run(command: str, other: str, reason: str, tmp_path: Path):
    command = f"{command} --out {tmp_path / 'run'}"
    call(command)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    refused(command, "add --resume")
    refused(f"{command} --resume {other}", reason)
    refused(f"{command} --seeds 0:2", "is a run folder itself")
    assert ask(f"{command} --resume") == Run(tmp_path / "run").result
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_damaged_checkpoints_are_refused(tmp_path: Path, monkeypatch):
    """Every damage to a checkpoint is refused in one line, and the files stay as they are."""

    class AtOnce(train_module.Interruptible):
        def __enter__(self):
            self.requested = True
            return self

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "Interruptible", AtOnce)
        said = call(f"{TINY} --out {tmp_path}", cli.INTERRUPTED)
    assert "interrupted; progress is saved; --resume continues" in said.err
    (tensors,) = (tmp_path / "checkpoint").glob("*.safetensors")
    place, whole = tensors.with_suffix(".json"), tensors.read_bytes()
    good = json.loads(place.read_text())
    metrics = (tmp_path / "metrics.jsonl").read_bytes()
    resumed = f"{TINY} --out {tmp_path} --resume"
    damages = {"stage": (99, "x"), "stage_step": (-5,), "seconds": (None,), "metrics_bytes": ("x",), "step": (7,)}
    for change in ({key: value} for key, values in damages.items() for value in values):
        place.write_text(json.dumps({**good, **change}))
        refused(resumed, str(place))
    place.write_text(json.dumps(good))
    loaded, small = load(whole), torch.zeros(3, 3)
    without_step = {name: value for name, value in loaded.items() if name != "W1.step"}
    changes = ({"W1.exp_avg": small}, {"W1": small}, {"W1": loaded["W1"].double()}, {"W9": small})
    for other in (without_step, *({**loaded, **change} for change in changes)):
        tensors.write_bytes(save(other))
        refused(resumed, "lacks the tensors")
    tensors.write_bytes(whole[:50])
    refused(resumed, str(tensors))
    assert (tmp_path / "metrics.jsonl").read_bytes() == metrics  # nothing was cut off before every check passed


def test_json_is_one_object(tmp_path: Path):
    assert ask(f"{TINY} --out {tmp_path / 'one'}") == Run(tmp_path / "one").result
    two = ask(f"{TINY} --out {tmp_path / 'two'} --seeds 0:2")["runs"]
    assert [(run["seed"], Path(run["out"]).name) for run in two] == [(0, "seed-0"), (1, "seed-1")]
    listed = ask(f"runs {tmp_path}")["runs"]
    assert [run["seed"] for run in listed] == [0, 0, 1]
    for where in ("seed=1 curriculum=log-icot", "finished=True lr=0.1 seed=1"):
        assert len(call(f"runs {tmp_path} --where {where}").out.splitlines()) == 2
    (asked,), (made,) = ({run[name] for run in listed} for name in ("steps", "steps_made"))
    assert made >= asked == Run(tmp_path / "one").config["steps"]  # per level, and of all levels
    for wrong in ("--where root=1", "--columns colour"):
        refused(f"runs {tmp_path} {wrong}", "no run has")


def test_a_path_is_not_markup(tmp_path: Path):
    out = tmp_path / "x[red]y[" / "b]"
    assert str(out) in call(f"{TINY} --out {out}").out


INTERNALIZE = [sys.executable, "-m", "internalize"]


def test_a_plain_terminal():
    """Help, answers and mistakes are printed on a terminal that has ASCII only."""
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for argv, status in ((["train", "--help"], 0), (["predict"], 0), (["train", "--curriculum", "x"], 2)):
        done = subprocess.run([*INTERNALIZE, *argv], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        assert len(done.stderr.splitlines()) == (argv[-1] != "--help")  # a hint or a refusal
        assert "---" not in done.stderr


def test_default_folder_is_below_runs(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = call(TINY)
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"keeping the run in {Path('runs') / folder.name}" in said.err
    assert Run(folder).finished


EVERY = {name: command for group in cli.COMMANDS.values() for name, command in group.items()}
HELPS = ["", "lm", "sweep", *EVERY]


@pytest.mark.parametrize("name", HELPS)
@pytest.mark.parametrize("columns", [80, 100])
def test_every_help_fits_its_terminal(name: str, columns: int, monkeypatch: pytest.MonkeyPatch):
    """No line is too long, and no default is empty or shown as Python writes it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    text = cli.parse([*name.split(), "--help"]).text
    assert max(map(len, text.splitlines())) <= columns
    assert not re.search(r"default: (''|None|False|\))|\{None\}|options options", text)


@pytest.mark.parametrize("columns", [80, 100])
def test_option_texts_fill_their_lines(columns: int, monkeypatch: pytest.MonkeyPatch):
    """Option texts are rewrapped: no line break of a docstring is left in them."""
    monkeypatch.setenv("COLUMNS", str(columns))
    for option in (option for command in EVERY.values() for option in options_of(command)):
        *_, text = option_lines(option)
        for line, following in pairwise(text.splitlines()):
            assert len(line) + 1 + len(following.split(maxsplit=1)[0]) > columns, text


@pytest.mark.parametrize("family", ["", "lm"])
def test_the_overview_is_short(family: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = cli.parse([*family.split(), "--help"]).text
    assert len(text.splitlines()) <= 31
    assert cli.parse(family.split()).text == text  # the same without --help


def test_every_option_is_described_and_has_a_title():
    for name, command in EVERY.items():
        for option in options_of(command):
            assert option.text.rstrip().endswith((".", ")")), (name, option)
            assert option.title[0].isupper(), (name, option)


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)  # so that its import fails
    for name in list(sys.modules):
        if name.startswith(("transformers.", "internalize.lm.training")):
            monkeypatch.delitem(sys.modules, name)
    refused("lm train", "needs transformers: pip install 'internalize[lm]'")
    assert not list(tmp_path.iterdir())


def test_help_does_not_import_torch():
    for argv in (["--help"], ["train", "--help"], ["compare", "--help"]):
        heavy = "{'torch', 'numpy', 'polars', 'matplotlib'} & set(sys.modules)"
        code = f"import sys; from internalize.commands import cli; cli.main({argv!r}); assert not {heavy}, 'heavy'"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "usage: internalize" in done.stdout


def test_a_bug_is_a_traceback_and_status_70():
    code = "from internalize.commands import cli; cli.parse = lambda argv: 1 / 0; cli.run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert "ZeroDivisionError" in done.stderr
    assert done.stderr.splitlines()[-1] == "internalize: this is a bug; please report it with the lines above"


def test_default_folders_are_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two runs of one process in the same second get a folder each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "now")
    folders = [default_out("solve")]
    for _ in range(2):
        folders[-1].mkdir(parents=True)
        folders.append(default_out("solve"))
    assert len(set(folders)) == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("compare --of gates", "compare --study gates"),
        ("compare --of=gates", "compare --study gates"),
        ("sweep solve n=8,16 --on ray", "sweep solve n=8,16 --backend ray"),
        ("sweep show x --by n k", "sweep show x --group-by n k"),
        ("paper --processes 3", "paper --jobs 3"),
        ("solve --update all", "solve --gradients all"),
        ("lm plan --by steps", "lm plan --updates-from steps"),
        ("solve --K 9", "solve --amplitude 9"),
        ("predict --K=9", "predict --amplitude 9"),
    ],
)
def test_former_names_of_options_still_work(old: str, new: str):
    assert cli.parse(old.split()) == cli.parse(new.split()) != cli.parse(new.split("--")[0].split())
    former = old.split("--")[1].replace("=", " ").split()[0]
    assert f"--{former} " not in cli.parse([*new.split("--")[0].split(), "--help"]).text


COMMANDS = {
    "train": "json out seed seeds resume device threads",
    "solve": "json out seed seeds resume device threads",
    "predict": "json out seed",
    "certify": "json out seed threads",
    "compare": "json out seeds resume jobs",
    "sweep solve": "json out seeds resume jobs",
    "sweep train": "json out seeds resume jobs",
    "sweep show STORE": "json",
    "bench": "json out seed resume threads",
    "paper": "json out seed jobs",
    "runs .": "json",
    "lm data": "json out seed",
    "lm plan": "json out seed",
    "lm train": "json out seed seeds resume device threads",
    "lm eval --model M": "json out seed device threads",
    "lm ask MODEL": "json out device threads",
    "lm probe RUN": "json out seed device threads",
    "lm patch RUN": "json out seed device threads",
    "lm certify RUN": "json out seed device threads",
    "lm compare": "json out seeds resume jobs device threads",
}
COMMON = {"out": "x", "seed": "3", "seeds": "0:2", "device": "cuda", "threads": "999", "jobs": "999"}


@pytest.mark.parametrize("words", COMMANDS)
def test_common_options(words: str):
    """Each common option is accepted where it is promised, and nowhere else."""
    command = cli.parse(words.split())
    for name in ("json", "resume", *COMMON):
        argv = [*words.split(), f"--{name}", *([COMMON[name]] if name in COMMON else [])]
        if name in COMMANDS[words].split():
            assert cli.parse(argv) != command
        else:
            with pytest.raises(InputError, match=f"--{name}"):
                cli.parse(argv)


def test_an_option_is_described_once():
    """Commands and options inherit what they share and repeat no description."""
    house = Path(cli.__file__).parents[1]
    options = (house / "parity/options.py", house / "parity/experiments/curricula.py", house / "lm/options.py")
    texts = [path.read_text() for path in (*house.glob("commands/*.py"), *options)]
    descriptions = re.findall(r'^    \w+: [^\n]*\n    """(.*?)"""', "\n".join(texts), re.MULTILINE | re.DOTALL)
    assert len(descriptions) > 60
    assert [text for text, count in Counter(descriptions).items() if count > 1] == []
