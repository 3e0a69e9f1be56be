"""The page in a real browser: opened from a file, without network and messages, by mouse, keyboard and touch."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from internalize.parity.experiments.jobs import CertifyJob, SolveJob, SuccessJob
from internalize.parity.options import SolveOptions
from internalize.report.figures import law
from internalize.report.page import ReportInputs, write_report
from tests.tiny import OPTIONS


@pytest.fixture(scope="module")
def folder(runs, tmp_path_factory) -> Path:
    """Write a whole page of tiny runs, with the stored results."""
    out = tmp_path_factory.mktemp("page")
    solving = SolveJob(out, Path("solved"), SolveOptions(n=8, k=4))
    counting = SuccessJob(out, Path("success"), SolveOptions(n=8, k=4), (100, 400), 2)
    certifying = CertifyJob(out, Path("certificates"), Path("solved"))
    for job in (solving, counting, certifying):
        job.run(lambda done, text: None)
    (solved,), (success,), (certified,) = solving.runs, counting.runs, certifying.runs
    material = ReportInputs(runs, runs[:1], [solved], success, {"Algorithm 1": certified})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(law, "SIZES", law.SIZES[:5])  # predictions for large n take seconds
        write_report(out / "report", material, paper=OPTIONS)
    return out / "report"


@dataclass
class Visit:
    """An open page with its messages and requests."""

    page: Page
    errors: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()

    def fits(self) -> bool:
        return self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

    def settle(self) -> None:
        """Wait for the next frame, in which changes are drawn."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def drawn(self, explorer: str) -> str:
        """Return everything in the tree and map of an explorer that depends on the moment."""
        self.settle()
        tree = self.page.locator(f"#explorer-{explorer} svg[data-part=tree]").evaluate("tree => tree.innerHTML")
        heat = self.page.locator(f"#explorer-{explorer} [data-part=map]").evaluate(
            "map => JSON.stringify(map.data[0].z)"
        )
        return tree + heat


@pytest.fixture(scope="module")
def visit(chromium: str, folder: Path) -> Iterator[Visit]:
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1600, "height": 1000}, color_scheme="light", has_touch=True)
        opened = Visit(page)
        page.on("console", lambda message: opened.errors.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: opened.errors.append(str(error)))
        page.on("request", lambda request: opened.requests.append(request.url))
        page.goto((folder / "index.html").as_uri())
        page.wait_for_selector("#explorer-solving .js-plotly-plot")
        yield opened
        browser.close()


def test_opens_from_disk_without_messages(visit: Visit, folder: Path):
    assert visit.errors == []
    assert [url for url in visit.requests if not url.startswith(("data:", "blob:"))] == [
        (folder / "index.html").as_uri()
    ]
    assert (folder / "index.html").stat().st_size < 10e6
    assert visit.count("figure img") == visit.page.evaluate(
        "[...document.images].filter(image => image.complete && image.naturalWidth && image.alt.length > 40).length"
    )


def test_nothing_shifts(visit: Visit):
    shifts = visit.page.evaluate(
        """new Promise(done => new PerformanceObserver(
            list => done(list.getEntries().map(entry => entry.value))).observe({type: "layout-shift", buffered: true})
            || setTimeout(() => done([]), 300))"""
    )
    assert sum(shifts) < 0.01


def test_links_are_files_and_places(visit: Visit, folder: Path):
    links = visit.page.evaluate("[...document.querySelectorAll('a')].map(link => link.getAttribute('href'))")
    for link in links:
        assert visit.count(link) == 1 if link.startswith("#") else (folder / link).is_file()
    paper = ("figure-1-paradigms", "figure-2a-mask", "figure-2b-loss", "figure-3-attention", "figure-4-tree")
    stored = ("law", "phase-n-samples", "curricula", "latency", "ablations", "gates", "language-models")
    for name in (*paper, "signal", "success", *stored):
        assert {f"figures/{name}.svg", f"figures/{name}.pdf"} <= set(links)
    assert {"tables/certificates.csv", "tables/curricula-n30-k16.csv", "tables/success.csv"} <= set(links)


@pytest.mark.parametrize("explorer", ["training", "solving"])
def test_scrubber_changes_tree_and_map(visit: Visit, explorer: str):
    scrubber = f"#explorer-{explorer} [data-part=scrubber]"
    now = f"#explorer-{explorer} [data-part=now]"
    visit.page.fill(scrubber, "0")
    first, words = visit.drawn(explorer), visit.text(now)
    visit.page.focus(scrubber)
    visit.page.keyboard.press("ArrowRight")
    assert visit.drawn(explorer) != first
    assert visit.text(now) != words
    visit.page.keyboard.press("End")
    last = visit.drawn(explorer)
    assert last != first
    assert visit.count(f"#explorer-{explorer} .node.hot") == 3  # every node of k = 4 is computed in the end
    visit.page.keyboard.press("Home")
    assert visit.drawn(explorer) == first
    assert visit.count(f"#explorer-{explorer} .node.hot") == 0
    visit.page.click(f"#explorer-{explorer} [data-part=stages] button:nth-child(2)")
    visit.settle()
    assert "stage 2" in visit.text(now)


def test_a_node_shows_its_children(visit: Visit):
    root = "#explorer-training .node[data-node='2']"
    visit.page.click(root)
    visit.settle()
    text = visit.text("#explorer-training [data-part=node-text]")
    assert re.search(r"children\s+node 8\s+and\s+node 9", text)
    assert visit.count("#explorer-training .node.child") == 2
    visit.page.focus(root)
    visit.page.keyboard.press("ArrowDown")  # to its first child, whose children are bits
    visit.settle()
    assert visit.text("#explorer-training [data-part=node-title]").startswith("Node 8")
    assert visit.count("#explorer-training .bit.child") == 2
    visit.page.tap("#explorer-training .node[data-node='1']")
    visit.settle()
    assert visit.text("#explorer-training [data-part=node-title]").startswith("Node 9")


def test_certificates_filter_and_expand(visit: Visit):
    shown = "#certificate-table tbody:not([hidden])"
    everything = visit.count(shown)
    visit.page.fill("form.filter [name=words]", "gating")
    some = visit.count(shown)
    assert 0 < some < everything
    assert visit.text("form.filter output") == f"{some} of {everything}"
    visit.page.click("#certificate-table button.expand[aria-controls=statement-gating]")
    assert "Measured" in visit.text("#statement-gating")
    visit.page.fill("form.filter [name=words]", "")
    visit.page.select_option("form.filter [name=verdict]", "vacuous")
    assert visit.count(shown) == visit.count("#certificate-table tbody[data-verdicts~=vacuous]") < everything
    visit.page.select_option("form.filter [name=verdict]", "")
    assert visit.count(shown) == everything


def test_tables_sort(visit: Visit):
    table = "section[aria-labelledby=part-curricula] table >> nth=0"
    column = "[...table.tBodies[0].rows].map(row => row.cells[4].textContent)"
    samples = lambda: visit.page.locator(table).evaluate(f"table => {column}")  # noqa: E731
    head = visit.page.locator(table).locator("th button", has_text="samples to 99 %")
    head.click()
    numbers = [int(text.replace(" ", "")) for text in samples() if text != "–"]
    assert numbers == sorted(numbers)
    assert samples()[-1] == "–"
    head.click()
    assert [int(text.replace(" ", "")) for text in samples() if text != "–"] == numbers[::-1]


def test_every_width_fits_and_dark_is_dark(visit: Visit):
    background = "getComputedStyle(document.body).backgroundColor"
    light = visit.page.evaluate(background)
    for width in (360, 900, 1600):
        visit.page.set_viewport_size({"width": width, "height": 900})
        visit.page.wait_for_timeout(100)
        assert visit.fits(), width
    visit.page.emulate_media(color_scheme="dark")
    visit.page.wait_for_timeout(100)
    assert visit.page.evaluate(background) != light
    assert visit.fits()
    visit.page.emulate_media(color_scheme="light")
    assert visit.page.evaluate(background) == light


def test_prints(visit: Visit):
    assert visit.page.pdf(format="A4").startswith(b"%PDF")


def test_no_message_and_no_request_since(visit: Visit):
    """Everything above caused no message and no request."""
    assert visit.errors == []
    assert len([url for url in visit.requests if not url.startswith(("data:", "blob:"))]) == 1
