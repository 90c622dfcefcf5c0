"""Chunks for peers: answers whether a chunk is here, on its way, or to be fetched by the peer itself."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable

import numpy as np

from streamer.cache.policy.answers import Admit
from streamer.cache.policy.sessions import Opening
from streamer.cache.policy.table import as_keys
from streamer.engine.datasets import Dataset
from streamer.engine.engine import Engine
from streamer.engine.fetching.fetches import Fetch
from streamer.errors import CacheFullError, ManifestError, StreamerError

logger = logging.getLogger(__name__)

# A peer that waits hears within this time that its chunk is still on its way.
WAIT_SECONDS = 0.5
# Of the limit, and of chunks: what may be open for peers at once.
OPEN_SHARE = 1 / 32
OPEN_CHUNKS = 16
# Beside the datasets of a mix: what is asked for by peers alone comes last.
VALUE = 1e-6
# A dataset that peers have not asked for in this time is not theirs any more.
IDLE_SECONDS = 60.0
JOB = "peers"


class Loan:
    """One answer. The chunk cannot be evicted before `close`, if it is `there`."""

    def __init__(self, *, there: bool = False, coming: bool = False, release: Callable[[], None] | None = None) -> None:
        self.there = there
        self.coming = coming
        self._release = release

    def close(self) -> None:
        """The file is open, or the request has ended; idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()


class _Lent:
    """A dataset that peers ask for; its session in the policy holds what is fetched and opened for them."""

    def __init__(self, dataset: Dataset, session: str) -> None:
        self.dataset = dataset
        self.session = session
        self.asked_at = 0.0
        self._keys = as_keys(dataset.manifest.chunk_keys)
        self._order = np.argsort(self._keys).astype(np.int32)

    def find(self, key: bytes) -> int | None:
        """The number of the chunk of this key."""
        at = int(np.searchsorted(self._keys, np.array(key, self._keys.dtype), sorter=self._order))
        if at == len(self._keys) or self.dataset.key(chunk := int(self._order[at])) != key:
            return None
        return chunk


class Lending:
    """The engine's side of the peer server; see `peers.base.Lender`. On the engine's loop.

    Of datasets that are open here, or that the service is configured for; and only chunks that stay here.

    Args:
        engine: whose cache.

    Attributes:
        missing: called with the digest of a manifest that is not here, and the id of the peer that has asked.
    """

    def __init__(self, engine: Engine) -> None:
        self.missing: Callable[[str, str], None] = lambda digest, member: None
        self.fetched_chunks = 0
        self.fetched_bytes = 0
        self._engine = engine
        self._lent: dict[str, _Lent] = {}

    def __repr__(self) -> str:
        return f"Lending({len(self._lent)} datasets, {self.fetched_chunks} chunks fetched)"

    async def lend(self, key: bytes, dataset: str, *, member: str, wait: bool, due_seconds: float) -> Loan:
        """Answers for one chunk; starts its fetch if it is kept here.

        Args:
            key: 16 bytes.
            dataset: digest of the manifest that the peer knows it by.
            member: id of the peer.
            wait: answer when its fetch has ended, at most `WAIT_SECONDS` later.
            due_seconds: when the peer's reader needs it.
        """
        lent = self._find(dataset, member)
        chunk = None if lent is None else lent.find(key)
        if lent is None or chunk is None:
            return Loan()
        engine = self._engine
        if engine.policy.is_local(key):
            return self._hold(lent, chunk)
        fetch = engine.in_flight.find(key)
        if fetch is None:
            if not engine.policy.is_selected(key) or engine.scheduler.draining:
                return Loan()
            fetch = self._fetch(lent, key, chunk)
        if fetch is not None:
            fetch.peer_due = min(fetch.peer_due, engine.now() + due_seconds)
        task = None if fetch is None else fetch.task
        if wait:
            await (asyncio.sleep(WAIT_SECONDS) if task is None else asyncio.wait({task}, timeout=WAIT_SECONDS))
        if engine.policy.is_local(key):
            return self._hold(lent, chunk)
        # There may be room when it is asked for again, if there is time for that.
        later = task is None and (not wait or due_seconds > WAIT_SECONDS)
        return Loan(coming=later or engine.in_flight.find(key) is not None)

    def close_idle(self) -> None:
        """Ends the sessions of datasets that peers have not asked for in a while."""
        idle = [lent for lent in self._lent.values() if self._engine.now() - lent.asked_at > IDLE_SECONDS]
        for lent in idle:
            self._close(lent)

    def close(self) -> None:
        """Ends all sessions."""
        for lent in list(self._lent.values()):
            self._close(lent)

    def _close(self, lent: _Lent) -> None:
        del self._lent[lent.dataset.manifest.digest]
        self._engine.scheduler.freed(self._engine.policy.close_session(lent.session))

    def _find(self, digest: str, member: str) -> _Lent | None:
        """The dataset, with a session of the policy; None: it is not open here, or there is no room for a session."""
        lent = self._lent.get(digest)
        if lent is None and (dataset := self._dataset(digest, member)) is not None:
            lent = self._open(dataset)
        if lent is not None:
            lent.asked_at = self._engine.now()
            lent.dataset.touched = True
        return lent

    def _dataset(self, digest: str, member: str) -> Dataset | None:
        datasets = self._engine.datasets
        known = next((one for one in datasets.all() if one.manifest.digest == digest), None)
        if known is None and self._engine.fetchers.allowlist.restricted:
            # A service knows the storage options itself, so it can be a home without a session of its own.
            try:
                return datasets.get(digest, {})
            except ManifestError:
                self.missing(digest, member)
            except StreamerError as error:
                logger.debug("nothing is lent of %s: %s", digest, error)
        return known

    def _open(self, dataset: Dataset) -> _Lent | None:
        digest, policy = dataset.manifest.digest, self._engine.policy
        open_bytes = min(int(OPEN_SHARE * policy.limit_bytes), OPEN_CHUNKS * int(dataset.file_bytes.max(initial=0)))
        opening = Opening(f"{JOB} {digest}", digest, open_bytes, 0, VALUE, counted=False)
        policy.add_dataset(digest, dataset.file_bytes, dataset.manifest.chunk_keys)
        try:
            self._engine.scheduler.freed(policy.open_sessions(JOB, [opening]))
        except CacheFullError as error:
            logger.info("nothing is fetched for peers: %s", error)
            return None
        lent = self._lent[digest] = _Lent(dataset, opening.session)
        return lent

    def _fetch(self, lent: _Lent, key: bytes, chunk: int) -> Fetch | None:
        """Starts the fetch of a chunk; None: there is no room now."""
        engine, policy = self._engine, self._engine.policy
        policy.look_ahead(lent.session, chunk)
        answer = policy.need(lent.session, chunk)
        if not isinstance(answer, Admit):
            engine.scheduler.freed(policy.release(lent.session, chunk))
            return None
        engine.scheduler.lost(answer.victims)
        fetch = Fetch(key, lent.dataset, chunk)
        engine.in_flight.start_for_peer(fetch, answer.victims)
        assert fetch.task is not None
        fetch.task.add_done_callback(lambda task: self._fetched(lent, chunk))
        return fetch

    def _fetched(self, lent: _Lent, chunk: int) -> None:
        if length := self._engine.cache.length(lent.dataset.key(chunk)):
            self.fetched_chunks += 1
            self.fetched_bytes += length
        # Peers that wait for it ask again, or are about to open it.
        asyncio.get_running_loop().call_later(2 * WAIT_SECONDS, self._release, lent, chunk)

    def _hold(self, lent: _Lent, chunk: int) -> Loan:
        policy, key = self._engine.policy, lent.dataset.key(chunk)
        # Not those of the fallback in memory, or of a layer: the peer server sends files of the folder.
        if lent not in self._lent.values() or not self._engine.cache.length(key):
            return Loan()
        policy.look_ahead(lent.session, chunk)
        there = policy.opened(lent.session, chunk)
        loan = Loan(there=there, release=functools.partial(self._release, lent, chunk))
        if not there:
            loan.close()
        return loan

    def _release(self, lent: _Lent, chunk: int) -> None:
        if lent in self._lent.values():
            self._engine.scheduler.freed(self._engine.policy.release(lent.session, chunk))
