"""The site: built without a warning, and it opens from disk without fetching anything."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation_pages import PAGES, ROOT


def test_the_site(tmp_path: Path):
    """One test, for the site is built once. As `make docs` does: a broken link or anchor, a missing name, a page outside of
    the navigation fails.
    """
    pytest.importorskip("mkdocs")
    site = tmp_path / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    every_page_and_figure_is_there(site)
    nothing_is_fetched(site)
    markdown_became_what_it_looks_like(site)


def every_page_and_figure_is_there(site: Path):
    for page in PAGES[1:]:
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file()
    for generated in ("index.html", "log.html", "changelog.html", "contributing.html", "figures/law.svg"):
        assert (site / generated).is_file()
    assert "Chain of thought, absorbed" in (site / "index.html").read_text(encoding="utf-8")


def nothing_is_fetched(site: Path):
    """Scripts, styles, pictures, fonts: all are files of the site. (A link that one may click is no fetch.)"""
    pages = sorted(site.rglob("*.html"))
    assert pages
    for page in pages:
        html = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//[^>]*>", html), page
        assert not re.findall(r"<link\b[^>]*\bhref=\"?(?:https?:)?//[^>]*>", html), page
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def markdown_became_what_it_looks_like(site: Path):
    """No table, list, formula or directive is left in a paragraph as it was typed; formulas need no script."""
    assert (site / "api" / "certificates.html").read_text(encoding="utf-8").count("<math") > 20
    for page in site.rglob("*.html"):
        html = re.sub(r"<(pre|code|math|script|style)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert "&lt;span data-n" not in html, page  # a number's marker in the description of a picture
        for paragraph in re.findall(r"<p>(.*?)</p>", html, re.DOTALL):
            assert not re.search(r"^\s*(?:[-*|]|\d+\.|:::) |\\[(\[]|\\frac|```", paragraph, re.MULTILINE), (
                page,
                paragraph,
            )
