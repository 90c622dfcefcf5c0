"""The fetcher against a store that fails: every byte is compared, every reservation ends at zero.

The store is a small S3 of this file: real sockets, scripted answers. Time limits are scaled down by configuration, so
that no test waits longer than it must.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import obstore
import pytest
from aiohttp import web

from streamer.config import FetchConfig
from streamer.errors import (
    AccessDeniedError,
    ClosedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    StreamerError,
    ThrottledError,
)
from streamer.fetch import Fetcher, FetchStatistics
from streamer.manifest.model import Chunk, Extent, ObjectRecord
from streamer.store import open_store

KiB = 1024
MiB = 1024 * KiB
# Byte value = offset modulo 251: a misplaced byte names itself.
RAMP = bytes(i % 251 for i in range(4 * MiB))

CONFIG = FetchConfig(
    range_bytes=MiB,
    window_start=8,
    backoff_start_seconds=0.001,
    backoff_max_seconds=0.02,
    progress_seconds=0.5,
    first_byte_seconds=10.0,
    outage_seconds=5.0,
    hedge=False,
)


@pytest.fixture(scope="session", autouse=True)
def warm_runtime() -> None:
    """The threads and descriptors of obstore's runtime live as long as the process."""

    async def put() -> None:
        await obstore.put_async(obstore.store.MemoryStore(), "warm", b"")

    asyncio.run(put())


@dataclass
class Act:
    """What the server does with one GET instead of answering it well."""

    status: int = 0
    code: str = "InternalError"
    headers: dict[str, str] = field(default_factory=dict)
    reset_after: int | None = None
    truncate_after: int | None = None
    stall_after: int | None = None
    wait_seconds: float = 0.0
    bytes_per_second: int = 0


@dataclass
class Seen:
    """One GET as the server saw it."""

    key: str
    start: int
    stop: int
    sent: int = 0
    gone: bool = False


class FakeS3:
    """A bucket named `bucket`; `script(request number)` says what goes wrong."""

    def __init__(self) -> None:
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
        """Another version."""
        self.objects[key], self.versions[key] = content, self.versions.get(key, 0) + 1

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One GET."""
        key = request.match_info["key"]
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers["Range"])
        assert found is not None
        seen = Seen(key, int(found[1]), int(found[2]) + 1)
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
        body = self.objects[seen.key][seen.start : seen.stop]
        response = web.StreamResponse(status=206, headers=self._headers(seen, len(body)))
        await response.prepare(request)
        for first in range(0, len(body), 64 * KiB):
            if await self._misbehaves(request, seen, act):
                return response
            await response.write(body[first : first + 64 * KiB])
            seen.sent += len(body[first : first + 64 * KiB])
            if act.bytes_per_second:
                await asyncio.sleep(64 * KiB / act.bytes_per_second)
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


@pytest.fixture
async def server() -> AsyncIterator[FakeS3]:
    """A store that works until a script says otherwise."""
    fake = FakeS3()
    async with serving(fake):
        yield fake


@pytest.fixture(params=["obstore", "fsspec"])
def client(request: pytest.FixtureRequest) -> str:
    """Both clients for S3."""
    return str(request.param)


@asynccontextmanager
async def fetching(server: FakeS3, client: str = "obstore", config: FetchConfig = CONFIG) -> AsyncIterator[Fetcher]:
    """A fetcher on the server; at the end nothing is reserved, in flight or waiting."""
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{server.port}"}
    async with Fetcher(config, lambda url: open_store(url, options, client=client)) as fetcher:  # type: ignore[arg-type]
        yield fetcher
        after = fetcher.statistics()
    assert (after.reserved_bytes, after.in_flight, after.waiting) == (0, 0, 0)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what nobody announces: a gauge, or what the server saw."""
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


async def test_without_faults_no_byte_is_asked_twice(server: FakeS3, client: str) -> None:
    """A large chunk is asked for as aligned ranges that tile it."""
    async with fetching(server, client) as fetcher:
        assert await fetched(fetcher, part(server, 5, 4 * MiB - 3)) == RAMP[5:-3]
    asked = sorted((seen.start, seen.stop) for seen in server.seen)
    assert asked == [(5, 2 * MiB), (2 * MiB, 4 * MiB - 3)]


async def test_throttled_then_well(server: FakeS3, client: str) -> None:
    """A 503 is retried and counted."""
    server.script = once(Act(status=503, code="SlowDown"))
    async with fetching(server, client) as fetcher:
        assert await fetched(fetcher, part(server, 0, MiB)) == RAMP[:MiB]
        after = fetcher.statistics()
    assert (after.requests, after.retries, after.throttled, after.failures) == (2, 1, 1, 0)


async def test_reset_in_the_body_resumes_at_the_last_good_byte(server: FakeS3) -> None:
    """After a reset only the rest is asked for again, from the byte where the last whole piece ended."""
    server.script = once(Act(reset_after=768 * KiB))
    async with fetching(server) as fetcher:
        assert await fetched(fetcher, part(server, 0, MiB)) == RAMP[:MiB]
    first, second = server.seen
    assert (first.start, second.stop) == (0, MiB)
    assert 256 * KiB <= second.start <= 768 * KiB


async def test_truncated_body_resumes(server: FakeS3, client: str) -> None:
    """A body that ends early is not taken for whole."""
    server.script = once(Act(truncate_after=512 * KiB))
    async with fetching(server, client) as fetcher:
        assert await fetched(fetcher, part(server, 100, MiB)) == RAMP[100:MiB]
    assert len(server.seen) == 2


@pytest.mark.parametrize("stall_after", [0, 512 * KiB])
async def test_stalled_body_is_abandoned(server: FakeS3, client: str, stall_after: int) -> None:
    """A body that hangs for ever costs the progress deadline, not more."""
    server.script = once(Act(stall_after=stall_after), on=2)
    async with fetching(server, client, replace(CONFIG, first_byte_seconds=1.0)) as fetcher:
        await fetched(fetcher, part(server, 0, 10))  # s3fs takes its time to start
        assert await fetched(fetcher, part(server, 0, MiB)) == RAMP[:MiB]
        assert fetcher.statistics().stalled >= 1
    kept = server.seen[-1].start
    assert kept == 0 if client == "fsspec" else stall_after - 256 * KiB <= kept <= stall_after


async def test_body_below_the_floor_is_abandoned(server: FakeS3) -> None:
    """Bytes that trickle are no progress: the floor is 64 KiB/s."""
    server.script = once(Act(bytes_per_second=32 * KiB))
    async with fetching(server) as fetcher:
        assert await fetched(fetcher, part(server, 0, MiB)) == RAMP[:MiB]
        assert fetcher.statistics().stalled >= 1


async def test_object_replaced_between_two_tries(server: FakeS3) -> None:
    """The second half never comes from another version."""

    def replace_and_reset(seen: Seen, number: int) -> Act | None:
        if number > 1:
            server.replace("big", RAMP[::-1])
        return Act(reset_after=512 * KiB)

    wanted = part(server, 0, MiB)
    server.script = replace_and_reset
    async with fetching(server) as fetcher:
        with pytest.raises(ObjectChangedError, match="etag:big-0") as caught:
            await fetched(fetcher, wanted)
    assert caught.value.details["attempts"] == 2


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [(403, "AccessDenied", AccessDeniedError), (404, "NoSuchKey", ObjectNotFoundError), (400, "BadThing", StoreError)],
)
async def test_permanent_failures_are_not_retried(
    server: FakeS3, client: str, status: int, code: str, error: type[StreamerError]
) -> None:
    """One request, then the typed error with url, attempts and elapsed_seconds."""
    server.script = lambda seen, number: Act(status=status, code=code)
    async with fetching(server, client) as fetcher:
        with pytest.raises(error) as caught:
            await fetched(fetcher, part(server, 0, 1000))
        assert fetcher.statistics().failures == 1
    assert len(server.seen) == 1
    assert caught.value.details["url"] == "s3://bucket/big"
    assert caught.value.details["attempts"] == 1
    assert isinstance(caught.value.details["elapsed_seconds"], float)


async def test_one_object_that_never_works(server: FakeS3, client: str) -> None:
    """While others go through, the attempts of one bad object are counted out; the rest of its chunk is cancelled."""
    server.objects |= {f"o{i}": RAMP[i : i + 1000] for i in range(5)}
    server.script = lambda seen, number: Act(status=500) if seen.key == "o3" else None
    wanted = chunk(*(Extent(server.record(f"o{i}"), 0, 1000) for i in range(5)))
    async with fetching(server, client) as fetcher:
        with pytest.raises(StoreError, match="s3://bucket/o3") as caught:
            await fetched(fetcher, wanted)
        assert await fetched(fetcher, part(server, 0, 10)) == RAMP[:10]
    assert caught.value.details["attempts"] == CONFIG.attempts


async def test_small_objects_of_a_chunk_come_in_order(server: FakeS3, client: str) -> None:
    """Many objects, a fifth of the requests refused: the concatenation is in the chunk's order."""
    contents = [RAMP[i * 100 : i * 100 + 50 + i] for i in range(60)]
    server.objects |= {f"o{i}": content for i, content in enumerate(contents)}
    server.script = lambda seen, number: Act(status=503, code="SlowDown") if number % 5 == 0 else None
    wanted = chunk(*(Extent(server.record(f"o{i}"), 0, len(content)) for i, content in enumerate(contents)))
    async with fetching(server, client) as fetcher:
        assert await fetched(fetcher, wanted) == b"".join(contents)
    assert len(server.seen) < 1.5 * len(contents)


async def test_retry_after_closes_the_window(server: FakeS3) -> None:
    """Nothing is sent before the time that the store asked for."""
    times: list[float] = []

    def script(seen: Seen, number: int) -> Act | None:
        times.append(asyncio.get_running_loop().time())
        return Act(status=503, code="SlowDown", headers={"Retry-After": "0.25"}) if number == 1 else None

    server.script = script
    async with fetching(server, "fsspec") as fetcher:
        assert await fetched(fetcher, part(server, 0, 100)) == RAMP[:100]
    assert times[1] - times[0] >= 0.25


async def test_outage_of_the_endpoint_is_waited_for() -> None:
    """An endpoint that worked, refuses connections for longer than all attempts take, and comes back: goes on."""
    server = FakeS3()
    async with AsyncExitStack() as life:
        await life.enter_async_context(serving(server))
        async with fetching(server) as fetcher:
            assert await fetched(fetcher, part(server, 0, 10)) == RAMP[:10]
            await life.aclose()
            async with asyncio.TaskGroup() as group:
                task = group.create_task(fetched(fetcher, part(server, 0, MiB)))
                await until(lambda: fetcher.statistics().retries > CONFIG.attempts)
                await life.enter_async_context(serving(server, server.port))
            assert task.result() == RAMP[:MiB]


async def test_endpoint_that_never_answered(unused_tcp_port: int) -> None:
    """A wrong endpoint is an error after the attempts, not a minute later."""
    server = FakeS3()
    server.port = unused_tcp_port
    async with fetching(server) as fetcher:
        with pytest.raises(StoreError, match="check the endpoint") as caught:
            await fetched(fetcher, part(server, 0, 10))
    assert caught.value.details["attempts"] == CONFIG.attempts


async def test_expired_credentials_are_renewed_once(server: FakeS3, client: str) -> None:
    """ExpiredToken makes the client anew, at once and only once."""
    server.script = lambda seen, number: Act(status=400, code="ExpiredToken") if number == 1 else None
    async with fetching(server, client) as fetcher:
        assert await fetched(fetcher, part(server, 0, 10)) == RAMP[:10]
        server.script = lambda seen, number: Act(status=400, code="ExpiredToken")
        with pytest.raises(AccessDeniedError, match="expired"):
            await fetched(fetcher, part(server, 0, 10))
    assert len(server.seen) == 4


async def warmed(fetcher: Fetcher, server: FakeS3) -> FetchStatistics:
    """Enough requests to know the latency; returns the counts so far (a busy machine may cause duplicates here)."""
    async with asyncio.TaskGroup() as group:
        for i in range(40):
            group.create_task(fetched(fetcher, part(server, i, MiB + i)))
    return fetcher.statistics()


# A full budget after each request: a busy machine may spend it in the warm-up.
HEDGED = replace(CONFIG, hedge=True, hedge_requests_share=1.0, first_byte_seconds=30.0, progress_seconds=5.0)


async def test_duplicate_beats_a_request_that_hangs(server: FakeS3) -> None:
    """Without a first byte a duplicate is sent; its bytes are taken and the loser's connection is dropped."""
    async with fetching(server, config=HEDGED) as fetcher:
        before = await warmed(fetcher, server)
        number_of_first = len(server.seen) + 1
        server.script = once(Act(wait_seconds=10), on=number_of_first)
        assert await fetched(fetcher, part(server, 3, MiB + 3)) == RAMP[3 : MiB + 3]
        after = fetcher.statistics()
        loser = server.seen[number_of_first - 1]
        await until(lambda: loser.gone)
    assert (after.hedge_wins - before.hedge_wins, after.retries) == (1, 0)
    assert loser.sent == 0


async def test_duplicate_that_is_slower_is_cancelled(server: FakeS3) -> None:
    """When the first request answers before its duplicate, the duplicate is dropped and the bytes are whole."""

    def script(seen: Seen, number: int) -> Act | None:
        late = number - number_of_first
        return Act(wait_seconds=(1.0, 10)[late]) if late in (0, 1) else None

    async with fetching(server, config=HEDGED) as fetcher:
        before = await warmed(fetcher, server)
        number_of_first = len(server.seen) + 1
        server.script = script
        assert await fetched(fetcher, part(server, 3, MiB + 3)) == RAMP[3 : MiB + 3]
        after = fetcher.statistics()
        await until(lambda: server.seen[-1].gone)
    assert (after.hedges - before.hedges, after.hedge_wins - before.hedge_wins, after.in_flight) == (1, 0, 0)


async def test_winner_that_breaks_is_resumed(server: FakeS3) -> None:
    """A duplicate that wins and then breaks hands over to another try, which asks only for the rest."""

    def script(seen: Seen, number: int) -> Act | None:
        late = number - number_of_first
        return (Act(wait_seconds=10), Act(reset_after=768 * KiB))[late] if late in (0, 1) else None

    async with fetching(server, config=HEDGED) as fetcher:
        await warmed(fetcher, server)
        number_of_first = len(server.seen) + 1
        server.script = script
        assert await fetched(fetcher, part(server, 3, MiB + 3)) == RAMP[3 : MiB + 3]
    assert server.seen[-1].start > 3


async def test_slow_body_is_outpaced(server: FakeS3) -> None:
    """A body far slower than the others is ended and its rest asked for again; its bytes are kept."""
    config = replace(HEDGED, range_bytes=4 * MiB)
    async with fetching(server, config=config) as fetcher:
        await warmed(fetcher, server)
        server.script = once(Act(bytes_per_second=2 * MiB), on=len(server.seen) + 1)
        assert await fetched(fetcher, part(server, 0, 4 * MiB)) == RAMP
        assert fetcher.statistics().outpaced == 1
    assert server.seen[-1].start > 0


async def test_no_duplicates_while_the_store_pushes_back(server: FakeS3) -> None:
    """After a 503 nothing is duplicated for a while, however slow the answers are."""
    async with fetching(server, config=HEDGED) as fetcher:
        await warmed(fetcher, server)
        server.script = once(Act(status=503, code="SlowDown"), on=len(server.seen) + 1)
        await fetched(fetcher, part(server, 0, 10))
        before = fetcher.statistics().hedges
        server.script = once(Act(wait_seconds=0.3), on=len(server.seen) + 1)
        assert await fetched(fetcher, part(server, 3, MiB + 3)) == RAMP[3 : MiB + 3]
        assert fetcher.statistics().hedges == before


@pytest.mark.parametrize("hedge", [False, True])
async def test_cancelled_fetch_leaves_the_counters_whole(server: FakeS3, hedge: bool) -> None:
    """A fetch cancelled while it waits, in its body or with a duplicate under way holds nothing afterwards."""
    config = replace(HEDGED, hedge=hedge, window_start=2, window_min=2)
    async with fetching(server, config=config) as fetcher:
        await warmed(fetcher, server)
        server.script = lambda seen, number: Act(wait_seconds=20)
        begin = len(server.seen)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(fetcher.fetch(part(server, i, 3 * MiB + i))) for i in range(4)]
            await until(lambda: len(server.seen) >= begin + (3 if hedge else 2))
            for task in tasks:
                task.cancel()
        assert all(task.cancelled() for task in tasks)
        after = fetcher.statistics()
        assert (after.reserved_bytes, after.waiting) == (0, 0)
        server.script = lambda seen, number: None
        assert await fetched(fetcher, part(server, 0, 10)) == RAMP[:10]


async def test_memory_is_reserved_before_the_request(server: FakeS3) -> None:
    """With room for two chunks a third waits until one is closed; a chunk larger than the budget is granted alone."""
    config = replace(CONFIG, memory_bytes=2 * MiB)
    async with fetching(server, config=config) as fetcher:
        first = await fetcher.fetch(part(server, 0, MiB))
        second = await fetcher.fetch(part(server, 0, MiB))
        asked = len(server.seen)
        async with asyncio.TaskGroup() as group:
            third = group.create_task(fetcher.fetch(part(server, 0, MiB)))
            await until(lambda: fetcher.statistics().waiting > 0)
            assert len(server.seen) == asked
            first.close()
        third.result().close()
        second.close()
        assert fetcher.statistics().reserved_peak_bytes == 2 * MiB
        assert await fetched(fetcher, part(server, 0, 4 * MiB)) == RAMP


async def test_window_serves_what_is_due_first(server: FakeS3) -> None:
    """Of the chunks that wait for the window, the one that is due first goes first, also when that changes."""
    config = replace(CONFIG, window_start=1, window_min=1, window_max=1)
    due = {0: 0.0, 1: 3.0, 2: 2.0, 3: 1.0}
    async with fetching(server, config=config) as fetcher, asyncio.TaskGroup() as group:
        server.script = once(Act(wait_seconds=10))
        for i in range(4):
            group.create_task(_fetch_due(fetcher, part(server, i, i + 1), partial(due.__getitem__, i)))
        await until(lambda: fetcher.statistics().waiting >= 3)
        due[1] = 0.5
        server.released.set()
    assert [seen.start for seen in server.seen] == [0, 1, 3, 2]


async def _fetch_due(fetcher: Fetcher, wanted: Chunk, due: Callable[[], float]) -> None:
    with await fetcher.fetch(wanted, due=due):
        pass


async def test_error_of_the_body_leaves_as_itself(server: FakeS3) -> None:
    """An error inside `async with Fetcher` is not wrapped in a group."""

    async def fails() -> None:
        async with fetching(server) as fetcher:
            await fetched(fetcher, part(server, 0, 10))
            raise ThrottledError("mine")

    with pytest.raises(ThrottledError, match="mine"):
        await fails()


async def test_read_of_an_extent(server: FakeS3, client: str) -> None:
    """Small reads come as bytes."""
    async with fetching(server, client) as fetcher:
        assert await fetcher.read(Extent(server.record("big"), 10, 700_000)) == RAMP[10:700_000]
        assert await fetcher.read(Extent(server.record("big"), 10, 10)) == b""


async def test_closed_fetcher_says_so(server: FakeS3) -> None:
    """A fetcher used after its block."""
    async with fetching(server) as fetcher:
        pass
    with pytest.raises(ClosedError):
        await fetcher.read(Extent(server.record("big"), 0, 1))
