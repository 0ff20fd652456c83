"""Access to the dashboard: the token, its cookie, host names, origins, and the headers of all answers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import cq
from cq.cli.web.access import HEADERS
from cq.cli.web.rendering import Renderer
from tests.cli.web.dashboards import TOKEN, serving


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
            assert "secret-name" not in answer.text
            assert not answer.cookies
        assert stranger.post("/", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 401
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


def test_a_redirection_stays_on_the_server(db: Any) -> None:
    with serving(db) as found, httpx.Client() as browser:
        url = httpx.URL(f"{found.server.url}//elsewhere.example/?token={TOKEN}")
        answer = browser.get(url, follow_redirects=False)

        assert answer.headers["location"] == "/elsewhere.example/"


def test_the_token_can_be_typed(db: Any) -> None:
    with serving(db) as found, httpx.Client(base_url=found.server.url) as browser:
        own = {"Origin": found.server.url}
        assert browser.post("/login", data={"token": "wrong"}, headers=own).status_code == 401
        assert browser.post("/login", data={"token": TOKEN}).status_code == 403
        assert browser.post("/login", data={"token": "x" * 100_000}, headers=own).status_code == 401
        answer = browser.post("/login", data={"token": TOKEN}, headers=own, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert browser.get("/").status_code == 200


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
            {"Origin": "http://evil.example", **own},
        ):
            answer = found.client.post("/login", data={"token": TOKEN}, headers=headers)
            assert answer.status_code == 403, headers
        assert found.client.post("/login", data={"token": TOKEN}, headers=own).status_code == 303


def test_all_answers_have_the_headers(db: Any) -> None:
    with serving(db) as found:
        for path, status in (("/", 200), ("/none", 404), ("/static/style.css", 200), ("/login", 401)):
            answer = found.client.get(path)
            assert answer.status_code == status
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS
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
