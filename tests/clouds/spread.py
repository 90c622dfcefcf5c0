"""Reads for some seconds from a bucket whose name has eight addresses: `spread.py SECONDS SLOW_ADDRESSES`.

Runs in a network namespace whose loopback has the addresses and whose hosts file gives them to one name, as S3 answers
each look-up of a bucket's name with up to eight addresses.

Source: AWS, "Performance design patterns for Amazon S3", timeouts and retries for latency-sensitive applications.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection

import uvloop

from streamer.config import FetchConfig
from streamer.fetch import Fetcher
from streamer.manifest.model import Extent, ObjectRecord
from streamer.store import open_store
from tests.contract.telling_server import RAMP, Asked
from tests.fault.fake_s3 import chunk, fetched

NAME, PORT = "bucket-host.test", 8000
ADDRESSES = [f"10.99.0.{number}" for number in range(1, 9)]
SLOW_SECONDS, QUICK_SECONDS = 3.0, 0.06
READERS, READ_BYTES = 32, 50_000


async def _serve(slow: int, pipe: Connection) -> None:
    connections = Counter[str]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = writer.get_extra_info("sockname")[0]
        connections[address] += 1
        pause = SLOW_SECONDS if address in ADDRESSES[:slow] else QUICK_SECONDS
        try:
            while True:
                asked = Asked(await reader.readuntil(b"\r\n\r\n"), 0)
                await asyncio.sleep(pause)
                writer.write(asked.good())
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.transport.abort()

    server = await asyncio.start_server(connected, ADDRESSES, PORT, backlog=256)
    pipe.send("listens")
    await asyncio.to_thread(pipe.recv)
    pipe.send(connections)
    server.close()


def _server(slow: int, pipe: Connection) -> None:
    uvloop.run(_serve(slow, pipe))


async def _read(seconds: float) -> dict[str, object]:
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://{NAME}:{PORT}"}
    target, took = ObjectRecord("s3://bucket/o", len(RAMP), "etag:x"), list[float]()
    wanted = chunk(Extent(target, 0, READ_BYTES))
    end = time.monotonic() + seconds

    async def reader(fetcher: Fetcher) -> None:
        while (begun := time.monotonic()) < end:
            assert await fetched(fetcher, wanted) == RAMP[:READ_BYTES]
            took.append(time.monotonic() - begun)

    async with Fetcher(FetchConfig(), lambda url: open_store(url, options, client="curl")) as fetcher:
        async with asyncio.TaskGroup() as group:
            for _ in range(READERS):
                group.create_task(reader(fetcher))
        counted = fetcher.statistics()
    took.sort()
    return {
        "reads": len(took),
        "p99_seconds": took[len(took) * 99 // 100],
        "slowest_seconds": took[-1],
        "hedges": counted.hedges,
        "hedge_wins": counted.hedge_wins,
    }


def main(seconds: float, slow: int) -> None:
    """Prints what was read, and how many connections each address got."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=_server, args=(slow, there))
    server.start()
    here.recv()
    outcome = uvloop.run(_read(seconds))
    here.send("end")
    print(json.dumps(outcome | {"connections": here.recv()}))
    server.join()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
