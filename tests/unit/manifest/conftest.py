"""Fixtures of the manifest's tests: a store in memory, and datasets of tars and of files in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from hashlib import sha1
from pathlib import Path

import pytest

from streamer.formats import detect
from streamer.indexing.build import BuildOptions, build
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.table import Manifest
from tests.tars import tar_of


class MemoryStore:
    """Stands for a store: lists and reads a dict of urls, counts its reads, and may finish them in any order.
    Its versions are checksums of the bytes; nothing fails unless a test makes it."""

    def __init__(self, objects: dict[str, bytes], *, delays: Callable[[Extent], int] | None = None) -> None:
        self.objects = objects
        self.reads: list[Extent] = []
        self.in_flight = self.most_in_flight = 0
        self._delays = delays or (lambda extent: 0)

    async def list(self, url: str) -> AsyncIterator[Sequence[ObjectRecord]]:
        found = [
            ObjectRecord(name, len(content), f"etag:{sha1(content).hexdigest()}")
            for name, content in self.objects.items()
            if name.startswith(url)
        ]
        for start in range(0, len(found), 7):
            yield found[start : start + 7]

    async def read(self, extent: Extent) -> bytes:
        self.reads.append(extent)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            for _ in range(1 + self._delays(extent)):
                await asyncio.sleep(0)
        finally:
            self.in_flight -= 1
        return self.objects[extent.object.url][extent.start : extent.stop]

    def bytes_of(self, extents: Sequence[Extent]) -> bytes:
        return b"".join(self.objects[e.object.url][e.start : e.stop] for e in extents)


def filled(seed: int, length: int) -> bytes:
    """Returns bytes that repeat the number of their sample."""
    return (seed.to_bytes(4, "big") * (length // 4 + 1))[:length]


@pytest.fixture
def store() -> type[MemoryStore]:
    """Returns the class of stores in memory."""
    return MemoryStore


@pytest.fixture(scope="session")
def tars() -> dict[str, bytes]:
    """Makes 12 tars with 30 samples of two fields each."""
    return {
        f"s3://b/tars/{t:02d}.tar": tar_of(
            [
                (f"{t:02d}/{i:03d}.{ending}", filled(t * 1000 + i, (i * 97) % 1500 if ending == "bin" else 3))
                for i in range(30)
                for ending in ("bin", "cls")
            ]
        )
        for t in range(12)
    }


@pytest.fixture(scope="session")
def files() -> dict[str, bytes]:
    """Makes 400 files in 5 classes, some of 0 bytes, one large, and objects that are no samples."""
    found = {f"s3://b/files/c{i % 5}/{i:04d}.JPG": filled(i, (i * 131) % 2000) for i in range(400)}
    return {
        **found,
        "s3://b/files/c0/large.JPG": filled(9999, 50_000),
        "s3://b/files/.DS_Store": b"x",
        "s3://b/files/c1/": b"",
    }


BuildIt = Callable[..., Awaitable[Manifest]]


@pytest.fixture
def build_it(tmp_path: Path) -> BuildIt:
    """Returns a function that builds the manifest of urls in a store, in chunks of 8 KiB."""

    async def run(
        store: MemoryStore,
        urls: str | list[str],
        *,
        kind: str = "auto",
        root: Path | None = None,
        **options: object,
    ) -> Manifest:
        settings = BuildOptions(**{"chunk_bytes": 8192, **options})
        return await build(
            urls,
            root or tmp_path / "manifests",
            lister=store,
            reader=store,
            choose_format=detect.chooser(kind),
            options=settings,
        )

    return run


@pytest.fixture
async def tar_manifest(build_it: BuildIt, tars: dict[str, bytes]) -> Manifest:
    """Builds the manifest of the tars."""
    return await build_it(MemoryStore(tars), "s3://b/tars/")


@pytest.fixture
async def file_manifest(build_it: BuildIt, files: dict[str, bytes]) -> Manifest:
    """Builds the manifest of the files."""
    return await build_it(MemoryStore(files), "s3://b/files/")
