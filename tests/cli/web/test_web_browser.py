"""The dashboard in a real browser: each page is drawn, silent, accessible and current; each button does what it says.

With $CQ_TEST_SCREENSHOTS, a folder, the pages' pictures are kept there: those of docs/screenshots are made this way.
A test posts a form with whatever headers it likes; only a browser shows which ones it really sends.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

import cq
from cq import admin
from cq.cli.web.actions import OPERATIONS
from cq.config.flags import Flags, read_flags
from cq.config.queue import read_config
from cq.failure import KeyFailure
from cq.keys import QueueKeys
from cq.keys.link import LinkKeys
from cq.observers.links.spec import links_in
from cq.observers.links.state import Control, read_control
from cq.queue.set_aside import set_aside
from tests.cli.web.browsers import NEEDS_CHROMIUM, WIDE, new_page, opened, visited
from tests.cli.web.dashboards import TOKEN, Serving, serving
from tests.cli.web.shop import shop
from tests.kit.queues import aside, get

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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_page_is_drawn_accessible_and_silent_and_fits_a_phone(
    browser: Browser, served: Serving, scheme: Literal["light", "dark"]
) -> None:
    names = set()
    with opened(browser, served) as page:
        page.emulate_media(color_scheme=scheme)
        for path in visited(page):
            expect(page.locator("h1")).to_be_visible()
            # `cq doctor` takes some seconds.
            expect(page.get_by_text("The checks run now.")).to_have_count(0)
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
    assert names >= {picture.name for picture in PICTURES.glob(f"*-{scheme}.png")}


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
        table = page.locator("#part-top .scroll")
        table.focus()
        cq.CombineQueue[str, int]("words").add_now(db, {"<em>news</em>": 1})
        expect(table.get_by_text("9,876,544")).to_be_visible()
        expect(table).to_be_focused()
        page.get_by_label("Key").focus()
        page.keyboard.type("one")
        expect(page.get_by_label("Key")).to_have_value("stone")
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{served.server.url}/queues/words?key=stone#lookup")


def test_an_update_of_a_part_keeps_the_focus_and_opened_details(
    browser: Browser, without_worker: Serving, db: Any
) -> None:
    with opened(browser, without_worker) as page:
        page.goto("/aside/orders")
        details = page.locator("details").first
        details.locator("summary").press("Enter")
        expect(details).to_have_attribute("open", "")

        fails_aside(db, "orders", "late")

        expect(page.get_by_role("rowheader", name="late")).to_be_visible()
        expect(details.locator("summary")).to_be_focused()
        expect(details).to_have_attribute("open", "")


def test_pages_out_of_view_leave_connections_to_other_pages(
    browser: Browser, without_worker: Serving, db: Any
) -> None:
    def look(tab: Page, *, away: bool) -> None:
        tab.evaluate(
            "away => { Object.defineProperty(document, 'hidden', {value: away, configurable: true});"
            " document.dispatchEvent(new Event('visibilitychange')); }",
            away,
        )

    with opened(browser, without_worker) as page:
        page.goto("/queues/words")
        look(page, away=True)
        tabs = []
        for _ in range(6):  # the connections of a browser to one server
            tabs.append(page.context.new_page())
            tabs[-1].goto("/workers")
            expect(tabs[-1].locator("h1")).to_have_text("Workers")
            look(tabs[-1], away=True)
        admin.pause(db, "words", "a flood")

        look(page, away=False)

        expect(page.get_by_text("a flood").first).to_be_visible()


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


SIGN_IN: Final = "post /login/"


@pytest.fixture
def without_worker(db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """The dashboard of a shop whose worker has ended: only the buttons change the store."""
    with shop(db, tmp_path, monkeypatch):
        pass
    with serving(db, operates=True) as found:
        yield found


def forms_of(page: Page) -> Iterator[str]:
    """The method and the address of each form of the open page, with `{queue}` for a queue's name."""
    outside = page.locator("button, input, select, textarea").evaluate_all(
        "all => all.filter(each => !each.form).length"
    )
    assert outside == 0, "a control without a form would be in no test"
    for method, url in page.locator("form").evaluate_all(
        "all => all.map(each => [each.method, new URL(each.action).pathname])"
    ):
        yield f"{method} {re.sub('^/queues/.*', '/queues/{queue}', url)}"


def button(page: Page, form: str = "main form") -> Locator:
    """The only button of a form."""
    found = page.locator(f"{form} button")
    expect(found).to_have_count(1)
    return found


def flags(db: Any, queue: str) -> Flags:
    return cq.transact(db, lambda tr: read_flags(tr.snapshot, queue))


def done(page: Page) -> None:
    """Press the button of an action's form, and wait for the page of its queue with the result."""
    button(page).click()
    expect(page.locator("p.notice[role=status]")).to_be_visible()
    assert "?done=" in page.url


def pauses(page: Page, db: Any) -> None:
    page.goto("/actions/pause?queue=words")
    page.get_by_label("Reason").fill("the cellar is <b>wet</b>")
    page.get_by_label("Duration").fill("2h")
    done(page)
    expect(page.get_by_role("link", name="Resume")).to_be_visible(timeout=500)
    found = flags(db, "words")
    assert (found.paused, found.reason) == (True, "the cellar is <b>wet</b>")


def resumes(page: Page, db: Any) -> None:
    assert flags(db, "visits").paused
    page.goto("/actions/resume?queue=visits")
    done(page)
    assert not flags(db, "visits").paused


def rebuckets(page: Page, db: Any) -> None:
    page.goto("/actions/rebucket?queue=words")
    page.get_by_label("Buckets").fill("7")
    done(page)
    assert cq.transact(db, lambda tr: read_config(tr.snapshot, "words")).buckets == 7


def limits(page: Page, db: Any) -> None:
    page.goto("/actions/limit?queue=revenue")
    page.get_by_label("Maximum age").fill("10m")
    page.get_by_label("Maximum size").fill("123456")
    page.get_by_label("Adds to a full queue").select_option("admit")
    done(page)
    found = flags(db, "revenue")
    assert (found.max_seconds, found.max_bytes, found.when_full) == (600.0, 123_456, "admit")
    # The form has them, so that a change of one limit keeps the others.
    page.get_by_role("link", name="Change the limits").click()
    expect(page.get_by_label("Maximum age")).to_have_value("600s")
    expect(page.get_by_label("Maximum size")).to_have_value("123456")
    expect(page.get_by_label("Adds to a full queue")).to_have_value("admit")


def control(db: Any, link: str) -> Control:
    return cq.transact(db, lambda tr: read_control(tr.snapshot, LinkKeys("revenue", link)))


def pauses_link(page: Page, db: Any) -> None:
    page.goto("/links")
    page.get_by_label("Actions for revenue export").get_by_role("link", name="Pause").click()
    done(page)
    assert control(db, "export").paused


def resumes_link(page: Page, db: Any) -> None:
    page.goto("/links")
    page.get_by_label("Actions for revenue hook").get_by_role("link", name="Resume").click()
    done(page)
    assert not control(db, "hook").paused


def rebuilds_link(page: Page, db: Any) -> None:
    before = links_in(cq.transact(db, lambda tr: read_config(tr.snapshot, "revenue")))["export"]
    page.goto("/actions/rebuild-link?queue=revenue&link=export")
    done(page)
    after = links_in(cq.transact(db, lambda tr: read_config(tr.snapshot, "revenue")))["export"]
    assert after.generation > before.generation


def rebases_link(page: Page, db: Any) -> None:
    before = control(db, "export").epoch
    page.goto("/actions/rebase-link?queue=revenue&link=export")
    done(page)
    assert control(db, "export").epoch == before + 1


def retries(page: Page, db: Any) -> None:
    assert [each.encoded_key for each in aside(db, "orders")] != []
    page.goto("/actions/retry?queue=orders")
    done(page)
    assert aside(db, "orders") == []
    assert get(db, "orders", "", pending=True) == 1


def fails_aside(db: Any, queue: str, key: str) -> None:
    encoded = cq.transact(db, lambda tr: read_config(tr.snapshot, queue)).key.encoder()(key)
    cq.transact(db, lambda tr: set_aside(tr, QueueKeys(queue), encoded, KeyFailure("an error"), [5, 6]))


def drops(page: Page, db: Any) -> None:
    fails_aside(db, "orders", "late")
    page.goto("/actions/drop?queue=orders")
    page.get_by_label("Key").fill("late")
    done(page)
    assert aside(db, "orders") == []
    assert get(db, "orders", "late", pending=True) is None


def looks_up(page: Page, db: Any) -> None:
    page.goto("/queues/words")
    page.get_by_label("Key").fill("river")
    button(page).click()
    expect(page.locator(".answer strong")).to_have_text(str(get(db, "words", "river")))


def signs_out(page: Page, db: Any) -> None:
    page.goto("/workers")
    cookies = page.context.cookies()
    assert len(cookies) == 1
    button(page, "header form").click()
    expect(page.locator("h1")).to_have_text("Token needed")
    assert page.context.cookies() == []
    page.context.add_cookies(cookies)  # type: ignore[arg-type]  # a copy that somebody kept
    page.goto("/workers")
    expect(page.locator("h1")).to_have_text("Token needed")


PRESSED: Final[Mapping[str, Callable[[Page, Any], None]]] = {
    "get /queues/{queue}": looks_up,
    "post /actions/pause": pauses,
    "post /actions/resume": resumes,
    "post /actions/pause-link": pauses_link,
    "post /actions/resume-link": resumes_link,
    "post /actions/rebuild-link": rebuilds_link,
    "post /actions/rebase-link": rebases_link,
    "post /actions/rebucket": rebuckets,
    "post /actions/limit": limits,
    "post /actions/retry": retries,
    "post /actions/drop": drops,
    "post /logout": signs_out,
}
"""{form: presses its button, and checks the result}, in this order; without the form that signs in."""


def sign_in(page: Page, token: str) -> None:
    page.goto("/")
    assert list(forms_of(page)) == [SIGN_IN]
    page.locator("input[name=token]").fill(token)
    button(page).click()


def test_the_form_signs_in_with_the_right_token_only(browser: Browser, without_worker: Serving) -> None:
    with new_page(browser, without_worker, silent=False) as page:  # the browser itself logs the status 401
        sign_in(page, TOKEN[:-1])
        expect(page.get_by_role("alert")).to_contain_text("not the one of this server")
        assert page.context.cookies() == []

        sign_in(page, TOKEN)

        expect(page.locator("h1")).to_have_text("Queues")
        assert page.url == f"{without_worker.server.url}/"


def test_each_button_of_each_page_does_what_it_says(
    browser: Browser, without_worker: Serving, db: Any
) -> None:
    with opened(
        browser, without_worker, silent=False
    ) as page:  # the browser logs the status 401 after signing out
        forms = {form for _ in visited(page) for form in forms_of(page)}

        assert forms == set(PRESSED)
        assert {form.removeprefix("post /actions/") for form in forms if "/actions/" in form} == set(
            OPERATIONS
        )
        for press in PRESSED.values():
            press(page, db)
