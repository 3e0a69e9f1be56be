"""The pages that users read, README and docs, and the code in them."""

import re
import shlex
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BY_NAME = {page.relative_to(ROOT).as_posix(): page for page in PAGES}
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def python_blocks_and_output(page: Path) -> list[tuple[str, str]]:
    """Return the blocks of Python, each with the block of text that directly follows it as its output, or ""."""
    blocks = [*_FENCED.finditer(page.read_text(encoding="utf-8"))]
    found: list[tuple[str, str]] = []
    for block, following in zip_longest(blocks, blocks[1:]):
        if block[1] == "python":
            shown = following and following[1] == "text" and following.start() - block.end() <= 2
            found.append((block[2], following[2] if shown else ""))
    return found


def command_lines(markdown: str) -> list[str]:
    """Return everything that is typed into a shell: lines of blocks without a language and code within prose."""
    fenced = [code for language, code in _FENCED.findall(markdown) if not language]
    prose = _FENCED.sub("", markdown)
    indented = re.findall(r"^(?: {4}.*\n)+", prose, re.MULTILINE)
    lines = [line.strip() for block in [*fenced, *indented] for line in block.replace("\\\n", " ").splitlines()]
    return [*lines, *(" ".join(code.split()) for code in _INLINE.findall(prose))]


def commands(markdown: str, program: str = "internalize") -> list[tuple[list[str], int]]:
    """Return the words of every line that begins with the program's name, and the status that its comment states."""
    found: list[tuple[list[str], int]] = []
    for line in command_lines(markdown):
        if line.startswith(f"{program} "):
            command, _, comment = line.partition(" #")
            status = re.search(r"status (\d+)", comment)
            found.append((shlex.split(command)[1:], int(status[1]) if status else 0))
    return found
