"""Conditions ``name=value``, as `runs --where` and `sweep show --where` take them."""

from internalize.errors import InputError


def condition(text: str) -> tuple[str, str]:
    """The name and the value."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise InputError(f"where={text!r} is not of the form name=value")
    return name, value


def is_value(found: object, text: str) -> bool:
    """Whether it is what a condition asks for: a number by its value, or as tables print it; all else as it is written."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        return str(found) == text
    try:
        return float(text) == found or f"{found:g}" == text
    except ValueError:
        return False
