"""JSON values with one part that is wrong."""

from collections.abc import Iterator
from typing import Any, Final

WRONG: Final = (None, True, -1, 0, 10**400, 1e308, "", "$\\frac{$", "x" * 100_000, [], [[]], {}, [None])


def spoiled(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a JSON value with one part replaced by something else, or without it, and where that was."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(parts):
        without = (
            {name: own for name, own in parts if name != key}
            if isinstance(value, dict)
            else value[:key] + value[key + 1 :]
        )
        yield f".{key} left out", without
        for wrong, inner in [*((repr(wrong)[:20], wrong) for wrong in WRONG), *spoiled(part)]:
            changed = value.copy()
            changed[key] = inner
            yield f".{key} {wrong}", changed
