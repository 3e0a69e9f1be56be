"""Numbers in the prose of README and docs: a claim is the page's own words with places for the numbers, and what they are."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from tools.results import stored as read_stored

from tests.pages import text

Json = dict[str, Any]
Claim = tuple[str, str, Callable[[], Sequence[Any]]]
"""Page, words, numbers: filled in, the words must be on the page, letter by letter."""
_TO_TWELVE = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
WORDS = [*_TO_TWELVE, "thirteen", "fourteen", "fifteen", "sixteen"]


@cache
def stored(name: str) -> Json:
    return read_stored(name)


def spaced(number: float) -> str:
    """With a space for thousands."""
    return f"{number:,.0f}".replace(",", " ")


def fraction(number: float, digits: int = 2) -> str:
    """Without the 0 before the point."""
    return f"{number:.{digits}f}".replace("0.", ".", 1)


def each(claims: Sequence[Claim], slow: Sequence[Claim] = ()) -> pytest.MarkDecorator:
    """A test for each claim."""
    params = [pytest.param(*claim, id=f"{claim[0]}-{number}") for number, claim in enumerate(claims)]
    late = [
        pytest.param(*claim, id=f"{claim[0]}-slow-{number}", marks=pytest.mark.slow)
        for number, claim in enumerate(slow)
    ]
    return pytest.mark.parametrize(("page", "words", "values"), [*params, *late])


def assert_on_page(page: str, words: str, values: Callable[[], Sequence[Any]]) -> None:
    """The claim, filled in, is in the page's prose."""
    claim = words.format(*values())
    assert claim in text(page), claim


def row_of(name: str, method: str, **values: object) -> dict[str, Any]:
    """A method's row of a stored comparison."""
    wanted = {"method": method, **values}
    (found,) = (row for row in stored(name)["rows"] if all(row[key] == value for key, value in wanted.items()))
    return found


def over_linear(name: str, *keys: str) -> list[float]:
    return [stored(name)["rows"][0]["against_linear"][key] for key in keys]
