"""A proxy with TLS before a dashboard, with a certificate of its own."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.cli.web.dashboards import SECONDS


@contextmanager
def https(url: str, folder: Path) -> Iterator[str]:
    """The URL of a proxy that passes all bytes on to the server at `url`."""
    target, context = httpx.URL(url), _context(folder)
    ports, loops = list[int](), list[asyncio.AbstractEventLoop]()
    is_open, ends = threading.Event(), asyncio.Event()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(target.host, target.port)
        try:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:  # also when the proxy ends while the browser keeps its connections
            back.transport.abort()
            writer.transport.abort()

    async def run() -> None:
        async with await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context) as server:
            loops.append(asyncio.get_running_loop())
            ports.append(server.sockets[0].getsockname()[1])
            is_open.set()
            await ends.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert is_open.wait(SECONDS)
        yield f"https://127.0.0.1:{ports[0]}"
    finally:
        loops[0].call_soon_threadsafe(ends.set)
        thread.join(SECONDS)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await reader.read(65_536):
            writer.write(part)
            await writer.drain()
    writer.close()


def _context(folder: Path) -> ssl.SSLContext:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = "req -x509 -newkey rsa:2048 -nodes -subj /CN=here -addext subjectAltName=IP:127.0.0.1 -days 2"
    subprocess.run(
        [program, *made.split(), "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
