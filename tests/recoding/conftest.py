"""A blocked format that is installed for the tests, objects in it, and a real engine of this process."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from streamer.config import CacheConfig, EngineConfig
from streamer.engine.engine import Engine
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest
from tests.recoding.blocked_format import install, packed_object

CACHE_BYTES = 50_000_000


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("packages"))


@pytest.fixture(autouse=True)
def _installed(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(packages)
    yield
    sys.modules.pop("blocked_format", None)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes objects, each a list of blocks, which are lists of samples; returns their folder."""

    def write(*objects: Sequence[Sequence[bytes]]) -> Path:
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        for number, blocks in enumerate(objects):
            (folder / f"{number:03}.blocks").write_bytes(packed_object(blocks))
        return folder

    return write


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    cache = CacheConfig(directory=tmp_path / "cache", limit_bytes=CACHE_BYTES)
    async with Engine(EngineConfig(cache=cache, settle_seconds=0.0)) as engine:
        yield engine


async def indexed(
    engine: Engine, folder: Path, chunk_bytes: int = 100_000, kind: str = "blocks", **options: object
) -> Manifest:
    """Returns the manifest of a folder, which the engine has then."""
    request = GetManifest(0, [str(folder)], kind, chunk_bytes=chunk_bytes, format_options=json.dumps(options).encode())
    digest = await engine.manifest(request, lambda text, done, total: None)
    return Manifest.open(engine.cache.root / "manifests" / digest)
