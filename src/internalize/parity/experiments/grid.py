"""Grids of options as the command line writes them. They are data: nothing in them is evaluated.

| word              | meaning                                                                          |
| ----------------- | -------------------------------------------------------------------------------- |
| `n=16,32,64`      | these values                                                                     |
| `k=n/2`, `n=4*k`  | another option's value, as it is, times or over a number                         |
| `samples=0.5x,1x` | of `solve`: multiples of the number of samples with which half of all runs are predicted to succeed |
| `K=default,20`    | the default among others                                                         |
| `boundaries=3+5`  | a list                                                                           |

Every combination is a setting. Those that no run can have (k > n, or k no power of two) are left out, with their reasons.
"""

import itertools
import math
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from internalize.errors import InputError
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.storage.sweep_store import Kind

Options = TrainOptions | SolveOptions
KINDS: Final[dict[Kind, type[TrainOptions] | type[SolveOptions]]] = {"train": TrainOptions, "solve": SolveOptions}
MAX_SETTINGS: Final = 1_000_000

_RELATIVE = re.compile(r"([A-Za-z_]+)(?:([*/])(\d+(?:\.\d+)?))?|(\d+(?:\.\d+)?)\*([A-Za-z_]+)")
_TIMES = re.compile(r"(\d+(?:\.\d+)?)x")
_PREDICTED: Final = "x"


@dataclass(frozen=True)
class Multiple:
    """A value that follows from the other options: so many times one of them, or the predicted number of samples."""

    of: str
    times: Fraction
    text: str


@dataclass(frozen=True)
class Grid:
    """Settings that runs can have, each once, in the order of the words; and the combinations that they cannot have."""

    settings: tuple[Options, ...]
    left_out: tuple[str, ...] = ()
    """Why, one a combination."""


def parse_grid(kind: Kind, words: Sequence[str]) -> Grid:
    """The settings that the words ask for; an option that is not named has its default.

    Raises:
        InputError: at a word that is none, or if no combination is possible.
    """
    values: dict[str, list[Any]] = {}
    for word in words:
        name, values_of_name = _parse_word(kind, word)
        if name in values:
            raise InputError(f"{word!r}: {name} is given twice; its values go in one word, {name}=…,…")
        values[name] = values_of_name
    if (size := math.prod(map(len, values.values()))) > MAX_SETTINGS:
        raise InputError(f"the grid has {size} combinations, more than {MAX_SETTINGS}")
    settings: dict[Options, None] = {}
    left_out: list[str] = []
    for combination in itertools.product(*values.values()):
        asked = dict(zip(values, combination, strict=True))
        try:
            settings[_resolved(kind, asked)] = None
        except InputError as error:
            shown = " ".join(
                f"{name}={value.text if isinstance(value, Multiple) else value}" for name, value in asked.items()
            )
            left_out.append(f"{shown}: {error}")
    if not settings:
        raise InputError(f"no combination of the grid is possible; {left_out[0]}")
    return Grid(tuple(settings), tuple(left_out))


@cache
def option_types(kind: Kind) -> Mapping[str, Any]:
    """The options of a kind with their types, without None where that stands for a default.

    Not the seed, which every setting has many of, nor the device: cells are computed on one thread of a CPU.
    """
    hints = get_type_hints(KINDS[kind])
    names = [field.name for field in fields(KINDS[kind]) if field.name not in ("seed", "device")]
    return {name: _without_none(hints[name]) for name in names}


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (arg for arg in get_args(kind) if arg is not type(None))
    return kind


def _parse_word(kind: Kind, word: str) -> tuple[str, list[Any]]:
    name, equals, text = word.partition("=")
    known = option_types(kind)
    if not equals or not text:
        raise InputError(f"{word!r} is not of the form option=value,value")
    if name == "seed":
        raise InputError(f"{word!r}: seeds are given by --seeds, in the same way for every setting")
    if name not in known:
        raise InputError(f"{word!r}: `{kind}` has no option {name!r}; it has {', '.join(known)}")
    found = [_parse_value(kind, name, known, part) for part in text.split(",")]
    if len(set(found)) != len(found):
        raise InputError(f"{word!r} names a value twice")
    return name, found


def _parse_value(kind: Kind, name: str, known: Mapping[str, Any], text: str) -> Any:
    """One value of a word, of its option's type or relative to another option."""
    if text == "default":
        return next(field.default for field in fields(KINDS[kind]) if field.name == name)
    wanted = known[name]
    try:
        if get_origin(wanted) is Literal:
            if text in get_args(wanted):
                return text
            raise InputError(f"{name}={text!r} is not one of {', '.join(get_args(wanted))}")
        if get_origin(wanted) is tuple:
            return tuple(int(part) for part in text.split("+"))
        if wanted in (int, float) and (relative := _parse_relative(kind, name, known, text)):
            return relative
        return wanted(text)
    except InputError:
        raise
    except ValueError:
        raise InputError(f"{name}={text!r} is not of type {getattr(wanted, '__name__', wanted)}") from None


def _parse_relative(kind: Kind, name: str, known: Mapping[str, Any], text: str) -> Multiple | None:
    if (kind, name) == ("solve", "samples") and (times := _TIMES.fullmatch(text)):
        return Multiple(_PREDICTED, Fraction(times[1]), text)
    match = _RELATIVE.fullmatch(text)
    of = match and (match[1] or match[5])
    if not match or of == name or known.get(of or "") not in (int, float):
        return None
    factor = Fraction(match[3] or match[4] or 1)
    if match[2] == "/":
        if not factor:
            raise InputError(f"{name}={text} divides by 0")
        factor = 1 / factor
    return Multiple(str(of), factor, text)


def _resolved(kind: Kind, asked: Mapping[str, Any]) -> Options:
    """The options of one combination; refuses what no run can have, before any is made."""
    values = {name: value for name, value in asked.items() if not isinstance(value, Multiple)}
    relative = {name: value for name, value in asked.items() if isinstance(value, Multiple)}
    defaults: dict[str, Any] = {field.name: field.default for field in fields(KINDS[kind])}
    for name, value in relative.items():
        if value.of == _PREDICTED:
            continue
        base = values.get(value.of, defaults[value.of])
        if value.of in relative or base is None:
            raise InputError(f"{name}={value.text}, and {value.of} is not a number by itself")
        values[name] = _number(option_types(kind)[name], name, value, base)
    if kind == "train":
        return _possible_training(TrainOptions(**values))
    times = next((value for value in relative.values() if value.of == _PREDICTED), None)
    return _possible_solving(SolveOptions(**values), times)


def _number(wanted: type, name: str, value: Multiple, base: float) -> float:
    number = Fraction(base) * value.times
    if wanted is float:
        return float(number)
    if number.denominator != 1:
        raise InputError(f"{name}={value.text} is {float(number):g} at {value.of}={base:g}, not a whole number")
    return int(number)


def _possible_training(options: TrainOptions) -> TrainOptions:
    from internalize.parity.adamw.ensemble import total_steps
    from internalize.parity.model.link import get_link

    if not options.has_network:
        get_link(options.link)
    total_steps(options)
    return options


def _possible_solving(options: SolveOptions, times: Multiple | None) -> SolveOptions:
    from internalize.parity.algorithm1.solve import setting_of
    from internalize.parity.algorithm1.weight_layouts import stages_of

    setting = setting_of(options)
    stages_of(options)
    if times is None:
        return options
    half = replace(setting, grid="K" if setting.grid == "none" else setting.grid).samples_for(0.5)
    if half is None:
        raise InputError(f"samples={times.text}: no number of samples is predicted to succeed half of the time")
    return replace(options, samples=max(1, round(half * times.times)))
