"""Alerts and the dashboard use the metrics that workers serve, and every alert leads to its section in the runbook."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cq.observers.telemetry.bus import emit, subscribe
from cq.observers.telemetry.events import EVENTS
from cq.observers.telemetry.metrics import Address, serve
from tests.docs.pages import anchors

FILES = Path(__file__).parents[2] / "docs" / "operate"
ALERTS = [
    rule for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD = json.loads((FILES / "dashboard.json").read_text())
PANELS = DASHBOARD["panels"]
EXPRESSIONS = [
    *(pytest.param(rule["expr"], id=rule["alert"]) for rule in ALERTS),
    *(
        pytest.param(each["expr"], id=f"{panel['title']} {each['refId']}")
        for panel in PANELS
        for each in panel["targets"]
    ),
]
OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus adds."""


@pytest.fixture(scope="module")
def served() -> dict[str, set[str]]:
    """{sample that the endpoint of a worker serves: its labels}, after each event has occurred once."""
    addresses: list[str] = []
    unsubscribe = subscribe(
        lambda event: addresses.append(event.fields["address"]) if event.name == "metrics_served" else None
    )
    end = serve(Address("127.0.0.1", 0))
    try:
        for name, kind in EVENTS.items():
            if name != "metrics_served" and all(
                each.value is not None for each in kind.metrics
            ):  # else a gauge goes
                emit(
                    name,
                    **{
                        **dict.fromkeys(kind.fields, 1),
                        **({"queue": "words"} if "queue" in kind.fields else {}),
                    },
                )
        with urllib.request.urlopen(f"http://{addresses[0]}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    finally:
        end()
        unsubscribe()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def parts(expression: Any) -> Iterator[Any]:
    """An expression of PromQL and all expressions in it."""
    yield expression
    for name in ("lhs", "rhs", "expr", "param", "vector_selector", "args"):
        inner = getattr(expression, name, None)
        for each in inner if isinstance(inner, list) else [inner]:
            if isinstance(each, promql_parser.Expr):
                yield from parts(each)


def parsed(text: str) -> Any:
    """The expression; Grafana replaces its variable before Prometheus gets the text."""
    return promql_parser.parse(text.replace("$__rate_interval", "5m"))


def grouping(part: Any) -> set[str]:
    """The labels by which an aggregation or a join groups."""
    modifier = getattr(part, "modifier", None)
    found = modifier if isinstance(part, promql_parser.AggregateExpr) else getattr(modifier, "matching", None)
    return set(getattr(found, "labels", ()))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_uses_metrics_and_labels_that_a_worker_serves(
    served: dict[str, set[str]], expression: str
) -> None:
    found = list(parts(parsed(expression)))
    selectors = [part for part in found if isinstance(part, promql_parser.VectorSelector)]
    labels = set().union(*(served.get(str(each.name), set()) for each in selectors)) | OF_PROMETHEUS

    assert selectors
    for selector in selectors:
        assert selector.name in served
        assert {each.name for each in selector.matchers.matchers} <= served[selector.name]
    for part in found:
        assert grouping(part) <= labels


def test_only_counters_are_read_by_their_rate(served: dict[str, set[str]]) -> None:
    """A counter's value depends on the start of its process: it is read plainly only to find out that it is new."""
    for parameter in EXPRESSIONS:
        expression = str(parameter.values[0])
        found = list(parts(parsed(expression)))
        by_rate = {
            part.args[0].vector_selector.name
            for part in found
            if isinstance(part, promql_parser.Call) and part.func.name in ("rate", "increase")
        }
        plain = {part.name for part in found if isinstance(part, promql_parser.VectorSelector)} - by_rate

        assert all(str(name).endswith(("_total", "_bucket")) for name in by_rate)
        assert not [name for name in plain if str(name).endswith("_total")]
        for name in re.findall(r"(?<![(\w])(?:sum by \(\w+\) \()(\w+_total)\b", expression):
            assert f"{name} unless {name} offset" in expression


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_how_bad_it_is_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    notes = rule["annotations"]
    page, anchor = re.fullmatch(
        r"https://docs\.example/cq/operate/(\w+)\.html#(\w+)", notes["runbook_url"]
    ).groups()  # type: ignore[union-attr]

    assert rule["labels"]["severity"] in ("warning", "critical")
    assert notes["summary"]
    assert notes["description"].endswith(".")
    assert anchor == rule["alert"].lower()
    assert anchor in anchors(FILES / f"{page}.md")
    for name in re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"]):
        assert any(name in labels.split(", ") for labels in re.findall(r"by \(([^)]*)\)", rule["expr"]))
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert promql_parser.parse_duration(rule.get("for", "1s"))


def test_names_of_alerts_and_numbers_of_panels_are_unique() -> None:
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS) > 10
    assert len({panel["id"] for panel in PANELS}) == len(PANELS) > 10


def test_every_problem_that_a_counter_counts_has_an_alert(served: dict[str, set[str]]) -> None:
    """Counters of warnings and errors; repairs that a worker makes by itself need none."""
    problems = {
        f"{metric.name}_total" if not metric.name.endswith("_total") else metric.name
        for kind in EVENTS.values()
        if kind.level >= 30
        for metric in kind.metrics
        if metric.type == "counter"
    }
    alerted = {
        part.name
        for rule in ALERTS
        for part in parts(parsed(rule["expr"]))
        if isinstance(part, promql_parser.VectorSelector)
    }

    assert problems <= served.keys()
    assert sorted(problems - alerted) == []


def test_the_first_event_of_a_queue_raises_an_alert_too() -> None:
    """`increase` is 0 for a series that begins at 1."""
    begin_at_one = {
        metric.name
        for kind in EVENTS.values()
        for metric in kind.metrics
        if metric.type == "counter" and not isinstance(metric.value, str) and "queue" in kind.fields
    }
    found = 0
    for rule in ALERTS:
        for metric in re.findall(r"increase\((\w+)\[\w+\]\)\) > 0", rule["expr"]):
            if metric in begin_at_one or metric.removesuffix("_total") in begin_at_one:
                found += 1
                assert f"{metric} unless {metric} offset" in rule["expr"], rule["alert"]

    assert found > 3


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_a_panel_has_a_unit_and_no_data_source_of_one_installation(panel: dict[str, Any]) -> None:
    sources = [panel["datasource"], *(each["datasource"] for each in panel["targets"])]

    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["description"].endswith(".")
    assert sources == [{"type": "prometheus", "uid": "${datasource}"}] * len(sources)


def test_the_dashboard_can_be_imported_anywhere() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}

    assert DASHBOARD["id"] is None
    assert DASHBOARD["uid"] is None
    assert variables["datasource"]["type"] == "datasource"
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(PANELS))) - {"__rate_interval"}
    assert used == variables.keys()
    places = [tuple(panel["gridPos"][each] for each in "xywh") for panel in PANELS]
    cells = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert all(x + w <= 24 for x, _, w, _ in places)
