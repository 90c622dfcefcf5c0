"""Checks readers' reports of corrupt chunks, and drops a chunk only when the engine finds it corrupt as well.

`engine.py` passes the reports on, and `maintenance.py` drops chunks that the scrub found corrupt.

A report alone does not lead to a fetch. Otherwise one faulty trainer could make the engine fetch a good chunk for ever,
and take it from all that share it. The engine reads the chunk's file itself, in a thread, one file at a time:

    corrupt, or missing    the chunk is dropped and fetched again. After two corrupt copies in a row the next one is
                           kept in memory (`cache/disk_trust.py`).
    intact                 the chunk stays, and the reader reads again. After more than MAX_UNFOUNDED such reports it
                           gets an error, because it does not see what the engine sees (another mount, bad memory).
    unreadable there only  the reader cannot read what the engine can, as from a sector that fails now and then: the
                           next copy is kept in memory.

A reader that finds a copy in memory wrong, or too many chunks that are intact, gets an error: its own memory, or its
mount, is at fault.

All of this is counted until the reader that reported a chunk has read it well and gone on. So what a job of months
meets once an epoch (a program that overwrites the cache, a cleaner that removes a file) does not count as a bad disk.
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
from streamer.wire.messages import UNREADABLE

logger = logging.getLogger(__name__)

# A session gets an error after more corrupt copies in a row than this; readers read as often again (`REREADS` in
# `batches/`).
MAX_COPIES = 3
# Number of unfounded reports that one session may send about one chunk before it reads the chunk well.
MAX_UNFOUNDED = 3
# Number of unfounded reports that one session may send in all, which may also be this share of its chunks if that is
# more.
MAX_UNFOUNDED_IN_ALL = 32
MAX_UNFOUNDED_SHARE = 0.1
# A chunk found intact is not read again for this long. A report in this time does not count against its session if a
# corrupt copy was dropped before: several workers of a rank report one copy, some when the next one is there already.
VERIFIED_SECONDS = 0.25
# Reports may still be about a corrupt copy for this long after it was dropped.
REPLACED_SECONDS = 1.0
# There is at most one warning about dropped chunks in this time, because many may be dropped at once.
WARNING_SECONDS = 60.0


class _Report(msgspec.Struct):
    """A report that is kept until its chunk was checked; `times` is the number of equal reports that came meanwhile."""

    session: EngineSession
    chunk: int
    reason: str
    times: int = 1


class CorruptionReports:
    """Checks reported chunks in the order of the reports. The engine has one, on its loop.

    Args:
        cache: the cache whose files are read.
        forget: removes a corrupt chunk from the policy and its file from the disk; returns False if it was not local.
        wake: called when a session may continue.
        now: clock of the engine, in seconds.
        tasks: group of the task that checks.
        warn: called with a sentence for the cache's users.

    Attributes:
        dropped: number of corrupt copies that were dropped.
        unfounded: number of reports about chunks that were intact.
    """

    def __init__(
        self,
        cache: ChunkCache,
        forget: Callable[[bytes], bool],
        wake: Callable[[], None],
        now: Callable[[], float],
        tasks: asyncio.TaskGroup,
        *,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.dropped = 0
        self.unfounded = 0
        # Number of corrupt copies of each chunk since it was last read well.
        self._copies: Counter[bytes] = Counter()
        self._cache = cache
        self._forget = forget
        self._wake = wake
        self._tasks = tasks
        self._now = now
        self._warn = warn
        self._warned_at = float("-inf")
        self._waiting: dict[tuple[str, int], _Report] = {}
        self._check_task: asyncio.Task[None] | None = None
        self._verified: dict[bytes, float] = {}
        self._replaced: dict[bytes, float] = {}

    def __repr__(self) -> str:
        return f"CorruptionReports(dropped={self.dropped}, unfounded={self.unfounded}, waiting={len(self._waiting)})"

    def report(self, session: EngineSession, chunk: int, reason: str) -> None:
        """Takes the report of a session's reader that a chunk is corrupt; `acknowledge` of the session follows.

        Args:
            session: session of the reader.
            chunk: number of the chunk in the session's collection.
            reason: what the reader found, which begins with `UNREADABLE` if the file could not be read.

        Raises:
            ManifestError: there is no such chunk.
        """
        session.collection.key(chunk)
        if (known := self._waiting.get((session.name, chunk))) is not None:
            known.times += 1
            return
        if not session.progress.holds(chunk):  # the reader has gone on meanwhile
            session.acknowledge(1)
            self._wake()
            return
        session.reported[chunk] = session.progress.want
        self._waiting[session.name, chunk] = _Report(session, chunk, reason)
        if self._check_task is None:
            self._check_task = self._tasks.create_task(self._check_all(), name="corruption-reports")

    def note_good_read(self, session: EngineSession, chunk: int) -> None:
        """Forgets what a session has reported about a chunk that it has read well since."""
        key = session.collection.key(chunk)
        session.reported.pop(chunk, None)
        session.unfounded.pop(chunk, None)
        self._copies.pop(key, None)
        self._cache.note_good_read(key)

    def drop_chunk(self, key: bytes) -> None:
        """Drops a corrupt chunk, which is fetched again when it is needed, and counts it; warns now and then.

        Does nothing if the chunk is not local.
        """
        if not self._forget(key):
            return
        self.dropped += 1
        self._copies[key] += 1
        self._replaced[key] = self._now()
        if self._now() - self._warned_at >= WARNING_SECONDS:
            self._warned_at = self._now()
            text = (
                f"chunk {key.hex()} in the cache folder {self._cache.root} is wrong or cannot be read, and is fetched "
                f"again; more of them are logged as information for {WARNING_SECONDS:.0f} s, and counted by "
                "`streamer stat`"
            )
            logger.warning("%s", text)
            self._warn(text)

    def stop(self) -> None:
        """Cancels the check that runs; idempotent."""
        if self._check_task is not None:
            self._check_task.cancel()

    async def _check_all(self) -> None:
        """Checks the waiting reports one by one, until there are none, and acknowledges each."""
        try:
            while self._waiting:
                report = next(iter(self._waiting.values()))
                session = report.session
                key = session.collection.key(report.chunk)
                right = await self._is_right(session, key, report)
                del self._waiting[session.name, report.chunk]
                if session.failed is None and session.is_open:
                    if not right:
                        self._handle_wrong(report, key)
                    session.acknowledge(report.times)
                    self._wake()
        finally:
            self._check_task = None

    async def _is_right(self, session: EngineSession, key: bytes, report: _Report) -> bool:
        """Reads the chunk's file unless it was just found intact; returns whether the file stays.

        An intact file counts as an unfounded report, which may fail the session (`_retires`).
        """
        if not session.is_open:
            return True
        now = self._now()
        self._verified = {known: at for known, at in self._verified.items() if now - at < VERIFIED_SECONDS}
        if key in self._verified:
            # The file is right, unless a reader cannot read it. Such a report is checked, if it is not a late one of an
            # earlier copy.
            replaced_at = self._replaced.get(key, float("-inf"))
            if not report.reason.startswith(UNREADABLE) or self._now() - replaced_at < REPLACED_SECONDS:
                return True
        expected = session.collection.get_file_length(report.chunk)
        if (expected and self._cache.length(key) not in (0, expected)) or not await self._cache.verify(key):
            return False
        self._verified[key] = self._now()
        self.unfounded += 1
        return not self._retires(report, key)

    def _handle_wrong(self, report: _Report, key: bytes) -> None:
        """Drops the chunk and lets the session ask for it again; fails the session after too many corrupt copies."""
        session = report.session
        chunk = report.chunk
        label = session.collection.label(chunk)
        logger.info("%s reports %s (%s) as damaged: %s", session.request.consumer, label, key.hex(), report.reason)
        # Set again, because the reader may have left the chunk while it was examined, and come back to it.
        session.reported[chunk] = session.progress.want
        self.drop_chunk(key)
        if self._copies[key] > MAX_COPIES:
            session.fail(
                IntegrityError(
                    f"{label} is wrong after {MAX_COPIES} fresh copies: {report.reason}; check the disk of "
                    f"{self._cache.root} and the memory of this machine",
                    where=str(self._cache.root),
                )
            )
        session.progress.mark_absent(chunk, broken=True)

    def _retires(self, report: _Report, key: bytes) -> bool:
        """Counts a report about an intact chunk; returns whether its next copy is kept in memory from now on.

        After too many such reports the session fails, and the copy stays.
        """
        session = report.session
        chunk = report.chunk
        session.unfounded[chunk] += 1
        times = session.unfounded[chunk]
        label = session.collection.label(chunk)
        max_reports = max(MAX_UNFOUNDED_IN_ALL, int(MAX_UNFOUNDED_SHARE * len(session.collection.file_bytes)))
        if session.unfounded.total() > max_reports or times > MAX_UNFOUNDED:
            session.fail(
                IntegrityError(
                    f"{session.request.consumer} found {label} wrong {times} times ({report.reason}), but the "
                    f"engine reads it from {self._cache.root} with every checksum right; does this process see "
                    "that very folder? Check its mount and its machine's memory",
                    where=str(self._cache.root),
                    chunk=chunk,
                    times=times,
                )
            )
            return False
        retires = report.reason.startswith(UNREADABLE) and self._cache.trusts_disk_with(key)
        logger.warning(
            "%s reports %s as damaged, which the engine can read: %s (%s)",
            session.request.consumer,
            label,
            "a copy in memory replaces it" if retires else "it stays",
            report.reason,
        )
        if retires:
            self._cache.distrust(key)
        return retires
