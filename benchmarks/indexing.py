"""An index of many raw objects, of which the listing is the work: in one process, in tasks on processes, on Dask.

The bucket only lists, 30 ms a page. Every line is a process of its own: seconds, CPU of it and of the processes that it
has started, its peak memory, pages that were listed, and the digest, which is the same for all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from report import kept

from streamer.config import FetchConfig
from streamer.executors.runner import runner
from streamer.fetch import Fetcher
from streamer.formats.detect import chooser
from streamer.indexing.build import BuildOptions, build
from streamer.indexing.source import DatasetSource, manifest_of_source
from streamer.indexing.tasks import FetchedLists, StoreOpener
from streamer.manifest.table import Manifest

PAGE_SECONDS = 0.03


@contextmanager
def bucket(objects: int) -> Iterator[str]:
    """The address of a bucket of so many objects."""
    script = Path(__file__).with_name("listed_bucket.py")
    server = subprocess.Popen([sys.executable, script, str(objects), str(PAGE_SECONDS)], stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().decode().strip()
    finally:
        server.kill()
        server.wait()


async def alone(source: DatasetSource, folder: Path) -> Manifest:
    """As the engine builds it."""
    async with Fetcher(FetchConfig(), StoreOpener(source.options)) as fetcher:
        lists = FetchedLists(fetcher)
        return await build(source.urls, folder, lister=lists, reader=fetcher, choose_format=chooser("auto"))


def measure(on: str, address: str) -> dict[str, object]:
    """One index."""
    options = {"key": "any", "secret": "any", "client_kwargs": {"endpoint_url": address}}
    source = DatasetSource(urls=("s3://many/raw/",), options=options)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        if on == "alone":
            manifest = asyncio.run(alone(source, Path(folder)))
        else:
            with runner(on) as running:
                manifest = asyncio.run(manifest_of_source(source, Path(folder), running, BuildOptions()))
        seconds = time.monotonic() - begun
        own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return {
            "seconds": seconds,
            "own": own.ru_utime + own.ru_stime,
            "tasks": children.ru_utime + children.ru_stime,
            "MB": own.ru_maxrss / 1000,
            "samples": manifest.samples,
            "digest": manifest.digest,
        }


def show(on: str, address: str) -> None:
    """Measures in another process, and prints a line."""
    with urlopen(address) as answer:
        before = int(answer.read())
    command = [sys.executable, __file__, "--one", on, address]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    with urlopen(address) as answer:
        pages = int(answer.read()) - before
    print(
        f"{on.partition('//')[0]:14} {found['samples']:,} objects  {found['seconds']:6.1f} s  CPU {found['own']:5.1f} s"
        f" + {found['tasks']:5.1f} s in tasks  peak {found['MB']:5.0f} MB  {pages:5} pages  {found['digest']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--one", nargs=2, metavar=("ON", "ADDRESS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*arguments.one)))
        return
    with kept("indexing"), bucket(arguments.objects) as address:
        for on in ("alone", "processes:1", "processes:4", "processes:16"):
            show(on, address)
        from distributed import LocalCluster

        with LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster:
            show(f"dask:{cluster.scheduler_address}", address)


if __name__ == "__main__":
    main()
