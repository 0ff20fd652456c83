"""Requests are answered in the cell of their user, or redirected there, by real servers of both interfaces."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any, NamedTuple
from urllib.parse import urlencode
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
import uvicorn

import cq
from cq import runtime
from cq.cells import Cells, Router, Rule, map_old_ids
from cq.cells.router import KEPT_SECONDS, WebRequest
from cq.errors import InvalidConfiguration
from tests.kit.faults import WrappedDatabase
from tests.kit.sites import place
from tests.kit.trips import COMMIT, VERSION, TripsDatabase

RULES = [
    Rule("/photo/{old}", to="/u/{user}/photo/{number}", type=int),
    Rule("/u/{user}"),
    Rule("/search", query="user"),
    Rule("/post", form="user"),
    Rule("/show.php", query="id", to="/u/{user}?photo={number}", type=int),
]
NORTH, SOUTH = "cell0", "cell1"
FORM = "application/x-www-form-urlencoded"


class Response(NamedTuple):
    status: int
    location: str | None
    body: str


class Silent(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def wsgi_app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [environ["PATH_INFO"].encode("latin-1"), b" ", body]


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode() + b" " + body})


@contextmanager
def wsgi_server(router: Router) -> Iterator[int]:
    """The port of a server of wsgiref."""
    with make_server("127.0.0.1", 0, router.wsgi(wsgi_app), handler_class=Silent) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextmanager
def asgi_server(router: Router) -> Iterator[int]:
    """The port of a server of uvicorn."""
    ready = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            ready.set()

    server = Server(uvicorn.Config(router.asgi(asgi_app), port=0, lifespan="off", log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    assert ready.wait(30)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def request(port: int, method: str, url: str, body: Any = None, **headers: str) -> Response:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, url, body, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    found = Response(response.status, response.headers["Location"], response.read().decode())
    connection.close()
    return found


@pytest.fixture(params=[wsgi_server, asgi_server], ids=["wsgi", "asgi"])
def port(request: pytest.FixtureRequest, cells: Cells) -> Iterator[int]:
    """A server of the cell in the north, where ada lives; grace lives in the south."""
    urls = {each.name: each.url for each in cells.cells()}
    cells.add_cell(SOUTH, urls[SOUTH], web="https://south.example.com:8443/app/")
    place(cells, "ada", NORTH)
    place(cells, "grace", SOUTH)
    place(cells, "zoë d", SOUTH)
    map_old_ids(cells, {4711: ("grace", 17), 4712: ("ada", 3), 4713: ("nobody", 1)})
    with request.param(Router(cells, NORTH, RULES, max_form_bytes=1000)) as found:
        yield found


SOUTHERN = "https://south.example.com:8443/app"


PAGES = [
    ("/about", 200, None),
    ("/u/ada/notes?page=2", 200, None),
    ("/u/grace/notes?page=2&q=a%20b", 307, f"{SOUTHERN}/u/grace/notes?page=2&q=a%20b"),
    ("/u/zo%C3%AB%20d", 307, f"{SOUTHERN}/u/zo%C3%AB%20d"),
    ("/u/nobody", 404, None),
    ("/u/" + "x" * 300, 400, None),
    ("/search?user=grace", 307, f"{SOUTHERN}/search?user=grace"),
    ("/search?user=%FF", 400, None),
    ("/search?" + "&" * 2000, 400, None),
    ("/about?q=%E9" + "&" * 2000, 200, None),  # no rule reads this query
    ("/search?q=%E9&user=grace", 307, f"{SOUTHERN}/search?q=%E9&user=grace"),
    ("/show.php?q=%E9&id=4711", 307, f"{SOUTHERN}/u/grace?photo=17&q=%E9"),
    ("/searches?user=grace", 200, None),
    ("/photo/4711?size=2", 307, f"{SOUTHERN}/u/grace/photo/17?size=2"),
    ("/photo/4712", 307, "/u/ada/photo/3"),  # of this cell, which has no address
    ("/photo/4713", 404, None),
    ("/photo/1", 404, None),
    ("/photo/one", 400, None),
    ("/photo/4711/large", 200, None),
    ("/show.php?id=4711&size=2", 307, f"{SOUTHERN}/u/grace?photo=17&size=2"),
]


def test_requests_are_answered_or_redirected(port: int) -> None:
    found = [(url, request(port, "GET", url)) for url, *_ in PAGES]

    assert [(url, page.status, page.location) for url, page in found] == PAGES
    assert not [page for _, page in found if "Traceback" in page.body]


def test_forms_are_read_and_left_for_the_application(port: int) -> None:
    form = urlencode({"user": "ada", "text": "a & b"})
    assert request(port, "POST", "/post", form, Content_Type=f"{FORM}; charset=utf-8").body == f"/post {form}"
    south = request(port, "POST", "/post", urlencode({"user": "grace"}), Content_Type=FORM)
    assert (south.status, south.location) == (307, f"{SOUTHERN}/post")
    assert request(port, "POST", "/post", "user=grace", Content_Type="text/plain").status == 200
    assert request(port, "POST", "/post", "user=" + "x" * 1000, Content_Type=FORM).status == 413
    assert request(port, "POST", "/post", b"user=\xff", Content_Type=FORM).status == 400
    assert request(port, "POST", "/u/ada/upload", "x" * 2000, Content_Type=FORM).status == 200


def test_chunks_are_counted_by_asgi(cells: Cells) -> None:
    place(cells, "ada", NORTH)
    form = urlencode({"user": "ada", "text": "x" * 500})
    with asgi_server(Router(cells, NORTH, RULES, max_form_bytes=1000)) as port:
        assert request(
            port, "POST", "/post", iter([form[:9].encode(), form[9:].encode()]), Content_Type=FORM
        ).body == (f"/post {form}")
        assert request(port, "POST", "/post", iter([b"x" * 600] * 2), Content_Type=FORM).status == 413


REQUESTS: list[tuple[dict[str, Any], int]] = [
    ({"PATH_INFO": "/u/\xff"}, 400),
    ({"PATH_INFO": "/post", "CONTENT_TYPE": FORM, "CONTENT_LENGTH": "9" * 5000}, 400),
    ({"PATH_INFO": "/post", "CONTENT_TYPE": FORM, "wsgi.input_terminated": True}, 307),
    ({"PATH_INFO": "/post", "CONTENT_TYPE": FORM}, 200),  # without a length there is no body
    ({"SCRIPT_NAME": "/site", "PATH_INFO": "/u/grace"}, 307),
]


def test_what_servers_let_through(cells: Cells) -> None:
    urls = {each.name: each.url for each in cells.cells()}
    cells.add_cell(SOUTH, urls[SOUTH], web=SOUTHERN)
    place(cells, "grace", SOUTH)
    answers: list[Any] = []
    router = Router(cells, NORTH, RULES)
    for environ, _ in REQUESTS:
        body = {"wsgi.input": BytesIO(b"user=grace")}
        router.wsgi(wsgi_app)(body | environ, lambda *answer: answers.append(answer))

    assert [int(status[:3]) for status, _ in answers] == [status for _, status in REQUESTS]
    assert ("Location", f"{SOUTHERN}/site/u/grace") in answers[-1][1]


def test_bytes_of_a_query_are_those_of_the_redirection(cells: Cells) -> None:
    urls = {each.name: each.url for each in cells.cells()}
    cells.add_cell(SOUTH, urls[SOUTH], web=SOUTHERN)
    place(cells, "zoë", SOUTH)
    environ = {"PATH_INFO": "/search", "QUERY_STRING": "user=zo\xc3\xab"}
    answers: list[Any] = []
    router = Router(cells, NORTH, RULES)
    router.wsgi(wsgi_app)(environ, lambda *answer: answers.append(answer))

    ((status, headers),) = answers
    assert status == "307 Temporary Redirect"
    assert ("Location", f"{SOUTHERN}/search?user=zo%C3%AB") in headers


def test_answers_to_head_have_no_body(cells: Cells) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    scope = {"type": "http", "method": "HEAD", "path": "/u/nobody", "query_string": b"", "headers": []}
    environ = {"REQUEST_METHOD": "HEAD", "PATH_INFO": "/u/nobody"}
    router = Router(cells, NORTH, RULES)
    assert b"".join(router.wsgi(wsgi_app)(environ, lambda *_: None)) == b""

    async def ask() -> None:
        await router.asgi(asgi_app)(scope, receive, send)

    asyncio.run(ask())

    assert [message.get("body", b"") for message in sent] == [b"", b""]


@pytest.mark.parametrize(
    ("root", "path", "location"),
    [
        ("", "/apparel/grace", "/apparel/grace"),
        ("/app", "/app/u/grace", "/app/u/grace"),
        ("/app/", "/app/u/grace", "/app/u/grace"),
        ("/app", "/u/grace", "/app/u/grace"),
        ("/app", "/apparel/grace", "/app/apparel/grace"),
    ],
)
def test_a_path_begins_with_that_of_the_application_or_follows_it(
    cells: Cells, root: str, path: str, location: str
) -> None:
    cells.add_cell(SOUTH, next(each.url for each in cells.cells() if each.name == SOUTH), web=SOUTHERN)
    place(cells, "grace", SOUTH)
    headers = [(b"host", b"north.example.com")]
    scope = {"type": "http", "root_path": root, "path": path, "query_string": b"", "headers": headers}
    router = Router(cells, NORTH, [Rule("/apparel/{user}"), *RULES])
    answer, _ = asyncio.run(router._route_asgi(scope, lambda: None))  # type: ignore[arg-type, return-value]
    assert answer == (307, SOUTHERN + location)


def test_cells_may_have_paths_of_one_host(cells: Cells) -> None:
    urls = {each.name: each.url for each in cells.cells()}
    for name in (NORTH, SOUTH):
        cells.add_cell(name, urls[name], web=f"https://example.com/{name}")
    place(cells, "grace", SOUTH)
    router = Router(cells, NORTH, RULES)
    assert router.route(page("/u/grace", "example.com")) == (307, f"https://example.com/{SOUTH}/u/grace")


def page(path: str, host: str = "north.example.com") -> WebRequest:
    return WebRequest("", path, "", b"", host)


def test_a_redirection_is_as_the_directory_says_and_users_of_the_cell_are_remembered(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {each.name: each.url for each in cells.cells()}
    place(cells, "ada", NORTH)
    router = Router(cells, NORTH, RULES)
    assert router.route(page("/u/ada")) is None
    cells.add_cell(SOUTH, urls[SOUTH], web=SOUTHERN)
    cells.move("ada", SOUTH)
    assert router.route(page("/u/ada")) is None  # the application can still reach the user

    now = runtime.monotonic()
    monkeypatch.setattr(runtime, "monotonic", lambda: now + KEPT_SECONDS)
    assert router.route(page("/u/ada")) == (307, f"{SOUTHERN}/u/ada")
    assert router.route(page("/u/ada", "South.example.com:8443")).status == 502  # type: ignore[union-attr]
    cells.move("ada", NORTH)
    assert router.route(page("/u/ada")) is None


def test_pages_of_known_users_need_no_store(cells: Cells) -> None:
    counted = TripsDatabase(cells.directory.db)
    place(cells, "ada", NORTH)
    router = Router(Cells(counted), NORTH, RULES)
    for _ in range(100):
        assert router.route(page("/u/ada")) is None
    assert counted.trips == [VERSION, ["get"], COMMIT]


def test_a_directory_that_does_not_answer_is_no_traceback(cells: Cells) -> None:
    class Failing(WrappedDatabase):
        def create_transaction(self) -> Any:
            raise cq.StoreError("the disk is gone")

    router = Router(Cells(Failing(cells.directory.db)), NORTH, RULES)
    assert router.route(page("/u/ada")).status == 503  # type: ignore[union-attr]
    assert router.route(page("/about")) is None


def test_nobody_is_led_to_and_fro(cells: Cells) -> None:
    """Former ids that look like users lead to users only, and each once."""
    map_old_ids(cells, {"a": ("b", 1), "b": ("a", 1), "c": ("ada", 1)})
    place(cells, "ada", NORTH)
    rules = [Rule("/u/{user}"), Rule("/u/{old}", to="/u/{user}")]
    router = Router(cells, NORTH, rules)
    assert [router.route(page(f"/u/{name}")) for name in "ab"] == [(404, "There is no such user.")] * 2
    assert router.route(page("/u/c")) == (307, "/u/ada")
    assert router.route(page("/u/ada")) is None
    with pytest.raises(InvalidConfiguration, match="no rule finds the user"):
        Router(cells, NORTH, [Rule("/u/{user}"), Rule("/photo/{old}", to="/of/{user}")])


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"path": "/u/{user}", "query": "user"},
        {"path": "u/{user}"},
        {"path": "/u/{user}", "to": "/u"},
        {"path": "/u/{old}", "to": "/u"},
    ],
)
def test_rules_that_find_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration):
        Rule(**wrong)


def test_an_old_id_stands_for_one_thing(cells: Cells) -> None:
    map_old_ids(cells, {number: ("ada", number) for number in range(1200)})
    map_old_ids(cells, {1199: ("ada", 1199)})
    with pytest.raises(cq.InvalidData, match="cannot also stand for"):
        map_old_ids(cells, {7: ("grace", 7)})
    map_old_ids(cells, {f"{number}{'x' * 7000}": ("ada", "y" * 50_000) for number in range(250)})
    with pytest.raises(cq.InvalidData):
        map_old_ids(cells, {1.5: ("ada", 1)})
    with pytest.raises(cq.InvalidData):
        map_old_ids(cells, {-1: (None, 1)})


def test_an_address_is_one_of_the_web(cells: Cells) -> None:
    url = cells.cells()[0].url
    for web in ("ftp://host", "https://ada:secret@host", "https://host?x", "https://host/\n", "host"):
        with pytest.raises(InvalidConfiguration, match="web address"):
            cells.add_cell(NORTH, url, web=web)


def test_a_client_that_goes_away_is_no_traceback(cells: Cells) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "path": "/post",
        "query_string": b"",
        "headers": [(b"content-type", FORM.encode())],
    }
    router = Router(cells, NORTH, RULES)
    app = router.asgi(asgi_app)

    async def call() -> None:
        await app(scope, receive, send)

    asyncio.run(call())
    assert sent[0]["status"] == 400


def test_a_form_in_many_pieces_comes_to_the_application_as_a_whole(cells: Cells) -> None:
    """Each piece is copied once: 100 kB in pieces of one byte took 8 seconds of the event loop."""
    pieces = list(b"user=" + b"x" * 1000)
    got: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not pieces:
            return {"type": "http.disconnect"}
        body = bytes((pieces.pop(0),))
        return {"type": "http.request", "body": body, "more_body": bool(pieces)}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        got.extend([await receive(), await receive()])

    headers = [(b"content-type", FORM.encode())]
    scope = {"type": "http", "path": "/none", "query_string": b"", "headers": headers}
    router = Router(cells, NORTH, [Rule("/none", form="nobody"), *RULES])
    asyncio.run(router.asgi(app)(scope, receive, None))  # type: ignore[arg-type]

    whole = {"type": "http.request", "body": b"user=" + b"x" * 1000, "more_body": False}
    assert got == [whole, {"type": "http.disconnect"}]
