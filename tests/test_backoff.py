"""The delays before retries grow to a limit, and differ between processes."""

from __future__ import annotations

import random

import pytest

from cq.backoff import FIRST_SECONDS, LONGEST_SECONDS, delay_after


@pytest.mark.parametrize(
    ("failures", "most"), [(1, 0.1), (2, 0.2), (3, 0.4), (7, 6.4), (8, 10.0), (100_000, 10.0)]
)
def test_the_delay_doubles_up_to_a_limit(failures: int, most: float) -> None:
    delays = [delay_after(failures) for _ in range(100)]

    assert (FIRST_SECONDS, LONGEST_SECONDS) == (0.1, 10.0)
    assert all(most / 2 <= delay <= most for delay in delays)
    assert len(set(delays)) > 90


def test_the_limits_can_be_others() -> None:
    assert 0.005 <= delay_after(1, first=0.01, longest=0.5) <= 0.01
    assert 0.25 <= delay_after(50, first=0.01, longest=0.5) <= 0.5


def test_one_seed_gives_one_sequence_of_delays() -> None:
    def delays() -> list[float]:
        random.seed(5)
        return [delay_after(failures) for failures in range(1, 20)]

    assert delays() == delays()
