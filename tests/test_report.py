"""The page is complete and self-contained, and the same runs give the same bytes."""

import csv
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from internalize.errors import InputError
from internalize.parity.options import TrainOptions
from internalize.report.claims import claims, sizes
from internalize.report.page import ReportInputs, write_report
from tests.tiny import OPTIONS, SEEDS, copies, rewrite_result, tiny_report, tiny_runs

FIGURES = ["figure-1-paradigms", "figure-2a-mask", "figure-2b-loss", "figure-3-attention", "figure-4-tree"]
VOID = {"meta", "link", "img", "br", "hr"}


class Page(HTMLParser):
    """The elements of a page. A closing tag without its opening tag is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory) -> Path:
    return tiny_report(tmp_path_factory.mktemp("report"), runs)


def table(page: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((page.parent / "tables" / f"{name}.csv").read_text().splitlines()))


def test_every_figure_is_there_with_its_words(page):
    html = Page(page.read_text())
    images = html.all("img")
    assert [figure["id"] for figure in html.all("figure")] == FIGURES
    assert len(images) == len(FIGURES)
    for image in images:
        assert len(image["alt"] or "") > 40
        assert (image["src"] or "").startswith("data:image/svg+xml;base64,")
        assert int(image["width"] or 0) > 100  # known before decoding, so nothing shifts
        assert int(image["height"] or 0) > 100
    ids = [attributes["id"] for _, attributes in html.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_headline_claims_and_sizes_are_the_tables(page, runs):
    html = Page(page.read_text())
    text = html.text.replace("\u00a0", " ")
    found = claims(runs, OPTIONS)
    for claim in found:
        assert claim.claim in text
        assert claim.measured in text
    assert text.count("✓ holds") == len(found)
    assert f"{len(SEEDS)} seeds, 0 … 2" in text
    assert text.index("Claimed") < text.index("Measured") < text.index("What the paper claims")
    assert "Every seed was solved." in text


def test_what_fails_is_shown(runs, tmp_path):
    doctored = copies(runs, tmp_path / "runs")
    rewrite_result(doctored[0], accuracy=0.5)
    (doctored[0].path / "env.json").write_text(json.dumps({**doctored[0].env, "cpu": "<b>fast</b> & small"}))
    text = Page(tiny_report(tmp_path / "report", doctored, figures=False).read_text()).text
    assert "✗ does not hold" in text
    assert "Every seed was solved." not in text
    assert "n = 8, k = 4 with rate 0.1 and batch 200 (2 of 3)" in text
    assert "<b>fast</b> & small" in text


def test_other_sizes_are_in_the_table_and_not_in_the_claims(runs, tmp_path):
    others = tiny_runs(tmp_path / "others", TrainOptions(n=8, k=2, steps=40, batch=100, eval_samples=50), (0,))
    page = tiny_report(tmp_path / "report", [*others, *runs], figures=False)
    rows = table(page, "sizes")
    assert [(row["n"], row["k"], row["seeds"]) for row in rows] == [("8", "2", "1"), ("8", "4", "3")]
    found = table(page, "claims")
    assert found[0]["seeds"] == "3"


def test_tables_as_csv(page, runs):
    rows = table(page, "claims")
    assert [(row["claim"], row["holds"]) for row in rows] == [(c.claim, str(c.holds)) for c in claims(runs, OPTIONS)]
    (size,) = table(page, "sizes")
    assert float(size["child_attention_min"]) == sizes(runs, OPTIONS)[0].child_attention_min
    switches = table(page, "spikes")
    assert [(row["seed"], row["stage"]) for row in switches] == [("0", "2"), ("1", "2"), ("2", "2")]


def test_footer_says_what_the_runs_ran_on(page, runs):
    text = Page(page.read_text()).text
    env = runs[0].env
    for key in ("internalize", "python", "torch", "cpu"):
        assert env[key] in text
    assert env["started"][:10] in text
    assert "internalize paper" in text


def test_written_again_it_is_the_same(page, runs, tmp_path):
    again = tiny_report(tmp_path, list(reversed(runs)))
    files = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert len(files) == 1 + 2 * len(FIGURES) + 4
    for file in files:
        assert (again.parent / file).read_bytes() == (page.parent / file).read_bytes()


def test_without_runs_of_the_paper_s_experiment_nothing_is_written(runs, tmp_path):
    with pytest.raises(InputError, match="no finished run has the settings of the paper's experiment"):
        write_report(tmp_path / "report", ReportInputs(runs), TrainOptions())
    assert not (tmp_path / "report").exists()
