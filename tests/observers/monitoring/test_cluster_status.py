"""Findings in the status document of a cluster; `test_diagnosis` has those of a real one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cq.errors import StoreError
from cq.observers.monitoring.doctor_cluster import server_versions, status_checks
from tests.observers.monitoring.clusters import IN_ORDER


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cq.observers.monitoring.doctor_cluster.client_version", lambda: "7.3.69")


def found(changes: dict[str, Any]) -> dict[str, str | StoreError]:
    """The findings after changes of some parts."""
    cluster = copy.deepcopy(IN_ORDER)
    for part, content in changes.items():
        cluster[part] = {**cluster[part], **content} if isinstance(content, dict) else content
    findings: dict[str, str | StoreError] = {}
    for name, check in status_checks().items():
        try:
            findings[name] = check(cluster)
        except StoreError as error:
            findings[name] = error
    return findings


def test_a_cluster_in_order_is_described() -> None:
    assert found({}) == {
        "redundancy": "storage engine ssd-2, redundancy double",
        "space": "free, storage servers: 9.6 GB, log servers: 66.0 GB",
        "throttling": "the cluster is not saturated",
        "clients": "connected, 3 of 7.3.69",
        "messages": "none",
    }
    assert server_versions(IN_ORDER) == ["7.3.43"]


def test_parts_may_be_absent() -> None:
    for name, check in status_checks().items():
        assert check({}), name
    assert server_versions({}) == []


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        (
            {"data": {"state": {"healthy": False, "description": "Only one replica remains of some data"}}},
            "redundancy",
            "not healthy: Only one replica remains of some data; see `status details`",
        ),
        (
            {"data": {"least_operating_space_bytes_storage_server": 10**8}},
            "space",
            "storage servers: 100.0 MB",
        ),
        ({"data": {"least_operating_space_bytes_log_server": -1}}, "space", "log servers: -1 bytes"),
        (
            {
                "qos": {
                    "performance_limited_by": {
                        "name": "storage_server_write_queue_size",
                        "description": "Storage server performance (storage queue).",
                    },
                    "transactions_per_second_limit": 1234.5,
                }
            },
            "throttling",
            r"at most 1,23. transactions a second: Storage server performance \(storage queue\); add storage processes",
        ),
        (
            {"qos": {"performance_limited_by": {"name": "log_server_write_queue"}}},
            "throttling",
            "log_server_write_queue; give the log processes faster disks",
        ),
        ({"qos": {"throttled_tags": {"auto": {"count": 2}}}}, "throttling", "throttles 2 transaction tags"),
        (
            {
                "messages": [
                    {
                        "name": "unreachable_processes",
                        "description": "Some processes are unreachable.",
                    }
                ]
            },
            "messages",
            "reports: Some processes are unreachable; see",
        ),
    ],
)
def test_a_problem_is_a_finding_with_what_to_do(changes: dict[str, Any], name: str, words: str) -> None:
    findings = found(changes)

    with pytest.raises(StoreError, match=words):
        raise findings.pop(name)  # type: ignore[misc]
    assert all(isinstance(finding, str) for finding in findings.values())


def test_one_lost_disk_and_clients_of_other_versions_are_mentioned() -> None:
    versions = [
        {"client_version": "7.1.61", "count": 5, "max_protocol_count": 2},
        {"client_version": "7.3.69", "count": 3, "max_protocol_count": 3},
        {"client_version": "6.3.1", "count": 5, "max_protocol_count": 0},
    ]
    findings = found(
        {"configuration": {"redundancy_mode": "single"}, "clients": {"supported_versions": versions}}
    )

    assert "one lost disk loses data" in str(findings["redundancy"])
    assert findings["clients"] == (
        "connected, 2 of 7.1.61, 3 of 7.3.69: bring all to one version when an upgrade is over"
    )
