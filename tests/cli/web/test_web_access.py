"""Access to the dashboard: the token, its cookie and sessions, host names, origins, and the headers of all answers."""

from __future__ import annotations

import asyncio
import html
import re
from typing import Any

import httpx
import pytest

import cq
from cq.cli.web import changelog
from cq.cli.web.access import HEADERS, SESSION_SECONDS, WebAccess
from cq.cli.web.command import WebOptions
from cq.cli.web.rendering import Renderer
from cq.feeds.feed import Feed
from cq.observers.feeds.observer import feed_spec
from tests.cli.web.dashboards import SECONDS, TOKEN, Serving, serving, serving_with, stream, stream_of
from tests.kit.clocks import set_clock


def test_without_the_token_nothing_is_shown(db: Any) -> None:
    cq.configure(db, "secret-name")
    with serving(db) as found, httpx.Client(base_url=found.server.url) as stranger:
        for path in (
            "/",
            "/queues/secret-name",
            "/events?path=/",
            "/workers",
            "/none",
            "/?token=wrong",
            "/?token=",
        ):
            answer = stranger.get(path)
            assert answer.status_code == 401
            # Except for the path that the stranger asks for, which the form repeats.
            assert "secret-name" not in answer.text.replace(f'action="/login{path}"', "")
            assert not answer.cookies
        answer = stranger.post("/actions/pause?queue=words", headers={"Sec-Fetch-Site": "same-origin"})
        assert answer.status_code == 401
        assert "Your session has ended, so nothing was changed." in answer.text
        (cookie,) = found.client.cookies
        stranger.cookies.set(cookie, "0" * 32 + ".aaaaaa." + "0" * 43)
        assert stranger.get("/").status_code == 401


def test_the_token_is_exchanged_for_a_cookie(db: Any) -> None:
    with serving(db) as found, httpx.Client(base_url=found.server.url) as browser:
        answer = browser.get("/workers", params={"key": "a b", "token": TOKEN}, follow_redirects=False)

        assert (answer.status_code, answer.headers["location"]) == (303, "/workers?key=a+b")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert TOKEN not in cookie
        assert browser.get("/workers").status_code == 200


def test_the_token_can_be_typed(db: Any) -> None:
    with serving(db) as found, httpx.Client(base_url=found.server.url) as browser:
        own = {"Origin": found.server.url}
        assert browser.post("/login", data={"token": "wrong"}, headers=own).status_code == 401
        assert browser.post("/login", data={"token": TOKEN}).status_code == 403
        assert browser.post("/login", data={"token": "x" * 100_000}, headers=own).status_code == 401
        answer = browser.post("/login", data={"token": TOKEN}, headers=own, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert browser.get("/").status_code == 200


def test_signing_in_opens_the_page_that_was_asked_for(db: Any) -> None:
    with serving(db) as found, httpx.Client(base_url=found.server.url) as browser:
        own = {"Origin": found.server.url}
        asked = "/login/workers?sort=a&page=2"
        assert f'action="{html.escape(asked)}"' in browser.get("/workers?sort=a&page=2").text
        for path, page in (
            (asked, asked.removeprefix("/login")),
            ("/login//elsewhere.example", "/elsewhere.example"),
        ):
            wrong = browser.post(path, data={"token": "wrong"}, headers=own)
            answer = browser.post(path, data={"token": TOKEN}, headers=own)
            assert f'action="/login{html.escape(page)}"' in wrong.text
            assert (answer.status_code, answer.headers["location"]) == (303, page)


@pytest.mark.parametrize(
    "body", ["&".join(f"a{n}=1" for n in range(200)), "a=" + "1" * 70_000, b"token=%ff\xff"]
)
def test_forms_that_no_page_has_are_refused(db: Any, body: str | bytes) -> None:
    with serving(db) as found, httpx.Client(base_url=found.server.url) as stranger:
        headers = {"Origin": found.server.url, "Content-Type": "application/x-www-form-urlencoded"}

        assert stranger.post("/login", content=body, headers=headers).status_code == 401
        assert found.client.post("/logout", content=body, headers=headers).status_code == 403


def test_other_host_names_are_refused(db: Any) -> None:
    with serving(db) as found:
        for host, status in (
            ("evil.example", 421),
            ("evil.example:80", 421),
            ("", 421),
            ("127.0.0.1.evil.example", 421),
            ("localhost", 200),
            ("LOCALHOST:8080", 200),
            ("[::1]:8080", 200),
            ("dashboard.test", 200),
        ):
            assert found.client.get("/", headers={"Host": host}).status_code == status, host


def test_forms_of_other_sites_are_refused(db: Any) -> None:
    own = {"Sec-Fetch-Site": "same-origin"}
    with serving(db) as found:
        for headers in (
            {},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": found.server.url, "Sec-Fetch-Site": "cross-site"},
        ):
            answer = found.client.post("/login", data={"token": TOKEN}, headers=headers)
            assert answer.status_code == 403, headers
        # Behind a proxy with TLS, the scheme of the origin is another one, and the host, too, if the proxy replaces the
        # header Host. Then only the browser knows that the page is its own.
        for headers in (
            own,
            {"Origin": found.server.url.replace("http:", "https:")},
            {"Origin": "https://dashboard.test", **own},
        ):
            assert found.client.post("/login", data={"token": TOKEN}, headers=headers).status_code == 303


def test_all_answers_have_the_headers(db: Any) -> None:
    with serving(db) as found:
        for path, status in (
            ("/", 200),
            ("/none", 404),
            ("/static/style.css", 200),
            ("/login", 401),
            ("/events?path=/workers", 200),
        ):
            with found.client.stream("GET", path) as answer:
                assert answer.status_code == status
                assert {name: answer.headers[name] for name in HEADERS} == HEADERS
                assert answer.headers["x-accel-buffering"] == "no"
            assert "server" not in answer.headers
        refused = found.client.get("/", headers={"Host": "evil.example"})
        assert {name: refused.headers[name] for name in HEADERS} == HEADERS


def test_an_error_of_the_server_has_the_headers_too_and_is_logged(
    db: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **more: Any) -> str:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Renderer, "page", fail)
    monkeypatch.setattr(Renderer, "render", fail)
    with serving(db) as found, httpx.Client(base_url=found.server.url) as stranger:
        for client in (found.client, stranger):  # a page, and the sign-in page
            broken = client.get("/")
            assert (broken.status_code, broken.text) == (
                500,
                "the server could not make this page: its log says why",
            )
            assert {name: broken.headers[name] for name in HEADERS} == HEADERS
    # In the log of the command, which shows it in its format; uvicorn has handlers of its own.
    causes = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert causes == [ZeroDivisionError] * 2


OWN = {"Sec-Fetch-Site": "same-origin"}


def sign_out(found: Serving) -> httpx.Response:
    """Press the button of the first page."""
    token = re.search(r'name="form_token" value="([^"]+)"', found.page("/"))
    assert token is not None
    return found.client.post("/logout", data={"form_token": token[1]}, headers=OWN)


def test_a_session_and_its_form_token_belong_to_one_token_and_one_port() -> None:
    mine = WebAccess("a" * 20, 8080)
    cookie = mine.begin()
    session = mine.find(cookie)

    assert session is not None
    assert WebAccess("a" * 20, 8080).find(cookie) == session  # after a restart
    assert mine.find(cookie[:-1]) is None
    assert mine.find("\udcff.\N{SNOWFLAKE}") is None
    assert mine.is_form_token(session, mine.form_token(session))
    another = mine.find(mine.begin())
    assert another is not None
    assert not mine.is_form_token(another, mine.form_token(session))
    assert not mine.is_form_token(session, cookie.rpartition(".")[2])
    assert not mine.is_form_token(session, "\udcff\N{SNOWFLAKE}")
    for other in (WebAccess("b" * 20, 8080), WebAccess("a" * 20, 8081)):
        assert other.find(cookie) is None
        assert not other.is_form_token(session, mine.form_token(session))
        assert other.cookie != mine.cookie


def test_a_session_goes_on_when_the_clock_is_set_back() -> None:
    sessions = WebAccess("a" * 20, 8080)
    with set_clock() as clock:
        cookie = sessions.begin()
        clock.now -= 5.0
        assert sessions.find(cookie) is not None


def test_a_session_ends_after_twelve_hours() -> None:
    sessions = WebAccess("a" * 20, 8080)
    with set_clock() as clock:
        cookie = sessions.begin()
        clock.now += SESSION_SECONDS - 1
        session = sessions.find(cookie)
        assert session is not None
        clock.now += 2
        assert sessions.find(cookie) is None
        assert not sessions.is_live(session)


def test_a_session_that_is_signed_out_is_refused_and_others_go_on(db: Any) -> None:
    with serving(db) as found, httpx.Client(base_url=found.server.url) as other:
        other.get("/", params={"token": TOKEN})
        copied = found.cookie
        answer = sign_out(found)

        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert not found.client.cookies
        assert other.get("/", headers={"Cookie": copied}).status_code == 401
        assert other.get("/").status_code == 200


def test_only_the_form_of_its_session_signs_out(db: Any) -> None:
    with serving(db) as found:
        for data, headers, status in (
            ({}, OWN, 403),
            ({"form_token": "0" * 43}, OWN, 403),
            ({}, {"Origin": "http://evil.example"}, 403),
        ):
            assert found.client.post("/logout", data=data, headers=headers).status_code == status
        found.page("/logout", status=404)
        found.page("/")


def test_open_streams_end_with_their_session(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog, "SILENCE_SECONDS", 1.0)  # after which a silent stream looks, too
    Feed[Any]("changes").configure(db)
    words = cq.configure(db, "words", key=str, value=int, observers=[feed_spec("changes")])

    async def follow() -> None:
        with serving(db) as found:
            async with stream(found, "/queues/words") as page, stream_of(found, "/changelog/words") as log:
                await asyncio.wait_for(page.readuntil(b"part-"), SECONDS)
                await asyncio.wait_for(log.readuntil(b"event: start"), SECONDS)
                await asyncio.to_thread(sign_out, found)
                await asyncio.to_thread(words.add_now, db, {"secret": 7})
                rest = [await asyncio.wait_for(each.read(), SECONDS) for each in (page, log)]
        assert not any(b"secret" in each for each in rest)

    asyncio.run(follow())


def test_cookies_are_for_pages_of_the_server_only_and_for_https_if_the_operator_says_so(db: Any) -> None:
    for is_secure in (False, True):
        with serving_with(db, WebOptions(secure_cookie=is_secure)) as found:
            answer = httpx.get(found.server.url, params={"token": TOKEN})
            name, _, attributes = answer.headers["set-cookie"].lower().partition("=")
            expected = {"httponly", "max-age=43200", "path=/", "samesite=strict"}
            assert set(attributes.split("; ")[1:]) == (expected | {"secure"} if is_secure else expected)
            assert name.startswith("__host-cq-web-" if is_secure else "cq-web-")
