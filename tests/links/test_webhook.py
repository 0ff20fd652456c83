"""Webhooks: what is sent and how it is signed, what answers mean, and what happens when a side is set back."""

from __future__ import annotations

import os
import sqlite3
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

import cq
from cq import admin, links, runtime
from cq.keys.link import LinkKeys, Position, first_sequence
from cq.links import LinkFailed
from cq.observers.links.failure_note import STOPPED_SECONDS
from cq.observers.links.registry import opened_link
from cq.observers.links.spec import TABLE_ENV
from cq.observers.links.state import LinkStop, stop
from cq.observers.links.targets import receiver as client
from cq.observers.links.targets.receiver import HttpReceiver, read_secrets, retry_seconds, signed_headers
from cq.observers.links.targets.webhook import LONGEST_RETRY_SECONDS
from cq.observers.monitoring.diagnosis import doctor
from cq.observers.monitoring.link_status import link_status
from cq.observers.telemetry.bus import Event, subscribe
from cq.observers.worker.worker import CONCURRENCY, Worker
from cq.store.transact import transact
from cq.testing import drain
from tests.cli.conftest import BOTH_STORES, Cli, Here, cli, here
from tests.kit.certificates import certified
from tests.kit.processes import free_ports
from tests.kit.queues import add, config_of
from tests.kit.workers import SECONDS, running, told_app
from tests.links.linkhelpers import bucket, combine, link_tasks, run_to_end, status, step
from tests.links.webhookhelpers import SECRET, Kept, dripping, serving, serving_kept

__all__ = ["cli", "here"]

QUEUE = "words"
URL_ENV, SECRET_ENV = "CQ_WEBHOOK_URL", "CQ_WEBHOOK_SECRET"
OTHER = "whsec_" + "QUJD" * 10


@pytest.fixture
def db(cli: Cli) -> Iterator[Any]:
    database: Any = cq.open(cli.url)
    yield database
    if cli.url.startswith("embedded:"):
        database.close()


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_ENV, SECRET)
    monkeypatch.delenv(f"{SECRET_ENV}_FILE", raising=False)


def change(db: Any, **updates: int) -> None:
    """Change values, without sending the changes."""
    add(db, QUEUE, updates)
    combine(db, QUEUE)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """The receiver of the page behind HTTP; its URL is in the environment."""
    made = Kept(tmp_path / "received.db")
    with serving_kept(made) as url:
        monkeypatch.setenv(URL_ENV, url)
        yield made


class TestRequests:
    """What is sent."""

    def test_keys_and_values_of_all_types_have_the_forms_of_json(self, db: Any, kept: Kept) -> None:
        cq.configure(db, QUEUE, key=(str, int, bytes), value=dict, combiner="last", links=[links.webhook()])
        add(db, QUEUE, {("é", 1, b"\xff"): {"a": [1.5, True, None], "n": float("nan")}})
        drain(db, QUEUE)

        (entry,) = kept.sent[0]["entries"]
        assert entry["key"] == ["é", 1, "/w=="]
        assert entry["value"] == {"a": [1.5, True, None], "n": "nan"}

    def test_a_repeated_message_has_the_same_id_and_another_has_another(self, db: Any, kept: Kept) -> None:
        answers = iter([503])
        receive = kept.receive
        kept.receive = lambda *given: (503, {}) if next(answers, 0) else receive(*given)
        cq.configure(db, QUEUE, links=[links.webhook()])
        change(db, a=1)
        with link_tasks(db, QUEUE) as tasks:
            assert tasks[1 + bucket("a")].run() > 0
            run_to_end(tasks[1 + bucket("a")])

        first, second = [message for message in kept.messages if message[1]["data"]["entries"]]
        assert first == second
        assert len({message for message, _ in kept.messages}) == len({str(each) for _, each in kept.messages})

    def test_a_position_is_parsed_as_it_is_written(self) -> None:
        position = Position(3, b"\x01" * 22)
        assert Position.parse(str(position)) == position
        assert Position.parse("") == Position.parse(None) == Position(0, b"")
        assert [Position.parse(text) for text in ("3", "3-ff", "x-" + "00" * 22, 5)] == [None] * 4


class TestSigning:
    """The scheme of Standard Webhooks, checked by its own library."""

    @pytest.mark.parametrize("given", [SECRET, SECRET.removeprefix("whsec_"), f"{OTHER}\n{SECRET}\n"])
    def test_a_receiver_verifies_a_request(self, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(SECRET_ENV, given)
        body = b'{"type":"cq.changes"}'
        headers = signed_headers(read_secrets(SECRET_ENV), "msg_1", int(_now()), body)

        assert Webhook(SECRET).verify(body, headers) == {"type": "cq.changes"}
        for wrong, changed in ((body + b" ", headers), (body, headers | {"webhook-id": "msg_2"})):
            with pytest.raises(WebhookVerificationError):
                Webhook(SECRET).verify(wrong, changed)
        late = signed_headers(
            read_secrets(SECRET_ENV), "msg_1", int(_now() - timedelta(hours=1).seconds), body
        )
        with pytest.raises(WebhookVerificationError):
            Webhook(SECRET).verify(body, late)

    def test_a_secret_comes_from_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "secret"
        monkeypatch.delenv(SECRET_ENV)
        monkeypatch.setenv(f"{SECRET_ENV}_FILE", str(file))
        with pytest.raises(LinkFailed, match="_FILE names cannot be read: FileNotFoundError") as failed:
            read_secrets(SECRET_ENV)
        assert str(tmp_path) not in str(failed.value)
        file.write_text(f"{SECRET}\n")
        assert len(read_secrets(SECRET_ENV)[0]) == 24

    @pytest.mark.parametrize("given", ["hunter2hunter2", "whsec_QUJD", f"{SECRET} hunter2", " ", "é" * 40])
    def test_a_malformed_secret_is_refused_and_not_shown(
        self, given: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(SECRET_ENV, given)
        with pytest.raises(LinkFailed, match="is malformed: expected whsec_") as failed:
            read_secrets(SECRET_ENV)
        assert not [word for word in given.split() if word in str(failed.value)]

    def test_a_worker_without_a_secret_leaves_the_link_to_others(
        self, db: Any, kept: Kept, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(SECRET_ENV)
        cq.configure(db, QUEUE, links=[links.webhook()])
        with link_tasks(db, QUEUE) as tasks:
            assert tasks == []
        assert "neither $CQ_WEBHOOK_SECRET nor $CQ_WEBHOOK_SECRET_FILE is set" in status(db, QUEUE)


def _now() -> float:
    return runtime.time()


Answers = Callable[[BaseHTTPRequestHandler, bytes], tuple[int, bytes]]


class TestClient:
    """The HTTP client."""

    @pytest.mark.parametrize(
        "url",
        [
            "ftp://host/x",
            "file:///etc/passwd",
            "https://me:hunter2@host/x",
            "https://hunter2@host/x",
            "https:///x",
            "//host/x",
            "https://host/x#part",
            "https://host/a b",
            "https://host/a\r\nX: y",
            "https://host:99999/",
            "https://[::1/",
            "host/hunter2",
        ],
    )
    def test_other_urls_are_refused_and_not_shown(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(URL_ENV, url)
        with pytest.raises(LinkFailed, match="the URL in \\$CQ_WEBHOOK_URL is malformed") as failed:
            HttpReceiver(URL_ENV, SECRET_ENV).check()
        assert "hunter2" not in str(failed.value)

    @pytest.mark.parametrize(
        ("url", "warns"),
        [
            ("http://receiver.example/x", True),
            ("http://10.0.0.7:8000/", True),
            ("http://localhost.example/", True),
            ("http://[2001:db8::1]/", True),
            ("https://receiver.example/x", False),
            ("http://localhost:8000/", False),
            ("http://here.localhost/", False),
            ("http://127.1.2.3/", False),
            ("http://[::1]:8000/", False),
        ],
    )
    def test_requests_to_other_machines_without_encryption_are_warned_of(
        self, url: str, warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv(URL_ENV, url)
        said = HttpReceiver(URL_ENV, SECRET_ENV).check()
        assert said.split()[0] == url.split("/")[2]
        assert ("use https" in said) is warns
        assert [each.levelname for each in caplog.records] == ["WARNING"] * warns

    def test_a_missing_url_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(URL_ENV, raising=False)
        with pytest.raises(LinkFailed, match="\\$CQ_WEBHOOK_URL is not set"):
            HttpReceiver(URL_ENV, SECRET_ENV).check()

    def test_a_redirect_is_not_followed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        paths: list[str] = []

        def redirect(request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
            paths.append(request.path)
            return 307, b""

        with serving(redirect) as url:
            monkeypatch.setenv(URL_ENV, url)
            receiver = HttpReceiver(URL_ENV, SECRET_ENV)
            assert receiver.post("msg_1", b"{}").status == 307
            receiver.close()
        assert paths == ["/words?token=hidden"]

    def test_a_long_answer_is_cut_and_the_next_request_works(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with serving(lambda request, body: (200, b"x" * 1_000_000)) as url:
            monkeypatch.setenv(URL_ENV, url)
            receiver = HttpReceiver(URL_ENV, SECRET_ENV)
            assert [len(receiver.post("msg_1", b"{}").text) for _ in range(2)] == [client.ANSWER_BYTES] * 2
            receiver.close()

    def test_malformed_headers_are_no_answer_and_the_log_does_not_show_the_url(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with serving(
            lambda request, body: (200, b""), headers=lambda: {"no separator\r\nX-Next": "1"}
        ) as url:
            monkeypatch.setenv(URL_ENV, url)
            with pytest.raises(LinkFailed, match="does not answer: ProtocolError, BadHeaders"):
                HttpReceiver(URL_ENV, SECRET_ENV).post("msg_1", b"{}")
        assert "hidden" not in caplog.text

    def test_a_receiver_that_is_down_is_named_without_the_path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(URL_ENV, f"http://127.0.0.1:{free_ports()}/words?token=hidden")
        with pytest.raises(LinkFailed, match=r"does not answer: NewConnectionError, .*refused") as failed:
            HttpReceiver(URL_ENV, SECRET_ENV).post("msg_1", b"{}")
        assert "hidden" not in str(failed.value)

    @pytest.mark.parametrize(
        "begin",
        [
            pytest.param(b"", id="status"),
            pytest.param(b"HTTP/1.1 200 OK\r\nX-Slow: ", id="headers"),
            pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n", id="body"),
            pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", id="body-without-length"),
        ],
    )
    @pytest.mark.parametrize("secure", [False, True])
    def test_an_answer_ends_at_its_deadline_whatever_the_receiver_sends(
        self, begin: bytes, secure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each byte comes well before the timeout of a socket, which begins again with it."""
        monkeypatch.setattr(client, "ANSWER_SECONDS", 0.4)
        with dripping(begin, _certified(tmp_path, monkeypatch) if secure else None) as (url, _):
            monkeypatch.setenv(URL_ENV, url)
            receiver = HttpReceiver(URL_ENV, SECRET_ENV)
            begun = time.monotonic()
            with pytest.raises(LinkFailed, match=r"does not answer: ReadTimeoutError"):
                receiver.post("msg_1", b"{}")
            assert time.monotonic() - begun < 30  # the receiver sends for five minutes
            receiver.close()

    def test_connections_are_used_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ports = set()

        def answer(request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
            ports.add(request.client_address[1])
            return 200, b"{}"

        with serving(answer) as url:
            monkeypatch.setenv(URL_ENV, url)
            receiver = HttpReceiver(URL_ENV, SECRET_ENV)
            assert [receiver.post("msg_1", b"{}").status for _ in range(3)] == [200] * 3
            receiver.close()
        assert len(ports) == 1

    def test_certificates_are_verified(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        context = _certified(tmp_path, monkeypatch)
        trusted = os.environ.pop("SSL_CERT_FILE")
        with serving(lambda request, body: (200, b"{}"), context) as url:
            monkeypatch.setenv(URL_ENV, url)
            with pytest.raises(LinkFailed, match="CERTIFICATE_VERIFY_FAILED"):
                HttpReceiver(URL_ENV, SECRET_ENV).post("msg_1", b"{}")
            monkeypatch.setenv("SSL_CERT_FILE", trusted)
            receiver = HttpReceiver(URL_ENV, SECRET_ENV)
            assert receiver.post("msg_1", b"{}").status == 200
            receiver.close()


def _certified(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """The context of a server with a certificate that this process trusts from now on."""
    context, certificate = certified(folder)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    return context


class TestAnswers:
    """What the status of an answer means."""

    @pytest.mark.parametrize(
        ("code", "expected"),
        [
            (429, "failing: LinkFailed: the receiver of the webhook answered 429: no, really"),
            (500, "failing: LinkFailed: the receiver of the webhook answered 500"),
            (301, "stopped: the receiver of the webhook answered 301, a redirect, which is not followed"),
            (
                400,
                "stopped: the receiver of the webhook answered 400: no, really. Repair the cause there; then",
            ),
            (401, "failing: LinkFailed: the receiver of the webhook answered 401"),
            (403, "stopped: the receiver of the webhook answered 403"),
            (409, "stopped: the receiver of the webhook answered 409: no, really."),
        ],
    )
    def test_a_refusal_stops_the_link_and_a_failure_is_retried(
        self, db: Any, kept: Kept, code: int, expected: str
    ) -> None:
        receive, answers = kept.receive, {code}
        kept.receive = lambda *given: (code, "no,\n really") if answers else receive(*given)
        cq.configure(db, QUEUE, links=[links.webhook()])
        change(db, a=1)
        # As text: the answer of this receiver is a JSON text.
        assert step(db, QUEUE).replace('"', "").replace("\\n", "").startswith(expected)
        answers.clear()
        if expected.startswith("stopped"):
            assert step(db, QUEUE).startswith("stopped")
            assert kept.values() == {}
            with opened_link(db, QUEUE) as webhook:
                assert webhook.rebase() == 1
        drain(db, QUEUE)
        assert status(db, QUEUE) == "active: "
        assert kept.history() == {"a": [1]}

    @pytest.mark.parametrize("text", [b"", b'{"position": "0-00', b"[" * client.ANSWER_BYTES])
    def test_a_position_that_is_no_json_is_asked_for_again(
        self, db: Any, text: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A broken connection may have cut it, or a proxy may have answered."""
        cq.configure(db, QUEUE, links=[links.webhook()])
        change(db, a=1)
        with serving(lambda request, body: (409, text)) as url:
            monkeypatch.setenv(URL_ENV, url)
            assert step(db, QUEUE).startswith("failing: LinkFailed: the receiver of the webhook answered 409")

    def test_a_sweep_that_is_refused_stops_the_link_unless_a_position_shows_that_it_is_late(
        self, db: Any, kept: Kept
    ) -> None:
        cq.configure(db, QUEUE, links=[links.webhook()])
        sequence = first_sequence(config_of(db, QUEUE).observers[0].generation)
        receive, answers = kept.receive, [str(Position(0, sequence)), str(Position(1, sequence))]
        kept.receive = lambda to, message: (
            (409, {"position": answers.pop()})
            if message["type"] == "cq.sweep" and answers
            else receive(to, message)
        )
        change(db, a=1)
        while len(answers) == 2:
            assert step(db, QUEUE) == "filling: "
        assert step(db, QUEUE).startswith("stopped: the receiver of the webhook answered 409")

    @pytest.mark.parametrize(
        ("code", "header", "least", "most"),
        [
            (429, "200", 200, 200),
            (503, "200", 200, 200),
            (429, "999999", LONGEST_RETRY_SECONDS, LONGEST_RETRY_SECONDS),
            (503, "Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_RETRY_SECONDS, LONGEST_RETRY_SECONDS),
            (503, "Fri, 31 Dec 1999 23:59:59 GMT", 0, 0.1),
            (503, "in a minute", 0, 0.1),
            (503, "-5", 0, 0.1),
            (500, "200", 0, 0.1),
        ],
    )
    def test_a_receiver_can_ask_for_a_pause(
        self, db: Any, monkeypatch: pytest.MonkeyPatch, code: int, header: str, least: float, most: float
    ) -> None:
        cq.configure(db, QUEUE, links=[links.webhook()])
        change(db, a=1)
        with serving(lambda request, body: (code, b""), headers=lambda: {"Retry-After": header}) as url:
            monkeypatch.setenv(URL_ENV, url)
            events: list[Event] = []
            end = subscribe(events.append)
            with link_tasks(db, QUEUE) as tasks:
                seconds = tasks[0].run()
            end()
        (pause,) = [event.fields["pause"] for event in events if event.name == "link_failed"]
        assert least <= pause <= most
        assert seconds == min(pause, STOPPED_SECONDS)
        assert status(db, QUEUE).startswith(
            f"failing: LinkFailed: the receiver of the webhook answered {code}"
        )

    @pytest.mark.parametrize("zone", ["GMT", "+0000"])
    def test_a_pause_until_a_time_ends_then(self, monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
        monkeypatch.setattr(time, "time", lambda: 1_000_000_000.0)
        assert retry_seconds(f"Sun, 09 Sep 2001 01:48:10 {zone}") == 90


class TestSetBack:
    """Either side is restored to an earlier state."""

    def test_a_stop_of_the_former_target_ends_when_the_receiver_accepts_requests(
        self, db: Any, kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A SQL table, then a webhook, then another webhook."""
        path = tmp_path / "reporting.db"
        monkeypatch.setenv(TABLE_ENV, f"sqlite:///{path}")
        cq.configure(db, QUEUE, links=[links.table("words", name="out")])
        with opened_link(db, QUEUE) as table_link:
            table_link.target.create()
        add(db, QUEUE, {"a": 1})
        drain(db, QUEUE)
        with closing(sqlite3.connect(path)) as table, table:
            table.execute("DELETE FROM cq_progress")
        add(db, QUEUE, {"a": 1})
        drain(db, QUEUE)
        assert status(db, QUEUE).startswith("stopped: the reporting database")

        receive, refused = kept.receive, [True]
        kept.receive = lambda *given: (403, {}) if refused else receive(*given)
        admin.put_observer(db, QUEUE, links.webhook(name="out"))
        combine(db, QUEUE)
        assert step(db, QUEUE).startswith("stopped: the receiver of the webhook answered 403")
        refused.clear()
        assert step(db, QUEUE).startswith(
            "stopped: the receiver of the webhook answered 403"
        )  # for the operator

        transact(
            db,
            lambda tr: stop(tr, LinkKeys(QUEUE, "out"), LinkStop(0, "by a late worker", 1), is_reviewed=True),
        )
        assert status(db, QUEUE).startswith("stopped: the receiver of the webhook answered 403")
        monkeypatch.setenv("CQ_OTHER_URL", os.environ[URL_ENV])
        admin.put_observer(db, QUEUE, links.webhook("CQ_OTHER_URL", name="out"))
        drain(db, QUEUE)
        assert status(db, QUEUE) == "active: "
        assert kept.values() == {"a": 2}


class TestCommands:
    """What operators see."""

    @BOTH_STORES
    def test_the_commands_for_links_take_a_webhook(self, db: Any, kept: Kept, here: Here) -> None:
        assert here("configure", QUEUE, "--webhook", URL_ENV).status == 0
        host = os.environ[URL_ENV].split("/")[2]
        assert here("link", "init", QUEUE).out == f"the receiver at {host} accepts signed requests\n"
        assert here("add", QUEUE, "hello=1").status == 0
        assert here("worker", QUEUE, "--drain").status == 0
        assert kept.values() == {"hello": 1}
        assert f"webhook in ${URL_ENV}" in here("link", "list").out
        refused = here("link", "verify", QUEUE)
        assert refused.status != 0
        assert "cq cannot read what its target keeps" in refused.err
        assert here("verify", QUEUE).status == 0
        assert here("link", "rebase", QUEUE, "--json").rows()[0]["rebased"]
        assert here("link", "rebuild", QUEUE, "--json").rows()[0]["generation"] > 1
        assert here("worker", QUEUE, "--drain").status == 0
        assert kept.values() == {"hello": 1}
        assert here("configure", QUEUE, "--no-link", "webhook").status == 0

    def test_a_url_in_place_of_a_variable_is_refused_and_not_shown(self, db: Any, here: Here) -> None:
        refused = here("configure", QUEUE, "--webhook", "https://host/hunter2")
        assert refused.status != 0
        assert "expected the name of an environment variable" in refused.err
        assert "hunter2" not in refused.err

    def test_doctor_asks_the_receiver(
        self, cli: Cli, db: Any, kept: Kept, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cq.configure(db, QUEUE, links=[links.webhook()])

        def found() -> tuple[bool, str]:
            check = next(each for each in doctor(cli.url) if each.name == f"link {QUEUE} webhook")
            return check.ok, check.message

        assert found() == (
            True,
            f"the receiver at {os.environ[URL_ENV].split('/')[2]} accepts signed requests",
        )
        kept.receive = lambda *given: (403, {"error": "forbidden"})
        assert "answered 403" in found()[1]
        monkeypatch.delenv(URL_ENV)
        assert found() == (False, f"${URL_ENV} is not set: give the URL of the webhook there")


BEGIN = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


def test_slow_receivers_do_not_stop_the_passes(db: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would hold all threads: each has more buckets to send than a worker has threads."""
    told, app = told_app(name)
    app.configure(db, name)
    with running(Worker(db, app)), ExitStack() as receivers:
        begun = []
        for number in range(3):
            url, requests = receivers.enter_context(dripping(BEGIN))
            monkeypatch.setenv(f"CQ_SLOW_{number}", url)
            begun.append(requests)
            slow = f"{name}-slow{number}"
            cq.configure(db, slow, links=[links.webhook(f"CQ_SLOW_{number}")])
            add(db, slow, {f"k{key}": 1 for key in range(100)})
        held = 0
        while held < CONCURRENCY // 2:
            held += sum(requests.acquire(timeout=0.05) for requests in begun)
        for count in range(1, 20):
            add(db, name, {"a": 1})
            told.wait_for(a=count)
        assert held == CONCURRENCY // 2
        assert not any(requests.acquire(blocking=False) for requests in begun)


def test_a_receiver_that_does_not_answer_is_a_link_that_fails(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.2)
    failed, ended = threading.Event(), threading.Event()

    def note(event: Event) -> None:
        if event.name == "link_failed" and event.fields["queue"] == name:
            failed.set()

    unsubscribe = subscribe(note)
    with serving(lambda request, body: (200 if ended.wait(SECONDS) else 500, b"")) as url:
        monkeypatch.setenv("CQ_WEBHOOK_URL", url)
        cq.configure(db, name, links=[links.webhook()])
        add(db, name, {"a": 1})
        with running(Worker(db, queues=[name])):
            assert failed.wait(SECONDS)
        ended.set()
    unsubscribe()
    (found,) = link_status(db, name)
    assert "does not answer: ReadTimeoutError" in found.error
