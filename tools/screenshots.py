"""The README's pictures of the page: `python tools/screenshots.py REPORT` writes docs/figures/page-*.png.

usage: screenshots.py REPORT

REPORT is the folder of a page that `internalize paper` wrote. Needs chromium, by its name or in $CHROMIUM.
"""

import io
import os
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
LARGEST = 300_000
"""Most bytes of a picture."""
COLORS = 128
"""Size of a picture's palette. The page has few colors, and the file becomes a third as large."""


def picture(png: bytes, name: str) -> None:
    """Write a screenshot with a palette, small enough for a README."""
    image = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    path = FIGURES / f"{name}.png"
    image.save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.relative_to(FIGURES.parents[1])}: {image.width} × {image.height}, {size} bytes")
    if size > LARGEST:
        sys.exit(f"{path} has {size} bytes, more than {LARGEST}")


def at(page: Page, explorer: str, moment: int, node: int) -> bytes:
    """Return a screenshot of an explorer at a moment, with a node chosen."""
    root = page.locator(f"#explorer-{explorer}")
    root.scroll_into_view_if_needed()
    root.locator("[data-part=scrubber]").fill(str(moment))
    root.locator(f".node[data-node='{node}']").dispatch_event("click")
    root.locator("[data-part=scrubber]").blur()
    page.wait_for_timeout(500)
    return root.screenshot()


def main(report: Path) -> None:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        sys.exit("no chromium on the path; install it, or set CHROMIUM to a compatible browser")
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        page = browser.new_page(viewport={"width": 1240, "height": 900}, color_scheme="light")
        page.goto((report / "index.html").resolve().as_uri())
        page.wait_for_selector("#explorer-solving .js-plotly-plot")
        picture(
            at(page, "training", 44, 8), "page-training"
        )  # 50 steps into stage 3: all nodes but the root are computed
        picture(at(page, "solving", 1, 0), "page-solving")  # stage 1, the step before rounding
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "index.html").is_file():
        sys.exit("usage: screenshots.py REPORT, the folder of a page that `internalize paper` wrote")
    main(Path(sys.argv[1]))
