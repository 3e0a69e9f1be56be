"""Conditions ``name=value``, as `runs --where` and `sweep show --where` take them."""

from internalize.errors import InputError


def condition(text: str) -> tuple[str, str]:
    """Split a condition into its name and its value."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise InputError(f"where={text!r} is not of the form name=value")
    return name, value


def is_value(found: object, text: str) -> bool:
    """Return whether a value is the one in a condition: a number by value or as tables print it, everything else as text."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        return str(found) == text
    try:
        return float(text) == found or f"{found:g}" == text
    except ValueError:
        return False
