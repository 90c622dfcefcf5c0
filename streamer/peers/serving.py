"""Serves chunks to peers: answers whether a chunk is here, on its way, or to be fetched by the peer itself."""

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

# Limits of what is fetched for peers at once: a share of the cache's limit, and a number of chunks.
_OPEN_SHARE = 1 / 32
_OPEN_CHUNKS = 16
# Beside the datasets of a mix: what is asked for by peers alone comes last.
_VALUE = 1e-6
# A dataset that peers have not asked for in this time is not theirs any more.
_IDLE_SECONDS = 60.0
_JOB = "peers"


class _Served:
    """Holds a dataset that peers ask for; its session in the policy keeps what is fetched for them."""

    def __init__(self, dataset: Dataset, session: str) -> None:
        self.dataset = dataset
        self.session = session
        self.asked_at = 0.0
        self._keys = to_keys(dataset.manifest.chunk_keys)
        self._order = np.argsort(self._keys).astype(np.int32)

    def find(self, key: bytes) -> int | None:
        """Returns the number of the chunk with this key."""
        at = int(np.searchsorted(self._keys, np.array(key, self._keys.dtype), sorter=self._order))
        if at == len(self._keys) or self.dataset.key(chunk := int(self._order[at])) != key:
            return None
        return chunk


class Serving:
    """Answers the peer server for the engine. On the engine's loop.

    It serves datasets that are open here or that the service is configured for, and fetches only chunks that stay here.

    Args:
        engine: engine of the cache.
        missing: called with the digest of a manifest that is not here, and the id of the peer that has asked.
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
        """Says where a chunk is (see `peers.server_process.ServeChunk`); starts its fetch if it is kept here."""
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
        # There may be room when it is asked for again, if there is time for that.
        later = task is None and (not request.wait or request.due_seconds > WAIT_SECONDS)
        return "coming" if later or engine.in_flight.find(key) is not None else "no"

    async def close_idle(self) -> None:
        """Ends the sessions of datasets that peers have not asked for in a while; until it is cancelled."""
        while True:
            await asyncio.sleep(_IDLE_SECONDS)
            for served in list(self._served.values()):
                if self._engine.now() - served.asked_at > _IDLE_SECONDS:
                    self._close(served)

    def close(self) -> None:
        """Ends all sessions."""
        for served in list(self._served.values()):
            self._close(served)

    def _close(self, served: _Served) -> None:
        del self._served[served.dataset.manifest.digest]
        self._engine.scheduler.apply_evictions(self._engine.policy.close_session(served.session))

    def _dataset(self, digest: str, member: str) -> Dataset | None:
        datasets = self._engine.datasets
        known = next((one for one in datasets.all() if one.manifest.digest == digest), None)
        if known is None and self._engine.fetchers.allowlist.restricted:
            # A service knows the storage options itself, so it can be a home without a session of its own.
            try:
                return datasets.get(digest, {})
            except ManifestError:
                self._missing(digest, member)
            except StreamerError as error:
                logger.debug("nothing of %s is served: %s", digest, error)
        return known

    def _open(self, dataset: Dataset) -> _Served | None:
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
        """Starts the fetch of a chunk; returns None if it does not fit now."""
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
        if length := self._engine.cache.length(served.dataset.key(chunk)):
            self.fetched_chunks += 1
            self.fetched_bytes += length
        # Peers that wait for it ask again, or are about to open it.
        asyncio.get_running_loop().call_later(2 * WAIT_SECONDS, self._release, served, chunk)

    def _local(self, key: bytes) -> Availability:
        """Says whether the folder has a file to send; chunks of a layer or of the fallback in memory have none."""
        return "there" if self._engine.cache.length(key) else "no"

    def _release(self, served: _Served, chunk: int) -> None:
        if served in self._served.values():
            self._engine.scheduler.apply_evictions(self._engine.policy.release(served.session, chunk))
