"""Requests to share a cache as a real engine's server receives them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from streamer.engine.datasets import Dataset
from streamer.errors import ConfigError, ManifestError, ProtocolError, StreamerError
from streamer.service.long_requests import _read_lanes
from streamer.service.server import Server
from streamer.wire.messages import GetManifest, ShareCache, Sharer
from streamer.wire.store_options import NO_OPTIONS

SHARERS = [Sharer("a" * 32, "10.0.0.1:7070", 1), Sharer("b" * 32, "10.0.0.2:7070", 1)]


@pytest.fixture
async def dataset(server: Server, tmp_path: Path) -> Dataset:
    """A dataset of three chunks."""
    (tmp_path / "data").mkdir()
    for number in range(3):
        (tmp_path / "data" / f"{number}.bin").write_bytes(b"x" * 5000)
    request = GetManifest(0, [f"{tmp_path}/data"], "auto", chunk_bytes=5000)
    digest = await server._engine.manifest(request, lambda *step: None)
    return server._engine.datasets.get(digest, {})


def request(found: Dataset, **changes: object) -> ShareCache:
    """Makes a request of two engines that read a lane each, and both the chunks in no lane."""
    asked = ShareCache(
        1,
        found.manifest.digest,
        "token",
        "127.0.0.1",
        SHARERS,
        "all",
        np.array([0, 1, -1], "<i2").tobytes(),
        [[(0, 4)], [(1, 4)]],
        [[], [(0, 100)]],
    )
    return msgspec.structs.replace(asked, **changes)


async def test_what_belongs_together_is_taken(dataset: Dataset) -> None:
    """A request whose parts agree gives the lane of each chunk."""
    assert dataset.manifest.chunks == 3
    assert _read_lanes(request(dataset), dataset).tolist() == [0, 1, -1]


@pytest.mark.parametrize(
    "changes",
    [
        {"lanes": b"\0\0"},
        {"lanes": np.array([0, 1, 2], "<i2").tobytes()},
        {"lanes": np.array([0, 1, -2], "<i2").tobytes()},
        {"readers": [[(0, 4)], []]},
        {"readers": [[(0, 4)], [(2, 4)]]},
        {"readers": [[(0, 4)], [(1, 0)]]},
        {"readers": [[(0, 4)]]},
        {"former": [[], [(2, 1)]]},
    ],
)
async def test_what_does_not_belong_together_is_refused(dataset: Dataset, changes: dict[str, object]) -> None:
    """A request with a wrong number of chunks, lanes without readers, or unknown members is a ProtocolError."""
    with pytest.raises(ProtocolError, match=r"lanes of|the lanes"):
        _read_lanes(request(dataset, **changes), dataset)


@pytest.mark.parametrize(
    ("changes", "error", "what"),
    [
        ({"host": "rank0.local"}, ConfigError, "not an IP address"),
        ({"dataset": "0" * 32}, ManifestError, "no manifest"),
    ],
)
async def test_where_an_engine_listens_and_for_what(
    server: Server, dataset: Dataset, changes: dict[str, object], error: type[StreamerError], what: str
) -> None:
    """An engine shares its cache only at an IP address, as names need a look-up, and for a dataset that it knows."""
    server._engine.config = replace(server._engine.config, grace_seconds=1.0)
    with pytest.raises(error, match=what):
        await server._long_requests._sharing.share(request(dataset, **changes), NO_OPTIONS)


async def test_a_service_shares_as_its_configuration_says(server: Server, dataset: Dataset) -> None:
    """A service refuses requests of jobs to share its cache, because its configuration says where it listens."""
    with pytest.raises(ConfigError, match="this one is a service"):
        await server._long_requests._sharing.share(request(dataset), NO_OPTIONS)


def test_the_token_is_not_shown() -> None:
    """The repr of a request to share a cache does not show the token, because tools print requests in tracebacks."""
    assert "secret" not in repr(ShareCache(1, "d", "secret", "127.0.0.1"))
