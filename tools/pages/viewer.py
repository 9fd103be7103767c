"""docs/pictures/viewer.png: the page of ``nvdla report`` about a sample, in Chromium (extra ``browser-test``)."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

from nvdla.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "pictures" / "viewer.png"
NETWORK, IMAGE = ROOT / "samples" / "color_digits.loadable", ROOT / "samples" / "color_digit7.ppm"
SIZE: ViewportSize = {"width": 1200, "height": 680}
SHOWN = "#view=Graph&op=0/3"
"""Address in the page: the graph with the side panel of a convolution."""
COLORS = 128


def screenshot(page: Path) -> bytes:
    """Return the picture of a page as PNG."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport=SIZE)
        tab.goto(page.as_uri() + SHOWN)
        tab.wait_for_selector("html[data-ready]")
        tab.wait_for_timeout(500)
        picture = tab.screenshot()
        browser.close()
    return picture


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        main(["report", str(NETWORK), "--input", str(IMAGE), "-o", str(report)])
        shown = Image.open(io.BytesIO(screenshot(report))).convert("RGB")
    shown.quantize(COLORS).save(PICTURE, optimize=True)
    print(PICTURE, PICTURE.stat().st_size)
