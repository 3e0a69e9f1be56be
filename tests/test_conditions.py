"""Conditions of the form name=value."""

import pytest

from internalize.errors import InputError
from internalize.storage.conditions import condition, is_value


@pytest.mark.parametrize(
    ("found", "texts", "others"),
    [
        # Numbers match by their value, or as tables print them.
        (20.0, ("20", "20.0", "2e1"), ()),
        (20, ("20", "20.0", "2e1"), ("one",)),
        (12.3456789, ("12.3456789", "12.3457"), ("12.345",)),
        # Other values match as they are written.
        ("log-icot", ("log-icot",), ()),
        (True, ("True",), ("1",)),
        (None, ("None",), ()),
    ],
)
def test_values(found: object, texts: tuple[str, ...], others: tuple[str, ...]):
    assert [text for text in (*texts, *others) if is_value(found, text)] == list(texts)


def test_form():
    assert condition("a=b=c") == ("a", "b=c")
    for text in ("a", "=1", ""):
        with pytest.raises(InputError, match="is not of the form name=value"):
            condition(text)
