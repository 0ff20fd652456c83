"""Sessions of the dashboard: how long they last, who accepts them, and how they end."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

import cq
from cq.cli.web import changelog
from cq.cli.web.access import SESSION_SECONDS, WebAccess
from cq.cli.web.command import WebOptions
from cq.feeds.feed import Feed
from cq.observers.feeds.observer import feed_spec
from tests.cli.web.dashboards import SECONDS, TOKEN, Serving, serving, serving_with, stream, stream_of
from tests.kit.clocks import set_clock

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
