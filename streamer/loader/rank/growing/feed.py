"""The chunks of a rank's cohorts, in the order in which the engine is asked for them. Pure."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.client.session import EpochSchedule
from streamer.order.growing import CohortChunks, Cohorts

Integers = npt.NDArray[np.int64]

# Looked up together: a lane costs 30 us however many cohorts are asked for (2026-11-23).
_BLOCK = 16


class Entry(msgspec.Struct, frozen=True, eq=False):
    """Where a session begins.

    Attributes:
        steps: whole batches that are left of the running round.
        begin: the first cohort that the running round trains.
        end: one past its last cohort.
        first_batch: (chunks,) the batch, counted from here, that first needs each chunk; `steps` or more: none of them.
    """

    steps: int
    begin: int
    end: int
    first_batch: Integers


class CohortFeed:
    """Numbers the needs of one session as steps of the engine.

    What is left of the round in which the session begins comes first, a step for each batch, so that the first batch
    waits for its own chunks only. From then on a step is a cohort: step `steps + j - begin` is the arrival of cohort j,
    and its end, when the last round has trained it.

    Args:
        cohorts: of the dataset.
        lanes: of the rank.
        chunk_bytes: (chunks,) what each chunk takes in the cache.
        entry: where the session begins.

    Attributes:
        steps: those of the round in which the session begins.
        first: what the session asks for first: the cohorts in use, what the running round still needs before the rest.
        sent: one past the last cohort whose chunks were returned.
        live_bytes: of the cohorts that were returned and are not `released`.
    """

    def __init__(self, cohorts: Cohorts, lanes: Integers, chunk_bytes: Integers, entry: Entry) -> None:
        self._cohorts = cohorts
        self._lanes = lanes
        self._chunk_bytes = chunk_bytes
        self._entry = entry
        self._schedules = 0
        self._bytes: Counter[int] = Counter()
        self._block: tuple[int, CohortChunks] | None = None
        self.steps = entry.steps
        self.sent = entry.end
        self.live_bytes = 0
        self.first = self._first()

    def __repr__(self) -> str:
        return f"CohortFeed(sent={self.sent}, live_bytes={self.live_bytes})"

    def step(self, cohort: int) -> int:
        """The step of a cohort."""
        return self._entry.steps + cohort - self._entry.begin

    def cohorts_through(self, step: int) -> int:
        """One past the last cohort whose step is at most this one; the first cohort before all of them."""
        return max(0, step - self._entry.steps + 1) + self._entry.begin

    def extend(self, end: int, room_bytes: float) -> EpochSchedule | None:
        """The next cohorts, as many as there is room for; None: none.

        Args:
            end: none from this one on.
            room_bytes: for all cohorts that are live.
        """
        found: list[CohortChunks] = []
        while self.sent < end:
            uses = self._cohort(self.sent)
            added = int(self._chunk_bytes[uses.chunk].sum())
            if self.live_bytes + added > room_bytes:
                break
            self._note(uses)
            found.append(uses)
            self.sent += 1
        if not found:
            return None
        joined = CohortChunks(*(np.concatenate(column) for column in zip(*found, strict=True)))
        return self._schedule(joined, self._steps(joined.first))

    def fitting(self, begin: int, end: int, room_bytes: int) -> int:
        """One past the last of the cohorts begin..end-1 up to which they fit, if those before `begin` are gone."""
        for cohort in range(begin, end):
            room_bytes -= self._bytes.get(cohort, 0)
            if room_bytes < 0:
                return cohort
        return end

    def released(self, begin: int) -> None:
        """Cohorts before this one are not in use any more."""
        for last in [last for last in self._bytes if last < begin]:
            self.live_bytes -= self._bytes.pop(last)

    def _first(self) -> EpochSchedule:
        entry = self._entry
        uses = self._cohorts.chunks(self._lanes, entry.begin, entry.end, earlier=True)
        uses = uses._replace(first=np.maximum(uses.first, entry.begin))
        batch = entry.first_batch[uses.chunk]
        self._note(uses)
        return self._schedule(uses, np.where(batch < entry.steps, batch, self._steps(uses.first)))

    def _steps(self, cohorts: Integers) -> Integers:
        return cohorts + (self._entry.steps - self._entry.begin)

    def _schedule(self, uses: CohortChunks, first: Integers) -> EpochSchedule:
        self._schedules += 1
        arranged = np.argsort(first, kind="stable")
        # A schedule of its own for each part: what is only asked for later must not be held back now.
        return EpochSchedule(self._schedules, uses.chunk[arranged], first[arranged], self._steps(uses.last)[arranged])

    def _note(self, uses: CohortChunks) -> None:
        lasts, sizes = uses.last.tolist(), self._chunk_bytes[uses.chunk].tolist()
        for last, size in zip(lasts, sizes, strict=True):
            self._bytes[last] += size
        self.live_bytes += sum(sizes)

    def _cohort(self, cohort: int) -> CohortChunks:
        """The chunks whose first sample is in one cohort."""
        if self._block is None or not self._block[0] <= cohort < self._block[0] + _BLOCK:
            self._block = cohort, self._cohorts.chunks(self._lanes, cohort, cohort + _BLOCK)
        uses = self._block[1]
        mine = uses.first == cohort
        return CohortChunks(uses.chunk[mine], uses.first[mine], uses.last[mine])
