"""Facts about the machine of a measurement, and the versions of the measured software."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw

from cq.distribution import version


def machine_facts() -> dict[str, Any]:
    """Facts that the figures depend on; `load` is the load average of the last minute and should be low."""
    has_affinity = hasattr(os, "sched_getaffinity")  # the cores that this process may use
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
        "memory_bytes": _memory(),
        "load": round(os.getloadavg()[0], 2),
        "versions": {
            "cq": version(),
            "python": platform.python_version(),
            "sqlite": apsw.sqlite_lib_version(),
        },
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _memory() -> int | None:
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None
