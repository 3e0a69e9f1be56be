"""Grids of options in the notation of the command line. They are data; no word is evaluated as code.

| word              | meaning                                                                                  |
| ----------------- | ---------------------------------------------------------------------------------------- |
| `n=16,32,64`      | these values                                                                             |
| `k=n/2`, `n=4*k`  | another option's value, unchanged, times or over a number                                |
| `samples=0.5x,1x` | for `solve`: multiples of the predicted samples with which half of the runs succeed      |
| `K=default,20`    | the default and another value                                                            |
| `boundaries=3+5`  | a list                                                                                   |

Every combination is a setting. Impossible ones (k > n, or k not a power of two) are left out, with their reasons.
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
    """A value relative to another option, or to the predicted number of samples."""

    of: str
    times: Fraction
    text: str


@dataclass(frozen=True)
class Grid:
    """The possible settings of a grid, each once, in the order of the words; and the impossible combinations."""

    settings: tuple[Options, ...]
    left_out: tuple[str, ...] = ()
    """One line per impossible combination, with the reason."""


def parse_grid(kind: Kind, words: Sequence[str]) -> Grid:
    """Return the settings of the words; an option that is not named has its default.

    Raises:
        InputError: if a word is not valid, or if no combination is possible.
    """
    values: dict[str, list[Any]] = {}
    for word in words:
        name, values_of_name = _parse_word(kind, word)
        if name in values:
            raise InputError(f"{word!r}: {name} is given twice; write its values in one word, {name}=…,…")
        values[name] = values_of_name
    if (size := math.prod(map(len, values.values()))) > MAX_SETTINGS:
        raise InputError(f"the grid has {size} combinations, more than {MAX_SETTINGS}")
    settings: dict[Options, None] = {}
    left_out: list[str] = []
    for combination in itertools.product(*values.values()):
        given = dict(zip(values, combination, strict=True))
        try:
            settings[_resolved(kind, given)] = None
        except InputError as error:
            shown = " ".join(
                f"{name}={value.text if isinstance(value, Multiple) else value}" for name, value in given.items()
            )
            left_out.append(f"{shown}: {error}")
    if not settings:
        raise InputError(f"no combination of the grid is possible; {left_out[0]}")
    return Grid(tuple(settings), tuple(left_out))


@cache
def option_types(kind: Kind) -> Mapping[str, Any]:
    """Return the options of a kind with their types, without None if that stands for a default.

    The seed is not among them, because every setting has several; nor the device, because cells run on one CPU thread.
    """
    hints = get_type_hints(KINDS[kind])
    names = [field.name for field in fields(KINDS[kind]) if field.name not in ("seed", "device")]
    return {name: without_none(hints[name]) for name in names}


def without_none(kind: Any) -> Any:
    """Return a type without None."""
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (arg for arg in get_args(kind) if arg is not type(None))
    return kind


def _parse_word(kind: Kind, word: str) -> tuple[str, list[Any]]:
    name, equals, text = word.partition("=")
    known = option_types(kind)
    if not equals or not text:
        raise InputError(f"{word!r} does not have the form option=value,value")
    if name == "seed":
        raise InputError(f"{word!r}: choose the seeds with --seeds; all settings have the same")
    if name not in known:
        raise InputError(f"{word!r}: `{kind}` has no option {name!r}; it has {', '.join(known)}")
    found = [_parse_value(kind, name, known, part) for part in text.split(",")]
    if len(set(found)) != len(found):
        raise InputError(f"{word!r} names a value twice")
    return name, found


def _parse_value(kind: Kind, name: str, known: Mapping[str, Any], text: str) -> Any:
    """Parse one value of a word, of its option's type or relative to another option."""
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
        if wanted is bool:
            if text.lower() in ("true", "false"):
                return text.lower() == "true"
            raise InputError(f"{name}={text!r} is not one of true, false")
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


def _resolved(kind: Kind, given: Mapping[str, Any]) -> Options:
    """Return the options of one combination; raise if no run can have them."""
    values = {name: value for name, value in given.items() if not isinstance(value, Multiple)}
    relative = {name: value for name, value in given.items() if isinstance(value, Multiple)}
    defaults: dict[str, Any] = {field.name: field.default for field in fields(KINDS[kind])}
    for name, value in relative.items():
        if value.of == _PREDICTED:
            continue
        base = values.get(value.of, defaults[value.of])
        if value.of in relative or base is None:
            raise InputError(f"{name}={value.text}, but {value.of} is not given as a number")
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
        get_link(options.link, options.arity, options.modulus)
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
        raise InputError(f"samples={times.text}: no number of samples is predicted to succeed in half of the runs")
    return replace(options, samples=max(1, round(half * times.times)))
