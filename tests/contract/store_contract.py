"""What every ObjectStore must do: the test class of a store inherits `StoreContract` and gives it a `kind`."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import pytest

from streamer.errors import ObjectChangedError, ObjectNotFoundError
from streamer.manifest.model import ObjectRecord
from streamer.store import ObjectStore
from streamer.store.base import Get

# Byte value = offset modulo 251: a misplaced byte names itself.
RAMP = (bytes(range(251)) * (3_000_000 // 251 + 1))[:3_000_000]
FILES = {
    "train/a/0.bin": RAMP,
    "train/a/1.bin": RAMP[:1000],
    "train/b/shard-007.tar": RAMP[7:2000],
    "train/b/shard-008.tar": RAMP[8:2000],
    "train/empty": b"",
    "training/other": b"x",
    "odd/with space+plus&ünï.bin": RAMP[:100],
}
# The one that tests replace.
REPLACED = "train/a/1.bin"


@dataclass(frozen=True)
class Kind:
    """A store under test and how to change an object behind its back."""

    store: ObjectStore
    root: str
    replace_object: Callable[[str, bytes], Awaitable[None]]


async def listed(store: ObjectStore, url: str) -> dict[str, ObjectRecord]:
    """Returns all objects of a listing by url."""
    return {record.url: record async for page in store.list(url) for record in page}


async def read(store: ObjectStore, record: ObjectRecord, start: int, stop: int) -> bytes:
    """Returns the bytes of one get."""
    found = bytearray()
    await store.get(Get(record, start, stop), found.extend)
    return bytes(found)


async def record_of(kind: Kind, name: str) -> ObjectRecord:
    """Returns the record of one object by listing it alone."""
    (record,) = (await listed(kind.store, f"{kind.root}/{name}")).values()
    return record


def names(kind: Kind, found: dict[str, ObjectRecord]) -> list[str]:
    """Returns the keys below the root, in the order listed."""
    return [url.removeprefix(kind.root + "/") for url in found]


def _other(record: ObjectRecord) -> str:
    """Returns a version that is not that of the record."""
    return record.version[:-1] + ("0" if record.version[-1] != "0" else "1")


class StoreContract:
    """The contract of an object store; the fixture `kind` is a store that holds FILES."""

    @pytest.mark.parametrize(
        ("start", "stop"), [(0, 1), (0, 1000), (999_983, 1_000_017), (2_999_999, 3_000_000), (0, 3_000_000)]
    )
    async def test_get_returns_exactly_the_range(self, kind: Kind, start: int, stop: int) -> None:
        """A get returns exactly the bytes of the half-open range that it names."""
        record = await record_of(kind, "train/a/0.bin")
        assert await read(kind.store, record, start, stop) == RAMP[start:stop]

    @pytest.mark.parametrize("length", [0, 1000, 20_000_000])
    async def test_a_file_becomes_an_object(self, kind: Kind, tmp_path_factory: pytest.TempPathFactory, length: int):
        """A file is uploaded whole, also in parts; its record is the listing's, and an older object is replaced."""
        path = tmp_path_factory.mktemp("spool") / "shard"
        content = (RAMP * 7)[:length]
        for written in (b"before", content):
            path.write_bytes(written)
            record = await kind.store.put_file(f"{kind.root}/packed/shard-0.tar", path)
        assert record == await record_of(kind, "packed/shard-0.tar")
        assert record.size == length
        if length:
            assert await read(kind.store, record, 0, length) == content
        assert names(kind, await listed(kind.store, f"{kind.root}/packed/")) == ["packed/shard-0.tar"]

    async def test_prepared_it_reads_as_ever(self, kind: Kind) -> None:
        """A store that is prepared before its first request, again or after a refresh, reads as one that is not."""
        record = await record_of(kind, "train/a/1.bin")
        await kind.store.refresh()
        await kind.store.prepare()
        await kind.store.prepare()
        assert await read(kind.store, record, 10, 90) == RAMP[10:90]
        await kind.store.refresh()
        await kind.store.prepare()
        assert await read(kind.store, record, 10, 90) == RAMP[10:90]

    async def test_many_gets_at_once(self, kind: Kind) -> None:
        """Concurrent gets of one object do not mix their ranges."""
        record = await record_of(kind, "train/a/0.bin")
        starts = range(0, 2_900_000, 100_003)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read(kind.store, record, s, s + 70_000)) for s in starts]
        assert [task.result() for task in tasks] == [RAMP[s : s + 70_000] for s in starts]

    async def test_list_of_a_prefix(self, kind: Kind) -> None:
        """A folder lists everything below it, sorted, with size and version, and nothing beside it."""
        found = await listed(kind.store, f"{kind.root}/train/")
        assert names(kind, found) == sorted(name for name in FILES if name.startswith("train/"))
        assert [record.size for record in found.values()] == [len(FILES[name]) for name in names(kind, found)]
        assert all(re.match(r"(etag|stat|generation|version):.+", record.version) for record in found.values())

    async def test_list_of_one_object(self, kind: Kind) -> None:
        """An object's own url lists just that object."""
        assert names(kind, await listed(kind.store, f"{kind.root}/train/a/1.bin")) == ["train/a/1.bin"]

    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("train/b/shard-{007..008}.tar", ["train/b/shard-007.tar", "train/b/shard-008.tar"]),
            ("train/*/*.bin", ["train/a/0.bin", "train/a/1.bin"]),
            ("train/**/*.tar", ["train/b/shard-007.tar", "train/b/shard-008.tar"]),
            ("train/a/[!0].bin", ["train/a/1.bin"]),
            ("train/*/{0,1}.bin", ["train/a/0.bin", "train/a/1.bin"]),
            (
                "train/{a/?.bin,b/*}",
                ["train/a/0.bin", "train/a/1.bin", "train/b/shard-007.tar", "train/b/shard-008.tar"],
            ),
        ],
    )
    async def test_list_of_a_pattern(self, kind: Kind, pattern: str, expected: list[str]) -> None:
        """A pattern of globs and braces lists the objects that it matches."""
        assert names(kind, await listed(kind.store, f"{kind.root}/{pattern}")) == expected

    async def test_an_object_that_braces_name_is_missing(self, kind: Kind) -> None:
        """Objects that braces name and that are missing are an error that names them and their number."""
        with pytest.raises(ObjectNotFoundError, match=r"1 of the 3 objects .* missing: \S*train/b/shard-009\.tar"):
            await listed(kind.store, f"{kind.root}/train/b/shard-{{007..009}}.tar")

    async def test_a_pattern_that_braces_stand_for_matches_nothing(self, kind: Kind) -> None:
        """Braces with a glob stand for patterns, each of which must match; those that match nothing are named."""
        with pytest.raises(ObjectNotFoundError, match=r"1 of the 3 patterns .* nothing: \S*train/b/shard-009\*;"):
            await listed(kind.store, f"{kind.root}/train/b/shard-{{007..009}}*")
        with pytest.raises(ObjectNotFoundError, match=r"2 of the 4 patterns .* nothing: \S*a/\*\.tar, \S*c/\*\.tar;"):
            await listed(kind.store, f"{kind.root}/train/{{a,b,c,[b]}}/*.tar")

    async def test_odd_names_survive(self, kind: Kind) -> None:
        """A key with spaces, plus, ampersand and umlauts is listed as it is and can be read."""
        found = await listed(kind.store, f"{kind.root}/odd/")
        assert names(kind, found) == ["odd/with space+plus&ünï.bin"]
        (record,) = found.values()
        assert await read(kind.store, record, 10, 90) == RAMP[10:90]

    async def test_version_is_stable_and_changes_with_the_object(self, kind: Kind) -> None:
        """The version of an object is the same in two listings, and another content has another version."""
        before = await record_of(kind, REPLACED)
        assert await record_of(kind, REPLACED) == before
        await kind.replace_object(before.url, RAMP[1:1001])
        assert (await record_of(kind, REPLACED)).version != before.version

    async def test_changed_object_is_refused(self, kind: Kind) -> None:
        """A get of an object that was replaced raises ObjectChangedError with the version of the manifest."""
        record = await record_of(kind, REPLACED)
        await kind.replace_object(record.url, RAMP[5:1005])
        with pytest.raises(ObjectChangedError) as caught:
            await read(kind.store, record, 0, 100)
        assert record.version in str(caught.value)

    async def test_shrunk_object_is_refused(self, kind: Kind) -> None:
        """A get beyond the end of an object that is shorter than the manifest says is a change and not a short read."""
        record = await record_of(kind, "train/a/1.bin")
        with pytest.raises(ObjectChangedError):
            await read(kind.store, msgspec.structs.replace(record, size=5000, version=_other(record)), 3000, 4000)

    async def test_missing_object(self, kind: Kind) -> None:
        """A get or a listing of a missing object raises ObjectNotFoundError with its url."""
        gone = ObjectRecord(f"{kind.root}/train/none", 10, "etag:x")
        with pytest.raises(ObjectNotFoundError, match="train/none"):
            await read(kind.store, gone, 0, 10)
        with pytest.raises(ObjectNotFoundError, match="train/none"):
            await listed(kind.store, gone.url)

    async def test_early_close_leaves_the_store_usable(self, kind: Kind) -> None:
        """A get that is cancelled after its first piece delivers no further one, and the store reads on."""
        record = await record_of(kind, "train/a/0.bin")
        begun, taken = asyncio.Event(), list[int]()

        def take(piece: bytes | memoryview) -> None:
            taken.append(len(piece))
            begun.set()

        reading = asyncio.create_task(kind.store.get(Get(record, 0, len(RAMP)), take))
        await begun.wait()
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        seen = len(taken)
        await asyncio.sleep(0.05)
        assert len(taken) == seen
        assert await read(kind.store, record, 5, 15) == RAMP[5:15]

    async def test_counts_and_close(self, kind: Kind) -> None:
        """Requests and bytes are counted; a store reads after a refresh and may be closed twice."""
        record = await record_of(kind, "train/a/1.bin")
        before = kind.store.statistics()
        await read(kind.store, record, 100, 300)
        after = kind.store.statistics()
        assert (after.requests - before.requests, after.received_bytes - before.received_bytes) == (1, 200)
        await kind.store.refresh()
        assert await read(kind.store, record, 1, 3) == RAMP[1:3]
        await kind.store.aclose()
        await kind.store.aclose()
