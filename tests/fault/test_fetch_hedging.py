"""Duplicates of slow requests on real sockets: won, lost, broken, cancelled; every byte is compared."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from streamer.fetch import Fetcher, FetchStatistics
from streamer.fetch.hedge import BURST_REQUESTS
from tests.fault.fake_s3 import (
    CONFIG,
    RAMP,
    Act,
    FakeS3,
    KiB,
    MiB,
    Seen,
    at,
    fetched,
    fetching,
    once,
    part,
    until,
)

pytestmark = pytest.mark.usefixtures("warm_runtime")


# A first byte that no request of the warm-up asked for: what is late of it is not taken for a later request.
FRESH = 50


async def warmed(fetcher: Fetcher, server: FakeS3) -> FetchStatistics:
    """Enough requests to know the latency; returns the counts so far.

    A busy machine may cause duplicates here: a budget that they spent is given back, a link that they filled is empty.
    """
    async with asyncio.TaskGroup() as group:
        for i in range(40):
            group.create_task(fetched(fetcher, part(server, i, MiB + i)))
    endpoint = fetcher._endpoint("s3://bucket/big")
    endpoint.control.inflation, endpoint.budget.requests = 1.0, BURST_REQUESTS
    return fetcher.statistics()


# A full budget after each request.
HEDGED = replace(CONFIG, hedge=True, hedge_requests_share=1.0, first_byte_seconds=30.0, progress_seconds=5.0)


async def test_duplicate_beats_a_request_that_hangs(server: FakeS3) -> None:
    """A request without a first byte is duplicated, the duplicate's bytes are taken, and the first is cancelled."""
    async with fetching(server, config=HEDGED) as fetcher:
        before = await warmed(fetcher, server)
        server.script = at(FRESH, Act(wait_seconds=60))
        assert await fetched(fetcher, part(server, FRESH, MiB + FRESH)) == RAMP[FRESH : MiB + FRESH]
        after = fetcher.statistics()
        loser = next(seen for seen in server.seen if seen.start == FRESH)
        await until(lambda: loser.gone)
    assert (after.hedge_wins - before.hedge_wins, after.retries) == (1, 0)
    assert loser.sent == 0


async def test_the_first_request_of_all_that_hangs(server: FakeS3) -> None:
    """Before any latency is known, a request that hangs is duplicated after a second, not after the limit of 30 s."""
    server.script = once(Act(wait_seconds=60))
    async with fetching(server, config=HEDGED) as fetcher:
        async with asyncio.timeout(15):
            assert await fetched(fetcher, part(server, 0, MiB)) == RAMP[:MiB]
        assert (fetcher.statistics().hedge_wins, fetcher.statistics().retries) == (1, 0)


async def test_duplicate_that_is_slower_is_cancelled(server: FakeS3) -> None:
    """A duplicate is cancelled when the first request answers before it, and the bytes are whole."""
    both = asyncio.Event()
    acts = [Act(until=both), Act(wait_seconds=60)]

    def script(seen: Seen, number: int) -> Act | None:
        if seen.start != FRESH:
            return None
        if len(acts) == 1:
            both.set()
        return acts.pop(0)

    async with fetching(server, config=HEDGED) as fetcher:
        before = await warmed(fetcher, server)
        server.script = script
        assert await fetched(fetcher, part(server, FRESH, MiB + FRESH)) == RAMP[FRESH : MiB + FRESH]
        after = fetcher.statistics()
        await until(lambda: server.seen[-1].gone)
    assert (after.hedges - before.hedges, after.hedge_wins - before.hedge_wins, after.in_flight) == (1, 0, 0)


async def test_winner_that_breaks_is_resumed(server: FakeS3) -> None:
    """A duplicate that wins and then breaks is followed by another try, which asks only for the rest."""
    async with fetching(server, config=HEDGED) as fetcher:
        await warmed(fetcher, server)
        server.script = at(FRESH, Act(wait_seconds=60), Act(reset_after=768 * KiB))
        assert await fetched(fetcher, part(server, FRESH, MiB + FRESH)) == RAMP[FRESH : MiB + FRESH]
    assert server.seen[-1].start > FRESH


async def test_slow_body_is_outpaced(server: FakeS3) -> None:
    """A body far slower than the others is ended, its bytes are kept and its rest is asked for again."""
    config = replace(HEDGED, range_bytes=4 * MiB, hedge_bytes_share=1.0)
    async with fetching(server, config=config) as fetcher:
        await warmed(fetcher, server)
        usual = fetcher._endpoint("s3://bucket/big").rates.quantiles
        assert usual is not None
        server.script = at(FRESH, Act(bytes_per_second=int(min(MiB // 2, usual.p50 / 20))))
        assert await fetched(fetcher, part(server, FRESH, 4 * MiB)) == RAMP[FRESH:]
        assert fetcher.statistics().outpaced == 1
    assert server.seen[-1].start > FRESH


async def test_no_duplicates_while_the_store_limits_the_rate(server: FakeS3) -> None:
    """No duplicate is sent while the store limits the rate, however slow answers are; a single 503 is no limit."""
    async with fetching(server, config=HEDGED) as fetcher:
        await warmed(fetcher, server)
        server.script = at(FRESH, Act(status=503, code="SlowDown"), Act(wait_seconds=60))
        await fetched(fetcher, part(server, FRESH, MiB + FRESH))
        before = fetcher.statistics().hedges
        assert before > 0
        fetcher._endpoint("s3://bucket/big").pacing.per_second = 100.0
        server.script = at(FRESH, Act(wait_seconds=0.3))
        assert await fetched(fetcher, part(server, FRESH, MiB + FRESH)) == RAMP[FRESH : MiB + FRESH]
        assert fetcher.statistics().hedges == before


@pytest.mark.parametrize("hedge", [False, True])
async def test_cancelled_fetch_leaves_the_counters_whole(server: FakeS3, hedge: bool) -> None:
    """A fetch that is cancelled while it waits or has a duplicate reserves and awaits nothing afterwards."""
    config = replace(HEDGED, hedge=hedge, window_start=2, window_min=2)
    async with fetching(server, config=config) as fetcher:
        await warmed(fetcher, server)
        server.script = lambda seen, number: Act(wait_seconds=60)
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
