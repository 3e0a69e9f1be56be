"""The site is built without a warning, opens from disk, can be searched there, and fetches nothing."""

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
    """Build the site as `make docs` does: broken links and anchors, missing names and unlisted pages fail."""
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
    """Scripts, styles, pictures and fonts are files of the site. Links that a reader may click do not count."""
    pages = sorted(site.rglob("*.html"))
    assert pages
    for page in pages:
        html = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//[^>]*>", html), page
        assert not re.findall(r"<link\b[^>]*\bhref=\"?(?:https?:)?//[^>]*>", html), page
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_markdown_is_rendered(site: Path):
    """No paragraph shows the source of a table, list, formula or directive, and formulas need no script."""
    assert (site / "api" / "certificates.html").read_text(encoding="utf-8").count("<math") > 20
    for page in site.rglob("*.html"):
        html = re.sub(r"<(pre|code|math|script|style)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert "&lt;span data-n" not in html, page  # a number marker in the description of a picture
        for paragraph in re.findall(r"<(?:p|td|li|dd)>(.*?)</(?:p|td|li|dd)>", html, re.DOTALL):
            source = re.search(r"^\s*(?:[-*|]|\d+\.|:::) |\\[(\[]|\\frac|```|\$", paragraph, re.MULTILINE)
            assert not source, (page, paragraph)


def test_the_reference_opens_with_its_names(site: Path):
    """The first table of a page has every public name, with a link to its description."""
    html = (site / "api" / "core.html").read_text(encoding="utf-8")
    table = html[: html.index("</table>")]
    for name in ("curriculum.Curriculum", "curriculum.doubling", "storage.runs.Run", "storage.runs.list_runs"):
        assert f'href="#internalize.{name}"' in table
        assert f'id="internalize.{name}"' in html
    assert "_prefixes" not in table


def test_the_command_line_reference_is_complete():
    """The reference has every option of every command once, under its heading."""
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
    """In a real browser, without a server, a search finds words and leads to a heading."""
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
