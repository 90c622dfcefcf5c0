"""A fetcher that did not run for longer than its time limits takes the answers in its sockets, and repeats nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fault.fake_s3 import CONFIG, RAMP, Act, FakeS3, KiB, MiB, fetched, fetching, part, until

pytestmark = pytest.mark.usefixtures("warm_runtime")

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 1.0
# Longer than a busy machine may stop the test itself, whose store is silent then.
PATIENCE_ELSEWHERE_SECONDS = 2.5
AWAY_SECONDS = 1.3


@pytest.mark.parametrize("client", ["curl", "obstore", "fsspec"])
async def test_a_blocked_loop_abandons_no_request(server: FakeS3) -> None:
    """Requests whose answers come while the loop is blocked beyond their first-byte limit are not sent again."""
    config = replace(CONFIG, first_byte_seconds=PATIENCE_SECONDS)
    async with fetching(server, config) as fetcher:
        await fetched(fetcher, part(server, 0, 10))  # s3fs takes its time to start
        server.script = lambda seen, number: Act(wait_seconds=60)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(fetched(fetcher, part(server, i, i + 100))) for i in range(8)]
            await until(lambda: len(server.seen) == 9)
            server.released.set()
            time.sleep(AWAY_SECONDS)  # noqa: ASYNC251
        assert [task.result() for task in tasks] == [RAMP[i : i + 100] for i in range(8)]
        assert (fetcher.statistics().stalled, len(server.seen)) == (0, 9)


async def test_a_blocked_loop_abandons_no_body(server: FakeS3) -> None:
    """A body that arrives while the loop is blocked beyond the progress limit is not counted as stalled."""
    server.script = lambda seen, number: Act(bytes_per_second=2 * MiB)
    async with (
        fetching(server, config=replace(CONFIG, progress_seconds=PATIENCE_SECONDS)) as fetcher,
        asyncio.TaskGroup() as group,
    ):
        task = group.create_task(fetched(fetcher, part(server, 0, MiB)))
        await until(lambda: bool(server.seen) and server.seen[0].sent >= 320 * KiB)
        time.sleep(AWAY_SECONDS)  # noqa: ASYNC251
        assert await task == RAMP[:MiB]
        assert (fetcher.statistics().stalled, len(server.seen)) == (0, 1)


async def test_a_stopped_process_abandons_no_request(server: FakeS3) -> None:
    """A process stopped with 32 requests in flight takes their answers after SIGCONT and sends no request again."""
    server.script = lambda seen, number: Act(wait_seconds=60)
    script = Path(__file__).with_name("fetch_all.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        script,
        str(server.port),
        "32",
        str(PATIENCE_ELSEWHERE_SECONDS),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    await until(lambda: len(server.seen) == 32)
    process.send_signal(signal.SIGSTOP)
    server.released.set()
    await until(lambda: all(seen.sent == 1000 for seen in server.seen))
    await asyncio.sleep(PATIENCE_ELSEWHERE_SECONDS + 0.2)
    process.send_signal(signal.SIGCONT)
    told, _ = await process.communicate()
    counted = json.loads(told)
    assert (counted["stalled"], counted["requests"], counted["retries"]) == (0, 32, 0)
    assert len(server.seen) == 32
