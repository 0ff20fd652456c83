"""The status document of a cluster."""

from __future__ import annotations

from typing import Any

IN_ORDER: dict[str, Any] = {
    "processes": {"a": {"version": "7.3.43"}, "b": {"version": "7.3.43"}, "c": {}},
    "configuration": {"storage_engine": "ssd-2", "redundancy_mode": "double"},
    "data": {
        "state": {"healthy": True, "name": "healthy"},
        "least_operating_space_bytes_log_server": 65_962_042_582,
        "least_operating_space_bytes_storage_server": 9_648_546_110,
    },
    "qos": {
        "performance_limited_by": {"description": "The database is not being saturated.", "name": "workload"},
        "transactions_per_second_limit": 145_904_619,
        "throttled_tags": {"auto": {"count": 0}, "manual": {"count": 0}},
    },
    "clients": {
        "count": 3,
        "supported_versions": [{"client_version": "7.3.69", "count": 3, "max_protocol_count": 3}],
    },
    "messages": [],
}
"""What a cluster of two processes published, as far as it is read."""
