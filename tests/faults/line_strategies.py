"""Words for command lines: the options of every subcommand, read off their dataclasses, and values for them of every sort.

What a line may cost is bounded by `TINY`; commands that would take minutes whatever one asks (`DOOMED`) are always asked for
something impossible. A new option is asked about as soon as it exists; a new command needs a line in `TINY`.
"""

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from internalize.commands import cli

Name = tuple[str, ...]

_TREE: Final = "n=4|5|8 k=2|4"
_LM: Final = (
    "data=parity:n=6,k=4|data.txt layers=1|2 width=16 heads=2 batch=4 steps=1|3 stage_steps=1|2 "
    "eval_examples=3 test_examples=4"
)
_SIZES: Final[Mapping[Name, str]] = {
    ("train",): f"{_TREE} steps=0|2 batch=1|3 eval_every=1|5 eval_samples=1|4",
    ("solve",): f"{_TREE} samples=1|50 test_samples=1|9 threads=1",
    ("predict",): _TREE,
    ("certify",): "n=4|5 k=2|4 samples=1|50 only=gating|frozen-gradient",
    ("compare",): "sizes=4,2|5,4 seeds=0|0:2 steps=1 batch=2 eval_samples=3 repeats=1|2 jobs=1 lr=0.1",
    ("sweep", "solve"): "grid=n=4,5+k=2,4+samples=5+test_samples=3 seeds=0:2|1 jobs=1",
    ("sweep", "train"): "grid=n=4+k=2,4+steps=1+batch=2+eval_samples=2 seeds=0:2|1 jobs=1",
    ("sweep", "show"): "store=../made/sweep",
    ("bench",): "",
    ("paper",): "",
    ("runs",): "root=../made",
    ("lm", "data"): "data=parity:n=6,k=4|multiply:digits=2|hops:hops=2 count=1|3",
    ("lm", "plan"): _LM,
    ("lm", "train"): _LM,
    ("lm", "eval"): "model=../made/lm|../made/lm/model examples=1|4 data=data.txt",
    ("lm", "ask"): "model=../made/lm|../made/lm/model questions=0|0+1 longest=1|4",
    ("lm", "probe"): "run=../made/lm examples=64 data=data.txt",
    ("lm", "patch"): "run=../made/lm examples=64 data=data.txt",
    ("lm", "certify"): "run=../made/lm examples=64 only=answer|child-mass",
    ("lm", "compare"): f"{_LM} methods=log-icot budget=steps seeds=0 jobs=1",
}
"""Option=value|other value; + joins the words of one value."""
TINY: Final[Mapping[Name, Mapping[str, Sequence[list[str]]]]] = {
    name: {
        option: [value.split("+") for value in values.split("|")]
        for option, _, values in (word.partition("=") for word in sizes.split())
    }
    for name, sizes in _SIZES.items()
}
"""What a command is always given, one of the values of each option, so that it ends within a second."""
DOOMED: Final[Mapping[Name, Sequence[str]]] = {("bench",): ("--repeats", "0"), ("paper",): ("--jobs", "0")}
ANY_WORDS: Final = frozenset((("lm", "ask"),))
"""Commands for which any word is right, as a question."""
RARE: Final[Mapping[Name, float]] = {
    ("lm", "train"): 0.1,
    ("lm", "probe"): 0.1,
    ("lm", "patch"): 0.1,
    ("lm", "certify"): 0.1,
    ("compare",): 0.1,
    ("lm", "compare"): 0.05,
}
"""How often a line of these, which take longest, is taken in the place of another."""

# Large numbers are asked of everything but of what is simply how long to work: a run of a day is not a hang.
PATIENT: Final = frozenset(("steps", "count", "repeats", "samples", "examples", "consolidate", "patience", "test_samples",
         "eval_samples", "test_examples", "eval_examples", "stage_steps", "first_steps", "warmup"))  # fmt: skip
WORDS: Final = ("", " ", "x", "None", "null", "true", "ü", "日本", "💥", "a b", "-", "--", "%s", "$HOME", "[x]", "a\nb", "'",
         '"')  # fmt: skip
SMALL_NUMBERS: Final = ("-1", "0", "1", "2", "3", "007", "-0", "0.5", "1e-3", "1e-320", "-1e308", "nan", "inf", "-inf",
         "1_0")  # fmt: skip
LARGE_NUMBERS: Final = ("65536", "2147483648", "9223372036854775808", "1" + "0" * 30, "9" * 5000, "1e400", "1e308")
PATHS: Final = ("", ".", "..", "new", "deep/er/new", "data.txt", "data.txt/below", "fifo", "link", "../made/train", "ü 日本",
         "a\nb", "x" * 300, "/proc/nowhere/new", "../made/lm/model")  # fmt: skip
SPECIFIC: Final = {
    "seeds": ("0", "0:2", "3,1", "2:0", "0:", ":", "1,1", "-1:1", "0:99999999999999", "a:b", "0:2:1"),
    "data": ("parity", "parity:", "parity:n=3", "parity:n=6,k=4,k=2", "parity:n=999999999999", "hops:hops=0", "data.txt", "bad.txt",
             "empty.txt", "data.jsonl", ".", "multiply:digits=99", "parity:seed=-1", "parity:n=6,k=4,noise=1"),
    "grid": ("n=4", "n=", "=4", "n", "n=4,4", "seed=1", "k=n/0", "k=n/2", "samples=2x", "samples=-1x", "lr=nan", "n=1" + "0" * 30,
             "curriculum=none,icot", "link=mlp", "boundaries=1+2", "n=x"),
    "where": ("n=4", "n", "=", "kind=train", "nothing=1", "seed=0"),
    "group_by": ("n", "seed", "status", "nothing", "reason"),
    "columns": ("path", "n", "nothing"),
    "variants": ("mask=causal", "gates=ones", "nothing", "gates=learned mask=causal"),
    "sizes": ("4,2", "4", "4,3", "2,4", "a,b", "1" + "0" * 30 + ",2", "4,2,1"),
    "link": ("cosine", "quartic", "mlp", "mlp-fitted", "sine"),
    "device": ("cpu", "cuda", "cuda:7", "meta", "cpu:0", "mps"),
    "model": ("../made/lm", "../made/lm/model", "../made/lm/model/config.json", "nowhere", "data.txt", "../made/train"),
    "slots": ("8", "p90", "0.5", "longest", "p101"),
    "slot_token": ("1", "two words"),
    "backend": ("processes",),  # a cluster takes half a minute to begin
    "address": ("ray://nowhere:1",),
    "only": ("gating", "nothing", "solve_over_matmul", "answer"),
    "stage": ("all", "last", "1", "0", "9", "-1", "1.5"),
}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """One option of a command."""

    name: str
    kind: Any
    positional: bool

    @property
    def word(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def many(self) -> bool:
        return get_origin(self.kind) is tuple

    @property
    def one(self) -> Any:
        """The type of one value."""
        return get_args(self.kind)[0] if self.many else self.kind

    def given(self, values: Sequence[str]) -> list[str]:
        """These values on a command line."""
        return list(values) if self.positional else [self.word, *values]


@cache
def commands() -> dict[Name, tuple[Option, ...]]:
    """Every subcommand with its options, as the command line's dataclasses have them."""
    known = {name: kind for group in cli.COMMANDS.values() for name, kind in group.items()}
    found = {tuple(name.split()): tuple(_options(kind)) for name, kind in known.items()}
    assert found.keys() == TINY.keys(), "TINY has a line for each command"
    return found


def _options(of: type) -> Iterator[Option]:
    hints = get_type_hints(of, include_extras=True)
    for field in fields(of):
        marks: list[Any] = []
        kind: Any = hints[field.name]
        while get_origin(kind) is Annotated:
            marks += kind.__metadata__
            kind = get_args(kind)[0]
        if get_origin(kind) in (Union, types.UnionType):
            kind = next(arg for arg in get_args(kind) if arg is not type(None))
        shown = [str(mark) for mark in marks]
        if is_dataclass(kind):
            yield from _options(kind)  # pyright: ignore[reportArgumentType]
        elif not any("Suppress" in mark for mark in shown):
            positional = any("Positional" in mark for mark in shown)
            name = next((mark.name for mark in marks if getattr(mark, "name", None)), field.name)
            yield Option(name, kind, positional)


def typical(option: Option) -> st.SearchStrategy[list[str]]:
    """Words for an option that may be right."""
    if option.one is bool:
        return st.just([option.word])
    usual: dict[Any, Sequence[str]] = {Path: ("new", "other"), int: ("1", "2", "3"), float: ("0.25", "1", "0.01")}
    if get_origin(option.one) is Literal:
        usual[option.one] = [str(choice) for choice in get_args(option.one)]
    return _given(option, st.sampled_from(SPECIFIC.get(option.name) or usual.get(option.one, ("x",))))


def absurd(option: Option) -> st.SearchStrategy[list[str]]:
    """Words for an option that are most probably wrong."""
    if option.one is Path:
        return _given(option, st.sampled_from(PATHS))
    large = () if option.name in PATIENT else LARGE_NUMBERS
    small = ("-1", "0", "nan") if option.name == "jobs" else SMALL_NUMBERS  # processes take seconds to begin
    words = [word for word in WORDS if word != "None" or option.name != "jobs"]
    known = st.sampled_from((*words, *small, *large, *SPECIFIC.get(option.name, ())))
    characters = st.characters(exclude_categories=["Cs", "Nd"], exclude_characters="\0")
    return _given(option, known | st.text(characters, max_size=6))


def _given(option: Option, one: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    values = st.lists(one, max_size=3) if option.many else one.map(lambda value: [value])
    return values.map(option.given)


@dataclass(frozen=True)
class Line:
    """A command line; what is wrong with it, if that is known, for the message to name; and whether nothing is."""

    argv: list[str]
    wrong: tuple[str, ...] = ()
    right: bool = False


@st.composite
def lines(draw: st.DrawFn) -> Line:
    """Any line: of tiny sizes with some options, and perhaps one thing wrong; or words without a plan."""
    known = commands()
    path = draw(st.sampled_from(sorted(known)))
    if path in RARE and draw(st.floats(0, 1)) > RARE[path]:
        path = draw(st.sampled_from(sorted(known.keys() - RARE.keys())))
    options = {option.name: option for option in known[path]}
    if draw(st.integers(0, 9)) == 0:
        words = [word for option in options.values() for word in (option.word, *draw(absurd(option)))]
        words = draw(st.lists(st.sampled_from([*words, *path]), max_size=8))
        tiny = [word for name, values in TINY[path].items() for word in options[name].given(values[0])]
        return Line([*path, *words, *tiny, *DOOMED.get(path, ())])
    words: list[str] = []
    for name, values in TINY[path].items():
        words += options[name].given(draw(st.sampled_from(values)))
    if "out" in options and draw(st.integers(0, 3)):
        words += ["--out", "out"]
    words += ["--json"] * draw(st.booleans())
    tiny = len(words)
    free = sorted(options.keys() - TINY[path].keys() - {"out", "json"})
    for name in draw(st.lists(st.sampled_from(free), max_size=3, unique=True)) if free and draw(st.booleans()) else ():
        words += draw(typical(options[name]))
    plain = len(words) == tiny and path not in DOOMED and path not in ANY_WORDS
    option = options[draw(st.sampled_from(sorted(options)))]
    wrong: list[str] = []
    match draw(st.integers(0, 6)):
        case 0:
            wrong = [draw(st.sampled_from(("--nothing", "--jsn", "-x", "nothing")))]
        case 1 if not option.positional and option.kind is not bool and not option.many:
            wrong = [option.word]
        case 2 | 3 | 4:
            wrong = draw(absurd(option))
        case _:
            pass
    words += [*wrong, *DOOMED.get(path, ())]
    return Line([*path, *words], (option.name, *wrong) if wrong and plain else (), plain and not wrong)
