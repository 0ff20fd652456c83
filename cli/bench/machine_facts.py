"""Facts about the machine of a measurement, and the versions of the measured software."""

from __future__ import annotations

import os
import platform
import sqlite3
from pathlib import Path
from typing import Any

from cq.distribution import version


def machine_facts() -> dict[str, Any]:
    """Facts that the figures depend on; `load` is the load average of the last minute and should be low."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": _cores(),
        "memory_bytes": _memory(),
        "load": round(os.getloadavg()[0], 2),
        "versions": {
            "cq": version(),
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
        },
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
