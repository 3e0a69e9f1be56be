"""Numbers in the prose of README and docs, which `python -m tools.findings` writes together with the tables.

A number on a page is `<span data-n="NAME">0.91</span>`. Spans are invisible in rendered Markdown, and lines may be
wrapped inside them; an HTML comment at the start of a line would end the paragraph. The name says where the number
comes from:

    lm-scattered/adaptive/exact_match:.3f       the stored result lm-scattered, its row of a method, a key, a format
    compare/curricula,adamw,icot,n=30/stages    a row with these words among its values and this n
    lm-parity-30/icot/each/seed=2/explicit      a row of a row
    lm.options/LmTrainOptions/patience          a constant of the package
    siblings/30:point.2f                        a function of numbers_parity.py or numbers_language.py, with its arguments

Formats are Python's and a few more, see `written`.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tools import numbers_language, numbers_parity
from tools.results import row_of, stored

MARKED = re.compile(r'(<span\s+data-n="([^"]+)">)(.*?)(</span>)', re.DOTALL)
_TO_TWELVE = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
WORDS: dict[float, str] = dict(enumerate([*_TO_TWELVE, "thirteen", "fourteen", "fifteen", "sixteen"]))
WORDS |= {0.1: "tenth", 100: "hundred"}
DERIVED: dict[str, Callable[..., Any]] = {
    name.replace("_", "-"): own
    for module in (numbers_language, numbers_parity)
    for name, own in vars(module).items()
    if callable(own) and getattr(own, "__module__", "") == module.__name__ and not name.startswith("_")
}
"""The functions of numbers_language.py and numbers_parity.py by their names on the pages."""


def names(page: str) -> list[str]:
    """Return the names of a page's numbers."""
    return [match[2] for match in MARKED.finditer(page)]


def with_numbers(page: str) -> str:
    """Return the page with the current text of each of its numbers."""
    return MARKED.sub(lambda match: f"{match[1]}{_kept(match[3], number(match[2]))}{match[4]}", page)


def _kept(old: str, new: str) -> str:
    """Return the old text if only its line breaks differ, otherwise the new one."""
    return old if old.split() == new.split() else new


@cache
def number(name: str) -> str:
    """Return the text of a number."""
    path, _, form = name.partition(":")
    head, *rest = path.split("/")
    try:
        found = _start(head)
        for segment in rest:
            found = _down(found, segment)
        return written(found() if callable(found) else found, form)
    except (AttributeError, ImportError, LookupError, OSError, TypeError, ValueError) as error:
        raise LookupError(f"{name}: {error!r}") from error


def _start(head: str) -> Any:
    if head in DERIVED:
        return DERIVED[head]
    return importlib.import_module(f"internalize.{head}") if "." in head else stored(head)


def _down(found: Any, segment: str) -> Any:
    """Go one step along a path: into rows, a list, a dictionary, a function or an object."""
    if isinstance(found, dict):
        own = {str(key): value for key, value in found.items()}
        return own[segment] if segment in own or "rows" not in own else _down(own["rows"], segment)
    if isinstance(found, Sequence):
        return found[int(segment)] if re.fullmatch(r"-?\d+", segment) else row_of(found, *segment.split(","))
    if callable(found) and not isinstance(found, type):
        return _down_or_value(found, segment)
    return getattr(found, segment)


def _down_or_value(function: Callable[..., Any], segment: str) -> Any:
    """Call a function with its arguments; one without takes none, and the segment is a part of its result."""
    if inspect.signature(function).parameters:
        return function(*(int(word) if word.isdigit() else word for word in segment.split(",")))
    return _down(function(), segment)


def written(value: Any, form: str) -> str:
    """Return a value in a format.

    Besides Python's formats there are `word`, `spaced` (thousands), `point.2f` (.91), `.0%` (without the sign) and
    `ratio` (with its interval). Two values are joined by "to", or by a dash if the format ends with one.
    """
    if isinstance(value, list | tuple):
        return (" – " if form.endswith("–") else " to ").join(written(each, form.removesuffix("–")) for each in value)
    if form == "ratio":
        return f"{value['ratio']:.2f} ({value['ratio_low']:.2f} – {value['ratio_high']:.2f})"
    if form == "word":
        return WORDS[value]
    if form == "spaced":
        return f"{value:,.0f}".replace(",", " ")
    if form.startswith("point"):
        return f"{value:{form.removeprefix('point')}}".replace("0.", ".", 1)
    return f"{value:{form}}".rstrip("%").replace("e-0", "e-")
