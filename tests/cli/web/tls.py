"""A proxy with TLS before a dashboard, with a certificate of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.cli.web.dashboards import SECONDS
from tests.kit.certificates import certified


@contextmanager
def https(url: str, folder: Path) -> Iterator[str]:
    """The URL of a proxy that passes all bytes on to the server at `url`."""
    target, (context, _) = httpx.URL(url), certified(folder)
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
