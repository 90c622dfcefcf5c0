"""A small S3 of real sockets and scripted answers, for the tests of the fetcher.

Time limits are scaled down by configuration, so that no test waits longer than it must.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from aiohttp import web

from streamer.config import FetchConfig
from streamer.fetch import Fetcher
from streamer.manifest.model import Chunk, Extent, ObjectRecord
from streamer.store import open_store

KiB = 1024
MiB = 1024 * KiB
# Byte value = offset modulo 251: a misplaced byte names itself.
RAMP = (bytes(range(251)) * (4 * MiB // 251 + 1))[: 4 * MiB]

CONFIG = FetchConfig(
    range_bytes=MiB,
    window_start=8,
    backoff_start_seconds=0.001,
    backoff_max_seconds=0.02,
    progress_seconds=0.5,
    first_byte_seconds=10.0,
    failing_seconds=0.1,
    outage_seconds=5.0,
    hedge=False,
)


@dataclass
class Act:
    """What the server does with one GET instead of answering it well: an error, a cut, a stall, a wait, a slow body."""

    status: int = 0
    code: str = "InternalError"
    headers: dict[str, str] = field(default_factory=dict)
    reset_after: int | None = None
    truncate_after: int | None = None
    stall_after: int | None = None
    wait_seconds: float = 0.0
    until: asyncio.Event | None = None
    bytes_per_second: int = 0


@dataclass
class Seen:
    """One GET as the server saw it."""

    key: str
    start: int
    stop: int
    signer: str = ""
    sent: int = 0
    gone: bool = False


class FakeS3:
    """Stands for S3 with a bucket named `bucket`, and misbehaves as `script(seen, request number)` says.

    Like S3 it serves ranges over HTTP with ETags that change with the object, and refuses with S3's error documents.
    It lists nothing, takes no writes, and checks no signature.

    Args:
        client: the client that reads the server.
    """

    def __init__(self, client: str = "curl") -> None:
        self.client = client
        self.objects: dict[str, bytes] = {"big": RAMP}
        self.versions: dict[str, int] = {}
        self.seen: list[Seen] = []
        self.script: Callable[[Seen, int], Act | None] = lambda seen, number: None
        self.released = asyncio.Event()
        self.port = 0

    def record(self, key: str) -> ObjectRecord:
        """The object as a manifest has it now."""
        return ObjectRecord(f"s3://bucket/{key}", len(self.objects[key]), f"etag:{key}-{self.versions.get(key, 0)}")

    def replace(self, key: str, content: bytes) -> None:
        """Replaces an object by another version of it."""
        self.objects[key], self.versions[key] = content, self.versions.get(key, 0) + 1

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answers one GET, as the script says."""
        key = request.match_info["key"]
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers["Range"])
        assert found is not None
        signed = re.search(r"Credential=(\w+)/", request.headers.get("Authorization", ""))
        seen = Seen(key, int(found[1]), int(found[2]) + 1, signed[1] if signed else "")
        self.seen.append(seen)
        act = self.script(seen, len(self.seen)) or Act()
        if key not in self.objects:
            act = Act(status=404, code="NoSuchKey")
        elif request.headers["If-Match"] != f'"{key}-{self.versions.get(key, 0)}"':
            act = Act(status=412, code="PreconditionFailed")
        if act.status:
            return _refusal(act)
        try:
            return await self._send(request, seen, act)
        except (ConnectionError, asyncio.CancelledError):
            seen.gone = True
            raise

    async def _send(self, request: web.Request, seen: Seen, act: Act) -> web.StreamResponse:
        if act.wait_seconds:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.released.wait(), act.wait_seconds)
        if act.until:
            await act.until.wait()
        body = self.objects[seen.key][seen.start : seen.stop]
        response = web.StreamResponse(status=206, headers=self._headers(seen, len(body)))
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for first in range(0, len(body), 64 * KiB):
            if await self._misbehaves(request, seen, act):
                return response
            await response.write(body[first : first + 64 * KiB])
            seen.sent += len(body[first : first + 64 * KiB])
            if act.bytes_per_second:
                # By what was sent in all: a sleep that took too long does not make the next piece late as well.
                await asyncio.sleep(begun + seen.sent / act.bytes_per_second - loop.time())
        return response

    def _headers(self, seen: Seen, length: int) -> dict[str, str]:
        return {
            "ETag": f'"{seen.key}-{self.versions.get(seen.key, 0)}"',
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "Content-Length": str(length),
            "Content-Range": f"bytes {seen.start}-{seen.stop - 1}/{len(self.objects[seen.key])}",
        }

    async def _misbehaves(self, request: web.Request, seen: Seen, act: Act) -> bool:
        transport = request.transport
        assert transport is not None
        if act.reset_after is not None and seen.sent >= act.reset_after:
            await asyncio.sleep(0.02)  # what was written reaches the client before the reset
            transport.abort()
            return True
        if act.truncate_after is not None and seen.sent >= act.truncate_after:
            transport.close()
            return True
        if act.stall_after is not None and seen.sent >= act.stall_after:
            await self.released.wait()
            return True
        return False


def _refusal(act: Act) -> web.Response:
    body = f'<?xml version="1.0"?><Error><Code>{act.code}</Code></Error>'
    return web.Response(status=act.status, text=body, content_type="application/xml", headers=act.headers)


@asynccontextmanager
async def serving(server: FakeS3, port: int = 0) -> AsyncIterator[str]:
    """The server on a port of its own; yields its endpoint."""
    application = web.Application()
    application.router.add_get("/bucket/{key:.*}", server.answer)
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
        server.port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.released.set()
        await runner.cleanup()


@asynccontextmanager
async def fetching(
    server: FakeS3,
    config: FetchConfig = CONFIG,
    options: Mapping[str, object] = MappingProxyType({"key": "k", "secret": "s"}),
    notify: Callable[[str], None] = lambda text: None,
) -> AsyncIterator[Fetcher]:
    """A fetcher on the server; at the end nothing is reserved, in flight or waiting."""
    told = {"endpoint_url": f"http://127.0.0.1:{server.port}", **options}
    opener = lambda url: open_store(url, told, client=server.client)  # type: ignore[arg-type]  # noqa: E731
    async with Fetcher(config, opener, notify=notify) as fetcher:
        yield fetcher
        after = fetcher.statistics()
    assert (after.reserved_bytes, after.in_flight, after.waiting) == (0, 0, 0)


async def until(condition: Callable[[], bool]) -> None:
    """Waits until a condition without an event holds: a gauge, or what the server has seen."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.002)


def chunk(*extents: Extent) -> Chunk:
    """A chunk of these extents."""
    length = sum(extent.length for extent in extents)
    return Chunk(0, bytes(16), extents, 0, 1, length, length)


def part(server: FakeS3, start: int, stop: int, key: str = "big") -> Chunk:
    """A chunk of one range."""
    return chunk(Extent(server.record(key), start, stop))


async def fetched(fetcher: Fetcher, wanted: Chunk) -> bytes:
    """The bytes of a chunk."""
    with await fetcher.fetch(wanted) as got:
        return b"".join(got.parts)


def once(act: Act, on: int = 1) -> Callable[[Seen, int], Act | None]:
    """Misbehaves on the n-th request only."""
    return lambda seen, number: act if number == on else None


def at(start: int, *acts: Act) -> Callable[[Seen, int], Act | None]:
    """Misbehaves on the first requests from the byte `start`, on each in its own way, whatever other requests come."""
    left = list(acts)
    return lambda seen, number: left.pop(0) if seen.start == start and left else None
