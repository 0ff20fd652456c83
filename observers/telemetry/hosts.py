"""The host names under which cq's HTTP servers answer."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection


def is_host(header: str, names: Collection[str] = ()) -> bool:
    """Whether a server answers under this `Host` header: localhost, this machine, an IP address, or one of `names`.

    A page of another site reaches a server that its browser can reach, if a name of that site resolves to the server's
    address (DNS rebinding). It needs a name for this, so all IP addresses are safe. `names` are in lower case.

    >>> is_host("localhost:8080"), is_host("[::1]"), is_host("evil.example"), is_host("cq.example", {"cq.example"})
    (True, True, False, True)
    """
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
    name = name.strip("[]").lower()
    if name in {"localhost", socket.gethostname().lower(), *names}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def hosts_of(names: Collection[str]) -> frozenset[str]:
    """The host names that an operator gave, in lower case."""
    return frozenset(name.lower() for name in names)
