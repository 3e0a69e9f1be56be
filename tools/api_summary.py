"""The table at the top of a page of the API reference: its public classes and functions with their first sentences."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
_DIRECTIVE = re.compile(r"^::: ([\w.]+)\n(?:    options:\n      members: \[(.*)\]\n)?", re.MULTILINE)
Named = ast.ClassDef | ast.FunctionDef


def summary(markdown: str) -> str:
    """Return the table of the modules that a page names, with a link in each line."""
    lines = ["| name | what it is |", "| --- | --- |"]
    for module, members in _DIRECTIVE.findall(markdown):
        path = SOURCE / module.replace(".", "/")
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        tree = ast.parse(source.read_text(encoding="utf-8"))
        listed = members.split(", ") if members else None
        lines.append(f"| [**{module.removeprefix('internalize.')}**][{module}] | {_first_sentence(tree)} |")
        lines += (
            f"| [`{own.name}`][{module}.{own.name}] | {_first_sentence(own)} |"
            for own in _public(tree)
            if listed is None or own.name in listed
        )
    return "\n".join(lines) + "\n"


def _public(tree: ast.Module) -> Iterator[Named]:
    return (own for own in tree.body if isinstance(own, Named) and not own.name.startswith("_"))


def _first_sentence(of: ast.Module | Named) -> str:
    paragraph = " ".join((ast.get_docstring(of) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:]) (?=[A-Z`\d])", paragraph)[0].rstrip(".:")
    return sentence.replace("|", r"\|")
