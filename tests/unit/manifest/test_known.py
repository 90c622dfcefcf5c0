"""An index that is built again reads only the objects that are new."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamer.formats.base import Format, Need
from streamer.indexing.build import BuildOptions, build
from streamer.manifest.blocks import Block
from streamer.manifest.protocols import IndexEstimate
from streamer.manifest.table import Manifest
from tests.tars import tar_of

URL = "s3://b/tars/"


def tars(numbers: range, version: int = 0) -> dict[str, bytes]:
    """Makes tars of different numbers of samples; between some samples there is a gap of 70 KB."""
    found = {}
    for number in numbers:
        entries = [(f"{i:02d}.bin", bytes([number, version]) * (i * 400)) for i in range(number % 5 + 1)]
        if number % 3 == 0:
            entries.insert(1, ("README", bytes(70_000)))
        found[f"{URL}{number:02d}.tar"] = tar_of(entries)
    return found


def read_objects(store) -> set[str]:
    return {extent.object.url for extent in store.reads}


@pytest.fixture
def rebuilt(store, build_it, tmp_path):
    """Builds from what is known and from nothing, compares both, and returns the names of the objects read."""

    async def run(objects: dict[str, bytes], known: list[Manifest], **options: object) -> set[str]:
        some, all_of_it = store(objects), store(objects)
        found = await build_it(some, URL, known=known, root=tmp_path / "a", **options)
        assert found.digest == (await build_it(all_of_it, URL, root=tmp_path / "b", **options)).digest
        return {url.removeprefix(URL) for url in read_objects(some)}

    return run


async def test_new_tars_alone_are_read(store, build_it, rebuilt):
    """A build with a known manifest reads only added and replaced tars and has the digest of a full build."""
    first = await build_it(store(tars(range(30))), URL)
    objects = {**tars(range(33)), **tars(range(7, 8), version=1)}
    del objects[f"{URL}03.tar"]
    assert await rebuilt(objects, [first]) == {"07.tar", "30.tar", "31.tar", "32.tar"}


@pytest.mark.parametrize("chunk_bytes", [1024, 8192, 1 << 20])
async def test_nothing_is_read_where_all_is_known(store, build_it, rebuilt, chunk_bytes):
    """A build whose objects are all known, from two manifests together, reads nothing, for any chunk size."""
    first = await build_it(store(tars(range(4))), URL)
    second = await build_it(store(tars(range(4, 9))), URL)
    assert await rebuilt(tars(range(9)), [first, second], chunk_bytes=chunk_bytes) == set()


async def test_the_estimate_is_of_the_rest(store, build_it):
    """The estimate of a build counts only the bytes that are not known."""
    first = await build_it(store(tars(range(4))), URL)
    objects = tars(range(6))
    told: list[IndexEstimate] = []
    await build_it(store(objects), URL, known=[first], on_estimate=told.append)
    assert told[0].read_bytes == sum(len(objects[f"{URL}{number:02d}.tar"]) for number in (4, 5))
    assert told[0].total_bytes == sum(map(len, objects.values()))
    assert told[0].requests == 2


class Shards(Format, frozen=True):
    """A made-up format with blocks of 100 bytes and i % 7 + 1 samples, in two ranges; it decodes nothing."""

    name = "shards"
    wide: bool = False

    def accepts(self, key):
        return True

    def index(self, source, facts, start=0):
        yield Need(0, 4)
        for i in range(source.record.size // 100):
            at = 100 * i
            yield Block(((at, at + 30), (at + 50, at + 80)), i % 7 + 1, 90 * i + 11, b"%d" % i)


async def shards_built(store, root: Path, chosen: Format, known=(), chunk_bytes=1024) -> Manifest:
    options = BuildOptions(chunk_bytes=chunk_bytes, known=known)
    return await build(URL, root, lister=store, reader=store, choose_format=lambda keys: chosen, options=options)


@pytest.mark.parametrize(
    ("chosen", "chunk_bytes", "read"),
    [(Shards(), 1024, 1), (Shards(), 2048, 5), (Shards(wide=True), 1024, 5)],
    ids=["known", "other chunks", "other options"],
)
async def test_blocks(store, tmp_path, chosen, chunk_bytes, read):
    """Known blocks are taken over with their hints for the same chunk size and options, and read again otherwise."""
    objects = {f"{URL}{i}": bytes(100 * (20 + i)) for i in range(4)}
    first = await shards_built(store(objects), tmp_path, Shards())
    objects[f"{URL}4"] = bytes(3000)
    some = store(objects)
    again = await shards_built(some, tmp_path / "a", chosen, [first], chunk_bytes)
    assert len(read_objects(some)) == read
    whole = await shards_built(store(objects), tmp_path / "b", chosen, [], chunk_bytes)
    assert again.digest == whole.digest


async def test_a_raw_file_manifest_says_nothing_of_containers(store, build_it, rebuilt):
    """A known manifest of another format saves no reads."""
    files = await build_it(store(tars(range(3))), URL, kind="folder")
    assert await rebuilt(tars(range(3)), [files]) == {"00.tar", "01.tar", "02.tar"}


async def test_ten_of_a_thousand(store, build_it, rebuilt):
    """A build of 1,010 tars of which 1,000 are known reads ten, with the digest of a full build."""
    content = tar_of([("0.txt", b"text")])
    first = await build_it(store({f"{URL}{number:04d}.tar": content for number in range(1000)}), URL)
    read = await rebuilt({f"{URL}{number:04d}.tar": content for number in range(1010)}, [first])
    assert sorted(read) == [f"{number}.tar" for number in range(1000, 1010)]
