"""Supplies a loader with batches: from workers and the ring, or made in the trainer's own thread.

`loader/epoch.py` owns the `Supply` of a loader and takes its batches; `loader/loader_views.py` reads its counts.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType

import msgspec
import numpy as np

from streamer.batches.batch.slot_layout import BatchReader
from streamer.batches.causes import MADE, NETWORK, WORK, BatchTimeline, Trace
from streamer.batches.ring.shared_memory import map_memfd, window
from streamer.batches.samples.cached_bytes import REREADS, ChunkUnreadableError
from streamer.batches.samples.seeding import keep_globals
from streamer.batches.samples.units import find_units
from streamer.batches.waiting import WaitNotice
from streamer.batches.workers.batch_maker import BatchMaker, Loaded, MakerRules, SampleFailedError, Stopwatch
from streamer.batches.workers.protocol import Made
from streamer.errors import IntegrityError
from streamer.loader.delivery import Delivery
from streamer.loader.feed.feeder import Feeder
from streamer.loader.feed.run import BatchRun, FailedBatch, FeedCounters, Finished
from streamer.loader.feed.waits import describe_engine, name_rank
from streamer.loader.kinds.step_session import StepSession
from streamer.loader.rank.rank_stream import RankStream
from streamer.loader.stall.stats import EngineView, LoaderStats
from streamer.wire.messages import ReportFinding

logger = logging.getLogger(__name__)

# Longest wait for statistics of the engine. One on the same machine answers in milliseconds; one that hangs must not
# delay the trainer for long.
ENGINE_SECONDS = 0.5


class Supply(ABC):
    """Makes the batches of a run, in order.

    Attributes:
        counters: Counts of batches, bytes and times.
        lost_batches: Number of batches of which the trainer got an error instead.
    """

    counters: FeedCounters
    lost_batches: int = 0

    @property
    @abstractmethod
    def ready(self) -> int:
        """Number of finished batches that wait."""

    @property
    @abstractmethod
    def head(self) -> BatchTimeline | None:
        """The timeline of the batch that comes next, or None while it is not being made."""

    @property
    @abstractmethod
    def session(self) -> StepSession | None:
        """The session with the engine, or None if none is open; any thread may ask it."""

    @abstractmethod
    def begin(self, epoch: int, batch: int) -> None:
        """Starts a run at this batch of an epoch, and ends the run before.

        Raises:
            StreamerError: without workers: the engine cannot be reached.
        """

    @abstractmethod
    def take(self, arrived: Callable[[], None]) -> Delivery:
        """Returns the next batch, which stays the next one until `advance`. Blocks.

        Args:
            arrived: Called when a batch arrives, with workers also when the error of one does.

        Raises:
            Exception: the error of the sample or of the batch; the next call returns the following batch. Or one that
                ends the run, such as the engine's with workers: further calls raise it, too, until `begin`, or for good
                if the feeder has ended.
        """

    @abstractmethod
    def advance(self) -> None:
        """Goes on to the batch after the one that `take` has returned; idempotent."""

    @abstractmethod
    def close(self) -> None:
        """Ends workers and session; idempotent."""

    def engine_values(self) -> Mapping[str, object] | None:
        """Returns the engine's counters by name, or None without a session or an answer in 0.5 s; any thread."""
        # It is read once: the trainer may end the session concurrently.
        session = self.session
        return None if session is None else session.engine_values(ENGINE_SECONDS)

    def send_report(self, finding: ReportFinding | Exception) -> None:
        """Sends a finding of this loader, or an error, to the engine if there is a session; any thread."""
        if (session := self.session) is not None:
            session.send_report(finding, ENGINE_SECONDS)

    def engine_view(self) -> EngineView | None:
        """Returns what `engine_values` does, as an `EngineView`."""
        values = self.engine_values()
        return None if values is None else EngineView.of(values)

    def add_counts(self, trainers: LoaderStats) -> LoaderStats:
        """Returns the statistics of the trainer's clock with the counters of this supply; any thread."""
        return replace(trainers, ready_batches=self.ready, **self.counters.values())


class FedSupply(Supply):
    """Takes batches that workers make.

    Args:
        feeder: Feeder whose batches are taken; it is started with the first run, if it has not been.
        log_prefix: Text with which its lines in the log begin.
    """

    def __init__(self, feeder: Feeder, log_prefix: str = "") -> None:
        self.feeder = feeder
        self.counters = feeder.counters
        self._run: BatchRun | None = None
        self._notice = WaitNotice(logger, log_prefix)
        # The batch that was opened and is not taken yet.
        self._opened: tuple[BatchRun, Finished, Delivery] | None = None
        # The final error, and its original traceback.
        self._final: tuple[BaseException, TracebackType | None] | None = None

    @property
    def ready(self) -> int:
        """See `Supply`."""
        return len(self._run.outcomes) if self._run else 0

    @property
    def head(self) -> BatchTimeline | None:
        """See `Supply`."""
        return self.feeder.head

    @property
    def session(self) -> StepSession | None:
        """See `Supply`."""
        return self.feeder.session

    def begin(self, epoch: int, batch: int) -> None:
        """See `Supply`."""
        self._opened = None
        if self._run is None:
            self.feeder.start()
        self._run = self.feeder.run(epoch, batch)
        if self.feeder.broken is None:
            self._final = None

    def take(self, arrived: Callable[[], None]) -> Delivery:
        """See `Supply`."""
        assert self._run is not None
        if self._opened is not None:
            return self._opened[2]
        if self.feeder.broken is not None:
            raise self._keep_final_error(self.feeder.broken)
        if self._final is not None:  # no further batch comes: do not wait for one
            raise self._keep_final_error(self._final[0])
        if not self._run.outcomes:
            self.feeder.look_again()
        outcome = self._notice.wait(self._run.outcomes.first, self._describe_wait)
        arrived()
        if isinstance(outcome, FailedBatch):
            self.lost_batches += 1
            self._run.outcomes.remove(outcome)
            self.feeder.note_taken(self._run, self._run.taken + 1, self._run.epoch_taken)
            raise self._keep_final_error(outcome.error) if outcome.final else outcome.error
        delivery = self._open(outcome)
        self._opened = self._run, outcome, delivery
        return delivery

    def advance(self) -> None:
        """See `Supply`."""
        if self._opened is not None:
            run, finished, delivery = self._opened
            self.feeder.note_taken(run, finished.pending.step + 1, delivery.epoch)
            run.outcomes.remove(finished)
            self._opened = None

    def add_counts(self, trainers: LoaderStats) -> LoaderStats:
        """See `Supply`; also adds the slots of the ring."""
        ring = self.feeder.ring
        stats = super().add_counts(trainers)
        return replace(stats, ring_slots=ring.slots, ring_bytes=ring.nbytes, ring_free=ring.free)

    def close(self) -> None:
        """See `Supply`."""
        self.feeder.close()

    def _describe_wait(self) -> str:
        text = self.feeder.describe_wait()
        head = self.feeder.head
        if head is not None and head.state == NETWORK:
            return f"{text}; {describe_engine(self.engine_values())}"
        return text

    def _open(self, finished: Finished) -> Delivery:
        """Makes the tensors of a finished batch, on its slot or its own memory; may be called again after a Ctrl-C."""
        made = finished.made
        pending = finished.pending
        slot = pending.slot
        # An interrupted call may have opened the memory before; then it is the same again.
        if finished.held is None and slot is not None:
            finished.held = slot.window()
        elif finished.held is None:
            finished.held = window(map_memfd(finished.own_memory, made.memory_bytes), 0, made.memory_bytes)
        memory = finished.held
        if slot is not None:
            self.feeder.ring.hold(slot, memory)
        elif finished.own_memory >= 0:
            descriptor, finished.own_memory = finished.own_memory, -1
            os.close(descriptor)
        content = BatchReader(memory).read(made.description)
        repeated = np.frombuffer(made.repeated, np.bool_) if made.repeated else np.zeros(made.samples, np.bool_)
        skipped = tuple(pending.skipped.items())
        trace = Trace(pending.timeline, made.stages, made.slowest)
        return Delivery(
            content=content,
            epoch=pending.epoch,
            batch=pending.batch,
            repeated=repeated,
            nbytes=made.nbytes,
            skipped=skipped,
            trace=trace,
            tallies=made.tallies,
            memory=memory,
        )

    def _keep_final_error(self, error: BaseException) -> BaseException:
        """Stores a final error and restores its traceback: each `raise` of it adds frames."""
        if self._final is None or self._final[0] is not error:
            self._final = error, error.__traceback__
        return error.with_traceback(self._final[1])


class InlineSupply(Supply):
    """Makes batches in the trainer's own thread: `num_workers=0`.

    Args:
        prepared: Stream that is read.
        rules: Rules by which batches are made.
        ahead: Number of batches whose chunks are requested in advance.
    """

    def __init__(self, prepared: RankStream, rules: MakerRules, ahead: int) -> None:
        self.counters = FeedCounters()
        self._prepared = prepared
        self._ahead = ahead
        source = prepared.recipe().open()
        collate_fn = rules.collate_fn or find_units(rules.packing).torch_collate(rules.ragged)
        self._maker = BatchMaker(source, msgspec.structs.replace(rules, collate_fn=collate_fn))
        self._session: StepSession | None = None
        self._notice = WaitNotice(logger, name_rank(prepared))
        self._epoch = self._batch = 0
        self._timeline: BatchTimeline | None = None
        # The batch that was made and is not taken yet.
        self._made: Delivery | None = None

    @property
    def ready(self) -> int:
        """Always 0: batches are made on request."""
        return 0

    @property
    def head(self) -> BatchTimeline | None:
        """The timeline of the batch that is being made, or None if none is."""
        return self._timeline

    @property
    def session(self) -> StepSession | None:
        """See `Supply`."""
        return self._session

    def begin(self, epoch: int, batch: int) -> None:
        """See `Supply`."""
        if self._session is not None:
            self._session.close()
        self._session = self._prepared.session(epoch, batch)
        self._epoch = epoch
        self._batch = batch
        self._made = None

    def take(self, arrived: Callable[[], None]) -> Delivery:
        """See `Supply`."""
        while self._batch >= self._prepared.plan(self._epoch).batches:
            self._epoch = self._epoch + 1
            self._batch = 0
        if self._made is not None:
            return self._made
        epoch = self._epoch
        batch = self._batch
        clock = self._maker.clock()
        self._timeline = BatchTimeline()
        try:
            with keep_globals():
                loaded, watch = self._load(epoch, batch, self._timeline)
                stages = self._maker.stages(watch.lap(), clock)
                content = self._maker.collate(loaded)
        except BaseException as error:
            self._timeline = None
            # A Ctrl-C is no `Exception`, so that the batch is made again after it.
            if isinstance(error, Exception):
                self._batch += 1
                self.lost_batches += 1
            raise
        stages = msgspec.structs.replace(stages, collate=watch.lap())
        self.counters.count(
            Made(
                number=0,
                nbytes=0,
                description=(0, 0),
                stages=stages,
                faults=0,
                samples=len(loaded.made),
                packed=loaded.packed,
            )
        )
        self._timeline.enter(MADE)
        arrived()
        trace = Trace(self._timeline, stages, loaded.slowest)
        self._timeline = None
        skipped = tuple((ordinal, f"{type(error).__name__}: {error}") for ordinal, error in loaded.skipped)
        self._made = Delivery(
            content, epoch, batch, loaded.repeated, skipped=skipped, trace=trace, tallies=loaded.tallies
        )
        # The chunks are released only now: after a Ctrl-C before this line the batch is made again, of the same chunks.
        if self._session is not None:
            self._session.finish(self._session.step_of(epoch, batch) + 1)
        return self._made

    def advance(self) -> None:
        """See `Supply`."""
        if self._made is not None:
            self._epoch = self._made.epoch
            self._batch = self._made.batch + 1
            self._made = None

    def close(self) -> None:
        """See `Supply`."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _load(self, epoch: int, batch: int, timeline: BatchTimeline) -> tuple[Loaded, Stopwatch]:
        """Returns the samples of a batch, and a stopwatch that was started when their chunks were local.

        Raises:
            IntegrityError: a chunk is still missing or wrong after `REREADS` new leases.
            StreamerError: the engine's error.
            Exception: the error of a sample.
        """
        session = self._session
        assert session is not None
        step = session.step_of(epoch, batch)
        session.want(step + self._ahead)
        rereads: Counter[int] = Counter()
        while True:
            timeline.enter(NETWORK)
            self._notice.wait(partial(session.wait, step), partial(self._describe_wait, epoch, batch))
            timeline.enter(WORK)
            watch = Stopwatch()
            self._maker.set_rounds(session.rounds(step))
            try:
                loaded = self._maker.load(epoch, batch)
            except SampleFailedError as error:
                cause = error.__cause__ or error
                cause.add_note(f"raised by a sample of epoch {epoch}, batch {batch}")
                raise cause from cause.__cause__
            except ChunkUnreadableError as error:
                self.counters.rereads += 1
                rereads[error.chunk] += 1
                if rereads[error.chunk] > REREADS:
                    raise IntegrityError(
                        f"{error} after {REREADS} new leases", chunk=error.chunk, reason=error.reason
                    ) from error
                session.reject(error.chunk, error.reason)
            else:
                return loaded, watch

    def _describe_wait(self, epoch: int, batch: int) -> str:
        return f"the data of epoch {epoch}, batch {batch}; {describe_engine(self.engine_values())}"
