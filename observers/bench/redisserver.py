"""A Redis server of a benchmark's own, in a temporary folder."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cq import machine
from cq.observers.bench.errors import Unavailable

_INSTALL_DRIVER: Final = "pip install 'redis>=5'"
_START_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.05
_SETTINGS: Final = {
    # As Redis is usually run: a power failure loses up to a second.
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "port": "0",
}


@contextlib.contextmanager
def own_server(folder: Path) -> Iterator[str]:
    """The path of the socket of a server in `folder`, which is ended in the end.

    Raises `Unavailable` when there is no driver, or no server in $PATH.
    """
    require_driver()
    program = shutil.which("redis-server")
    if program is None:
        raise Unavailable(
            "there is no redis-server in $PATH: install Redis with the system's package manager"
        )
    folder.mkdir(parents=True)
    socket = folder / "s"
    settings = [part for name, value in _SETTINGS.items() for part in (f"--{name}", value)]
    # In a session of its own: ^C in a terminal is for the benchmark, which ends it.
    process = subprocess.Popen(  # noqa: S603 - found in $PATH, with settings from here
        [program, "--dir", str(folder), "--unixsocket", str(socket), *settings],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for(process, socket)
        yield str(socket)
    finally:
        process.terminate()
        process.wait()


def _wait_for(process: subprocess.Popen[bytes], socket: Path) -> None:
    """Raises `Unavailable` when the server ends, or does not answer in time."""
    import redis

    deadline = machine.monotonic() + _START_SECONDS
    while process.poll() is None and machine.monotonic() < deadline:
        with contextlib.suppress(redis.ConnectionError), redis.Redis(unix_socket_path=str(socket)) as client:
            client.ping()
            return
        machine.sleep(_LOOK_SECONDS)
    raise Unavailable("redis-server does not start: try it by hand")


def version(socket: str) -> str:
    """The server's version."""
    import redis

    with redis.Redis(unix_socket_path=socket) as client:
        return str(client.info("server")["redis_version"])


def require_driver() -> None:
    """Raises `Unavailable` when Redis' client is not installed."""
    try:
        import redis  # noqa: F401 - whether it can be
    except ImportError:
        raise Unavailable(f"Redis' client is not installed: run `{_INSTALL_DRIVER}`") from None
