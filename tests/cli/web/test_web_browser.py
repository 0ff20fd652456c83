"""The dashboard in a real browser: each page is drawn, silent on the console, accessible and current.

With $CQ_TEST_SCREENSHOTS, a folder, the pages' pictures are kept there: those of docs/screenshots are made this way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, expect

import cq
from tests.cli.web.browsers import NEEDS_CHROMIUM, WIDE, opened, visited
from tests.cli.web.dashboards import Serving, serving
from tests.cli.web.shop import shop

PHONE: Final[ViewportSize] = {"width": 390, "height": 844}
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
PICTURES: Final = Path(__file__).parents[3] / "docs" / "screenshots"
LEAST_COLOURS: Final = 30
"""An empty page has fewer: letters alone are drawn in many shades."""

pytestmark = NEEDS_CHROMIUM


@pytest.fixture
def served(db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """The dashboard of a shop."""
    with shop(db, tmp_path, monkeypatch), serving(db, operates=True) as found:
        yield found


def name_of(path: str) -> str:
    """The name of a page's picture."""
    return re.sub(r"\W+", "-", path).strip("-") or "queues"


def picture(page: Page, name: str) -> Image.Image:
    """The page as it is drawn; `$CQ_TEST_SCREENSHOTS` names a folder that gets it as a file, too."""
    drawn = Image.open(BytesIO(page.screenshot(full_page=True)))
    if folder := os.environ.get("CQ_TEST_SCREENSHOTS"):
        # Few colours are enough for flat areas and text, and make small files.
        drawn.convert("RGB").quantize(128).save(Path(folder) / f"{name}.png", optimize=True)
    return drawn


def test_each_page_is_drawn_accessible_and_silent_and_fits_a_phone(browser: Browser, served: Serving) -> None:
    names = set()
    with opened(browser, served) as page:
        for path in visited(page):
            expect(page.locator("h1")).to_be_visible()
            # `cq doctor` takes some seconds.
            expect(page.get_by_text("The checks run now.")).to_have_count(0)
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme)
                name = f"{name_of(path)}-{scheme}"
                names.add(f"{name}.png")
                drawn = picture(page, name)
                colours = drawn.convert("RGB").getcolors(drawn.width * drawn.height) or []
                assert len(colours) > LEAST_COLOURS, path
                brightness = sum(drawn.convert("L").resize((1, 1)).tobytes())
                assert brightness < 100 if scheme == "dark" else brightness > 155
                found = Axe().run(page)
                assert found.violations_count == 0, f"{path}: {found.generate_report()}"
            page.set_viewport_size(PHONE)
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
            page.set_viewport_size(WIDE)
    assert names >= {picture.name for picture in PICTURES.glob("*.png")}


def test_an_open_page_follows_the_store_and_keeps_the_focus(
    browser: Browser, served: Serving, db: Any
) -> None:
    with opened(browser, served) as page:
        page.goto("/queues/words")
        page.get_by_label("Key").focus()
        page.keyboard.type("st")

        cq.CombineQueue[str, int]("words").add_now(db, {"<em>news</em>": 9_876_543})

        expect(page.get_by_text("9,876,543").first).to_be_visible()
        expect(page.get_by_text("<em>news</em>").first).to_be_visible()
        page.keyboard.type("one")
        expect(page.get_by_label("Key")).to_have_value("stone")
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{served.server.url}/queues/words?key=stone#lookup")


def test_a_page_says_that_its_connection_is_lost(browser: Browser, served: Serving) -> None:
    with opened(browser, served, silent=False) as page:  # the browser itself logs refused connections
        page.goto("/")
        expect(page.locator("#connection")).to_be_empty()

        served.server.stop()

        expect(page.locator("#connection")).to_contain_text("Connection lost")


def test_the_keyboard_reaches_the_content_and_each_section(browser: Browser, served: Serving) -> None:
    with opened(browser, served) as page:
        page.goto("/")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('main') !== null")
        page.goto("/")
        for _ in range(4):  # the link to the content, the name, the first two sections
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Workers")
