"""Manifests of a real engine over local files: found or built for a request, and their notes on objects left out."""

from __future__ import annotations

import asyncio
import importlib.metadata
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from streamer.config import CacheConfig, EngineConfig, FetchConfig
from streamer.engine import url_allowlist
from streamer.engine.engine import Engine
from streamer.engine.manifests.index_resources import KeptChunks
from streamer.engine.manifests.manifest_store import LocatedRequest
from streamer.errors import CacheFullError, ManifestError
from streamer.formats import BUILT_IN
from streamer.formats.registry import find_format
from streamer.formats.table import layouts
from streamer.formats.webdataset import WebDataset
from streamer.manifest.protocols import IndexedChunk
from streamer.manifest.table import Manifest
from streamer.manifest.transfer import export_files
from streamer.store.base import Get, Take
from streamer.store.local_store import LocalStore
from streamer.wire.messages import GetManifest
from tests.tars import tar_of


def engine_in(folder: Path) -> Engine:
    cache = CacheConfig(directory=folder, limit_bytes=64 << 20)
    return Engine(EngineConfig(cache=cache, settle_seconds=0.0))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    """Runs an engine with an empty cache folder."""
    async with engine_in(tmp_path / "cache") as engine:
        yield engine


@pytest.fixture
def files(tmp_path: Path) -> str:
    """Makes nine images of three classes, and a README."""
    for number in range(9):
        path = tmp_path / "files" / f"c{number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * number)
    (tmp_path / "files" / "README.md").write_text("about")
    return f"{tmp_path / 'files'}/"


@pytest.fixture
def tars(tmp_path: Path) -> str:
    """Makes three tars, the second one cut off."""
    (tmp_path / "tars").mkdir()
    for number in range(3):
        raw = tar_of([(f"{number}-{i}.txt", b"text") for i in range(5)])
        (tmp_path / "tars" / f"{number}.tar").write_bytes(raw[:2000] if number == 1 else raw)
    return f"{tmp_path / 'tars'}/"


class TogetherStore(LocalStore):
    """A local store that answers none of the first requests before 24 of them are under way."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting, self._together = 0, asyncio.Event()

    async def get(self, asked: Get, take: Take) -> None:
        self._waiting += 1
        if self._waiting == 24:
            self._together.set()
        await self._together.wait()
        await super().get(asked, take)


async def test_an_index_asks_for_as_much_as_the_link_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index sends as many requests as the fetcher allows, more than the 16 that are right for fast connections."""
    for number in range(40):
        (tmp_path / f"{number}.tar").write_bytes(tar_of([(f"{number}.txt", b"text")]))
    monkeypatch.setattr(url_allowlist, "open_root", lambda root, **rest: TogetherStore())
    fetch = FetchConfig(window_start=32, memory_bytes=1 << 30, first_byte_seconds=60.0)
    config = EngineConfig(cache=CacheConfig(directory=tmp_path / "cache"), fetch=fetch, settle_seconds=0.0)
    async with asyncio.timeout(30), Engine(config) as engine:
        manifest, _, _ = await found(engine, f"{tmp_path}/*.tar")
        assert manifest.samples == 40


async def found(engine: Engine, url: str, **choices: object) -> tuple[Manifest, list[str], bool]:
    """Returns the manifest, its notes, and whether it was built for this request."""
    request = GetManifest(0, [url], "auto", **choices)
    steps: list[str] = []
    digest = await engine.manifest(request, lambda text, done, total: steps.append(text))
    manifest = Manifest.open(engine.cache.root / "manifests" / digest)
    return manifest, await engine.manifests.notes(request, digest), bool(steps)


async def test_notes_are_kept_with_the_answer(engine: Engine, files: str) -> None:
    """Notes on files that are not samples are kept with the manifest of each choice, for later requests too."""
    first, notes, built = await found(engine, files)
    assert (first.samples, built) == (9, True)
    (note,) = notes
    assert note.startswith(f"{files}: 1 of 10 files are not samples (1 .md)")
    assert (await found(engine, files))[1:] == (notes, False)
    readme, notes, built = await found(engine, files, extensions=("md",))
    assert (readme.samples, notes, built) == (1, [], True)
    assert (await found(engine, files))[1:] == ([note], False)


async def test_what_was_indexed_by_other_rules_is_not_used(engine: Engine, files: str) -> None:
    """A manifest that was indexed by other rules for samples is not used, though its listing is the same."""
    old, _, _ = await found(engine, files, extensions=("jpg", "md"))
    request = GetManifest(0, [files], "auto")
    (source,) = engine.manifests.store._all_sources()
    listing = source.read_text().split()[0]
    engine.manifests.store.remember(LocatedRequest.make(request).container_source, listing, old.digest)
    assert (await found(engine, files))[0].samples == 9


async def test_names_are_looked_through_beside_the_loop(engine: Engine, files: str, monkeypatch) -> None:
    """The names of a listing are looked through in a thread.
    A million take 0.3 s, in which an engine would serve no other client."""
    threads: list[threading.Thread] = []

    def look(keys: list[str]) -> None:
        threads.append(threading.current_thread())

    monkeypatch.setattr(layouts, "has_data", lambda keys: True)
    monkeypatch.setattr(layouts, "table_log", look)
    await found(engine, files)
    assert threads
    assert threads[0] is not threading.current_thread()


async def test_each_order_of_files_has_its_manifest(engine: Engine, files: str) -> None:
    """Each order of files, that of the keys and that of their hash, has its own manifest; both are kept and found."""
    ordered, _, _ = await found(engine, files, in_key_order=True)
    assert [ordered.name(i).object_key for i in range(9)] == sorted(f"c{i % 3}/{i}.jpg" for i in range(9))
    hashed, _, built = await found(engine, files)
    assert (hashed.digest != ordered.digest, built) == (True, True)
    assert (await found(engine, files, in_key_order=True))[0].digest == ordered.digest
    assert not (await found(engine, files, in_key_order=True))[2]


async def test_tars_are_read_once_for_both_orders(engine: Engine, tars: str) -> None:
    """A request for tars in key order finds the manifest that was built without: containers have one order."""
    (Path(tars) / "1.tar").unlink()
    first, _, built = await found(engine, tars)
    assert (first.samples, built) == (10, True)
    again, _, built = await found(engine, tars, in_key_order=True)
    assert (again.digest, built) == (first.digest, False)


async def test_chunks_of_a_damaged_tar_have_no_owner(
    engine: Engine, tars: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of a damaged tar that were kept while it was indexed belong to no dataset."""
    adopted: dict[str, set[bytes]] = {}
    monkeypatch.setattr(engine, "adopt", lambda digest, kept: adopted.update({digest: set(kept)}))
    raw = tar_of([(f"big{i}.bin", bytes([i]) * 3_000_000) for i in range(4)])
    (Path(tars) / "1.tar").write_bytes(raw[:-20_000])
    manifest, _, _ = await found(engine, tars, skip_damaged=True, chunk_bytes=1_000_000)
    assert adopted[manifest.digest] == {key.tobytes() for key in manifest.chunk_keys}
    assert adopted[""]


async def test_a_damaged_tar_is_an_error_or_left_out(engine: Engine, tars: str) -> None:
    """A damaged tar is an error unless `skip_damaged` leaves it out with notes; neither answer hides the other."""
    with pytest.raises(ManifestError, match=r"1\.tar is damaged: cut off"):
        await found(engine, tars)
    for expected in (True, False):
        manifest, notes, built = await found(engine, tars, skip_damaged=True)
        assert (manifest.samples, built) == (10, expected)
        assert notes[0] == f"{tars}: 1 of 3 objects cannot be read and are left out, with all their samples"
        assert notes[1].startswith(f"{tars}: left out: {tars}1.tar: cut off")
    with pytest.raises(ManifestError, match=r"1\.tar is damaged"):
        await found(engine, tars)


async def test_only_new_manifests_are_measured(engine: Engine, files: str, tars: str) -> None:
    """Only a newly built manifest makes the engine measure its folder.
    Walking it for each of 200 members took 2 of the 3 s of their start (2026-11-23)."""
    await found(engine, files)
    before = engine.cache.space.overhead_bytes
    (engine.cache.root / "manifests" / "sources" / "beside").write_bytes(b"x" * 100_000)
    await found(engine, files)
    assert engine.cache.space.overhead_bytes == before
    await found(engine, tars, skip_damaged=True)
    assert engine.cache.space.overhead_bytes > before + 100_000


def add_tar(url: str, number: int) -> int:
    """Writes a tar of `number` samples, and returns its size."""
    path = Path(url) / f"{number}.tar"
    path.write_bytes(tar_of([(f"{number}-{i}.txt", b"text") for i in range(number)]))
    return path.stat().st_size


async def test_of_tars_that_are_added_only_these_are_read(engine: Engine, tars: str) -> None:
    """Indexing a dataset again reads only the added tars; the rows of the others come from the last manifest."""
    (Path(tars) / "1.tar").unlink()
    await found(engine, tars)
    before = engine.manifests.traffic.read_bytes
    added = add_tar(tars, 7)
    again, _, _ = await found(engine, tars)
    assert again.samples == 17
    assert engine.manifests.traffic.read_bytes - before == added


async def test_a_manifest_beside_the_data_is_used(tmp_path: Path, tars: str) -> None:
    """An engine that finds a manifest beside the data reads only that and new tars; it is no data itself."""
    (Path(tars) / "1.tar").unlink()
    async with engine_in(tmp_path / "one") as one:
        first, _, _ = await found(one, tars)
    beside = Path(tars) / ".streamer"
    (beside / "pack").mkdir(parents=True)
    (beside / "pack" / "000000.json").write_text("a receipt")
    for name, content in export_files(first):
        (beside / name).write_bytes(content)
    async with engine_in(tmp_path / "two") as two:
        again, _, _ = await found(two, tars)
        assert (again.digest, two.manifests.traffic.read_bytes) == (first.digest, 0)
    added = add_tar(tars, 7)
    async with engine_in(tmp_path / "three") as three:
        more, _, _ = await found(three, tars)
        assert (more.samples, three.manifests.traffic.read_bytes) == (17, added)


async def test_data_below_a_folder_of_that_name(engine: Engine, tmp_path: Path) -> None:
    """Files in a folder that lies below one named .streamer are data when the url names it."""
    (tmp_path / ".streamer" / "data").mkdir(parents=True)
    url = f"{tmp_path}/.streamer/data/"
    add_tar(url, 3)
    assert (await found(engine, url))[0].samples == 3


async def test_a_damaged_manifest_beside_the_data_is_left_alone(
    engine: Engine, tars: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged manifest beside the data is not used: the data are indexed, and the log tells why."""
    (Path(tars) / "1.tar").unlink()
    (Path(tars) / ".streamer").mkdir()
    (Path(tars) / ".streamer" / "root.json").write_text("{}")
    assert (await found(engine, tars))[0].samples == 10
    assert "is not used, the data are indexed" in caplog.text


class FullCache:
    """Stands for a cache with bytes to spare whose disk refuses all chunks; it stores nothing."""

    def room_bytes(self) -> int:
        return 1 << 40

    async def keep(self, key: bytes, parts: list[memoryview], sample_offsets: object) -> None:
        raise CacheFullError("no space")

    def adopt(self, digest: str, kept: object) -> None:
        raise AssertionError("nothing was kept")


async def test_chunks_that_are_not_kept_are_two_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Chunks of an index that a full disk refuses are two lines of the log (it was a line for each chunk)."""
    caplog.set_level("INFO")
    warmed = KeptChunks(FullCache())
    for number in range(100):
        offsets = np.array([0, 10], np.int64)
        chunk = IndexedChunk(-1, bytes([number]) * 16, (), -1, 1, 10, 10, sample_offsets=offsets)
        await warmed.keep(chunk, [memoryview(b"x" * 10)])
    warmed.hand_off(None)
    assert [record.getMessage() for record in caplog.records] == [
        f"chunk {'00' * 16} is not kept from the index: no space",
        "100 chunks were not kept from the index",
    ]


class Own(WebDataset, frozen=True):
    """Stands for a format of another package: tars under another name."""

    name = "own"


async def test_what_another_revision_has_indexed_is_indexed_again(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest of another revision of its format is built again, also one of version 1 without options.
    (Its samples were refused for ever.)"""
    points = [SimpleNamespace(name="own", value=f"{__name__}:Own")]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    (tmp_path / "a.tar").write_bytes(tar_of([("1.txt", b"text")]))
    request = GetManifest(0, [f"{tmp_path}/a.tar"], "own")
    digests = [await engine.manifest(request, print)]
    monkeypatch.setattr(Own, "revision", 1)
    digests.append(await engine.manifest(request, print))
    contents = [Manifest.open(engine.cache.root / "manifests" / digest).content for digest in digests]
    assert [(content.version, content.revision) for content in contents] == [(1, 0), (2, 1)]


def test_built_in_formats_of_version_1_are_of_revision_0() -> None:
    """Built-in formats have revision 0, on which `registry.is_current` relies without importing them."""
    assert {name: find_format(name).revision for name in BUILT_IN} == dict.fromkeys(BUILT_IN, 0)
