"""Actions of operators: their confirmations, their effect on the store, and who may do them."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import cq
from cq import links
from cq.config.flags import read_flags
from cq.encoding import codec
from cq.failure import KeyFailure
from cq.keys import QueueKeys
from cq.queue.set_aside import set_aside
from cq.testing import drain
from tests.cli.web.dashboards import TOKEN, Serving, serving
from tests.kit.queues import get
from tests.observers.telemetry.eventlog import Events
from tests.observers.telemetry.eventlog import events as events

OWN = {"Sec-Fetch-Site": "same-origin"}


def confirmed(found: Serving, path: str, **fields: str) -> str:
    """Open the form of an action, confirm it, and return the page after it."""
    form = found.page(path)
    token = re.search(r'name="form_token" value="([^"]+)"', form)
    assert token is not None
    answer = found.client.post(
        path, data={"form_token": token[1], **fields}, headers=OWN, follow_redirects=True
    )
    assert answer.status_code in (200, 400)
    return answer.text


def flags(db: Any, name: str) -> Any:
    return cq.transact(db, lambda tr: read_flags(tr.snapshot, name))


def test_each_action_on_a_queue_is_confirmed_and_changes_the_store(db: Any, events: Events) -> None:
    cq.configure(db, "words", key=str, value=int, buckets=2)
    with serving(db, operates=True) as found:
        assert "/actions/pause?queue=words" in found.page("/queues/words")
        html = confirmed(found, "/actions/pause?queue=words", reason="<b>later</b>", duration="1h")
        assert "queue &#39;words&#39; is paused" in html
        assert (flags(db, "words").paused, flags(db, "words").reason) == (True, "<b>later</b>")
        confirmed(found, "/actions/resume?queue=words")
        assert not flags(db, "words").paused
        confirmed(found, "/actions/limit?queue=words", max_age="10m", when_full="admit")
        assert flags(db, "words").is_limited
        confirmed(found, "/actions/limit?queue=words")
        assert not flags(db, "words").is_limited
        assert "has 1 bucket: workers drain" in confirmed(found, "/actions/rebucket?queue=words", buckets="1")
        assert "retried 0 updates and missed reports" in confirmed(found, "/actions/retry?queue=words")
        for path, fields, message in (
            ("rebucket", {"buckets": "many"}, "expected a whole number"),
            ("pause", {"duration": "long"}, "expected a duration such as"),
            ("limit", {"max_age": "1m", "when_full": "never"}, "The action failed"),
            ("retry", {"key": "b"}, "nothing was set aside of key &#39;b&#39;"),
            ("drop", {"key": "b"}, "nothing was set aside of key &#39;b&#39;"),
            ("drop", {"key": " "}, "nothing was set aside of key &#39; &#39;"),
        ):
            assert message in confirmed(found, f"/actions/{path}?queue=words", **fields)
    paused, *_ = events.of("operator_acted", action="pause", queue="words")
    assert re.fullmatch("[0-9a-f]{8}", paused["session"])
    assert paused["given"] == "reason '<b>later</b>', duration '1h'"
    assert paused["result"] == "queue 'words' is paused"
    assert len(events.of("operator_acted")) == 6
    failed = [event["result"] for event in events.of("operator_failed")]
    assert len(failed) == 6
    assert failed[0].startswith("expected a whole number")


def test_a_link_that_needs_code_of_the_application_names_the_command(db: Any) -> None:
    cq.configure(db, "words", key=str, value=int, links=[links.app("own"), links.table("t", columns="own@1")])
    with serving(db, operates=True) as found:
        for link in ("own", "export"):
            page = confirmed(found, f"/actions/rebuild-link?queue=words&link={link}", link=link)
            assert f"run `cq link rebuild words {link} --app MODULE:APP`" in page
            page = confirmed(found, f"/actions/rebase-link?queue=words&link={link}", link=link)
            assert f"run `cq link rebase words {link} --app MODULE:APP`" in page


def test_a_form_of_an_earlier_session_is_shown_again_with_what_was_typed(db: Any) -> None:
    cq.configure(db, "words", key=str, value=int)
    with serving(db, operates=True) as found:
        earlier = re.search(r'name="form_token" value="([^"]+)"', found.page("/actions/pause?queue=words"))
        assert earlier is not None
        found.client.get("/", params={"token": TOKEN})  # another tab signs in again
        fields = {"form_token": earlier[1], "reason": "a flood"}
        answer = found.client.post("/actions/pause?queue=words", data=fields, headers=OWN)

        assert answer.status_code == 403
        assert "nothing was changed, as this form is from an earlier session" in answer.text
        assert not flags(db, "words").paused
        again = dict(re.findall(r'name="(\w+)" value="([^"]*)"', answer.text))
        assert again["reason"] == "a flood"
        assert found.client.post("/actions/pause?queue=words", data=again, headers=OWN).status_code == 303
        assert flags(db, "words").paused


def test_a_change_of_the_limits_does_not_undo_that_of_another_form(db: Any) -> None:
    cq.configure(db, "words", key=str, value=int)
    with serving(db, operates=True) as found:

        def opened() -> dict[str, str]:
            return dict(re.findall(r'name="(\w+)" value="([^"]*)"', found.page("/actions/limit?queue=words")))

        def send(form: dict[str, str]) -> Any:
            fields = {name: unescape(value) for name, value in form.items()} | {"when_full": "raise"}
            return found.client.post("/actions/limit?queue=words", data=fields, headers=OWN)

        one, other = opened(), opened()
        assert send(one | {"max_age": "10m"}).status_code == 303
        refused = send(other | {"max_bytes": "1GB"})
        assert refused.status_code == 400
        assert "nothing was changed, as these settings were changed after the form was opened" in refused.text
        assert "(maximum age 600s, maximum size none, adds to a full queue raise)" in refused.text
        assert (flags(db, "words").max_seconds, flags(db, "words").max_bytes) == (600, None)
        assert opened()["max_age"] == "600s"
        again = dict(re.findall(r'name="(\w+)" value="([^"]*)"', refused.text))
        assert again["max_bytes"] == "1GB"
        assert send(again | {"max_age": "10m"}).status_code == 303
        assert (flags(db, "words").max_seconds, flags(db, "words").max_bytes) == (600, 10**9)


def test_a_retry_of_which_a_part_failed_does_not_say_that_nothing_was_changed(db: Any) -> None:
    cq.configure(db, "words", key=str, value=int)

    def fill(tr: Any) -> None:
        set_aside(tr, QueueKeys("words"), codec.encode("good"), KeyFailure("an error"), [7])
        set_aside(tr, QueueKeys("words"), b"", KeyFailure("a row"), [b"raw"])

    cq.transact(db, fill)
    with serving(db, operates=True) as found:
        page = confirmed(found, "/actions/retry?queue=words")
    assert "pieces that stay set aside: 1" in page
    assert "Nothing was changed" not in page
    drain(db, "words")
    assert get(db, "words", "good") == 7


def test_a_level_has_only_the_actions_that_it_takes(db: Any) -> None:
    cq.configure(db, "hits", rollup="1m:1h")
    with serving(db, operates=True) as found:
        assert "/actions/rebucket" in found.page("/queues/hits")
        page = found.page("/queues/hits.1m")
        assert "/actions/pause?queue=hits.1m" in page
        assert not re.search("/actions/(limit|rebucket)", page)


def test_a_form_without_its_token_or_of_another_site_changes_nothing(db: Any) -> None:
    cq.configure(db, "words")
    with serving(db, operates=True) as found:
        path = "/actions/pause?queue=words"
        for fields in ({}, {"form_token": "0" * 64}):
            assert found.client.post(path, data=fields, headers=OWN).status_code == 403
        token = re.search(r'name="form_token" value="([^"]+)"', found.page(path))
        assert token is not None
        foreign = {"Origin": "http://evil.example"}
        assert found.client.post(path, data={"form_token": token[1]}, headers=foreign).status_code == 403
        for missing in ("/actions/none?queue=words", "/actions/pause?queue=<b>", "/actions/pause"):
            found.page(missing, status=404)
        assert "not configured" in confirmed(found, "/actions/pause?queue=none")
    assert not flags(db, "words").paused


def test_a_server_that_only_reads_has_no_actions(db: Any) -> None:
    cq.configure(db, "words")
    with serving(db) as found:
        assert "/actions/" not in found.page("/queues/words")
        found.page("/actions/pause?queue=words", status=404)
        assert found.client.post("/actions/pause?queue=words", headers=OWN).status_code in (404, 405)
    assert not flags(db, "words").paused
