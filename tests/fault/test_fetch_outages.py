"""Stores that answer all requests, or every second one, with an error: waited for, and told from a bad object."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from streamer.errors import StoreError
from streamer.fetch import Fetcher
from streamer.manifest.model import Extent
from streamer.store.addresses.urls import shown
from tests.fault.fake_s3 import CONFIG, RAMP, Act, FakeS3, MiB, Seen, chunk, fetched, fetching, part, until

pytestmark = pytest.mark.usefixtures("warm_runtime")

# No test waits as long as it: who does not wait for the outage fails after `failing_seconds`.
PATIENT = replace(CONFIG, outage_seconds=60.0)


@pytest.mark.parametrize(
    "status", [500, pytest.param(502, marks=pytest.mark.slow), pytest.param(504, marks=pytest.mark.slow), 200]
)
@pytest.mark.parametrize("served", [0, 1])
async def test_an_error_for_every_request_is_an_outage(server: FakeS3, status: int, served: int) -> None:
    """A store that answers every request with an error is waited for beyond the tries and time of one range:
    a gateway without its servers, or a web page.
    """
    back = asyncio.Event()
    server.script = lambda seen, number: None if number <= served or back.is_set() else Act(status=status)
    async with fetching(server, PATIENT) as fetcher, asyncio.TaskGroup() as group:
        for _ in range(served):
            await fetched(fetcher, part(server, 0, 10))
        waiting = group.create_task(fetched(fetcher, part(server, 10, MiB)))
        await until(lambda: waiting.done() or fetcher.statistics().retries > 4 * CONFIG.attempts)
        await asyncio.sleep(2 * CONFIG.failing_seconds)
        back.set()
    assert waiting.result() == RAMP[10:MiB]


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(500, marks=pytest.mark.slow),
        pytest.param(502, marks=pytest.mark.slow),
        503,
        pytest.param(504, marks=pytest.mark.slow),
    ],
)
async def test_a_range_that_is_unlucky_with_half_of_the_store_is_waited_for(server: FakeS3, status: int) -> None:
    """A range that fails 20 times is waited for where every second request of other ranges fails too."""
    tries = Counter[int]()

    def script(seen: Seen, number: int) -> Act | None:
        tries[seen.start] += 1
        fails = tries[1] <= 20 if seen.start == 1 else tries[seen.start] % 2
        return Act(status=status) if fails else None

    server.script = script
    async with fetching(server, PATIENT) as fetcher, asyncio.TaskGroup() as group:
        others = [group.create_task(_keep_fetching(fetcher, server, worker)) for worker in range(2, 6)]
        await until(lambda: len(server.seen) > 40)
        assert await fetched(fetcher, part(server, 1, 1000)) == RAMP[1:1000]
        for task in others:
            task.cancel()


async def test_a_bad_object_in_several_ranges_is_no_outage(server: FakeS3) -> None:
    """A bad object that alone is read is told from an outage by a probe; its error comes before an outage's time."""
    server.objects["bad"] = RAMP
    server.script = lambda seen, number: Act(status=500) if seen.key == "bad" else None
    async with fetching(server, replace(PATIENT, failing_seconds=1.5)) as fetcher:
        await fetched(fetcher, part(server, 0, 10))
        with pytest.raises(StoreError, match=shown("s3://bucket/bad")) as caught:
            await fetched(fetcher, chunk(*(Extent(server.record("bad"), i * MiB, (i + 1) * MiB) for i in range(4))))
    assert float(str(caught.value.details["elapsed_seconds"])) < PATIENT.outage_seconds / 2


async def _keep_fetching(fetcher: Fetcher, server: FakeS3, worker: int) -> None:
    """Always other ranges, each of which fails once."""
    for start in range(worker, 2 * MiB, 4):
        await fetched(fetcher, part(server, start, start + 10))
