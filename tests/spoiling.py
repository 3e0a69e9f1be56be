"""JSON values of which one part is wrong."""

from collections.abc import Iterator
from typing import Any, Final

WRONG: Final = (None, True, -1, 0, 10**400, 1e308, "", "$\\frac{$", "x" * 100_000, [], [[]], {}, [None])


def spoiled(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield copies of a JSON value in which one part is replaced or left out, each with the place of that part."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(parts):
        without = value.copy()
        del without[key]
        yield f".{key} left out", without
        for wrong, inner in [*((repr(wrong)[:20], wrong) for wrong in WRONG), *spoiled(part)]:
            changed = value.copy()
            changed[key] = inner
            yield f".{key} {wrong}", changed
