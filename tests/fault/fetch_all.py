"""A process that fetches ranges of one object at once and says what that took: `fetch_all.py PORT RANGES PATIENCE`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys

import uvloop

from tests.fault.fake_s3 import CONFIG, RAMP, FakeS3, fetched, fetching, part


async def main(port: int, ranges: int, first_byte_seconds: float) -> None:
    """Prints the counters when every byte is right."""
    server = FakeS3()  # what it has, not who serves it
    server.port = port
    config = dataclasses.replace(CONFIG, window_start=ranges, first_byte_seconds=first_byte_seconds)
    async with fetching(server, config=config) as fetcher:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(fetched(fetcher, part(server, i, i + 1000))) for i in range(ranges)]
        assert [task.result() for task in tasks] == [RAMP[i : i + 1000] for i in range(ranges)]
        print(json.dumps(dataclasses.asdict(fetcher.statistics())))


uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
