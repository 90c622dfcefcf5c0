"""Keeps one consumer's session on the engine's side: its request, progress and pace, and what it was told last.

The service (`service/server.py`) passes it the consumer's messages. `scheduler.py` asks it what to fetch and to open
next, and other modules of `engine/` read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np

from streamer.cache.policy.sessions import SessionOpening
from streamer.cache.policy.table import charge_each
from streamer.engine.collection import Collection, Parts, UseCount
from streamer.engine.session_progress import SessionProgress, Use, count_open_bytes
from streamer.errors import StateError, StreamerError
from streamer.wire.messages import OpenSession, ReportFinding
from streamer.wire.schedule import EpochSchedule

# Weight of the newest measurement in the mean time of a step.
_STEP_WEIGHT = 0.2
# Number of epochs whose counts are kept when another one begins: the running one, and earlier ones.
_EPOCHS_COUNTED = 8
_NONE = np.empty(0, np.uint32)


def check_agreement(one: OpenSession, other: OpenSession) -> None:
    """Checks that two sessions of one job, stream and dataset read the same order from the same place.

    Sessions that differ in job, stream or dataset always agree, as do two sessions of one consumer. Fields that a
    client has not set are not compared.

    Raises:
        StateError: names the field and both values.
    """
    if (one.job, one.stream, one.dataset) != (other.job, other.stream, other.dataset):
        return
    if one.consumer == other.consumer:  # two loaders of one rank, which go on from different places
        return
    for name in ("order_id", "global_batch", "world_size", "start"):
        mine = getattr(one, name)
        theirs = getattr(other, name)
        if mine and theirs and mine != theirs:
            raise StateError(
                f"{one.consumer} and {other.consumer} of one job disagree: {name} is {mine!r} and {theirs!r}; "
                "all ranks must pass the same data, seed, batch size and state",
                field=name,
                mine=str(mine),
                theirs=str(theirs),
            )


class Waiting:
    """Measures how long a consumer has waited for its engine, from states and times that it is given. Pure.

    Args:
        now: time at which the consumer began, in seconds on any clock that only goes forward.
    """

    def __init__(self, now: float) -> None:
        self._begun = now
        self._since: float | None = None
        self._seconds = 0.0

    def __repr__(self) -> str:
        return f"Waiting({self._seconds:.3f} s, {'waits' if self._since is not None else 'reads'})"

    def update(self, waits: bool, now: float) -> None:
        """Records whether the consumer waits from `now` on."""
        if waits and self._since is None:
            self._since = now
        elif not waits and self._since is not None:
            self._seconds += now - self._since
            self._since = None

    def seconds(self, now: float) -> float:
        """Returns the seconds that the consumer has waited until `now`."""
        return self._seconds + (now - self._since if self._since is not None else 0.0)

    def age_seconds(self, now: float) -> float:
        """Returns the seconds from the consumer's beginning until `now`."""
        return now - self._begun


class SessionHost(Protocol):
    """What a session calls of its engine, whose module imports this one, so that this one cannot import it."""

    @property
    def silent_seconds(self) -> float:
        """Seconds without an `advance` after which a session counts as hanging."""
        ...

    def now(self) -> float:
        """Returns the loop's clock, in seconds."""
        ...

    def wake(self) -> None:
        """Schedules all sessions, soon: something changed."""
        ...

    def has(self, session: EngineSession) -> bool:
        """Whether the session is open."""
        ...

    def admit(self, session: EngineSession, schedule: EpochSchedule) -> None:
        """Registers a session with the policy by a complete schedule; does nothing for one that is registered."""
        ...

    def continue_passes(self, session: EngineSession) -> None:
        """Records that running passes of a session go on in another epoch's schedule."""
        ...

    def reject(self, session: EngineSession, chunk: int, reason: str) -> None:
        """Takes the report of the session's reader that a chunk is corrupt."""
        ...

    def note_good_read(self, session: EngineSession, chunk: int) -> None:
        """Records that the session's reader has read a chunk well that it had reported as corrupt."""
        ...

    def count_error(self, error: StreamerError) -> None:
        """Counts an error that reaches a consumer."""
        ...

    def close_session(self, session: EngineSession) -> None:
        """Closes the session and ends all its leases; idempotent."""
        ...


class EngineSession:
    """A session as the engine keeps it, on its loop. `Engine.open_session` makes it.

    Args:
        host: the engine.
        name: name of the session, unique in the engine.
        request: what the consumer has asked for.
        collection: the datasets of the request.
        callbacks: `on_ready(through, rejects)` is called when the last step that may be read, or the number of
            handled rejects, has changed; `on_error(error)` once, with what ends the session.
    """

    def __init__(
        self,
        host: SessionHost,
        name: str,
        request: OpenSession,
        collection: Collection,
        callbacks: tuple[Callable[[int, int], None], Callable[[StreamerError], None]],
    ) -> None:
        self.name = name
        self.request = request
        self.collection = collection
        self.progress = SessionProgress(collection.file_bytes)
        self.parts = Parts(name, collection, request.all_parts)
        # Numbers of the chunks that it holds, by key. A key has several numbers if parts share the chunk.
        self.keys: dict[bytes, tuple[int, ...]] = {}
        # Chunks that failed in look-ahead and are tried again later.
        self.deferred: set[int] = set()
        # Number of refusals in a row by the cache of chunks that it waits for, by chunk.
        self._refusals: Counter[int] = Counter()
        # Chunks that its reader has reported as wrong and has not read well since, and the last step that the reader
        # had asked for at the report.
        self.reported: dict[int, int] = {}
        # Number of reports that the engine found unfounded, by chunk.
        self.unfounded: Counter[int] = Counter()
        # Most bytes in look-ahead, and these with the bytes that all parts have open at most.
        self.lookahead_bytes = 0
        self.planned_bytes = 0
        # The openings that the policy was asked for, and the first complete schedule, from which they follow.
        self.openings: list[SessionOpening] = []
        self.first_schedule = EpochSchedule(0, _NONE, np.empty(0, np.int64), np.empty(0, np.int64))
        # Share of its open bytes that counts, since sessions in step open the same chunks, and the names of the
        # sessions for which it was computed. `windows.py` sets both.
        self.open_share = 1.0
        self.compared_with: tuple[str, ...] = ()
        # Epoch that the consumer is in; None before its first use is held.
        self.running_epoch: int | None = None
        # Whether the policy knows the session, and the error that failed it.
        self.admitted = False
        self.failed: StreamerError | None = None
        # Needs and hits by epoch.
        self.counts: dict[int, UseCount] = {}
        self.last_message_at = host.now()
        # What the consumer's loader has reported last of its waiting, and when.
        self.finding: ReportFinding | None = None
        self.finding_at = 0.0
        self.waiting = Waiting(host.now())
        self._host = host
        self._on_ready, self._on_error = callbacks
        self._announced = (-1, 0)
        self._rejects = 0
        self._step_seconds = 0.1
        self._done_at = host.now()

    def __repr__(self) -> str:
        return f"EngineSession({self.name}, {self.progress!r})"

    # ------------------------------------------------------------ messages of the consumer

    def extend(self, part: EpochSchedule, complete: bool) -> None:
        """Takes the schedule of one epoch, or a part of it; the first complete one admits the session to the policy.

        Args:
            part: schedule that the consumer has sent.
            complete: whether no more of this epoch follows.

        Raises:
            ProtocolError: it is no schedule of this collection, or has not one value for each part.
        """
        if part.values:
            self.parts.expect_values(part.epoch, part.values)
        self.progress.extend(part, complete)
        if complete:
            self._host.admit(self, part)
            if part.passes is not None:
                self._host.continue_passes(self)
        self._host.wake()

    def advance(self, done: int, want: int) -> None:
        """Records that the consumer has consumed the steps below `done`, and asks for steps up to `want`."""
        now = self._host.now()
        self.last_message_at = now
        if done > self.progress.done:
            pace = (now - self._done_at) / (done - self.progress.done)
            self._step_seconds += _STEP_WEIGHT * (pace - self._step_seconds)
            self._done_at = now
        self.progress.advance(done, want)
        # A chunk that was reported at a step that is done by now was read well in the end.
        for chunk in [chunk for chunk, step in self.reported.items() if step < done]:
            self._host.note_good_read(self, chunk)
        self._watch()
        self._host.wake()

    def reject(self, chunk: int, reason: str) -> None:
        """Takes the consumer's report of a chunk that is corrupt or missing; `acknowledge` follows when it is checked.

        Raises:
            ManifestError: there is no such chunk.
        """
        self._host.reject(self, chunk, reason)

    def keep_report(self, finding: ReportFinding) -> None:
        """Keeps what the consumer's loader has found last about its waiting, with the time on the engine's clock."""
        self.finding = finding
        self.finding_at = self._host.now()

    def close(self) -> None:
        """Closes the session and ends all its leases; idempotent."""
        self._host.close_session(self)

    # ------------------------------------------------------------ for the engine

    @property
    def waits(self) -> bool:
        """Whether the consumer wants a step, and not even the next one is ready."""
        return self.progress.last_ready_step() < self.progress.done <= self.progress.want

    @property
    def fill(self) -> float:
        """Bytes of its chunks that are local or in flight, as a share of `planned_bytes`."""
        return self.progress.count_grants() * self.parts.mean_bytes / max(1, self.planned_bytes)

    def plan(self, schedule: EpochSchedule, affordable_bytes: int, sessions: int) -> list[SessionOpening]:
        """Plans look-ahead and open bytes by the first complete schedule; returns what each part opens in the policy.

        Sets `lookahead_bytes`, `planned_bytes`, `openings` and `first_schedule`.

        Args:
            schedule: the first complete schedule.
            affordable_bytes: look-ahead of all sessions together.
            sessions: number of the sessions that share it.
        """
        collection = self.collection
        sharers = max(1, sessions, min(self.request.world_size, 8))
        self.lookahead_bytes = max(affordable_bytes // sharers, 2 * int(collection.file_bytes.max(initial=0)))
        sizes = charge_each(collection.file_bytes)
        values = self.parts.relative_values()
        rates = collection.byte_rates(self.parts.values)
        part_of = collection.parts_of(schedule.chunk)
        # Uses are sorted by part once: with 4,096 parts as many comparisons of all uses took seconds.
        by_part = np.argsort(part_of, kind="stable")
        edges = np.searchsorted(part_of[by_part], np.arange(len(self.parts.names) + 1))
        openings: list[SessionOpening] = []
        for index, (part_name, part) in enumerate(zip(self.parts.names, self.request.all_parts, strict=True)):
            here = by_part[edges[index] : edges[index + 1]]
            chunk = schedule.chunk[here]
            needed_bytes = count_open_bytes(chunk, schedule.first[here], schedule.last[here], sizes)
            opening = SessionOpening(
                session=part_name,
                dataset_id=part.dataset,
                open_bytes=max(part.open_bytes, needed_bytes),
                lookahead_bytes=int(rates[index] * self.lookahead_bytes),
                value=values[part_name],
                # A part without value keeps nothing: it names its chunks ahead, or what an earlier session has left
                # of them would be evicted before it is used.
                ahead=_NONE if values[part_name] else chunk - np.uint32(collection.starts[index]),
            )
            openings.append(opening)
        self.planned_bytes = sum(one.open_bytes for one in openings) + self.lookahead_bytes
        self.first_schedule = schedule
        # The chunks ahead are left out, because they are as many as the schedule has.
        self.openings = [msgspec.structs.replace(one, ahead=_NONE) for one in openings]
        return openings

    def open_bytes(self) -> float:
        """Returns the bytes that its open uses have, if each has the mean size of its chunks."""
        return self.progress.open_chunks() * self.parts.mean_bytes

    @property
    def owner(self) -> str:
        """Name of the job, among which requests are shared fairly; the session's own name if it has no job."""
        return self.request.job or self.name

    @property
    def is_open(self) -> bool:
        """Whether the engine has not closed it."""
        return self._host.has(self)

    def acknowledge(self, rejects: int) -> None:
        """Adds to the number of handled rejects that `announce` sends; the consumer waits until it equals its own."""
        self._rejects += rejects

    def engine_now(self) -> float:
        """Returns the loop's clock, in seconds."""
        return self._host.now()

    def announce(self) -> None:
        """Calls `on_ready` if the last readable step or the number of handled rejects has changed."""
        state = (self._watch(), self._rejects)
        if self.failed is None and state != self._announced:
            self._announced = state
            self._on_ready(*state)

    def fail(self, error: StreamerError) -> None:
        """Fails the session with an error for the consumer, which is to close it; later errors are dropped."""
        if self.failed is None:
            self.failed = error
            self._host.count_error(error)
            self.waiting.update(False, self._host.now())
            self._on_error(error)

    def _watch(self) -> int:
        """Returns the last step that may be read; records whether the consumer waits now."""
        self.waiting.update(self.waits, self._host.now())
        return self.progress.last_ready_step()

    def count(self, use: Use, *, hit: bool) -> None:
        """Counts one need of a chunk, and a hit if it is one, in its epoch and, in a mix, for its part."""
        if use.epoch not in self.counts:
            self.counts = {known: self.counts[known] for known in list(self.counts)[-_EPOCHS_COUNTED:]}
        size_bytes = int(self.collection.file_bytes[use.chunk])
        self.counts.setdefault(use.epoch, UseCount()).add(size_bytes, hit)
        if self.request.parts:
            self.parts.counts[self.collection.locate(use.chunk)[0]].add(size_bytes, hit)

    def remember(self, key: bytes, chunk: int) -> None:
        """Records that the session holds a chunk, so that it is found by its key when the chunk is evicted."""
        known = self.keys.get(key)
        if known is None:
            self.keys[key] = (chunk,)
        elif chunk not in known:
            self.keys[key] = (*known, chunk)

    def forget(self, key: bytes, chunk: int) -> None:
        """Records that the session does not hold the chunk any more."""
        known = self.keys.pop(key, ())
        if known not in ((), (chunk,)):
            self.keys[key] = tuple(one for one in known if one != chunk)

    def due_at(self, step: int) -> float:
        """Returns when the consumer will read `step` at its present pace, in seconds on the loop's clock."""
        return self._done_at + max(0, step - self.progress.done) * self._step_seconds

    def mark_local(self, chunk: int) -> None:
        """Records that a chunk is local: the cache has taken it."""
        self.progress.mark_local(chunk)
        self._refusals.pop(chunk, None)

    def count_refusal(self, chunk: int) -> int:
        """Counts that the cache has refused a chunk; returns how often in a row it has, while this session waits."""
        self._refusals[chunk] += 1
        return self._refusals[chunk]

    def find_due_retries(self) -> list[int]:
        """Returns chunks that failed in look-ahead and that the consumer waits for now."""
        return [chunk for chunk in self.deferred if self.progress.is_wanted(chunk)]

    @property
    def can_progress(self) -> bool:
        """Whether it is admitted, has a step to read, has not failed and is not silent."""
        return (
            self.admitted
            and self.failed is None
            and not self.silent
            and self.progress.last_ready_step() >= self.progress.done
        )

    @property
    def silent(self) -> bool:
        """Whether its consumer seems to hang: it has sent no `advance` for longer than the host's `silent_seconds`."""
        return self._host.now() - self.last_message_at > self._host.silent_seconds
