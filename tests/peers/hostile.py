"""A peer that answers as a test wants, for tests of hostile peers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from streamer.peers.homes import PeerMember
from tests.serving import serving

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def head(status: int = 200, **headers: object) -> bytes:
    """Returns the header of an answer."""
    lines = [f"HTTP/1.1 {status} X", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def sends(*pieces: bytes) -> Answer:
    """Returns an answer that sends these pieces and closes."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
        await writer.drain()

    return answer


def sends_for_ever(first: bytes, piece: bytes, pause: float = 0.0) -> Answer:
    """Returns an answer that sends the first piece once and the other one without end."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    return answer


async def silent(writer: asyncio.StreamWriter) -> None:
    """Keeps the connection open and sends nothing."""
    await asyncio.Event().wait()


@asynccontextmanager
async def peer(answer: Answer) -> AsyncIterator[PeerMember]:
    """Stands for a member of the group: it gives this answer to every request on a real socket, whatever is asked."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await answer(writer)

    async with serving(connected) as port:
        yield PeerMember("hostile", f"127.0.0.1:{port}", 1 << 30)
