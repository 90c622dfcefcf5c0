"""A server of HTTP that answers what a test says, byte for byte, and records what it is asked."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.serving import serving

# Byte value = offset modulo 251: a misplaced byte names itself.
RAMP = bytes(i % 251 for i in range(400_000))
_RANGE = re.compile(rb"(?im)^Range: bytes=(\d+)-(\d+)\r$")


def answer(start: int, stop: int, *extra: str, tag: str = '"x"', body: bytes | None = None) -> bytes:
    """Returns the answer of a correct server to a range of RAMP."""
    body = RAMP[start:stop] if body is None else body
    lines = [
        "HTTP/1.1 206 Partial Content",
        f"ETag: {tag}",
        f"Content-Range: bytes {start}-{stop - 1}/{len(RAMP)}",
        f"Content-Length: {len(body)}",
        *extra,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@dataclass
class Asked:
    """One request as it came.

    Attributes:
        head: all of it, from the first line to the last header.
        connection: number of the connection, from 1.
    """

    head: bytes
    connection: int

    @property
    def path(self) -> str:
        """Path of the request as it was sent."""
        return self.head.split(b" ", 2)[1].decode("latin-1")

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the request by name in lower case."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}

    def good(self) -> bytes:
        """Returns the answer of a correct server."""
        if self.head.startswith(b"HEAD"):
            return f'HTTP/1.1 200 OK\r\nETag: "x"\r\nContent-Length: {len(RAMP)}\r\n\r\n'.encode()
        found = _RANGE.search(self.head)
        assert found is not None, self.head
        return answer(int(found[1]), int(found[2]) + 1)


Script = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class TellingServer:
    """Stands for an object store over HTTP: it answers as `script` says, and without one serves RAMP."""

    script: Script | None = None
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    def says(self, reply: bytes) -> None:
        """Answers every request with the same bytes."""

        async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(reply)

        self.script = script

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection."""
        self.connections += 1
        number = self.connections
        self.writers.append(writer)
        self.connected.set()
        while True:
            asked = Asked(await reader.readuntil(b"\r\n\r\n"), number)
            self.asked.append(asked)
            self.came.set()
            if self.script is None:
                writer.write(asked.good())
            else:
                await self.script(asked, writer)
            await writer.drain()


@asynccontextmanager
async def telling(context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[TellingServer]:
    """Serves on a port of its own."""
    told = TellingServer()
    async with serving(told.serve, context, host) as told.port:
        yield told
