"""Chromium, driven by playwright: pages are opened, keys pressed, and errors and requests collected."""

import shutil
import time

import pytest


def chromium():
    """Where the browser is, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def started():
    """(playwright, browser); skips the test where one of them is not installed."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install nvdla[browser-test]"
    )
    if chromium() is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    driver = api.sync_playwright().start()
    return driver, driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])


def open_view(page, name):
    """Click on the tab of a view."""
    page.click(f"#tab-{name.lower()}")
    assert page.is_visible(f"#{name.lower()}")


def set_slider(page, name, value):
    """Move a slider of the view Cycles."""
    page.locator(f"#{name}-0").evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')) }", value
    )


class Window:
    """One page. ``errors``: exceptions, console errors and warnings; ``requests``: what it loaded or wanted to."""

    def __init__(self, browser, width=1400, height=900, scheme="light", phone=False):
        self._context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, has_touch=phone, is_mobile=phone
        )
        self.page = self._context.new_page()
        self.errors, self.requests = [], []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _said(self, message):
        if message.type in ("error", "warning", "assert"):
            self.errors.append(message.text)

    def open(self, address):
        """A file's path or an address; returns when the page is ready."""
        self.page.goto(address if isinstance(address, str) else address.resolve().as_uri())
        self.page.wait_for_selector("html[data-ready]")
        return self

    def value(self, expression):
        """What an expression in the page gives. (The debugger is not bound by the page's policy.)"""
        return self.page.evaluate(expression)

    def wait(self, condition, seconds=30.0):
        """Wait until a condition of the page is true.

        Playwright's own wait evaluates text inside the page, which the page's policy forbids."""
        end = time.monotonic() + seconds
        while not self.value(condition):
            assert time.monotonic() < end, condition
            time.sleep(0.01)

    def foreign(self, own=("file:", "data:", "about:", "blob:")):
        """Requests to anywhere but the page itself."""
        return [url for url in self.requests if not url.startswith(own)]

    def close(self):
        self._context.close()
