"""The site is built without a warning and opens from disk. Its pictures and notebooks are current."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright
from tools.cli_reference import reference
from tools.curriculum_figures import FIGURES, attempts, drawn, pictures, staged
from tools.notebook import FOLDER, as_markdown, executed, printed, read

from internalize.lm.options import LM_METHODS
from internalize.lm.stages.removal import IGNORED
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


# Pictures of curricula

DRAWN = drawn()


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_pictures_are_current(path: Path):
    """If one is not, run `python -m tools.curriculum_figures`."""
    assert path.read_text(encoding="utf-8") == DRAWN[path]


def test_no_picture_is_left_over():
    assert sorted(FIGURES.glob("curriculum-*.svg")) == sorted(DRAWN)


def test_every_method_has_a_picture():
    text = " ".join(picture.title for picture in pictures())
    assert all(method in text for method in LM_METHODS)


def test_lines_are_those_of_the_curriculum():
    hidden = [sum(token == 91 for token in line.row.tokens) for line in staged("log-icot", (1, 1, 1, 2, 2, 3))]
    assert hidden == [0, 3, 5, 6]
    tried = [(sum(token == 91 for token in line.row.tokens), line.good) for line in attempts()]
    assert tried == [(0, True), (6, False), (4, False), (2, True), (4, True), (6, True)]
    assert all(label != IGNORED for line in staged("icot-steps") for label in line.row.labels[1:])


# Notebooks

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_reduced(path: Path):
    """With little training every cell runs and has outputs of the stored kinds."""
    stored = read(path)
    made = executed(stored, reduced=True)
    for cell, own in zip(stored["cells"], made["cells"], strict=True):
        kinds, stored_kinds = ([out["output_type"] for out in found.get("outputs", ())] for found in (own, cell))
        assert kinds == stored_kinds, own["source"]
    assert printed(made) != printed(stored)  # training was reduced


@pytest.mark.slow
def test_in_full():
    """Both models learn the task without their chain, and the probe finds the steps, as the stored outputs say."""
    stored, made = read(FOLDER / "first-steps.ipynb"), executed(read(FOLDER / "first-steps.ipynb"))
    for text in (printed(stored), printed(made)):
        assert "accuracy without a chain: 1.0" in text
        (right,) = re.findall(r"^exact match without a chain, on new questions: (.*)$", text, re.MULTILINE)
        assert float(right) >= 0.97
        layers = [int(layer) for layer in re.findall(r" is read from layer (\d)$", text, re.MULTILINE)]
        assert len(layers) == 7
        assert max(layers[:4]) <= max(layers[4:6]) <= layers[6]
    for mine, theirs in zip(stored["cells"], made["cells"], strict=True):
        assert mine["source"] == theirs["source"]


def test_page():
    """The page of the site has text, code, printed output, and pictures with descriptions."""
    text = as_markdown(read(FOLDER / "first-steps.ipynb"))
    assert text.startswith("# First steps\n")
    assert text.count("```python") == text.count("```") // 2 - text.count("```text")
    assert len(re.findall(r'<img alt="\w[^"]+" src="data:image/png;base64,\w', text)) == 2
