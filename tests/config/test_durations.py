"""Durations and sizes: the same forms wherever a setting takes one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import cq
from cq.cli.shared.options import seconds_of as option_seconds
from cq.config.decider import DeciderConfig
from cq.config.expiry import ExpirySpec
from cq.config.rollup import RollUp
from cq.config.window import WindowSpec
from cq.deciders import reserve
from cq.durations import positive_seconds, seconds_of, span_of, timeout_of
from cq.errors import InvalidConfiguration
from cq.observers.top import top
from cq.windows import Window


@pytest.mark.parametrize("given", [90, 90.0, "90", "90s", "1m30s", "1.5m", timedelta(seconds=90)])
def test_a_duration_means_the_same_in_each_form(given: Any) -> None:
    decider = cq.Decider("stock", 1, lambda key, state, request: (state, None), keep=given)

    assert seconds_of(given) == positive_seconds(given) == span_of(given) == timeout_of(given) == 90
    assert isinstance(given, timedelta) or option_seconds(given) == 90
    assert WindowSpec.parse((given, "1s")) == WindowSpec.parse("90/1") == WindowSpec.parse("1m30s/1s")
    assert repr(Window("hits", late=given)) == repr(Window("hits"))
    assert getattr(ExpirySpec.parse(given), "period", None) == 90
    assert RollUp.parse({given: None}) == RollUp.parse("90s:forever")
    assert top(every=given).settings["every"] == 90_000
    assert DeciderConfig.of(decider).keep == reserve(1, "hold", ttl=given)["ttl"] == 90


@pytest.mark.parametrize("given", ["soon", "", "-1s", "1 m", True, float("nan"), b"1s", [1], None])
def test_what_is_no_duration_is_refused_everywhere(given: Any) -> None:
    takers: list[Any] = [seconds_of, positive_seconds, span_of, ExpirySpec.parse, WindowSpec.parse]
    for take in takers:
        with pytest.raises(InvalidConfiguration):
            take(given)
