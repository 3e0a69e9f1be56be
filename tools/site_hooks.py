"""What the site needs beyond mkdocs.yml: pages from the files at the root, and formulas that need no script.

mkdocs calls the functions that begin with ``on_``.
"""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
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


def on_files(files: Files, *, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages from the root, their links as seen from docs/."""
    for page, source in FROM_ROOT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=re.sub(r"(?<=\]\()docs/", "", text)))
    return files


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML, which browsers know: a script for them would have to be fetched."""
    return re.sub(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', _formula, content, flags=re.DOTALL)


def _formula(match: re.Match[str]) -> str:
    return convert(html.unescape(match[3]), display="block" if match[2] == "[" else "inline")
