"""What the site needs beyond mkdocs.yml: pages from the files at the root, and formulas that need no script.

mkdocs calls the functions that begin with ``on_``.
"""

import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
FROM_ROOT = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "log.md": "LOG.md",
}
"""Pages that are not in docs/: one source each, wherever they are read."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Teach Markdown formulas, in pages and docstrings alike."""
    config.markdown_extensions.append(Formulas())  # pyright: ignore[reportArgumentType]  (an object will do for a name)
    return config


def on_files(files: Files, *, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages from the root, their links as seen from docs/."""
    for page, source in FROM_ROOT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=re.sub(r"(?<=\]\()docs/", "", text)))
    return files


class Formulas(Extension):
    r"""Formulas, \(…\) and \[…\], as MathML, which browsers know: a script for them would have to be fetched."""

    def extendMarkdown(self, md: Markdown) -> None:
        """After code is out of the way (25), before tables are cut at their bars."""
        md.preprocessors.register(_Formulas(md), "formulas", 24)


class _Formulas(Preprocessor):
    def __init__(self, md: Markdown) -> None:
        super().__init__(md)
        self._keep = md.htmlStash.store

    def run(self, lines: list[str]) -> list[str]:
        text = re.sub(r"\\\((.+?)\\\)", self._inline, "\n".join(lines), flags=re.DOTALL)
        return re.sub(r"^ *\\\[(.+?)\\\]$", self._block, text, flags=re.DOTALL | re.MULTILINE).split("\n")

    def _inline(self, match: re.Match[str]) -> str:
        return self._keep(convert(match[1]))

    def _block(self, match: re.Match[str]) -> str:
        return f"\n{self._keep(convert(match[1], display='block'))}\n"
