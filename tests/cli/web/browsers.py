"""Chromium for tests of the dashboard: pages that must stay silent on the console, and a walk over all pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize, expect

from tests.cli.web.dashboards import SECONDS, TOKEN, Serving

CHROMIUM: Final = shutil.which("chromium")
NEEDS_CHROMIUM: Final = pytest.mark.skipif(CHROMIUM is None, reason="no chromium in $PATH")
ARGUMENTS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE: Final[ViewportSize] = {"width": 1280, "height": 800}

expect.set_options(timeout=SECONDS * 1000)


@contextmanager
def new_page(browser: Browser, served: Serving, *, silent: bool = True) -> Iterator[Page]:
    """A page of a new browser without cookies; at the end it must have logged nothing, if it is `silent`."""
    messages: list[str] = []

    def log(message: ConsoleMessage) -> None:
        messages.append(message.text)

    context = browser.new_context(viewport=WIDE, reduced_motion="reduce", base_url=served.server.url)
    context.set_default_timeout(SECONDS * 1000)
    page = context.new_page()
    page.on("console", log)
    page.on("pageerror", lambda error: messages.append(str(error)))
    yield page
    assert messages == [] or not silent
    context.close()


@contextmanager
def opened(browser: Browser, served: Serving, *, silent: bool = True) -> Iterator[Page]:
    """As `new_page`, with the session's cookie."""
    with new_page(browser, served, silent=silent) as page:
        page.goto(f"/?token={TOKEN}")
        yield page


def visited(page: Page) -> Iterator[str]:
    """Open all pages that links lead to, from the first page on, each form of an action once; yields their paths."""
    found, left = {"/"}, ["/"]
    while left:
        path = left.pop(0)
        page.goto(path)
        for link in page.locator("a[href^='/']").all():
            target = (link.get_attribute("href") or "").partition("#")[0]
            if target.partition("?")[0] not in found:
                found.add(target.partition("?")[0])
                left.append(target)
        yield path
