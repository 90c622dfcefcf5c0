"""Requests to share the cache with the other engines of a job, checked before the engine does so."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streamer.base.extras import require
from streamer.engine.datasets import Dataset
from streamer.engine.engine import Engine
from streamer.errors import ConfigError, ProtocolError
from streamer.wire.messages import ShareCache
from streamer.wire.store_options import StoreOptions

if TYPE_CHECKING:
    from streamer.peers.by_job import JobPeers


class CacheSharing:
    """The peers of the job that uses an engine. Lives on its loop; imports nothing of peers before it is needed."""

    def __init__(self, engine: Engine, tasks: asyncio.TaskGroup) -> None:
        self._engine = engine
        self._tasks = tasks
        self._peers: JobPeers | None = None

    def __repr__(self) -> str:
        return f"CacheSharing({self._peers!r})"

    async def share(self, request: ShareCache, options: StoreOptions) -> str:
        """Fulfils the request; returns the address at which the other engines are answered.

        Raises:
            ConfigError: this engine is a service, cannot listen on that host, or lacks the extra that this needs.
            ManifestError: the dataset is unknown here.
            ProtocolError: the columns of the request do not match each other.
        """
        if self._engine.config.grace_seconds is None:
            raise ConfigError(
                'share_caches="auto" is for engines that the job starts itself; this one is a service, which shares '
                "its cache as [peers] members of its configuration says: leave share_caches= out",
                field="share_caches",
            )
        require('share_caches="auto"', "peers", "aiohttp", "pycurl", field="share_caches")
        from streamer.peers.by_job import JobPeers  # Only here: without peers none of it is imported.
        from streamer.peers.homes import LaneReaders, PeerMember

        try:
            # A name would have to be resolved.
            host = str(ipaddress.ip_address(request.host))
        except ValueError as error:
            raise ConfigError(f"{request.host!r} is not an IP address of this machine", field="peers") from error
        # It is opened before other engines ask for its chunks.
        dataset = self._engine.datasets.get(request.dataset, options.mapping)
        members = [PeerMember(one.id, one.address, one.limit_bytes) for one in request.sharers]
        readers = {}
        if request.lanes:
            lanes = _read_lanes(request, dataset)
            readers[request.name] = LaneReaders(dataset.manifest.chunk_words, lanes, request.readers, request.former)
        self._peers = self._peers or JobPeers(self._engine, self._tasks)
        return await self._peers.share(request.token, host, members, readers)

    def close(self) -> None:
        """Ends the sharing with the engine."""
        if self._peers is not None:
            self._peers.close()


def _read_lanes(request: ShareCache, dataset: Dataset) -> NDArray[np.int64]:
    """The lane of each chunk, after a check of all columns about lanes."""
    if len(request.lanes) != 2 * dataset.manifest.chunks:
        raise ProtocolError(f"{len(request.lanes)} bytes are not the lanes of {dataset.manifest.chunks} chunks")
    lanes = np.frombuffer(request.lanes, "<i2").astype(np.int64)
    count = len(request.readers)
    shares = [share for lane in (*request.readers, *request.former) for share in lane]
    if (
        len(request.former) != count
        or not all(request.readers)
        or not -1 <= int(lanes.min()) <= int(lanes.max()) < count
        or any(member >= len(request.sharers) or share < 1 for member, share in shares)
    ):
        raise ProtocolError(f"the readers of {count} lanes do not belong to the lanes of the chunks")
    return lanes
