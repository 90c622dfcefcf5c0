"""Fixtures with datasets on the local disk and a fake engine client.

It keeps exactly the chunks that are leased and deletes all others, so that a read of anything else is an error.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from streamer.batches.samples.cached_bytes import CachedBytes
from streamer.cache.chunk_files import ChunkBytes, write_chunk
from streamer.cache.folder import open_folder
from streamer.client.pending_requests import ManifestAsk
from streamer.client.settings import ClientSettings
from streamer.formats.chunkfile import relative_path
from streamer.formats.detect import chooser
from streamer.indexing.build import BuildOptions, build
from streamer.loader.dataset import StreamingDataset
from streamer.loader.members import member
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.table import Manifest
from streamer.wire.messages import PROTOCOL, GetManifest, IndexProgress, OpenSession, Welcome
from streamer.wire.schedule import EpochSchedule
from tests.tars import tar_of

# Small, so that a hundred samples are many chunks.
CHUNK_BYTES = 2000


class Disk:
    """Stands for a store: lists and reads local files for the builder of manifests.

    It has no retries and no limit of requests.
    """

    async def list(self, url: str) -> AsyncIterator[list[ObjectRecord]]:
        yield _records(Path(url))

    async def read(self, extent: Extent) -> bytes:
        return _content(extent)


def _records(root: Path) -> list[ObjectRecord]:
    files = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
    return [ObjectRecord(str(p), p.stat().st_size, "stat:1") for p in files]


def _content(extent: Extent) -> bytes:
    return Path(extent.object.url).read_bytes()[extent.start : extent.stop]


@dataclass
class FakeEngine:
    """Stands for an engine with one cache folder, and records what was asked of it.

    Manifests and chunk files are made by the real builder and the real writer, at once and in the caller's thread;
    there is no service, no limit of bytes and no look-ahead.

    Attributes:
        root: the cache folder.
        fetched: chunk numbers in the order in which they were made local.
        sessions: those that were opened.
        requests: the manifests that were asked for.
        rejects: chunks that were rejected, with the reason.
        local: where the chunks are that are here.
        spoil: called with (chunk number, path) after a chunk was made local; may damage it.
    """

    root: Path
    fetched: list[int] = field(default_factory=list)
    sessions: list[FakeSession] = field(default_factory=list)
    requests: list[GetManifest] = field(default_factory=list)
    rejects: list[tuple[int, str]] = field(default_factory=list)
    spoil: Callable[[int, Path], None] = lambda chunk, path: None
    manifest: Manifest | None = None
    notes: list[str] = field(default_factory=list)
    local: dict[int, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Once, before workers are forked: who opens a folder empties the temporary files of the others.
        self.folder = open_folder(self.root)

    def connect(self, settings: ClientSettings) -> FakeClient:
        return FakeClient(self, settings)

    def build(self, request: GetManifest) -> Manifest:
        if self.manifest is None:
            self.manifest = asyncio.run(
                build(
                    request.urls,
                    self.root / "manifests",
                    lister=Disk(),
                    reader=Disk(),
                    choose_format=chooser(request.format, extensions=request.extensions, on_note=self.notes.append),
                    options=BuildOptions(
                        chunk_bytes=CHUNK_BYTES,
                        in_key_order=request.in_key_order,
                        on_damage=self.notes.append if request.skip_damaged else None,
                    ),
                )
            )
        return self.manifest

    def locate(self, chunk: int) -> tuple[Manifest, int]:
        """Returns the manifest of a chunk, and the chunk's number in it."""
        assert self.manifest is not None
        return self.manifest, chunk

    def number(self, spec: OpenSession, chunk: int) -> int:
        """Returns the number in this engine of a chunk of a session."""
        return chunk

    def chunk_bytes(self, chunk: int) -> bytes:
        manifest, number = self.locate(chunk)
        return b"".join(map(_content, manifest.chunk(number).extents))

    def read(self, dataset: str, chunk: int, start: int, stop: int) -> bytes:
        assert self.manifest is not None
        assert dataset == self.manifest.digest
        return self.chunk_bytes(chunk)[start:stop]

    def path(self, chunk: int) -> Path:
        manifest, number = self.locate(chunk)
        return self.root / relative_path(manifest.chunk_keys[number].tobytes())

    def make_local(self, chunk: int) -> None:
        path = self.local.get(chunk)
        if path is None:
            path = self.local[chunk] = self.path(chunk)
        if not os.path.exists(path):
            manifest, number = self.locate(chunk)
            offsets = manifest.sample_offsets(number)
            key = manifest.chunk(number).key
            write_chunk(ChunkBytes(key, [self.chunk_bytes(chunk)], offsets), self.folder)
            self.fetched.append(chunk)
            self.spoil(chunk, path)

    def evict_unleased(self) -> None:
        leased = {chunk for session in self.sessions for chunk in session.leased}
        for chunk in self.local.keys() - leased:
            self.local.pop(chunk).unlink(missing_ok=True)


class FakeClient:
    """Stands for `EngineClient`: the same methods, answered by the fake engine in this process, without a socket."""

    welcome = Welcome(PROTOCOL, "1", 1, "/", "id", limit_bytes=20_000)

    connected = True
    job = "job"

    def __init__(self, engine: FakeEngine, settings: ClientSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.job = settings.job
        self.fallback_dir = settings.runtime_dir / "selections"
        self.closed = False
        self._event = -1

    def manifest(
        self, request: GetManifest, progress: Callable[[IndexProgress], None], on_note: Callable[[str], None]
    ) -> Path:
        self.engine.requests.append(request)
        progress(IndexProgress(0, "index it", 0, 1))
        found = self.engine.build(request).path
        for note in self.engine.notes:
            on_note(note)
        return found

    def manifests(self, asks: Iterable[ManifestAsk]) -> Iterator[Path]:
        return (self.manifest(*ask) for ask in asks)

    def roots(self) -> list[Path]:
        return [self.engine.root]

    def open_session(self, spec: OpenSession, cache_full_hint: str = "") -> FakeSession:
        session = FakeSession(self.engine, spec)
        self.engine.sessions.append(session)
        return session

    def fileno(self) -> int:
        """Returns a descriptor that is never readable, as everything is local when it is asked for."""
        if self._event < 0:
            self._event = os.eventfd(0, os.EFD_NONBLOCK)
        return self._event

    def pump(self, timeout_seconds: float) -> None: ...

    def read(self, dataset: str, chunk: int, start: int, stop: int) -> bytes:
        return self.engine.read(dataset, chunk, start, stop)

    def shut_down(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True
        if self._event >= 0:
            os.close(self._event)
            self._event = -1


@dataclass
class FakeSession:
    """Stands for a session of a client: keeps exactly the chunks of the steps that are wanted and not done.

    Chunks are local as soon as they are wanted, so that a wait never waits.
    """

    engine: FakeEngine
    spec: OpenSession
    epochs: list[EpochSchedule] = field(default_factory=list)
    ready: int = -1
    low: int = 0
    leased: set[int] = field(default_factory=set)
    closed: bool = False

    def extend(self, schedule: EpochSchedule) -> None:
        assert (np.diff(schedule.first) >= 0).all(), "sorted by first need"
        assert (schedule.first <= schedule.last).all()
        self.epochs.append(schedule)

    def want(self, step: int) -> None:
        self.ready = max(self.ready, step)
        self._keep()

    def wait(self, step: int, timeout_seconds: float | None = None) -> None:
        self.want(step)

    def done(self, step: int, *, flush: bool = True) -> None:
        self.low = max(self.low, step)
        self._keep()

    def reject(self, chunk: int, reason: str) -> None:
        self.engine.rejects.append((chunk, reason))
        self.engine.path(self.engine.number(self.spec, chunk)).unlink(missing_ok=True)
        self._keep()

    def close(self) -> None:
        self.closed = True
        self.leased = set()
        self.engine.evict_unleased()

    def _keep(self) -> None:
        self.leased = {
            self.engine.number(self.spec, chunk)
            for schedule in self.epochs
            for chunk in schedule.chunk[(schedule.first <= self.ready) & (schedule.last >= self.low)].tolist()
        }
        for chunk in sorted(self.leased):
            self.engine.make_local(chunk)
        self.engine.evict_unleased()


@pytest.fixture
def fake_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Returns the engine of every dataset made in the test."""
    root = tmp_path / "cache"
    root.mkdir()
    engine = FakeEngine(root)
    monkeypatch.setattr(member, "EngineClient", engine.connect)
    for name in ("RANK", "WORLD_SIZE", "STREAMER_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    return engine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder with 100 texts of 0..499 bytes in three classes; each is "<number> x...", one is empty."""
    root = tmp_path / "data"
    for number in range(100):
        path = root / f"class{number % 3}" / f"{number:03d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if number == 42 else f"{number} " + "x" * (number * 37 % 500))
    return root


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """Returns a folder with three tars, 90 samples of txt, cls and json together; keys "000".."089"."""
    root = tmp_path / "tars"
    root.mkdir()
    for tar in range(3):
        entries = []
        for number in range(tar * 30, tar * 30 + 30):
            fields = {"txt": f"{number} " + "y" * number, "cls": str(number % 7), "json": f'{{"n": {number}}}'}
            entries += [(f"{number:03d}.{name}", text.encode()) for name, text in fields.items()]
        (root / f"{tar}.tar").write_bytes(tar_of(entries))
    return root


@pytest.fixture
def make_dataset(fake_engine: FakeEngine) -> Iterator[Callable[..., StreamingDataset]]:
    """Makes datasets on the fake engine."""
    made: list[StreamingDataset] = []

    def make(url: Path, **options: object) -> StreamingDataset:
        made.append(StreamingDataset(url, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    while made:
        made.pop().close()


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the list to which every sample is added that is read in the ordinary way."""
    found: list[int] = []
    read = CachedBytes.read
    monkeypatch.setattr(CachedBytes, "read", lambda self, place: found.append(place.ordinal) or read(self, place))
    return found
