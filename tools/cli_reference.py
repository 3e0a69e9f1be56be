"""The command-line reference of the site: a Markdown page made from the texts of `--help`."""

import re
from collections.abc import Iterator

from internalize.commands.cli import COMMANDS
from internalize.commands.help import Option, options_of, paragraphs, titles

INTRODUCTION = """\
# Command line

Every command with its options, as `internalize COMMAND --help` prints them. [The contract](contract.md) has the exit
codes and the JSON keys.
"""


def reference() -> str:
    """Return the page."""
    parts = [INTRODUCTION, "| command | what it does |\n| --- | --- |"]
    every = {name: command for commands in COMMANDS.values() for name, command in commands.items()}
    parts += (f"| [`{name}`](#{_anchor(name)}) | {described(paragraphs(own)[0])} |" for name, own in every.items())
    parts.append("")
    for title, commands in COMMANDS.items():
        parts.append(f"## {title}\n")
        for name, command in commands.items():
            parts.append(f"### internalize {name} {{#{_anchor(name)}}}\n")
            parts += (f"{described(paragraph)}\n" for paragraph in paragraphs(command))
            options = [option for option in options_of(command) if "--help" not in option.flags]
            for group in titles(options):
                parts.append(f"**{group}**\n")
                parts += (f"{entry(option)}\n" for option in options if option.title == group)
    return "\n".join(parts)


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def described(paragraph: str) -> str:
    """Return a paragraph of a command's help: examples as code, a list, or text."""
    if paragraph.startswith("Examples:"):
        lines = (line.strip() for line in paragraph.splitlines()[1:])
        return "\n".join(["```", *lines, "```"])
    if paragraph.startswith("- "):
        return "\n".join(f"- {escaped(item)}" for item in re.split(r"^- ", paragraph, flags=re.MULTILINE)[1:])
    return escaped(paragraph)


def entry(option: Option) -> str:
    """Return an option as an entry of a definition list."""
    value = "" if option.value in option.flags else option.value
    text = escaped(option.text) + (f" Default: `{option.default}`." if option.default else "")
    return f"`{' '.join(filter(None, [', '.join(option.flags), value]))}`\n:   {text}"


def escaped(text: str) -> str:
    """Return plain text as Markdown. Options and text in backticks become code; all other syntax is escaped."""
    return "".join(_escaped(" ".join(text.split())))


def _escaped(text: str) -> Iterator[str]:
    for number, part in enumerate(re.split(r"(`[^`]*`|(?<![\w-])--[a-zA-Z][\w-]*)", text)):
        yield f"`{part.strip('`')}`" if number % 2 else re.sub(r"([\\<>*_|$\[\]])", r"\\\1", part)
