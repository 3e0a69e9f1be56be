"""Hooks of the site, beyond mkdocs.yml: pages that are generated when it is built, and formulas that need no script.

mkdocs calls the functions that begin with ``on_``.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from tools.api_summary import summary
from tools.cli_reference import reference
from tools.notebook import FOLDER, as_markdown, read

ROOT = Path(__file__).parents[1]
FROM_ROOT = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "log.md": "LOG.md",
}
"""Pages whose source is outside docs/."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add formulas to Markdown, for pages and docstrings."""
    config.markdown_extensions.append(Formulas())  # pyright: ignore[reportArgumentType]  (an object works like a name)
    return config


def on_files(files: Files, *, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages from the root, the command line, and the notebooks."""
    for page, source in FROM_ROOT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_seen_from_docs(text)))
    files.append(File.generated(config, "cli.md", content=reference()))
    for path in FOLDER.glob("*.ipynb"):
        files.append(File.generated(config, f"{FOLDER.name}/{path.stem}.md", content=as_markdown(read(path))))
    return files


def _seen_from_docs(markdown: str) -> str:
    """Return a page of the root with its links changed to those of the site."""
    for page, source in FROM_ROOT.items():
        markdown = markdown.replace(f"]({source}", f"]({page}")
    return markdown.replace("](docs/", "](")


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Put a table of its names at the top of a page of the API reference."""
    if not page.file.src_uri.startswith("api/") or "\n::: " not in markdown:
        return markdown
    before, directive, after = markdown.partition("\n::: ")
    return f"{before}\n{summary(markdown)}\n{directive}{after}"


def on_page_content(html: str, **_: Any) -> str:
    """Mark short code, so that no line break cuts it at a hyphen."""
    return re.sub(r"<code>([^<\s]{1,24})</code>", r'<code class="short">\1</code>', html)


class Formulas(Extension):
    r"""A Markdown extension that turns formulas into MathML, which browsers render without a script.

    Pages write formulas as on GitHub, $`…`$ and blocks of ```math; docstrings write \(…\) and \[…\].
    """

    def extendMarkdown(self, md: Markdown) -> None:
        """Convert blocks of ```math before code is removed (25), others after that and before tables are split."""
        md.preprocessors.register(_Formulas(md, {r"^```math\n(.+?)^```$": _Formulas.block}), "math blocks", 26)
        others = {r"\$`(.+?)`\$|\\\((.+?)\\\)": _Formulas.inline, r"^ *\\\[(.+?)\\\]$": _Formulas.block}
        md.preprocessors.register(_Formulas(md, others), "formulas", 24)


class _Formulas(Preprocessor):
    def __init__(self, md: Markdown, forms: Mapping[str, Callable[["_Formulas", re.Match[str]], str]]) -> None:
        super().__init__(md)
        self._keep = md.htmlStash.store
        self._forms = forms

    def run(self, lines: list[str]) -> list[str]:
        text = "\n".join(lines)
        for form, convert_one in self._forms.items():
            text = re.sub(form, partial(convert_one, self), text, flags=re.DOTALL | re.MULTILINE)
        return text.split("\n")

    def inline(self, match: re.Match[str]) -> str:
        return self._keep(convert(match[1] or match[2]))

    def block(self, match: re.Match[str]) -> str:
        return f"\n{self._keep(convert(match[1], display='block'))}\n"
