"""The engine session of a growing dataset: cohorts arrive in the background, stay for their rounds, and leave."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable

import msgspec

from streamer import linux
from streamer.client.engine_client import EngineClient
from streamer.client.session import SessionSpec
from streamer.config import format_bytes
from streamer.errors import BrokenError, CacheFullError
from streamer.loader.rank.growing.feed import CohortFeed
from streamer.loader.rank.growing.offers import Offers
from streamer.loader.rank.step_session import StepSession
from streamer.order.growing import AdmissionLog, Round

# Cohorts that are asked for beyond those that have arrived; the engine itself looks further ahead.
_COHORTS_AHEAD = 8


class Steps(msgspec.Struct, frozen=True):
    """The batches of all epochs from one on, as steps and as positions of the stream.

    Attributes:
        epoch: the first one.
        first: number of its batch that is step 0.
        start: position of step 0.
        batches: of the first epoch, from step 0 on.
        batches_later: of each later epoch.
        epoch_samples: E.
        size: B.
    """

    epoch: int
    first: int
    start: int
    batches: int
    batches_later: int
    epoch_samples: int
    size: int

    def of(self, epoch: int, batch: int) -> int:
        """The step of a batch."""
        if epoch == self.epoch:
            return batch - self.first
        return self.batches + (epoch - self.epoch - 1) * self.batches_later + batch

    def begin(self, step: int) -> int:
        """The position at which a step begins."""
        if step < self.batches:
            return self.start + step * self.size
        later, batch = divmod(step - self.batches, self.batches_later)
        return (self.epoch + 1 + later) * self.epoch_samples + batch * self.size

    def end(self, step: int) -> int:
        """The position at which a step ends; a last batch that is filled up ends with its epoch."""
        begin = self.begin(step)
        return min(begin + self.size, (begin // self.epoch_samples + 1) * self.epoch_samples)

    def before(self, position: int) -> int:
        """The number of steps that end at or before a position."""
        epoch, inside = divmod(position, self.epoch_samples)
        if epoch <= self.epoch:
            return max(0, position - self.start) // self.size
        return (
            self.batches + (epoch - self.epoch - 1) * self.batches_later + min(self.batches_later, inside // self.size)
        )


class Room(msgspec.Struct, frozen=True):
    """A rank's room in the cache, in bytes.

    Attributes:
        bytes: for all cohorts that are here or asked for.
        reserve: of them, what no round takes: where all that a round trains ends with it, fresh cohorts must arrive
            before its last batch is made.
        most: rounds that were decided elsewhere may take this; infinite where all data fits.
    """

    bytes: int
    reserve: int
    most: float


class Admissions:
    """The log of one rank, and how it grows. Used by one thread at a time; other threads may read the log.

    Args:
        log: the known rounds.
        offers: of the ranks.
        grow: cohorts that each round adds; None: those that have arrived on all ranks.

    Attributes:
        log, offers, grow: as given.
    """

    def __init__(self, log: AdmissionLog, offers: Offers, grow: int | None) -> None:
        self.log = log
        self.offers = offers
        self.grow = grow

    def __repr__(self) -> str:
        return f"Admissions({self.log!r}, grow={self.grow})"

    @property
    def fixed_window(self) -> int:
        """Cohorts that a round trains where each adds as many; 0: as many as there is room for."""
        return 0 if self.grow is None else min(self.log.reuse * self.grow, self.log.cohorts.per_pass)

    def decide(self, arrived: int, wake: Callable[[], object]) -> Round | None:
        """The next round; None: other ranks have not said what they have.

        Args:
            arrived: cohorts that are local, from the first one on.
            wake: called once, on any thread, when the answer is there.
        """
        added = self.grow
        if added is None:
            fresh = max(0, arrived - self.log[len(self.log) - 1].end)
            added = self.offers.agreed(len(self.log), fresh, wake)
        return None if added is None else self.log.admit(added)


class GrowingSession(StepSession):
    """A `StepSession` whose chunks stay local from the arrival of their cohort to the end of its last round.

    A batch is ready when all cohorts of its round have arrived, in the first round when its own chunks have. When the
    first batch of the next round is asked for, the rank offers what has arrived; the least of all ranks is admitted.

    Args:
        client: see `StepSession`.
        spec: the consumer.
        steps: of the batches.
        feed: of the cohorts.
        admissions: of the rank.
        room: in the cache.
        on_close: see `StepSession`.
    """

    def __init__(
        self,
        client: EngineClient,
        spec: SessionSpec,
        steps: Steps,
        feed: CohortFeed,
        admissions: Admissions,
        *,
        room: Room,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._steps = steps
        self._feed = feed
        self._admissions = admissions
        self._room = room
        self._asked = self._wanted = self._ready = -1
        self._next = 0
        self._begin, self._arrived = self._cohorts_at(steps.start), 0
        self._wakeup = linux.Wakeup()
        self._poll = linux.epoll()
        super().__init__(client, spec, on_close)

    def _ask_first(self) -> None:
        self._resources.callback(self._poll.close)
        self._resources.callback(self._admissions.offers.close)
        self._poll.register(self._wakeup.fileno(), select.POLLIN)
        self._poll.register(self._client.fileno(), select.POLLIN)
        self._session.extend(self._feed.first)
        self._extend()

    def __repr__(self) -> str:
        return f"GrowingSession({self._session!r}, {self._admissions!r}, ready={self._ready})"

    @property
    def ready(self) -> int:
        """See `StepSession`."""
        self._decide()
        return self._ready

    def step_of(self, epoch: int, batch: int) -> int:
        """See `StepSession`; the batch is needed now."""
        step = self._steps.of(epoch, batch)
        self._asked = max(self._asked, step)
        return step

    def rounds(self, step: int) -> tuple[tuple[int, ...], ...]:
        """See `StepSession`."""
        log, end = self._admissions.log, self._steps.end(step)
        # What fills a last batch up is before its end by the lanes at most.
        found = [log.at(max(0, min(self._steps.begin(step), end - log.cohorts.spec.lanes)))]
        while found[-1].stop < end:
            found.append(log.at(found[-1].stop))
        return tuple(msgspec.structs.astuple(of) for of in found)

    def want(self, step: int) -> None:
        """See `StepSession`."""
        self._wanted = max(self._wanted, step)
        self._decide()

    def wait(self, step: int, timeout_seconds: float | None = None) -> None:
        """See `StepSession`."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._asked = max(self._asked, step)
        # What has arrived meanwhile counts, also where the step is ready already.
        self.pump()
        self.want(step)
        while self._ready < step:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"step {step} of {self!r}: not ready after {timeout_seconds} s")
            self._poll.poll(left)
            self.pump()
            self.want(step)

    def done(self, step: int, *, flush: bool = True) -> None:
        """Records the steps below this one as consumed: a cohort leaves with the last batch of its last round."""
        self._next = step
        begin = self._cohorts_at(self._steps.begin(step))
        released = begin > self._begin
        if released:
            self._begin = begin
            self._feed.released(begin)
            self._session.done(self._feed.step(begin), flush=flush)
        if released or self._due(step) > self._feed.sent:
            self._update()

    def fileno(self) -> int:
        """Readable when `pump` has something to receive, or another rank has answered."""
        return self._poll.fileno()

    def pump(self, timeout_seconds: float = 0.0) -> None:
        """Receives the engine's messages."""
        self._wakeup.clear()
        self._client.pump(timeout_seconds)

    # ------------------------------------------------------------ inside

    def _wake(self) -> None:
        self._wakeup.signal()

    def _cohorts_at(self, position: int) -> int:
        """The first cohort in use at a position."""
        log = self._admissions.log
        return log.at(position).begin if position < log.stop else log.next_begin

    def _decide(self) -> None:
        """Decides on the rounds of the step that is asked for."""
        self._update()
        log, end = self._admissions.log, self._steps.end(self._asked) if self._asked >= 0 else 0
        while log.stop < end:
            offered = self._feed.fitting(log.next_begin, self._arrived, self._room.bytes - self._room.reserve)
            if self._admissions.decide(offered, self._wake) is None:
                return
            self._update()
        self._check_owed()

    def _check_owed(self) -> None:
        """Makes sure that a batch that is waited for is on its way.

        The rounds of the batch are decided. If all before it is consumed, only the engine can make it ready.
        """
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
        """Takes in what has arrived, and asks for more."""
        through = self._session.ready
        arrived = self._feed.cohorts_through(through)
        self._arrived = max(self._arrived, arrived)
        position = self._admissions.log.trainable(arrived)
        self._ready = max(min(through, self._feed.steps - 1), self._steps.before(position) - 1)
        self._extend()
        self._want_more(through, arrived)

    def _want_more(self, through: int, arrived: int) -> None:
        feed = self._feed
        if through < feed.steps - 1:
            step = min(self._wanted, feed.steps - 1)
        else:
            step = max(feed.step(arrived + _COHORTS_AHEAD), feed.step(self._due(self._asked))) - 1
        # Never beyond what was sent: what is ready is only known for that.
        self._session.want(min(step, feed.step(feed.sent) - 1))

    def _due(self, step: int) -> int:
        """One past the last cohort that a step needs; 0: its round is not decided."""
        log, position = self._admissions.log, self._steps.end(max(0, step)) - 1
        return log.at(position).end if position < log.stop else 0

    def _extend(self) -> None:
        # What the next batch to be consumed needs is sent in any case: also where it is in two rounds that together
        # train some samples in both of their passes, so more cohorts than a pass has. Batches that are made ahead of it
        # may be rounds away: what they need waits until there is room, which each consumed round makes. What only
        # arrives early waits for the pass after this one.
        all_data = self._begin + self._admissions.log.cohorts.per_pass
        rooms = (
            (self._due(self._next), math.inf),
            (self._due(self._asked), self._room.most),
            (all_data, self._room.bytes),
        )
        for end, room_bytes in rooms:
            schedule = self._feed.extend(end, room_bytes)
            if schedule is not None:
                self._session.extend(schedule)
        if self._feed.live_bytes > self._room.most:
            raise CacheFullError(
                f"the rounds of this run take {format_bytes(self._feed.live_bytes)} of the cache on this rank, "
                f"which has {format_bytes(self._room.most)}: raise cache_bytes; a run that is repeated needs what the "
                "first one had",
                live_bytes=self._feed.live_bytes,
                room_bytes=self._room.most,
            )
