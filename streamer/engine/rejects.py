"""Chunks that their readers found wrong: dropped only when the engine finds them wrong, too.

A reject used to cost a fetch, whatever the truth: one trainer could make the engine fetch a good chunk for ever, and
take it from all that share it. Now the engine reads the chunk's file itself, in a thread, one at a time:

    wrong, or not there    dropped and fetched again; given up after MAX_REJECTS wrong copies: the disk lies
    right                  stays; the reader is told to read again, and gets an error after MAX_UNFOUNDED times: what
                           it sees is not what the engine sees (another mount, bad memory)
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

import msgspec

from streamer.cache.chunk_cache import ChunkCache
from streamer.engine.session import EngineSession
from streamer.errors import IntegrityError

logger = logging.getLogger(__name__)

# A chunk that is wrong again after so many fresh copies is not the network's fault: the disk lies.
MAX_REJECTS = 3
# So often a session may be wrong about one chunk, and about all of them together.
MAX_UNFOUNDED = 3
MAX_UNFOUNDED_IN_ALL = 32
# A chunk found right is not read again for this long, and rejects in this time count once: several workers of a rank
# report one wrong copy, the last of them when the next copy is there already.
PROVED_SECONDS = 0.25


class _Reject(msgspec.Struct):
    session: EngineSession
    chunk: int
    reason: str
    times: int = 1


class Rejects:
    """Judges rejects in the order they come. Owned by the engine, on its loop.

    Args:
        cache: whose files are read.
        forget: called with the key of a chunk that is wrong: it leaves the policy and its file goes; False: it was not
            local.
        kick: called when a session may go on.
        now: the engine's clock, in seconds.
        tasks: where files are read.

    Attributes:
        dropped: copies found wrong, by key.
        unfounded: rejects of chunks that were right.
    """

    def __init__(
        self,
        cache: ChunkCache,
        forget: Callable[[bytes], bool],
        kick: Callable[[], None],
        now: Callable[[], float],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.dropped: Counter[bytes] = Counter()
        self.unfounded = 0
        self._cache = cache
        self._forget = forget
        self._kick = kick
        self._tasks = tasks
        self._now = now
        self._waiting: dict[tuple[str, int], _Reject] = {}
        self._judge_task: asyncio.Task[None] | None = None
        self._proved: dict[bytes, float] = {}

    def __repr__(self) -> str:
        return f"Rejects(dropped={self.dropped.total()}, unfounded={self.unfounded}, waiting={len(self._waiting)})"

    def hear(self, session: EngineSession, chunk: int, reason: str) -> None:
        """A reader found a chunk wrong. Its session hears `judged` when the engine has looked.

        Raises:
            ManifestError: there is no such chunk.
        """
        session.dataset.key(chunk)
        if (known := self._waiting.get((session.name, chunk))) is not None:
            known.times += 1
            return
        if not session.track.holds(chunk):  # it has read on meanwhile
            session.judged(1)
            self._kick()
            return
        self._waiting[session.name, chunk] = _Reject(session, chunk, reason)
        if self._judge_task is None:
            self._judge_task = self._tasks.create_task(self._judge_all(), name="rejects")

    def damaged(self, key: bytes) -> None:
        """A chunk that nobody reads now was found wrong: it goes, and is fetched again when it is needed."""
        if self._forget(key):
            self.dropped[key] += 1

    def stop(self) -> None:
        """Judges no more; idempotent."""
        if self._judge_task is not None:
            self._judge_task.cancel()

    async def _judge_all(self) -> None:
        try:
            while self._waiting:
                await self._judge(next(iter(self._waiting.values())))
        finally:
            self._judge_task = None

    async def _judge(self, reject: _Reject) -> None:
        session, key = reject.session, reject.session.dataset.key(reject.chunk)
        right = await self._is_right(session, key, reject)
        del self._waiting[session.name, reject.chunk]
        if session.failed is None and session.is_open:
            if not right:
                self._found_wrong(reject, key)
            session.judged(reject.times)
            self._kick()

    async def _is_right(self, session: EngineSession, key: bytes, reject: _Reject) -> bool:
        if not session.is_open:
            return True
        now = self._now()
        self._proved = {known: at for known, at in self._proved.items() if now - at < PROVED_SECONDS}
        if key in self._proved:
            return True
        expected_bytes = int(session.dataset.file_bytes[reject.chunk])
        if self._cache.length(key) not in (0, expected_bytes) or not await self._cache.verify(key):
            return False
        self._proved[key] = self._now()
        self.unfounded += 1
        self._count_unfounded(reject)
        return True

    def _found_wrong(self, reject: _Reject, key: bytes) -> None:
        session, chunk = reject.session, reject.chunk
        logger.warning("%s rejects chunk %d (%s): %s", session.request.consumer, chunk, key.hex(), reject.reason)
        self.damaged(key)
        if self.dropped[key] > MAX_REJECTS:
            session.fail(
                IntegrityError(
                    f"chunk {chunk} is wrong on disk after {MAX_REJECTS} fresh copies: {reject.reason}; check the disk "
                    f"of {self._cache.root}",
                    where=str(self._cache.root),
                )
            )
        session.track.lost(chunk, broken=True)

    def _count_unfounded(self, reject: _Reject) -> None:
        session, chunk = reject.session, reject.chunk
        session.unfounded[chunk] += 1
        times = session.unfounded[chunk]
        logger.warning(
            "%s rejects chunk %d, which is right: it stays (%s)", session.request.consumer, chunk, reject.reason
        )
        if times > MAX_UNFOUNDED or session.unfounded.total() > MAX_UNFOUNDED_IN_ALL:
            session.fail(
                IntegrityError(
                    f"{session.request.consumer} found chunk {chunk} wrong {times} times ({reject.reason}), but the "
                    f"engine reads it from {self._cache.root} with every checksum right; does this process see "
                    "that very folder? Check its mount and its machine's memory",
                    where=str(self._cache.root),
                    chunk=chunk,
                    times=times,
                )
            )
