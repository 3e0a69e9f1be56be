"""Generated tasks with chains of thought. Example i of a stream of a seed is always the same, in whatever portions it
is drawn.

A spec names a task: `parity:n=16,k=8`, `multiply:digits=4`, `multiply-tree:digits=4`, `hops:hops=4`, `stories:steps=4`,
`words:group=S5,length=16`, `graph:hops=4`, `arithmetic:depth=3`. The seed may be part of the spec:
`parity:n=16,k=8,seed=3`.
"""

from dataclasses import fields
from typing import Any, Final, cast

from internalize.errors import InputError
from internalize.lm.data.tasks.arithmetic import Arithmetic
from internalize.lm.data.tasks.base import Task, TaskStream
from internalize.lm.data.tasks.hops import Hops
from internalize.lm.data.tasks.multiply import Multiply, MultiplyTree
from internalize.lm.data.tasks.parity import Parity
from internalize.lm.data.tasks.reachability import Reachability
from internalize.lm.data.tasks.stories import Stories
from internalize.lm.data.tasks.word_problem import WordProblem
from internalize.random_words import check_seed

_KINDS: Final[dict[str, type[Task]]] = {
    kind.name: kind for kind in (Parity, Multiply, MultiplyTree, Hops, Stories, WordProblem, Reachability, Arithmetic)
}
TASKS: Final[dict[str, dict[str, int | str]]] = {
    name: {field.name: cast("int | str", field.default) for field in fields(kind) if field.name != "seed"}
    for name, kind in _KINDS.items()
}
"""The options of each task and their defaults, by the task's name. Every task also has the option seed."""


def is_task(spec: str) -> bool:
    """Return whether a spec begins with the name of a task."""
    return spec.partition(":")[0] in _KINDS


def usage() -> str:
    """Return the specs of all tasks with their defaults."""
    return ", ".join(map(_usage_of, TASKS))


def _usage_of(name: str) -> str:
    return f"{name}:{','.join(f'{option}={value}' for option, value in TASKS[name].items())}"


def get_task(spec: str, seed: int = 0) -> Task:
    """Return the task of a spec. A seed in the spec takes precedence over `seed`."""
    name, _, listed = spec.partition(":")
    if name not in _KINDS:
        raise InputError(f"{spec!r} is not a task; the tasks are {usage()}")
    allowed = (*TASKS[name], "seed")
    given: dict[str, Any] = {}
    for part in listed.split(",") if listed else ():
        option, _, value = (text.strip() for text in part.partition("="))
        if option not in allowed:
            raise InputError(
                f"{spec!r}: {name} has no option {option!r}, only {', '.join(allowed)} (as in {_usage_of(name)})"
            )
        if option in given:
            raise InputError(f"{spec!r}: {option} is given twice")
        worded = isinstance(TASKS[name].get(option), str)
        if not worded and not (value.isascii() and value.isdigit() and len(value) < 20):
            raise InputError(f"{spec!r}: {option}={value} is not a whole number (as in {_usage_of(name)})")
        given[option] = value if worded else int(value)
    return _KINDS[name](**{"seed": check_seed(seed), **given})


__all__ = [
    "TASKS",
    "Arithmetic",
    "Hops",
    "Multiply",
    "MultiplyTree",
    "Parity",
    "Reachability",
    "Stories",
    "Task",
    "TaskStream",
    "WordProblem",
    "get_task",
    "is_task",
    "usage",
]
