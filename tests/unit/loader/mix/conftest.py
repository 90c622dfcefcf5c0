"""Fixtures with several folders on the local disk and a fake engine client that has all of them.

It keeps exactly what is leased.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from streamer.cache.folder import open_folder
from streamer.formats.detect import chooser
from streamer.indexing.build import BuildOptions, build
from streamer.loader.dataset import StreamingDataset
from streamer.loader.kinds import mix as mix_kind
from streamer.loader.members import member
from streamer.loader.mixed_dataset import MixedDataset
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest, OpenSession
from tests.unit.loader.conftest import CHUNK_BYTES, Disk, FakeEngine

# Sizes of the folders of `members`, by name; a sample is its number, plus 1000 times the number of its folder.
SIZES = {"a": 100, "b": 60, "c": 7}


class MixEngine(FakeEngine):
    """Stands for an engine of several datasets; the chunks of a session count through its parts.

    As `FakeEngine`, with one manifest for each member; members share no limit of bytes.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.manifests: dict[str, Manifest] = {}

    def build(self, request: GetManifest) -> Manifest:
        name = " ".join(request.urls)
        if name not in self.manifests:
            work = build(
                request.urls,
                self.root / "manifests",
                lister=Disk(),
                reader=Disk(),
                choose_format=chooser(request.format),
                options=BuildOptions(chunk_bytes=CHUNK_BYTES),
            )
            self.manifests[name] = asyncio.run(work)
        return self.manifests[name]

    def number(self, spec: OpenSession, chunk: int) -> int:
        """Returns manifest and number in it as one number, since several sessions have several numberings."""
        digests = [manifest.digest for manifest in self.manifests.values()]
        for digest in [part.dataset for part in spec.parts] or [spec.dataset]:
            manifest = list(self.manifests.values())[digests.index(digest)]
            if chunk < manifest.chunks:
                return digests.index(digest) << 16 | chunk
            chunk -= manifest.chunks
        raise IndexError(chunk)

    def locate(self, chunk: int) -> tuple[Manifest, int]:
        return list(self.manifests.values())[chunk >> 16], chunk & 0xFFFF

    def read(self, dataset: str, chunk: int, start: int, stop: int) -> bytes:
        (manifest,) = [found for found in self.manifests.values() if found.digest == dataset]
        extents = manifest.chunk(chunk).extents
        return b"".join(Path(e.object.url).read_bytes()[e.start : e.stop] for e in extents)[start:stop]


@pytest.fixture
def fake_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MixEngine:
    """Returns the engine of every dataset and mix made in the test."""
    root = tmp_path / "cache"
    root.mkdir()
    open_folder(root)
    engine = MixEngine(root)
    for module in (member, mix_kind):
        monkeypatch.setattr(module, "EngineClient", engine.connect)
    for name in ("RANK", "WORLD_SIZE", "STREAMER_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    return engine


def write(folder: Path, count: int, first: int, length: int = 40) -> Path:
    """Writes arrays of one number each, and returns their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        np.save(folder / f"{number:04}.npy", np.full(length, first + number, np.int32))
    return folder


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Returns one folder for each of SIZES; they are shared, so that no test may change them."""
    root = tmp_path_factory.mktemp("members")
    return {name: write(root / name, size, 1000 * place) for place, (name, size) in enumerate(SIZES.items())}


@pytest.fixture
def folders(written: dict[str, Path]) -> dict[str, Path]:
    """Returns the folders by name; a test that changes one puts a folder of its own here."""
    return dict(written)


@pytest.fixture
def make_mix(fake_engine: MixEngine, folders: dict[str, Path]) -> Iterator[Callable[..., MixedDataset]]:
    """Makes mixes of the folders on the fake engine; `of` names them, `members` are options by name."""
    made: list[MixedDataset] = []

    def make(of: str = "abc", members: dict[str, dict[str, object]] | None = None, **options: object) -> MixedDataset:
        datasets = {name: StreamingDataset(folders[name], **(members or {}).get(name, {})) for name in of}
        made.append(MixedDataset(datasets, **options))
        return made[-1]

    yield make
    while made:
        made.pop().close()


def numbers(samples: object) -> list[int]:
    """Returns the number of each sample."""
    return [int(sample["npy"][0]) for sample in samples]  # type: ignore[attr-defined]
