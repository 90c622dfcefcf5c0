"""The chunk cache with its real folder, catalog and threads: publish, find, evict, restart, and disks that fail."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from streamer.cache import chunk_cache as module
from streamer.cache.catalog import Catalog
from streamer.cache.catalog_row import CatalogRow
from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.chunk_files import ChunkBytes, Published, verify_file, write_chunk
from streamer.cache.disk_space import FIXED_BYTES
from streamer.cache.disk_trust import SUSPECT_FILES
from streamer.cache.folder import CacheFolder, measure_usage
from streamer.cache.maintenance import export
from streamer.cache.policy.table import charge
from streamer.config import CacheConfig
from streamer.errors import CacheError, CacheFullError, CacheVersionError, ClosedError

MakeChunk = Callable[..., ChunkBytes]


async def publish(cache: ChunkCache, chunk: ChunkBytes, dataset: str = "d") -> Published:
    return await cache.publish(chunk.key, chunk.parts, chunk.sample_offsets, dataset=dataset)


async def test_a_published_chunk_is_there_whole(config: CacheConfig, make_chunk: MakeChunk) -> None:
    """A published chunk's file has header, bytes and checksums, mode 0600, and lies where the reader looks."""
    chunk = make_chunk(1)
    async with ChunkCache(config) as cache:
        published = await publish(cache, chunk)
        path = cache.path(chunk.key)
        assert path is not None
        assert published.root == cache.root
        assert path.stat().st_size == published.file_bytes
        assert path.stat().st_mode & 0o777 == 0o600
        assert cache.contains(chunk.key)
        assert verify_file(path, chunk.key).samples == 3
        assert path.read_bytes()[64:10_064] == b"".join(chunk.parts)


async def test_publishing_twice_writes_once(config: CacheConfig, make_chunk: MakeChunk) -> None:
    """Two publishers of one chunk at the same time write one file, which is charged once."""
    async with ChunkCache(config) as cache:
        await asyncio.gather(publish(cache, make_chunk(1)), publish(cache, make_chunk(1)))
        now = cache.statistics()
        assert (now.published_chunks, now.charged_bytes) == (1, charge(10_076))


async def test_an_evicted_chunk_is_gone_at_once_and_its_bytes_are_free(
    config: CacheConfig, make_chunk: MakeChunk
) -> None:
    """An evicted chunk is gone at once and its bytes are free; unknown keys and a second eviction are ignored."""
    chunk = make_chunk(1)
    async with ChunkCache(config) as cache:
        await publish(cache, chunk)
        eviction = asyncio.create_task(cache.evict([chunk.key, b"?" * 16]))
        await asyncio.sleep(0)
        assert not cache.contains(chunk.key)
        await eviction
        await cache.evict([chunk.key])
        assert cache.statistics().charged_bytes == 0
        assert not list(cache.root.glob("chunks/*/*"))


async def test_the_limit_holds_before_anything_is_written(config: CacheConfig, make_chunk: MakeChunk) -> None:
    """A chunk that does not fit is refused with the numbers; after an eviction it fits."""
    async with ChunkCache(replace(config, limit_bytes=FIXED_BYTES + 8192 + 3 * charge(100_076))) as cache:
        chunks = [make_chunk(number, 100_000) for number in range(4)]
        for chunk in chunks[:3]:
            await publish(cache, chunk)
        with pytest.raises(CacheFullError, match="are taken in") as caught:
            await publish(cache, chunks[3])
        assert caught.value.details["taken_bytes"] == 3 * charge(100_076)
        eviction = asyncio.create_task(cache.evict([chunks[0].key]))
        await asyncio.sleep(0)
        await publish(cache, chunks[3])  # waits for the unlink under way
        await eviction


async def test_usage_on_the_disk_never_exceeds_the_limit(config: CacheConfig, make_chunk: MakeChunk) -> None:
    """`st_blocks` of the folder, catalog and log included, never exceed the limit while chunks come and go."""
    limit = 2 << 20
    worst = 0
    async with ChunkCache(replace(config, limit_bytes=limit)) as cache:
        held: list[bytes] = []
        for number in range(120):
            chunk = make_chunk(number, 20_000 + number * 500)
            while cache.statistics().charged_bytes + charge(chunk.local_bytes + 76) > cache.limit_bytes:
                await cache.evict([held.pop(0)])
            await publish(cache, chunk)
            held.append(chunk.key)
            worst = max(worst, measure_usage(cache.root))
    assert 0.7 * limit < worst <= limit


async def test_a_new_engine_finds_what_was_published(config: CacheConfig, make_chunk: MakeChunk) -> None:
    """A restarted cache finds published chunks by dataset, the longest unused first, with their files' lengths."""
    async with ChunkCache(config) as cache:
        await publish(cache, make_chunk(1), "old")
        await publish(cache, make_chunk(2, 500), "new")
        cache.use("new")
        root_id = cache.folder.root_id
    async with ChunkCache(config) as cache:
        assert cache.folder.root_id == root_id
        found = [(dataset, keys.tolist(), lengths.tolist()) for dataset, keys, lengths in cache.found]
        assert [name for name, _, _ in found] == ["old", "new"]
        assert found[1][2] == [500 + 76]
        assert cache.contains(make_chunk(1).key)
        assert cache.statistics().charged_bytes == charge(10_076) + charge(576)


async def test_a_cancelled_publish_leaves_nothing(
    config: CacheConfig, make_chunk: MakeChunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled publish waits for its thread, whose buffers the caller may reuse, and leaves no file or charge."""
    entered = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(chunk: ChunkBytes, folder: CacheFolder) -> int:
        length = write_chunk(chunk, folder)
        loop.call_soon_threadsafe(entered.set)
        return length

    monkeypatch.setattr(module, "write_chunk", slow)
    async with ChunkCache(config) as cache:
        task = asyncio.create_task(publish(cache, make_chunk(1)))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cache.statistics().charged_bytes == 0
        assert not list(cache.root.glob("chunks/*/*"))


async def test_offsets_that_do_not_cover_the_bytes_are_refused(config: CacheConfig, make_chunk: MakeChunk) -> None:
    """A chunk whose offsets do not cover its bytes is refused, and nothing is charged for it."""
    chunk = make_chunk(1)
    async with ChunkCache(config) as cache:
        with pytest.raises(CacheError, match="do not cover"):
            await cache.publish(chunk.key, chunk.parts, chunk.sample_offsets[:-1])
        assert cache.statistics().charged_bytes == 0


@pytest.mark.parametrize(
    "code",
    [
        *(errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.ESTALE, errno.ENODEV),
        *(errno.ENOTCONN, errno.EUCLEAN, errno.ETIMEDOUT, errno.ELOOP, errno.EXDEV, errno.EINVAL, errno.EBUSY),
    ],
)
async def test_chunks_pass_through_memory_while_the_disk_refuses(
    config: CacheConfig,
    make_chunk: MakeChunk,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int,
) -> None:
    """Chunks go to memory while the disk refuses writes, with one warning and a lower limit; close removes it."""
    chunks = [make_chunk(number) for number in range(3)]

    def refuse(chunk: ChunkBytes, folder: CacheFolder) -> int:
        if folder.path == config.directory:
            raise OSError(code, os.strerror(code))
        return write_chunk(chunk, folder)

    monkeypatch.setattr(module, "write_chunk", refuse)
    with caplog.at_level(logging.WARNING):
        async with ChunkCache(config) as cache:
            for chunk in chunks:
                published = await publish(cache, chunk)
            memory = cache.roots[1]
            assert published.root == memory != cache.root
            path = cache.path(chunks[2].key)
            assert path is not None
            verify_file(path, chunks[2].key)
            assert cache.statistics().fallback_chunks == 3
            assert cache.statistics().charged_bytes == 0
            await cache.evict([chunks[0].key])
            assert not cache.contains(chunks[0].key)
            assert cache.limit_bytes <= 512 << 20
    assert len([r for r in caplog.records if "refuses writes" in r.message]) == 1
    assert not memory.exists()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_what_the_engine_lacks_is_no_refusal_of_the_disk(
    config: CacheConfig, make_chunk: MakeChunk, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A lack of descriptors or memory raises OSError and is no refusal of the disk, which is tried again."""

    def lack(chunk: ChunkBytes, folder: CacheFolder) -> int:
        raise OSError(code, os.strerror(code))

    async with ChunkCache(config) as cache:
        with monkeypatch.context() as patch:
            patch.setattr(module, "write_chunk", lack)
            with pytest.raises(OSError, match=re.escape(os.strerror(code))):
                await publish(cache, make_chunk(1))
        assert not cache.space.refused
        assert (await publish(cache, make_chunk(1))).root == cache.root


async def test_memory_is_bounded_too(
    config: CacheConfig, make_chunk: MakeChunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that fits neither on the disk nor in memory raises CacheError; after an eviction it fits."""
    monkeypatch.setattr("streamer.cache.memory_folder.FALLBACK_BYTES", charge(10_076))
    real = write_chunk

    def refuse(chunk: ChunkBytes, folder: CacheFolder) -> int:
        if folder.path == config.directory:
            raise OSError(errno.ENOSPC, "full")
        return real(chunk, folder)

    monkeypatch.setattr(module, "write_chunk", refuse)
    async with ChunkCache(config) as cache:
        await publish(cache, make_chunk(1))
        with pytest.raises(CacheError, match="neither on the disk") as caught:
            await publish(cache, make_chunk(2))
        assert caught.value.details["errno"] == errno.ENOSPC
        await cache.evict([make_chunk(1).key])
        await publish(cache, make_chunk(2))


@pytest.mark.parametrize("part", ["", "chunks", "tmp", "chunks/0", "root-id"])
async def test_a_folder_that_is_removed_is_made_again(config: CacheConfig, make_chunk: MakeChunk, part: str) -> None:
    """A cache folder that is removed whole or in part is made again, and the lost chunks are reported."""
    lost: list[bytes] = []
    warnings: list[str] = []
    async with ChunkCache(config) as cache:
        cache.on_lost, cache.on_warning = lost.extend, warnings.append
        await publish(cache, make_chunk(1))
        root_id, path = cache.folder.root_id, config.directory / part
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        await publish(cache, make_chunk(2))
        await cache.measure()
        if lost:
            assert lost == [make_chunk(1).key]
            assert not cache.contains(make_chunk(1).key)
            await publish(cache, make_chunk(1))
        assert bool(lost) == (part in ("", "chunks") or part == f"chunks/{make_chunk(1).key.hex()[0]}")
        assert (config.directory / "root-id").read_text().strip() == root_id
        for number in (1, 2):
            verify_file(cache.folder.chunk_path(make_chunk(number).key), make_chunk(number).key)
        assert cache.statistics().charged_bytes == 2 * charge(10_076)
        if part in ("", "tmp"):
            assert len(warnings) == 1
            assert f"{config.directory} was removed by another program" in warnings[0]
    async with ChunkCache(config) as cache:
        assert set(cache.keys()) == {make_chunk(1).key, make_chunk(2).key}


async def test_a_removed_folder_is_noticed_by_a_look_at_a_chunk(config: CacheConfig, make_chunk: MakeChunk) -> None:
    """`verify` of a chunk whose folder was removed makes the folder again and counts no damaged chunk."""
    async with ChunkCache(config) as cache:
        await publish(cache, make_chunk(1))
        shutil.rmtree(config.directory)
        assert not await cache.verify(make_chunk(1).key)
        assert cache.folder.path.is_dir()
        assert cache.statistics().damaged_chunks == 0
        assert cache.restore() is None


async def test_a_folder_that_is_removed_after_its_last_use_stays_away(
    config: CacheConfig, make_chunk: MakeChunk
) -> None:
    """A folder that is removed while no job uses it stays removed until a job asks for it again."""
    async with ChunkCache(config) as cache:
        cache.is_used = lambda: False
        shutil.rmtree(config.directory)
        await cache.measure()
        with pytest.raises(CacheError, match="was removed after its last use"):
            await publish(cache, make_chunk(1))
        assert not config.directory.exists()
        assert cache.restore(asked=True) is None
        await publish(cache, make_chunk(1))


async def test_chunks_pass_through_memory_while_the_folder_cannot_be_made_again(
    config: CacheConfig, make_chunk: MakeChunk, caplog: pytest.LogCaptureFixture
) -> None:
    """Chunks go to memory, with one warning, as long as a removed folder cannot be made again."""
    async with ChunkCache(config) as cache:
        shutil.rmtree(config.directory)
        config.directory.write_text("a file in its place")
        for number in range(3):
            assert (await publish(cache, make_chunk(number))).root == cache.roots[1]
            await cache.measure()
        config.directory.unlink()
        await cache.measure()
        assert (await publish(cache, make_chunk(4))).root == cache.root
    lines = [record.message for record in caplog.records if "refuses writes" in record.message]
    assert len(lines) == 1
    assert "(it cannot be made again: File exists): chunks pass through memory meanwhile" in lines[0]


async def test_a_folder_that_another_engine_has_made_is_left_alone(config: CacheConfig, make_chunk: MakeChunk) -> None:
    """An engine whose folder another engine has made again publishes to memory: neither evicts the other's chunks."""
    async with ChunkCache(config) as cache:
        shutil.rmtree(config.directory)
        async with ChunkCache(config):
            await cache.measure()
            assert (await publish(cache, make_chunk(1))).root == cache.roots[1]
            assert not list(config.directory.glob("chunks/*/*"))


async def test_files_that_cannot_be_removed_leave_room_in_memory_only(
    config: CacheConfig, make_chunk: MakeChunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of files that cannot be unlinked stay charged and chunks go to memory, until the files can be removed."""
    warnings: list[str] = []
    limited = replace(config, limit_bytes=FIXED_BYTES + 8192 + 2 * charge(10_076))
    async with ChunkCache(limited) as cache:
        cache.on_warning = warnings.append
        for number in (1, 2):
            await publish(cache, make_chunk(number))

        def refuse(paths: Mapping[bytes, Path], failed: dict[bytes, OSError]) -> None:
            failed.update(dict.fromkeys(paths, OSError(errno.EROFS, os.strerror(errno.EROFS))))

        with monkeypatch.context() as patch:
            patch.setattr(module, "unlink_all", refuse)
            with pytest.raises(CacheError, match="cannot unlink 1 chunk files"):
                await cache.evict([make_chunk(1).key])
            published = await publish(cache, make_chunk(3))
            assert published.root == cache.roots[1]
            assert cache.limit_bytes <= charge(10_076) + (512 << 20)
            assert len(warnings) == 1
        await cache.measure()
        assert cache.statistics().charged_bytes == charge(10_076)
        assert not cache.folder.chunk_path(make_chunk(1).key).exists()
        assert (await publish(cache, make_chunk(1))).root == cache.root


async def test_verify_finds_a_flipped_byte(config: CacheConfig, make_chunk: MakeChunk) -> None:
    """`verify` finds and counts a flipped byte, and returns False without a count for a chunk that is not cached."""
    chunk = make_chunk(1)
    async with ChunkCache(config) as cache:
        await publish(cache, chunk)
        assert await cache.verify(chunk.key)
        path = cache.path(chunk.key)
        assert path is not None
        with path.open("r+b") as file:
            file.seek(5000)
            file.write(b"\xff")
        assert not await cache.verify(chunk.key)
        assert not await cache.verify(b"?" * 16)
        assert cache.statistics().damaged_chunks == 1


async def test_layers_below_are_found_and_never_written(
    config: CacheConfig, make_chunk: MakeChunk, tmp_path: Path
) -> None:
    """A chunk of a layer is found without a charge, and neither eviction nor a better copy of it changes the layer."""
    layer = tmp_path / "layer"
    async with ChunkCache(config) as cache:
        await publish(cache, make_chunk(1))
    assert export(config.directory, layer) == 1
    before = {path: path.stat().st_mtime_ns for path in layer.rglob("*")}
    upper = replace(config, directory=tmp_path / "upper", layers=(layer,))
    async with ChunkCache(upper) as cache:
        key = make_chunk(1).key
        assert cache.layers.keys == [key]
        assert cache.path(key) == layer / "chunks" / key.hex()[0] / f"{key.hex()}.chunk"
        assert cache.roots == (upper.directory, cache.roots[1], layer)
        await cache.evict([key])
        assert await cache.verify(key)
        assert cache.statistics().charged_bytes == 0
        await publish(cache, make_chunk(1))  # the layer's was found wrong: a good one above it, which can go again
        assert cache.path(key) == upper.directory / "chunks" / key.hex()[0] / f"{key.hex()}.chunk"
        await cache.evict([key])
        assert cache.statistics().charged_bytes == 0
        assert cache.contains(key)
    assert {path: path.stat().st_mtime_ns for path in layer.rglob("*")} == before


async def test_the_page_cache_is_advised(
    config: CacheConfig, make_chunk: MakeChunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`advise` advises read-ahead and drop of the whole file of a chunk in the cache, and does nothing for others."""
    advised: list[tuple[str, int, int, int]] = []

    def note(descriptor: int, start: int, length: int, advice: int) -> None:
        advised.append((os.readlink(f"/proc/self/fd/{descriptor}"), start, length, advice))

    async with ChunkCache(config) as cache:
        await publish(cache, make_chunk(1))
        for key in (make_chunk(1).key, make_chunk(2).key):
            with monkeypatch.context() as patched:
                patched.setattr(os, "posix_fadvise", note)
                await cache.advise(key, "WILLNEED")
                await cache.advise(key, "DONTNEED")
        path = str(cache.path(make_chunk(1).key))
    assert advised == [(path, 0, 0, os.POSIX_FADV_WILLNEED), (path, 0, 0, os.POSIX_FADV_DONTNEED)]


async def test_a_file_that_cannot_be_opened_gets_no_advice(
    config: CacheConfig, make_chunk: MakeChunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`advise` ignores a file that cannot be opened: its task of its own would end the engine with the error."""
    async with ChunkCache(config) as cache:
        await publish(cache, make_chunk(1))

        tried: list[object] = []

        def fails(path: object, flags: int) -> int:
            tried.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

        with monkeypatch.context() as patch:
            patch.setattr("streamer.cache.chunk_files.os.open", fails)
            await cache.advise(make_chunk(1).key, "DONTNEED")
        assert tried == [cache.path(make_chunk(1).key)]


async def test_manifests_count(config: CacheConfig) -> None:
    """`measure` lowers the chunks' part of the limit by the bytes that manifests take."""
    async with ChunkCache(config) as cache:
        before = cache.limit_bytes
        (cache.root / "manifests" / "m").write_bytes(bytes(100_000))
        await cache.measure()
        assert before - cache.limit_bytes >= 100_000


async def test_the_limit_gives_way_to_a_full_disk(
    config: CacheConfig, make_chunk: MakeChunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less free space than the floor the limit falls below what is cached, and rises with the free space."""
    real = os.statvfs(config.directory.parent)

    class Full:
        f_blocks, f_frsize, f_bavail, f_flag, f_files = real.f_blocks, real.f_frsize, 0, 0, 0

    async with ChunkCache(replace(config, free_floor_bytes=8192)) as cache:
        whole = cache.limit_bytes
        for number in range(4):
            await publish(cache, make_chunk(number))
        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", lambda path: Full)
            await cache.measure()
        assert cache.limit_bytes == 4 * charge(10_076) - 8192
        await cache.measure()
        assert cache.limit_bytes == whole


async def test_a_closed_cache_says_so(config: CacheConfig, make_chunk: MakeChunk) -> None:
    """Publishing to or evicting from a closed cache raises ClosedError."""
    async with ChunkCache(config) as cache:
        pass
    with pytest.raises(ClosedError):
        await publish(cache, make_chunk(1))
    with pytest.raises(ClosedError):
        await cache.evict([])


async def test_a_folder_of_another_version_is_refused(config: CacheConfig) -> None:
    """Opening a cache in a folder of another version raises CacheVersionError."""
    async with ChunkCache(config):
        pass
    (config.directory / "streamer-cache").write_text("streamer cache 99\n")
    with pytest.raises(CacheVersionError, match="99"):
        async with ChunkCache(config):
            pass


async def test_a_catalog_that_cannot_be_written_costs_nothing(
    config: CacheConfig, make_chunk: MakeChunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed write of the catalog is counted; the next start finds the chunk by its file, without its dataset."""

    def fail(*args: object) -> None:
        raise CacheError("no")

    with monkeypatch.context() as patch:
        async with ChunkCache(config) as cache:
            patch.setattr(cache._catalog, "write", fail)
            await publish(cache, make_chunk(1))
        assert cache.statistics().catalog_failures > 0
    async with ChunkCache(config) as cache:
        assert [(name, len(keys)) for name, keys, _ in cache.found] == [("", 1)]


async def test_without_a_limit_it_takes_a_share_of_the_free_space(config: CacheConfig) -> None:
    """A cache without a configured limit takes 80 % of the free space, less the fixed part."""
    async with ChunkCache(replace(config, limit_bytes=None)) as cache:
        free = shutil.disk_usage(cache.root).free
        assert 0.7 * free < cache.limit_bytes < 0.85 * free


async def test_the_catalog_is_written_in_batches(
    config: CacheConfig, make_chunk: MakeChunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that are published while one write of the catalog is under way go into the next one together."""
    batches: list[int] = []
    go_on = threading.Event()
    async with ChunkCache(config) as cache:
        write = cache._catalog.write

        def slow(added: Mapping[bytes, CatalogRow], *others: Iterable[bytes] | Iterable[str]) -> None:
            batches.append(len(added))
            go_on.wait()
            write(added, *others)

        monkeypatch.setattr(cache._catalog, "write", slow)
        try:
            await asyncio.gather(*(publish(cache, make_chunk(number)) for number in range(40)))
        finally:
            go_on.set()
    assert sum(batches) == 40
    assert len(batches) <= 3


async def test_a_lost_catalog_is_written_again_while_the_cache_is_in_use(
    config: CacheConfig, make_chunk: MakeChunk
) -> None:
    """A lost catalog is rebuilt from the chunk files, and its rows are written by the time the cache closes."""
    async with ChunkCache(config) as cache:
        chunk = make_chunk(1)
        await cache.publish(chunk.key, chunk.parts, chunk.sample_offsets, dataset="d")
    shutil.rmtree(config.directory / "catalog")
    async with ChunkCache(config) as cache:
        assert cache.keys() == [chunk.key]
    assert set(Catalog(config.directory / "catalog").peek()) == {chunk.key}


async def test_a_chunk_that_the_disk_does_not_keep_stays_in_memory(
    config: CacheConfig, make_chunk: MakeChunk, caplog: pytest.LogCaptureFixture
) -> None:
    """The next copy of a distrusted chunk, and of no other, is kept in memory; one warning reports it."""
    first, second = make_chunk(1), make_chunk(2)
    async with ChunkCache(config) as cache:
        await publish(cache, first)
        await cache.evict([first.key])
        cache.distrust(first.key)
        cache.distrust(second.key)
        cache.distrust(second.key)
        published = await publish(cache, first)
        assert published.root == cache.roots[1]
        assert await cache.verify(first.key)
        assert (await publish(cache, make_chunk(3))).root == cache.root
    assert len([record for record in caplog.records if "are kept in memory" in record.message]) == 1


async def test_two_damaged_copies_are_enough(config: CacheConfig, make_chunk: MakeChunk) -> None:
    """After two damaged copies on the disk a chunk's third one is kept in memory; removed files do not count."""
    chunk, removed = make_chunk(1), make_chunk(2)
    async with ChunkCache(config) as cache:
        for root in (cache.root, cache.root, cache.roots[1]):
            assert (await publish(cache, chunk)).root == root
            path = cache.path(chunk.key)
            assert path is not None
            path.write_bytes(b"damaged")
            assert not await cache.verify(chunk.key)
            await cache.evict([chunk.key])
        for _ in range(4):
            await publish(cache, removed)
            cache.folder.chunk_path(removed.key).unlink()
            assert not await cache.verify(removed.key)
            await cache.evict([removed.key])
        assert cache.trusts_disk_with(removed.key)


async def test_a_good_read_in_between_begins_the_count_anew(config: CacheConfig, make_chunk: MakeChunk) -> None:
    """A good read between damaged copies restarts their count: a program that overwrites files is no lossy disk."""
    chunk = make_chunk(1)
    async with ChunkCache(config) as cache:
        for _ in range(4):
            assert (await publish(cache, chunk)).root == cache.root
            cache.folder.chunk_path(chunk.key).write_bytes(b"damaged")
            assert not await cache.verify(chunk.key)
            await cache.evict([chunk.key])
            cache.note_good_read(chunk.key)
        assert cache.trusts_disk_with(chunk.key)


async def test_a_disk_of_which_no_file_can_be_read_is_given_up(
    config: CacheConfig, make_chunk: MakeChunk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk of which no file can be read is given up: its chunks are lost and later ones go to memory."""
    chunks = [make_chunk(number) for number in range(12)]
    lost: list[bytes] = []
    async with ChunkCache(config) as cache:
        cache.on_lost = lost.extend
        for chunk in chunks:
            await publish(cache, chunk)

        def fails(path: Path, key: bytes) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

        monkeypatch.setattr("streamer.cache.disk_trust.verify_file", fails)
        for chunk in chunks[:SUSPECT_FILES]:
            assert not lost
            assert not await cache.verify(chunk.key)
        assert sorted(lost) == sorted(chunk.key for chunk in chunks)
        await cache.measure()
        assert (await publish(cache, chunks[0])).root == cache.roots[1]
    assert len([record for record in caplog.records if "all chunks pass through memory" in record.message]) == 1


async def test_some_files_that_cannot_be_read_are_no_reason_to_give_the_disk_up(
    config: CacheConfig, make_chunk: MakeChunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk with some unreadable files stays in use while other files of it can be read."""
    chunks = [make_chunk(number) for number in range(12)]
    bad = {chunk.key for chunk in chunks[:8]}
    async with ChunkCache(config) as cache:
        for chunk in chunks:
            await publish(cache, chunk)

        def fails(path: Path, key: bytes) -> object:
            if key in bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return verify_file(path, key)

        monkeypatch.setattr("streamer.cache.disk_trust.verify_file", fails)
        for chunk in chunks[:8]:
            assert not await cache.verify(chunk.key)
        assert not cache.space.refused
        assert cache.trusts_disk_with(chunks[0].key)
