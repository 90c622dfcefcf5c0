"""The chunks of a rank's cohorts, in the order in which the engine is asked for them. Pure."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from streamer.order.growing import CohortChunks, Cohorts
from streamer.wire.schedule import EpochSchedule

Integers = npt.NDArray[np.int64]

# Number of cohorts that are looked up together: a lane costs 30 us however many cohorts are asked for (2026-11-23).
_BLOCK = 16


class CohortFeed:
    """Numbers the needs of one session as steps of the engine, and counts the bytes of its cohorts.

    What is left of the round in which the session begins comes first, a step for each batch, so that the first batch
    waits for its own chunks only. From then on a step is a cohort: step `steps + j - begin` is the arrival of cohort j,
    and its end, when the last round has trained it.

    Args:
        cohorts: The cohorts of the dataset.
        lanes: Lanes of the rank.
        chunk_bytes: (chunks,) bytes of each chunk in the cache.
        steps: Number of whole batches that are left of the running round.
        begin, end: Cohorts that the running round trains, half-open.

    Attributes:
        sent: Number one past the last cohort whose chunks were returned.
        live_bytes: Bytes of the cohorts that were returned and not released.
    """

    def __init__(
        self, cohorts: Cohorts, lanes: Integers, chunk_bytes: Integers, *, steps: int, begin: int, end: int
    ) -> None:
        self._cohorts = cohorts
        self._lanes = lanes
        self._chunk_bytes = chunk_bytes
        self._begin = begin
        self._schedules = 0
        # Bytes by the last cohort that needs them.
        self._bytes: Counter[int] = Counter()
        self._block: tuple[int, CohortChunks] | None = None
        self.steps = steps
        self.sent = end
        self.live_bytes = 0

    def __repr__(self) -> str:
        return f"CohortFeed(sent={self.sent}, live_bytes={self.live_bytes})"

    def step(self, cohort: int) -> int:
        """Returns the step of a cohort."""
        return self.steps + cohort - self._begin

    def cohorts_through(self, step: int) -> int:
        """Returns one past the last cohort whose step is at most this one; the first cohort before all of them."""
        return max(0, step - self.steps + 1) + self._begin

    def first(self, first_batch: Integers) -> EpochSchedule:
        """Returns the chunks of the cohorts in use; those that the running round still needs come before the others.

        Args:
            first_batch: (chunks,) the step that first needs each chunk, or `steps` or more if the running round does
                not.
        """
        uses = self._cohorts.chunks(self._lanes, self._begin, self.sent, earlier=True)
        batch = first_batch[uses.chunk]
        return self._schedule(uses, np.where(batch < self.steps, batch, self._arrival(uses)))

    def extend(self, end: int, budget_bytes: float) -> EpochSchedule | None:
        """Returns the chunks of the next cohorts before `end`, as long as all live ones fit into the budget."""
        found: list[CohortChunks] = []
        live_bytes = self.live_bytes
        while self.sent < end:
            if self._block is None or not self._block[0] <= self.sent < self._block[0] + _BLOCK:
                self._block = self.sent, self._cohorts.chunks(self._lanes, self.sent, self.sent + _BLOCK)
            block = self._block[1]
            mine = block.first == self.sent
            uses = CohortChunks._make(column[mine] for column in block)
            live_bytes += int(self._chunk_bytes[uses.chunk].sum())
            if live_bytes > budget_bytes:
                break
            found.append(uses)
            self.sent += 1
        if not found:
            return None
        joined = CohortChunks._make(map(np.concatenate, zip(*found, strict=True)))
        return self._schedule(joined, self._arrival(joined))

    def find_last_fit(self, begin: int, end: int, budget: int) -> int:
        """Returns one past the last of the cohorts begin..end-1 that fits, once those before `begin` are gone."""
        for cohort in range(begin, end):
            budget -= self._bytes.get(cohort, 0)
            if budget < 0:
                return cohort
        return end

    def release(self, begin: int) -> None:
        """Records that the cohorts before this one are not in use any more."""
        for last in [last for last in self._bytes if last < begin]:
            self.live_bytes -= self._bytes.pop(last)

    def _arrival(self, uses: CohortChunks) -> Integers:
        """Returns the steps of the cohorts that chunks arrive with."""
        return np.maximum(uses.first, self._begin) + self.step(0)

    def _schedule(self, uses: CohortChunks, first: Integers) -> EpochSchedule:
        """Returns the schedule of some chunks, and counts their bytes."""
        sizes = self._chunk_bytes[uses.chunk].tolist()
        for last, size in zip(uses.last.tolist(), sizes, strict=True):
            self._bytes[last] += size
        self.live_bytes += sum(sizes)
        self._schedules += 1
        arranged = np.argsort(first, kind="stable")
        # A schedule of its own for each part: what is only asked for later must not be held back now.
        last = uses.last[arranged] + self.step(0)
        return EpochSchedule(self._schedules, uses.chunk[arranged], first[arranged], last)
