"""The command-line reference of the site: a Markdown page made from the parser, so that it says what `--help` says."""

import re
import warnings
from collections.abc import Iterator
from typing import Any

import tyro

from internalize.commands.cli import Command

INTRODUCTION = """\
# Command line

Every subcommand with its options, generated from the parser. `internalize COMMAND --help` prints the same text.
[The contract](contract.md) has the exit codes and the JSON keys.
"""
_DEFAULT = re.compile(r"\s*\(default: (.*)\)\s*$", re.DOTALL)
_NOTHING = {"", "None", "''", "False"}
"""Defaults that say nothing which the help does not say."""


def reference() -> str:
    """Return the page."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # `get_parser` has no successor yet
        make: Any = tyro.extras.get_parser  # pyright: ignore[reportDeprecated]
        parser: Any = make(Command, prog="internalize")
    return "\n".join([INTRODUCTION, *_commands(parser, "")])


def _commands(parser: Any, name: str) -> Iterator[str]:
    if name:
        yield f"{'##' if name.count(' ') == 0 else '###'} internalize {name} {{#{name.replace(' ', '-')}}}\n"
        yield _described(parser.description)
        for group in parser._action_groups:
            yield from _group(group)
    for action in parser._actions:
        if isinstance(action.choices, dict):
            below: dict[str, Any] = action.choices
            for word, own in below.items():
                yield from _commands(own, f"{name} {word}".strip())


def _described(text: str) -> str:
    """The description; lines that are typed into a shell become a block of code, others paragraphs."""
    text, *typed = re.split(r"^ *\$ ", text, flags=re.MULTILINE)
    paragraphs = [_escaped(" ".join(paragraph.split())) for paragraph in re.split(r"\n\s*\n", text.strip())]
    block = ["```", *(line.strip() for line in typed), "```"] if typed else []
    return "\n\n".join([*paragraphs, "\n".join(block)]) + "\n"


def _group(group: Any) -> Iterator[str]:
    actions = [action for action in group._group_actions if not isinstance(action.choices, dict) and _shown(action)]
    if actions:
        yield f"**{group.title[0].upper()}{group.title[1:]}**\n"
        for action in actions:
            yield f"`{_usage(action)}`\n:   {_help(action)}\n"


def _shown(action: Any) -> bool:
    return "--help" not in action.option_strings and action.help != "==SUPPRESS=="


def _usage(action: Any) -> str:
    """The option as it is typed, with what follows it."""
    value = (action.metavar or "").replace("{None}|", "")
    return " ".join(filter(None, [", ".join(action.option_strings), value]))


def _help(action: Any) -> str:
    text = (action.help or "").replace("%%", "%")
    default = _DEFAULT.search(text)
    text = _escaped(" ".join(_DEFAULT.sub("", text).split()))
    return text if default is None or default[1].strip() in _NOTHING else f"{text} Default: `{default[1]}`."


def _escaped(text: str) -> str:
    """Plain text as Markdown: options and what is in backticks are code, and nothing else means anything."""
    parts = re.split(r"(`[^`]*`|(?<![\w-])--[a-zA-Z][\w-]*)", text)
    return "".join(
        re.sub(r"([\\<>*_|$\[\]])", r"\\\1", part) if number % 2 == 0 else f"`{part.strip('`')}`"
        for number, part in enumerate(parts)
    )
