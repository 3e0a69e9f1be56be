"""Help texts: one line per command in the overview, and for each command its options under titles.

tyro parses the command line. Its own help keeps the line breaks of docstrings and shows Python's types. Therefore the
help is made here, from the same dataclasses: their fields, the docstrings of these and the defaults.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from internalize.commands.console import styled, terminal_columns

_WIDEST: Final = 100
_TEXT_COLUMN: Final = 26
_FIRST, _LAST = "Arguments", "Run"
"""The titles that come first and last."""


@dataclass(frozen=True)
class Option:
    """An option of a command as its help shows it."""

    title: str
    """The group in which the option is listed."""
    flags: tuple[str, ...]
    """Names such as ``--out``, or the name of a positional argument."""
    value: str
    """The kind of value: PATH, INT, {pad,delete}; empty for a switch."""
    text: str
    default: str


def overview(groups: Mapping[str, Mapping[str, type]], description: str, notes: Iterable[str]) -> str:
    """Return the help of `internalize` or `internalize lm`: a line per command or a few."""
    names = [name for commands in groups.values() for name in commands]
    column = max(map(len, names)) + 4
    lines = [f"{_bold('usage:')} internalize COMMAND [options]", "", _wrapped(description), ""]
    for title, commands in groups.items():
        lines.append(_bold(f"{title}:"))
        for name, command in commands.items():
            summary = " ".join(paragraphs(command)[0].split())
            lines.append(_wrapped(f"  {name:{column - 2}}{summary}", column))
    return "\n".join([*lines, "", *map(_wrapped, notes)])


def command_help(name: str, command: type) -> str:
    """Return the help of one command: its description, examples, and every option under its title."""
    options = options_of(command)
    positional = "".join(f" {option.value}" for option in options if option.title == _FIRST)
    lines = [f"{_bold('usage:')} internalize {name}{positional} [options]", ""]
    for paragraph in paragraphs(command):
        if paragraph.startswith("- "):
            lines += [_wrapped(f"- {' '.join(item.split())}", 2) for item in paragraph.removeprefix("- ").split("\n- ")]
        else:
            examples = paragraph.startswith("Examples:")
            lines += map(_shell_line, paragraph.splitlines()) if examples else [_wrapped(" ".join(paragraph.split()))]
        lines.append("")
    for title in titles(options):
        lines.append(_bold(f"{title}:"))
        for option in options:
            if option.title == title:
                lines += option_lines(option)
        lines.append("")
    return "\n".join(lines).rstrip()


def _bold(text: str) -> str:
    return styled(text, "1")


def options_of(command: type) -> list[Option]:
    """Return the options of a command, including those of nested option classes."""
    hints = get_type_hints(command, include_extras=True)
    found: list[Option] = [_HELP]
    for each in fields(command):
        hint = hints[each.name]
        inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if is_dataclass(inner):
            found += [option for option in options_of(inner) if option is not _HELP]  # pyright: ignore[reportArgumentType]
        elif each.init and not any(extra is tyro.conf.Suppress for extra in get_args(hint)[1:]):
            found.append(_option(command, each, hint))
    return found


_HELP: Final = Option(_LAST, ("-h", "--help"), "", "Show this text and exit.", "")


def titles(options: Iterable[Option]) -> list[str]:
    """Return the titles of options: arguments first, those of every command last, the others in between."""
    found = dict.fromkeys(option.title for option in options)
    return sorted(found, key=lambda title: {_FIRST: 0, _LAST: 2}.get(title, 1))


def _option(command: type, each: "Field[Any]", hint: object) -> Option:
    """Return the option for a field of a command."""
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    kind: Any = get_args(hint)[0] if extras else hint
    named = next((extra.name for extra in extras if getattr(extra, "name", None)), each.name)
    declaring = [base for base in command.__mro__ if each.name in inspect.get_annotations(base)]
    title = str(getattr(declaring[-1], "TITLE", "Options"))
    texts = (_field_docs(base).get(each.name, "") for base in declaring)
    text = next(filter(None, (*(getattr(extra, "help", "") for extra in extras), *texts)), "")
    default: object = None if each.default is MISSING else each.default
    flag = f"--{named.replace('_', '-')}"
    if any(extra is tyro.conf.Positional for extra in extras):
        value = next((extra.metavar for extra in extras if getattr(extra, "metavar", None)), named.upper())
        return Option(_FIRST, (value,), value, text, _shown(default))
    if kind is bool:
        return Option(title, (f"--no-{flag[2:]}" if default else flag,), "", text, "")
    return Option(title, (flag,), _value_name(kind), text, _shown(default))


def _value_name(kind: Any) -> str:
    """Return the name of an option's values by their type."""
    names = {int: "INT", float: "NUMBER", str: "TEXT", Path: "PATH"}
    origin, inner = get_origin(kind), [each for each in get_args(kind) if each not in (NoneType, Ellipsis)]
    if origin is Literal:
        return "{" + ",".join(map(str, inner)) + "}"
    if origin in (Union, UnionType):
        return "|".join(map(_value_name, inner))
    if origin is Annotated:
        return _value_name(inner[0])
    if origin is tuple:
        return f"{_value_name(inner[0])} …"
    return names[kind]


def _shown(default: object) -> str:
    """Return a default as a user would type it; an empty text for None."""
    if isinstance(default, tuple):
        return " ".join(map(str, default))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)


def option_lines(option: Option) -> list[str]:
    """Return an option's lines: its name and value, next to or above its text."""
    head = f"  {', '.join(option.flags)}" + (f" {option.value}" if option.value and option.title != _FIRST else "")
    text = f"{option.text} (default: {option.default})" if option.default else option.text
    if len(head) <= _TEXT_COLUMN - 2:
        return [_wrapped(f"{head:{_TEXT_COLUMN}}{text}", _TEXT_COLUMN)]
    return [_wrapped(head, 4), _wrapped(" " * _TEXT_COLUMN + text, _TEXT_COLUMN)]


def _wrapped(text: str, indent: int = 0) -> str:
    """Wrap a text to the terminal, at most 100 columns; later lines are indented."""
    return textwrap.fill(text, _width(), subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False)


def _width() -> int:
    return max(40, min(_WIDEST, terminal_columns()))


def _shell_line(line: str) -> str:
    """Return a line of the examples, wrapped to the terminal with backslashes; an option stays with its first value."""
    joined = re.sub(r"(?<= )(--[\w-]+) (?=[^-])", "\\1\u00a0", line)
    parts = textwrap.wrap(joined, _width() - 2, subsequent_indent="      ", break_on_hyphens=False)
    return " \\\n".join(parts).replace("\u00a0", " ")


def paragraphs(command: type) -> list[str]:
    """Return the paragraphs of a class's docstring: text, a list whose items begin with "- ", or examples."""
    return inspect.cleandoc(command.__doc__ or "").split("\n\n")


@cache
def _field_docs(cls: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class, each as one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, doc in zip(body.body, body.body[1:], strict=False):
        match field, doc:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
            case _:
                pass
    return docs
