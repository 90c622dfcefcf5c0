"""A TCP server of a test, in the test's own loop, which ends with all of its connections closed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

# More than any test asks at once: what the kernel drops comes again after a second.
_BACKLOG = 1024


@asynccontextmanager
async def serving(
    handler: Handler, context: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """Runs the handler for each connection; yields the port.

    In the end every handler is cancelled and every connection aborted, also one whose TLS handshake is under way or
    whose handler has not begun: a transport that outlives its loop is an error of the test.

    Args:
        handler: may return, or raise a ConnectionError, IncompleteReadError or SSLError, when its connection ends.
        context: serves TLS with it.
        host: the address to listen on.
    """
    tasks: set[asyncio.Task[None]] = set()
    transports: set[asyncio.WriteTransport] = set()  # of TCP, below TLS

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                if context is not None:
                    await writer.start_tls(context)
                await handler(reader, writer)
        finally:
            if not writer.is_closing():  # Python 3.11.2 cannot abort a TLS transport that was closed twice
                writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transports.add(writer.transport)
        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, host, 0, backlog=_BACKLOG)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0)  # connections that were accepted in this turn of the loop are handed over
        for task in [*tasks]:
            task.cancel()
        if tasks:
            await asyncio.wait([*tasks])
        for transport in transports:
            transport.abort()
        # Not StreamWriter.wait_closed: after a failed handshake nothing tells the stream that its connection is lost.
        # TCP closes its socket in the next turn of the loop; TLS and then the stream hear of it in the turns after it.
        for _ in range(3):
            await asyncio.sleep(0)
