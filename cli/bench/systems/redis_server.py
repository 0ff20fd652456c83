"""A temporary Redis server for a benchmark."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cq import runtime
from cq.cli.bench.systems.errors import Unavailable

_INSTALL_DRIVER: Final = "pip install 'redis>=5'"
_START_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_SETTINGS: Final = {
    # The usual settings of Redis: a power failure loses up to one second.
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "port": "0",
}


@contextlib.contextmanager
def own_server(folder: Path) -> Iterator[str]:
    """Start a server in `folder`, and stop it at exit; yields the path of its socket.

    Raises `Unavailable` if the driver is missing, or the server is not in $PATH.
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
    # In a new session: ^C on the terminal must reach only the benchmark, which stops the server.
    process = subprocess.Popen(  # noqa: S603 - a program of $PATH with constant settings
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
    """Wait until the server answers; raises `Unavailable` if it ends, or does not answer in time."""
    import redis

    deadline = runtime.monotonic() + _START_SECONDS
    while process.poll() is None and runtime.monotonic() < deadline:
        with contextlib.suppress(redis.ConnectionError), redis.Redis(unix_socket_path=str(socket)) as client:
            client.ping()
            return
        runtime.sleep(_POLL_SECONDS)
    raise Unavailable("redis-server does not start: run it by hand to see its error")


def version(socket: str) -> str:
    """The version of the server."""
    import redis

    with redis.Redis(unix_socket_path=socket) as client:
        return str(client.info("server")["redis_version"])


def require_driver() -> None:
    """Raise `Unavailable` if the client of Redis is not installed."""
    try:
        import redis  # noqa: F401 - a test of the import
    except ImportError:
        raise Unavailable(f"Redis' client is not installed: run `{_INSTALL_DRIVER}`") from None
