"""Answers for the engine whether a chunk that a peer asks for is here, on its way, or to be fetched by the peer itself.

`peers/group.py` makes a `Serving` for the engine. The server process asks it (`peers/server_process.py`) for chunks
whose file is not in the cache folder.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import numpy as np

from streamer.cache.policy.answers import Admit
from streamer.cache.policy.sessions import SessionOpening
from streamer.cache.policy.table import to_keys
from streamer.engine.bring import Fetch
from streamer.engine.datasets import Dataset
from streamer.engine.engine import Engine
from streamer.errors import CacheFullError, ManifestError, StreamerError
from streamer.peers.messages import Availability
from streamer.peers.protocol import WAIT_SECONDS, ChunkRequest

logger = logging.getLogger(__name__)

# Limits for each dataset of what is fetched for peers at once: a share of the cache's limit, and a number of chunks.
_OPEN_SHARE = 1 / 32
_OPEN_CHUNKS = 16
# The value for the cache of datasets that only peers ask for: those that sessions here read come first.
_VALUE = 1e-6
# A dataset that peers have not asked for in this time is closed.
_IDLE_SECONDS = 60.0
_JOB = "peers"


class _Served:
    """Holds a dataset that peers ask for, and finds its chunks by key.

    Attributes:
        dataset: the dataset.
        session: name of the session in the cache's policy that keeps what is fetched for peers.
        asked_at: time at which a peer asked last, on the engine's clock.
    """

    def __init__(self, dataset: Dataset, session: str) -> None:
        self.dataset = dataset
        self.session = session
        self.asked_at = 0.0
        self._keys = to_keys(dataset.manifest.chunk_keys)
        self._order = np.argsort(self._keys).astype(np.int32)

    def find(self, key: bytes) -> int | None:
        """Returns the number of the chunk with this key, or None if the dataset has no such chunk."""
        at = int(np.searchsorted(self._keys, np.array(key, self._keys.dtype), sorter=self._order))
        if at == len(self._keys) or self.dataset.key(chunk := int(self._order[at])) != key:
            return None
        return chunk


class Serving:
    """Answers the server process for the engine, on the engine's loop.

    It serves datasets that are open here or that the service is configured for. It fetches a chunk from the store only
    if the cache will keep it.

    Args:
        engine: the engine.
        missing: called with the digest of a manifest that is not here, and the id of the peer that asks for it.

    Attributes:
        fetched_chunks: number of chunks fetched for peers since the start.
        fetched_bytes: bytes of their files.
    """

    def __init__(self, engine: Engine, missing: Callable[[str, str], None]) -> None:
        self.fetched_chunks = 0
        self.fetched_bytes = 0
        self._engine = engine
        self._missing = missing
        self._served: dict[str, _Served] = {}

    def __repr__(self) -> str:
        return f"Serving({len(self._served)} datasets, {self.fetched_chunks} chunks fetched)"

    async def serve(self, request: ChunkRequest) -> Availability:
        """Returns where a chunk is; starts its fetch if the cache keeps it and it is not here.

        With `request.wait` it waits for the fetch, at most `WAIT_SECONDS`. It raises nothing for a chunk or dataset
        that is unknown: the answer is "no" then.
        """
        key = request.key
        engine = self._engine
        served = self._served.get(request.dataset)
        if served is None and (dataset := self._dataset(request.dataset, request.member)) is not None:
            served = self._open(dataset)
        if served is not None:
            served.asked_at = engine.now()
            served.dataset.touched = True
        chunk = None if served is None else served.find(key)
        if served is None or chunk is None:
            return "no"
        if engine.policy.is_local(key):
            return self._local(key)
        fetch = engine.in_flight.find(key)
        if fetch is None:
            if not engine.policy.is_selected(key) or engine.scheduler.draining:
                return "no"
            fetch = self._fetch(served, key, chunk)
        if fetch is not None:
            fetch.peer_due = min(fetch.peer_due, engine.now() + request.due_seconds)
        task = None if fetch is None else fetch.task
        if request.wait:
            await (asyncio.sleep(WAIT_SECONDS) if task is None else asyncio.wait({task}, timeout=WAIT_SECONDS))
        if engine.policy.is_local(key):
            return self._local(key)
        # There was no room. There may be some when the peer asks again, if there is time for that.
        later = task is None and (not request.wait or request.due_seconds > WAIT_SECONDS)
        return "coming" if later or engine.in_flight.find(key) is not None else "no"

    async def close_idle(self) -> None:
        """Closes datasets that peers have not asked for in the last minute, again and again until it is cancelled."""
        while True:
            await asyncio.sleep(_IDLE_SECONDS)
            for served in list(self._served.values()):
                if self._engine.now() - served.asked_at > _IDLE_SECONDS:
                    self._close(served)

    def close(self) -> None:
        """Closes all datasets: their chunks in the cache may be evicted."""
        for served in list(self._served.values()):
            self._close(served)

    def _close(self, served: _Served) -> None:
        del self._served[served.dataset.manifest.digest]
        self._engine.scheduler.apply_evictions(self._engine.policy.close_session(served.session))

    def _dataset(self, digest: str, member: str) -> Dataset | None:
        """Returns the dataset of a manifest: one that is open here, or, for a service, one that its folder has.

        None if there is neither. `missing` is called if a service lacks the manifest.
        """
        datasets = self._engine.datasets
        known = next((one for one in datasets.all() if one.manifest.digest == digest), None)
        if known is None and self._engine.fetchers.allowlist.restricted:
            # A service knows the storage options itself, so it can fetch chunks of a dataset that no client has opened.
            try:
                return datasets.get(digest, {})
            except ManifestError:
                self._missing(digest, member)
            except StreamerError as error:
                logger.debug("nothing of %s is served: %s", digest, error)
        return known

    def _open(self, dataset: Dataset) -> _Served | None:
        """Opens a dataset for peers, with a session in the cache's policy; None if the cache has no room for one."""
        digest = dataset.manifest.digest
        policy = self._engine.policy
        open_bytes = min(int(_OPEN_SHARE * policy.limit_bytes), _OPEN_CHUNKS * int(dataset.file_bytes.max(initial=0)))
        opening = SessionOpening(
            session=f"{_JOB} {digest}",
            dataset_id=digest,
            open_bytes=open_bytes,
            lookahead_bytes=0,
            value=_VALUE,
            counted=False,
        )
        policy.add_dataset(digest, dataset.file_bytes, dataset.manifest.chunk_keys)
        try:
            self._engine.scheduler.apply_evictions(policy.open_sessions(_JOB, [opening]))
        except CacheFullError as error:
            logger.info("nothing is fetched for peers: %s", error)
            return None
        served = self._served[digest] = _Served(dataset, opening.session)
        return served

    def _fetch(self, served: _Served, key: bytes, chunk: int) -> Fetch | None:
        """Starts the fetch of a chunk, and evicts others for it; returns None if the cache has no room for it now."""
        engine = self._engine
        policy = self._engine.policy
        policy.look_ahead(served.session, chunk)
        answer = policy.need(served.session, chunk)
        if not isinstance(answer, Admit):
            engine.scheduler.apply_evictions(policy.release(served.session, chunk))
            return None
        engine.scheduler.ask_again_for(answer.victims)
        fetch = Fetch(key, served.dataset, chunk)
        engine.in_flight.start_for_peer(fetch, answer.victims)
        assert fetch.task is not None
        fetch.task.add_done_callback(lambda task: self._end_fetch(served, chunk))
        return fetch

    def _end_fetch(self, served: _Served, chunk: int) -> None:
        """Counts a chunk that was fetched, and lets the cache evict it after a while."""
        if length := self._engine.cache.length(served.dataset.key(chunk)):
            self.fetched_chunks += 1
            self.fetched_bytes += length
        # The chunk stays for a moment, because peers that wait for it ask again, or are about to be sent its file.
        asyncio.get_running_loop().call_later(2 * WAIT_SECONDS, self._release, served, chunk)

    def _local(self, key: bytes) -> Availability:
        """Returns "there" if the folder has a file of a local chunk, else "no".

        Local chunks have none if they are in a layer, or in memory because the disk failed.
        """
        return "there" if self._engine.cache.length(key) else "no"

    def _release(self, served: _Served, chunk: int) -> None:
        if served in self._served.values():
            self._engine.scheduler.apply_evictions(self._engine.policy.release(served.session, chunk))
