"""Runs the engine session of a growing dataset: cohorts arrive in the background, stay for their rounds, and leave.

`ordering.py` opens a `GrowingSession` for each run of a loader, or for a bare loop.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.batches.samples.recipe import SampleRecipe
from streamer.client.engine_client import EngineClient
from streamer.config import format_bytes
from streamer.errors import BrokenError, CacheFullError
from streamer.loader.kinds.growing.growth import POLL_SECONDS, Growth
from streamer.loader.kinds.step_session import StepSession
from streamer.order.growing import CohortChunks, Cohorts, rounds_between
from streamer.order.plan import RankPlan, batch_count
from streamer.order.protocol import Batches
from streamer.wire.messages import OpenSession
from streamer.wire.schedule import EpochSchedule

Integers = npt.NDArray[np.int64]

# Number of cohorts whose chunks are looked up together: a lane costs 30 us for any number of them (2026-11-23).
_BLOCK = 16
# Share of the cache for the cohorts in use; the rest is for their arrival and for other datasets of the job.
WINDOW_SHARE = 0.85
# Cohorts that are asked for beyond those that have arrived; the engine itself looks further ahead.
_COHORTS_AHEAD = 8


class CohortFeed:
    """Makes the schedules of one session in steps of the engine, and counts the bytes of its cohorts.

    First comes a step for each batch that is left of the round in which the session begins, so that the first batch
    waits for its own chunks only. Each later step is a cohort: the chunks of cohort j are first needed at step
    `steps + j - begin`, and last at the step of the last cohort that needs them.

    Args:
        cohorts: The cohorts of the dataset.
        lanes: Numbers of the lanes that the rank reads.
        chunk_bytes: (chunks,) bytes of each chunk in the cache.
        steps: Number of whole batches that are left of the running round.
        begin, end: Cohorts that the running round trains, half-open.

    Attributes:
        sent: One past the last cohort whose chunks are in a schedule so far.
        live_bytes: Bytes of the cohorts in schedules that are not released.
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
        """Returns one past the last cohort whose step is at most this one, or `begin` if there is none."""
        return max(0, step - self.steps + 1) + self._begin

    def first(self, first_batch: Integers) -> EpochSchedule:
        """Returns the first schedule: the chunks of the cohorts in use, first those that the running round still needs.

        Args:
            first_batch: (chunks,) the step that first needs each chunk, or `steps` or more if the running round does
                not.
        """
        uses = self._cohorts.chunks(self._lanes, self._begin, self.sent, earlier=True)
        batch = first_batch[uses.chunk]
        return self._schedule(uses, np.where(batch < self.steps, batch, self._arrival(uses)))

    def extend(self, end: int, budget_bytes: float) -> EpochSchedule | None:
        """Returns the schedule of the next cohorts before `end`, as many as fit, or None if there is none.

        Args:
            end: One past the last cohort that may be asked for.
            budget_bytes: Limit of `live_bytes` with these cohorts.
        """
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
        """Returns one past the last of the cohorts begin..end-1 that fit into `budget` bytes, added up from `begin`."""
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
        """Returns the step of the first cohort that needs each chunk."""
        return np.maximum(uses.first, self._begin) + self.step(0)

    def _schedule(self, uses: CohortChunks, first: Integers) -> EpochSchedule:
        """Returns the schedule of some chunks, and counts their bytes."""
        sizes = self._chunk_bytes[uses.chunk].tolist()
        for last, size in zip(uses.last.tolist(), sizes, strict=True):
            self._bytes[last] += size
        self.live_bytes += sum(sizes)
        self._schedules += 1
        arranged = np.argsort(first, kind="stable")
        # The engine sees an epoch of its own in each schedule, so that cohorts that are asked for later block nothing.
        last = uses.last[arranged] + self.step(0)
        return EpochSchedule(self._schedules, uses.chunk[arranged], first[arranged], last)


class Steps(msgspec.Struct, frozen=True):
    """Converts between batches of all epochs, steps of a session, and positions in the stream over all ranks.

    Attributes:
        epoch, first: Epoch and number of the batch that is step 0.
        start: Position of step 0.
        batches, batches_later: Number of batches of the first epoch, from step 0 on, and of each later one.
        epoch_samples, size: Samples of an epoch, and of a batch, over all ranks.
    """

    epoch: int
    first: int
    start: int
    batches: int
    batches_later: int
    epoch_samples: int
    size: int

    def step_of(self, epoch: int, batch: int) -> int:
        """Returns the step of a batch at or after step 0."""
        if epoch == self.epoch:
            return batch - self.first
        return self.batches + (epoch - self.epoch - 1) * self.batches_later + batch

    def begin(self, step: int) -> int:
        """Returns the position at which a step begins."""
        if step < self.batches:
            return self.start + step * self.size
        later, batch = divmod(step - self.batches, self.batches_later)
        return (self.epoch + 1 + later) * self.epoch_samples + batch * self.size

    def end(self, step: int) -> int:
        """Returns the position at which a step ends; a last batch that is filled up ends with its epoch."""
        begin = self.begin(step)
        return min(begin + self.size, (begin // self.epoch_samples + 1) * self.epoch_samples)

    def count_before(self, position: int) -> int:
        """Returns the number of steps that end at or before a position."""
        epoch, inside = divmod(position, self.epoch_samples)
        if epoch <= self.epoch:
            return max(0, position - self.start) // self.size
        return self.step_of(epoch, min(self.batches_later, inside // self.size))


class CacheBudget(msgspec.Struct, frozen=True):
    """Says how many bytes of the cache a rank's cohorts may take.

    Attributes:
        live: Limit for all cohorts that are here or asked for.
        held_back: Bytes of `live` that no round gets, so that the next round's cohorts can arrive while the current
            round is still training, even if everything that it trains leaves with it.
        maximum: Limit for rounds that other ranks or a state have decided on; infinite if all data fits.
    """

    live: int
    held_back: int
    maximum: float


class GrowingSession(StepSession):
    """Keeps chunks local from the arrival of their cohort to the end of the last round that trains it.

    A batch is ready when all cohorts of its round have arrived; in the first round, when its own chunks have. When the
    first batch of the next round is asked for, the rank offers what has arrived. The least that any rank offers is
    admitted.

    Args:
        client: Connection to the engine, used by this session only.
        spec: Consumer, with one part.
        growth: The rounds.
        recipe: Inputs of the batches.
        plan: Batches of this rank in the first epoch.
        first: Number of the batch of `plan` that is step 0.
        on_close: Called once, when the session is closed.
    """

    def __init__(
        self,
        client: EngineClient,
        spec: OpenSession,
        growth: Growth,
        recipe: SampleRecipe,
        *,
        plan: RankPlan,
        first: int,
        on_close: Callable[[], None],
    ) -> None:
        position = plan.position(first)
        size = recipe.global_batch
        epoch_samples = growth.epoch_samples
        later = batch_count(epoch_samples, size, recipe.last_batch)
        self._growth = growth
        self._lanes = growth.spec.rank_lanes(recipe.split, recipe.entry)
        self._steps = Steps(
            epoch=plan.order.epoch,
            first=first,
            start=position,
            batches=plan.batches - first,
            batches_later=later,
            epoch_samples=epoch_samples,
            size=size,
        )
        self._asked = self._wanted = self._ready = -1
        self._next = self._arrived = 0
        # An epoch was left early, or left out: its rounds are decided on, and their uses are lost.
        while growth.log.stop < position:
            growth.decide(0)
            time.sleep(POLL_SECONDS if growth.waiting else 0)
        self._feed, self._first = self._plan_begin(recipe, plan, position)
        self._begin = self._cohorts_at(position)
        self._budget = self._compute_budget(client.welcome.limit_bytes, len(self._lanes))
        (part,) = spec.parts
        part = msgspec.structs.replace(part, open_bytes=self._budget.live)
        super().__init__(client, msgspec.structs.replace(spec, parts=(part,)), on_close)

    def _plan_begin(self, recipe: SampleRecipe, plan: RankPlan, position: int) -> tuple[CohortFeed, EpochSchedule]:
        """Returns the feed of a session that begins at a position, and its first schedule."""
        log = self._growth.log
        size = recipe.global_batch
        epoch_samples = self._growth.epoch_samples
        sizes = self._growth.manifest.chunk_local_bytes
        first_batch = np.full(len(sizes), np.iinfo(np.int64).max)
        steps = 0
        begin = log.next_begin
        end = log.last.end
        if position < log.stop:
            current = log.find_round(position)
            # After a resume with another batch size, an epoch may end with a part of a batch: other lanes follow then.
            whole = epoch_samples % size == position % size == 0
            stop = current.stop if whole else min(current.stop, (position // epoch_samples + 1) * epoch_samples)
            steps = (stop - position) // size
            begin = current.begin
            end = current.end
            for need in plan.order.needs(recipe.split, Batches(position, size, 0, steps)) if steps else ():
                np.minimum.at(first_batch, need.chunk, need.first)
        feed = CohortFeed(log.cohorts, self._lanes, sizes, steps=steps, begin=begin, end=end)
        return feed, feed.first(first_batch)

    def _compute_budget(self, limit_bytes: int, lanes: int) -> CacheBudget:
        """Returns this rank's part of a cache for its `lanes` lanes, or more if that is too little for its rounds."""
        rank = self._growth.rank_config
        log = self._growth.log
        sizes = self._growth.manifest.chunk_local_bytes
        per_pass = log.cohorts.per_pass
        all_lanes = log.cohorts.spec.lanes
        total = int(sizes.sum())

        def size(cohorts: int) -> int:
            return total * cohorts * lanes // (all_lanes * per_pass)

        # The last chunk, or set, of each lane belongs to a later cohort as well.
        edges = lanes * log.cohorts.largest_bytes(sizes)
        added = min(self._growth.grow or 0, per_pass)
        held_back = size(max(log.least, added)) + edges
        trained = size(max(min(log.reuse * added, per_pass), log.least))
        needed = max(self._feed.live_bytes, trained) + held_back
        own = limit_bytes // max(1, rank.world_size // max(1, rank.nodes))
        # Cohorts of two passes may be live together; their chunks are the same files.
        maximum = math.inf if max(needed, own) >= size(per_pass) + edges else max(needed, own)
        return CacheBudget(max(needed, int(WINDOW_SHARE * own)), held_back, maximum)

    def _ask_first(self) -> None:
        self._session.extend(self._first)
        self._extend()

    def __repr__(self) -> str:
        return f"GrowingSession({self._session!r}, {self._growth!r}, ready={self._ready})"

    @property
    def ready(self) -> int:
        """See `StepSession`."""
        self._decide()
        return self._ready

    @property
    def poll_seconds(self) -> float | None:
        """See `StepSession`."""
        return POLL_SECONDS if self._growth.waiting else None

    def step_of(self, epoch: int, batch: int) -> int:
        """See `StepSession`; also notes that the batch is needed now."""
        step = self._steps.step_of(epoch, batch)
        self._asked = max(self._asked, step)
        return step

    def rounds(self, step: int) -> tuple[tuple[int, ...], ...]:
        """See `StepSession`."""
        log = self._growth.log
        end = self._steps.end(step)
        # The repeats that fill a last batch are at most as many positions before its end as there are lanes.
        first = max(0, min(self._steps.begin(step), end - log.cohorts.spec.lanes))
        return tuple(msgspec.structs.astuple(each) for each in rounds_between(log, first, end - 1))

    def want(self, step: int) -> None:
        """See `StepSession`."""
        self._wanted = max(self._wanted, step)
        self._decide()

    def wait(self, step: int, timeout_seconds: float | None = None) -> None:
        """See `StepSession`."""
        self._asked = max(self._asked, step)
        # Cohorts that have arrived meanwhile are noted even if the step is ready already.
        self.pump()
        super().wait(step, timeout_seconds)

    def finish(self, step: int, *, flush: bool = True) -> None:
        """See `StepSession`; a cohort is released with the last batch of its last round."""
        self._next = step
        begin = self._cohorts_at(self._steps.begin(step))
        released = begin > self._begin
        if released:
            self._begin = begin
            self._feed.release(begin)
            self._session.done(self._feed.step(begin), flush=flush)
        if released or self._due(step) > self._feed.sent:
            self._update()
        if self._growth.waiting:
            # Rank 0 answers the others also while none of its workers is free.
            self._decide()

    # ------------------------------------------------------------ inside

    def _cohorts_at(self, position: int) -> int:
        """Returns the first cohort in use at a position."""
        log = self._growth.log
        return log.find_round(position).begin if position < log.stop else log.next_begin

    def _decide(self) -> None:
        """Decides on the rounds of the step that is asked for; raises BrokenError if it would never be ready."""
        self._update()
        log = self._growth.log
        end = self._steps.end(self._asked) if self._asked >= 0 else 0
        while log.stop < end:
            budget = self._budget.live - self._budget.held_back
            self._growth.decide(self._feed.find_last_fit(log.next_begin, self._arrived, budget))
            if self._growth.waiting:
                return
            self._update()
        # A batch whose rounds are decided, and before which all is consumed, must be on its way.
        step = self._asked
        if self._ready < step <= min(self._next, self._wanted) and self._session.idle:
            raise BrokenError(
                f"batch {step} of the session would wait for ever: its rounds need cohorts up to {self._due(step)}, "
                f"the engine was asked for those up to {self._feed.sent} and has brought all of them up to "
                f"{self._arrived}; please report it, with the arguments of Growing, the batch size and the number of "
                "samples and chunks",
                batch=step,
                needed=self._due(step),
                asked=self._feed.sent,
                arrived=self._arrived,
            )

    def _update(self) -> None:
        """Notes which cohorts have arrived, and asks the engine for further ones."""
        feed = self._feed
        through = self._session.ready
        arrived = feed.cohorts_through(through)
        self._arrived = max(self._arrived, arrived)
        position = self._growth.log.trainable(arrived)
        self._ready = max(min(through, feed.steps - 1), self._steps.count_before(position) - 1)
        self._extend()
        if through < feed.steps - 1:
            step = min(self._wanted, feed.steps - 1)
        else:
            step = feed.step(max(arrived + _COHORTS_AHEAD, self._due(self._asked))) - 1
        # No step is asked for whose chunks were not sent, since the engine cannot say when it is ready.
        self._session.want(min(step, feed.step(feed.sent) - 1))

    def _due(self, step: int) -> int:
        """Returns one past the last cohort that a step needs, or 0 if its round is not decided."""
        log = self._growth.log
        position = self._steps.end(max(0, step)) - 1
        return log.find_round(position).end if position < log.stop else 0

    def _extend(self) -> None:
        """Asks the engine for the chunks of further cohorts, and makes sure that the cache can hold them.

        The cohorts that the next batch needs are asked for in any case, even if its two rounds have more cohorts than a
        pass. Those of batches that are made ahead of it are asked for as far as `maximum` has room, and those that only
        arrive early as far as `live` has room, and not beyond one pass.

        Raises:
            CacheFullError: the cohorts take more than `maximum`.
        """
        all_data = self._begin + self._growth.log.cohorts.per_pass
        for end, budget in (
            (self._due(self._next), math.inf),
            (self._due(self._asked), self._budget.maximum),
            (all_data, self._budget.live),
        ):
            schedule = self._feed.extend(end, budget)
            if schedule is not None:
                self._session.extend(schedule)
        if self._feed.live_bytes > self._budget.maximum:
            raise CacheFullError(
                f"the rounds of this run take {format_bytes(self._feed.live_bytes)} of the cache on this rank, "
                f"which has {format_bytes(self._budget.maximum)}: raise cache_bytes; a run that is repeated needs what "
                "the first one had",
                live_bytes=self._feed.live_bytes,
                room_bytes=self._budget.maximum,
            )
