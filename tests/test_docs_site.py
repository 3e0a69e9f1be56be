"""The site is built without a warning; it opens from disk, is searched there, and fetches nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright
from tools.cli_reference import reference

from tests.documentation_pages import PAGES, ROOT
from tests.faults.line_strategies import commands


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build as `make docs` does: a broken link or anchor, a missing name, a page outside of the navigation fails."""
    pytest.importorskip("mkdocs")
    out = tmp_path_factory.mktemp("docs") / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return out


def test_every_page_and_figure_is_there(site: Path):
    for page in PAGES[1:]:
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file()
    generated = ("index", "log", "changelog", "contributing", "cli", "notebooks/first-steps")
    for name in (*(f"{page}.html" for page in generated), "figures/law.svg", "notebooks/first-steps.ipynb"):
        assert (site / name).is_file()
    assert "Train a transformer to reason step by step" in (site / "index.html").read_text(encoding="utf-8")


def test_nothing_is_fetched(site: Path):
    """Scripts, styles, pictures, fonts: all are files of the site. (A link that one may click is no fetch.)"""
    pages = sorted(site.rglob("*.html"))
    assert pages
    for page in pages:
        html = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//[^>]*>", html), page
        assert not re.findall(r"<link\b[^>]*\bhref=\"?(?:https?:)?//[^>]*>", html), page
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_markdown_became_what_it_looks_like(site: Path):
    """No table, list, formula or directive is left in a paragraph as it was typed; formulas need no script."""
    assert (site / "api" / "certificates.html").read_text(encoding="utf-8").count("<math") > 20
    for page in site.rglob("*.html"):
        html = re.sub(r"<(pre|code|math|script|style)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert "&lt;span data-n" not in html, page  # a number's marker in the description of a picture
        for paragraph in re.findall(r"<(?:p|td|li|dd)>(.*?)</(?:p|td|li|dd)>", html, re.DOTALL):
            assert not re.search(r"^\s*(?:[-*|]|\d+\.|:::) |\\[(\[]|\\frac|```|\$", paragraph, re.MULTILINE), (
                page,
                paragraph,
            )


def test_the_reference_opens_with_its_names(site: Path):
    """Every public name of a page is in its first table, with a link to where it is explained."""
    html = (site / "api" / "core.html").read_text(encoding="utf-8")
    table = html[: html.index("</table>")]
    for name in ("curriculum.Curriculum", "curriculum.doubling", "storage.runs.Run", "storage.runs.list_runs"):
        assert f'href="#internalize.{name}"' in table
        assert f'id="internalize.{name}"' in html
    assert "_prefixes" not in table


def test_the_command_line_is_all_there():
    """Of every subcommand every option, under its heading, and no name twice."""
    sections = re.split(r"^##+ internalize (.*) \{.*\}$", reference(), flags=re.MULTILINE)
    described = dict(zip(sections[1::2], sections[2::2], strict=True))
    for name, options in commands().items():
        section = described[" ".join(name)]
        for option in options:
            usages = re.findall(r"^`(.*)`\n:   \S", section, re.MULTILINE)
            named = [usage for usage in usages if option.word in re.split(r"[ ,]+", usage)]
            assert len(named) == (not option.positional), (name, option)
            assert not option.positional or not usages[0].startswith("-"), (name, option)


def test_search_from_disk(site: Path, chromium: str):
    """In a real browser, without a server: words are found, and following a result leads to a heading."""
    asked: list[str] = []
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "api" / "index.html").as_uri())
        page.locator("input.md-search__input").click()
        page.keyboard.type("patience")
        results = page.locator(".md-search-result__link")
        results.first.wait_for()
        assert any("cli.html" in (link.get_attribute("href") or "") for link in results.all())
        browser.close()
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob", "about"}
