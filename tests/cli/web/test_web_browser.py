"""The dashboard in a real browser: each page is drawn, silent on the console, accessible and current.

With $CQ_TEST_SCREENSHOTS, a folder, the pages' pictures are kept there: those of docs/screenshots are made this way.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, expect

import cq
from cq.feeds.feed import Feed
from cq.observers.feeds.observer import feed_spec
from cq.testing import drain
from tests.cli.web.browsers import NEEDS_CHROMIUM, WIDE, opened, visited
from tests.cli.web.dashboards import SECONDS, TOKEN, Serving, serving
from tests.cli.web.shop import shop
from tests.helpers import free_ports

PHONE: Final[ViewportSize] = {"width": 390, "height": 844}
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


def picture(page: Page, name: str, folder: Path) -> Image.Image:
    """The page as it is drawn, also as a file in the folder."""
    drawn = Image.open(BytesIO(page.screenshot(full_page=True)))
    # Few colours are enough for flat areas and text, and make small files.
    drawn.convert("RGB").quantize(128).save(folder / f"{name}.png", optimize=True)
    return drawn


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_page_is_drawn_accessible_and_silent_and_fits_a_phone(
    browser: Browser, served: Serving, tmp_path: Path, scheme: str
) -> None:
    folder = Path(os.environ.get("CQ_TEST_SCREENSHOTS", tmp_path))
    with opened(browser, served, scheme=scheme) as page:
        paths = []
        for path in visited(page):
            paths.append(path)
            expect(page.locator("h1")).to_be_visible()

            # `cq doctor` takes some seconds.
            expect(page.get_by_text("The checks run now.")).to_have_count(0)
            drawn = picture(page, f"{name_of(path)}-{scheme}", folder)
            colours = drawn.convert("RGB").getcolors(drawn.width * drawn.height) or []

            assert len(colours) > LEAST_COLOURS, path
            brightness = sum(drawn.convert("L").resize((1, 1)).tobytes())
            assert brightness < 100 if scheme == "dark" else brightness > 155
            found = Axe().run(page)
            assert found.violations_count == 0, f"{path}: {found.generate_report()}"
            page.set_viewport_size(PHONE)
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
            page.set_viewport_size(WIDE)
        assert {f"{name_of(path)}-{scheme}.png" for path in paths} >= {
            picture.name for picture in PICTURES.glob(f"*-{scheme}.png")
        }


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


FOLLOW: Final = """() => {
    window.seen = [];
    window.source = new EventSource("/changelog/words");
    source.onmessage = (event) => seen.push([event.lastEventId, JSON.parse(event.data)]);
    for (const name of ["reset", "problem"]) source.addEventListener(name, () => seen.push(name));
}"""
# Not `wait_for_function`: the policy of the pages forbids its `eval`.
RECEIVED: Final = """async ([number, milliseconds]) => {
    for (let waited = 0; seen.length < number; waited += 20) {
        if (waited > milliseconds) throw new Error(`received ${seen.length} of ${number} events`);
        await new Promise((done) => setTimeout(done, 20));
    }
}"""


def test_a_changelog_is_followed_over_restarts_of_the_server(browser: Browser, db: Any) -> None:
    """The browser connects again by itself, from the last change that it has received."""
    Feed[Any]("changes").configure(db)
    words = cq.configure(db, "words", key=str, value=int, observers=[feed_spec("changes")])
    port, rounds, keys = free_ports(1), 60, ["a", "b", "c"]

    def add_all() -> None:
        for _ in range(rounds):
            words.add_now(db, dict.fromkeys(keys, 1))
            drain(db, "words")

    adder = threading.Thread(target=add_all)
    context = browser.new_context(base_url=f"http://127.0.0.1:{port}")
    context.set_default_timeout(SECONDS * 1000)
    page = context.new_page()
    for life in range(3):
        with serving(db, port=port):
            if life == 0:
                page.goto(f"/?token={TOKEN}")
                page.goto("/static/style.css")  # a page without a stream of its own
                page.evaluate(FOLLOW)
                adder.start()
            expected = len(keys) * rounds if life == 2 else 9 * life + 1
            page.evaluate(RECEIVED, [expected, SECONDS * 1000])
            waiting = ExitStack()
            if life == 0:
                refused = page.expect_console_message(lambda each: "ERR_CONNECTION_REFUSED" in each.text)
                waiting.enter_context(refused)
        waiting.close()  # the server is down until the browser has tried in vain
    adder.join(SECONDS)

    seen = page.evaluate("seen")
    positions = [position for position, _ in seen]
    assert positions == sorted(set(positions))
    for key in keys:
        chain = [(data["old"], data["new"]) for _, data in seen if data["key"] == key]
        assert chain == [(number or None, number + 1) for number in range(rounds)]
    context.close()


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
