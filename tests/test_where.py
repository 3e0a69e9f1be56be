"""Conditions name=value."""

import pytest

from internalize.errors import InputError
from internalize.storage.conditions import condition, is_value


def test_numbers_by_their_value_or_as_tables_print_them():
    for text in ("20", "20.0", "2e1"):
        assert is_value(20.0, text)
        assert is_value(20, text)
    assert is_value(12.3456789, "12.3456789")
    assert is_value(12.3456789, "12.3457")
    assert not is_value(12.3456789, "12.345")
    assert not is_value(1, "one")


def test_other_values_as_they_are_written():
    assert is_value("log-icot", "log-icot")
    assert is_value(True, "True")
    assert not is_value(True, "1")
    assert is_value(None, "None")


def test_form():
    assert condition("a=b=c") == ("a", "b=c")
    for text in ("a", "=1", ""):
        with pytest.raises(InputError, match="is not of the form name=value"):
            condition(text)
