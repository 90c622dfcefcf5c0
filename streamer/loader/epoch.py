"""Runs the epochs of a `StreamingDataLoader` (`dataloader.py`).

Each loader makes one `EpochCursor`, which finds where the next epoch begins, one `SupplyOwner`, which has the workers
of all epochs, and for each `iter()` an `Epoch`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from streamer.batches.ring.pinning import Pinner
from streamer.batches.samples.sent_code import SentCode
from streamer.batches.workers.batch_maker import MakerRules
from streamer.errors import ClosedError
from streamer.loader.delivery import Delivery
from streamer.loader.device.copying import Mover, mover_for
from streamer.loader.device.prefetcher import AHEAD, Prefetch
from streamer.loader.feed.feeder import Feeder, FeedPlan
from streamer.loader.feed.supply import FedSupply, InlineSupply, Supply
from streamer.loader.feed.waits import name_rank
from streamer.loader.options.loader_options import LoaderSettings
from streamer.loader.rank.rank_stream import RankStream
from streamer.loader.stall.stats import LoaderStats, TrainerClock


class EpochCursor:
    """Counts where a loader is, and finds where its next `iter()` begins.

    Attributes:
        position: Epoch and number of the batch that is delivered next.
        start: Epoch and batch at which the next `iter()` begins, unless it repeats the last one (`find_start`).
        begun: Where the last `iter()` began, or None if another start was set since.
    """

    def __init__(self) -> None:
        self.position = (0, 0)
        self.start = (0, 0)
        self.begun: tuple[int, int] | None = None
        # Whether `start` was set by `set_epoch`.
        self._is_requested = False

    @property
    def requested(self) -> tuple[int, int] | None:
        """The start that was set by `set_epoch`, or None if it was not."""
        return self.start if self._is_requested else None

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next `iter()`. If it is the epoch of `start`, the batch of `start` is kept."""
        if epoch != self.start[0]:
            self.start = (epoch, 0)
        self._is_requested = True

    def resume(self, at: tuple[int, int]) -> None:
        """Goes to the epoch and batch of a loaded state."""
        self.start = at
        self.position = at

    def forget_iterator(self) -> None:
        """Forgets the last `iter()`; one of which no batch was requested leaves the start where it was."""
        if self.begun is not None and self.begun == self.position:
            self.start = self.begun
        self.begun = None

    def restore_request(self, requested: tuple[int, int] | None) -> None:
        """Goes back to a start that was requested, unless the state that was loaded since is in the same epoch.

        Args:
            requested: Value of `requested` before the state was loaded; without a request nothing happens.
        """
        if requested is not None and requested[0] != self.start[0]:
            self.start = requested

    def drop_request(self) -> None:
        """Lets the next `iter()` begin at `start`: forgets a call of `set_epoch`, and the last `iter()`."""
        self._is_requested = False
        self.begun = None

    def find_start(self, count_batches: Callable[[int], int]) -> tuple[int, int]:
        """Returns the epoch and the batch at which the next `iter()` begins.

        Args:
            count_batches: Returns the number of batches of an epoch.
        """
        if self._is_requested:
            return self.start
        if self.begun == self.position:
            # No batch was requested of the last iterator: the same epoch again. Lightning makes one iterator before its
            # first epoch, and one more when it resumes from a checkpoint.
            return self.begun
        epoch, batch = self.start
        return (epoch + 1, 0) if 0 < count_batches(epoch) <= batch else (epoch, batch)

    def begin(self, epoch: int, batch: int) -> None:
        """Begins an iterator at a batch; the one after it begins with the next epoch."""
        self.begun = self.position = (epoch, batch)
        self.start = (epoch + 1, 0)
        self._is_requested = False

    def note_delivery(self, epoch: int, batch: int) -> None:
        """Sets the position behind a batch that the trainer has received."""
        self.position = epoch, batch + 1

    def finish_epoch(self) -> None:
        """Goes to the first batch of the next epoch."""
        self.position = self.position[0] + 1, 0


class SupplyOwner:
    """Owns the supply of one loader, which begins at its first use. Used by the trainer's thread.

    Garbage collection ends it. After `end` it can begin again, e.g. with a loaded state.

    Attributes:
        settings: Settings of the loader.
        supply: The supply, or None if it has not begun, or was ended.
        planning: Lock that is held while the prepared stream is used.
    """

    def __init__(self, settings: LoaderSettings) -> None:
        self.settings = settings
        self.supply: Supply | None = None
        self.planning = threading.Lock()
        self._feeder: Feeder | None = None
        self._pinner: Pinner | None = None
        self._mover: Mover | None = None
        # Epoch and number of the next batch of the running supply, or None if that is not known.
        self._next: tuple[int, int] | None = None
        self._sent: SentCode | None = None
        self._reported = ""
        self._resources = contextlib.ExitStack()
        self._closer: weakref.finalize[..., SupplyOwner] | None = None

    def __repr__(self) -> str:
        return f"SupplyOwner(supply={self.supply!r}, next={self._next})"

    @property
    def pinned(self) -> bool:
        """Whether the ring is registered with CUDA."""
        return self._pinner is not None and self._pinner.pinned

    @property
    def ready(self) -> int:
        """Number of finished batches that wait for the trainer; 0 without a supply."""
        return 0 if self.supply is None else self.supply.ready

    def start_workers(self) -> None:
        """Starts the first worker process, which imports while the dataset is prepared; idempotent. Not for threads."""
        if self._feeder is None and self.settings.starts_early:
            self._feeder = self._build_feeder()
            self._feeder.start()

    def begin(self, prepared: RankStream) -> Supply:
        """Builds the supply of a stream, and returns it. `enter` says where it begins.

        Raises:
            ConfigError: `ragged=` does not suit the stream, code of the user cannot be sent to the workers, or
                `pin_memory="required"` without CUDA.
            StreamerError: without workers: the dataset cannot be opened in this process.
        """
        s = self.settings
        prepared.packing.check_ragged(s.ragged)
        rules = MakerRules(
            seed=prepared.seed,
            collate_fn=s.collate_fn,
            on_error=prepared.skip_rules.on_error,
            seed_globals=s.own_generators,
            ragged=s.ragged,
            packing=prepared.packing,
        )
        if s.workers is None:
            self.supply = InlineSupply(prepared, rules, s.span)
            self._own(self.supply.close)
            return self.supply
        if self._feeder is None:
            self._feeder = self._build_feeder()
        self._feeder.configure(prepared, rules)
        if s.workers.worker_type == "process":
            self._sent = SentCode((prepared.recipe(), rules))
        self.supply = FedSupply(self._feeder, name_rank(prepared))
        return self.supply

    def make_mover(self) -> Mover | None:
        """Returns the mover to the device, the same for all epochs; None without `device` and `device_transform`."""
        s = self.settings
        if self._mover is None and (s.device is not None or s.device_transform is not None):
            self._mover = mover_for(s.device)
        return self._mover

    def call_before_end(self, end: Callable[[], object]) -> None:
        """Registers a function that is called before the supply ends."""
        self._resources.callback(end)

    def enter(self, epoch: int, batch: int, batches: Callable[[int], int]) -> None:
        """Lets the supply begin at a batch, unless that is the next batch of the supply anyway.

        Args:
            epoch: Epoch of the batch.
            batch: Number of the batch in the epoch.
            batches: Returns the number of batches of an epoch.

        Raises:
            StreamerError: without workers: the engine cannot be reached.
        """
        assert self.supply is not None
        if self._sent is not None and self._next is not None:
            self._sent.compare()
        at = self._next
        if at is not None and at[1] >= batches(at[0]):
            at = at[0] + 1, 0
        if at != (epoch, batch):
            self.supply.begin(epoch, batch)
        self._next = epoch, batch

    def take(self, clock: TrainerClock) -> Delivery:
        """Returns the next batch, which stays the next one until `advance`. Blocks.

        Args:
            clock: Measures the waiting.

        Raises:
            Exception: see `Supply.take`.
        """
        assert self.supply is not None
        if self._pinner is not None and self._feeder is not None and self._feeder.ring.fencing:
            self._feeder.ring.fence(self._pinner.fence)
        clock.begin()
        try:
            delivery = self.supply.take(clock.arrive)
        except BaseException:
            clock.note_content(None)
            # The same iterator continues with the following batch; a new one may begin with this batch again.
            self._next = None
            raise
        clock.note_content(delivery.trace)
        return delivery

    @property
    def lost_batches(self) -> int:
        """Number of batches so far of which the trainer got an error instead."""
        return 0 if self.supply is None else self.supply.lost_batches

    def advance(self, delivery: Delivery) -> None:
        """Goes on to the batch after this one; idempotent."""
        if self.supply is not None:
            self.supply.advance()
        self._next = delivery.epoch, delivery.batch + 1

    def report_error(self, error: Exception) -> None:
        """Sends an error that the trainer gets to the engine, for its log and its page; the same text in a row once."""
        if self.supply is None or self._reported == (text := repr(error)):
            return
        self._reported = text
        self.supply.send_report(error)

    def count(self, clock: TrainerClock) -> LoaderStats:
        """Returns the statistics so far, all 0 without a supply; any thread."""
        # It is read once: the trainer may end the supply concurrently.
        if (supply := self.supply) is None:
            return LoaderStats()
        return replace(supply.add_counts(clock.stats()), pinned=self.pinned)

    def end(self) -> None:
        """Ends workers, feeder and session, and forgets the mover. Idempotent."""
        if self._closer is not None:
            self._closer()
        self.supply = self._feeder = self._pinner = self._mover = self._next = self._sent = self._closer = None
        self._resources = contextlib.ExitStack()

    def _build_feeder(self) -> Feeder:
        """Makes the feeder, with what registers its ring with CUDA; both are closed when the supply ends."""
        s = self.settings
        assert s.workers is not None
        self._pinner = Pinner.from_mode(s.pin, fencing=s.device is None)
        plan = FeedPlan(
            workers=s.workers,
            span=s.span,
            limits=s.ring_limits,
            planning=self.planning,
            pinner=self._pinner,
            timeout_seconds=s.timeout,
            poison=s.poison,
        )
        feeder = Feeder(plan)
        if self._pinner is not None:
            self._own(self._pinner.close)
            self._own(feeder.ring.wait_for_fences)
        self._own(feeder.close)
        return feeder

    def _own(self, close: Callable[[], object]) -> None:
        self._resources.callback(close)
        if self._closer is None:
            self._closer = weakref.finalize(self, _close_resources, os.getpid(), self._resources)


def _close_resources(pid: int, resources: contextlib.ExitStack) -> None:
    """Closes the resources, except in a forked child, which does not own the workers."""
    if pid == os.getpid():
        resources.close()


class Epoch:
    """Iterates over the batches of one epoch; `iter(loader)` returns it.

    `close()` of the loader ends it. After a later `iter()` of the loader `next` raises a ClosedError. If a batch has
    failed, `next` raises its error, and then continues with the following batch unless the error has ended the run.

    Args:
        supply: Supply of the loader.
        left: Number of batches that it yields, lost ones included.
        clock: Measures the trainer's time.
        check: Called before each batch; raises where the loader cannot be used any more.
        note_delivery: Called with each batch that the trainer gets.
        finish: Called at the end of the epoch.
    """

    def __init__(
        self,
        supply: SupplyOwner,
        left: int,
        clock: TrainerClock,
        *,
        check: Callable[[], None],
        note_delivery: Callable[[Delivery], None],
        finish: Callable[[], None],
    ) -> None:
        self._supply = supply
        self._left = left
        self._clock = clock
        self._check = check
        self._note_delivery = note_delivery
        self._finish = finish
        self._has_ended = False
        self._is_superseded = False
        # A batch that an interrupted call has taken: the next call gives it.
        self._pending: Delivery | None = None
        self._deliveries = _Deliveries(supply, left, clock)
        self._prefetch: Prefetch | None = None
        mover = supply.make_mover()
        if mover is not None:
            transform = supply.settings.device_transform
            change = None if transform is None else partial(_transform_content, transform)
            self._prefetch = Prefetch(self._deliveries, mover, AHEAD, change, advance_source=self._deliveries.advance)

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> object:
        if self._is_superseded:
            raise ClosedError(
                "a later iter() of this StreamingDataLoader has ended this iterator; for two iterators make two "
                "loaders of the dataset"
            )
        if self._has_ended:
            raise StopIteration
        self._check()
        self._clock.ask(self._supply.ready)
        delivery = self._pending
        if delivery is None:
            try:
                found = next(self._deliveries) if self._prefetch is None else self._prefetch.peek()
            except StopIteration:
                found = None
            except Exception as error:
                self._supply.report_error(error)
                raise
            if found is None:
                self._clock.pause()
                self._finish()
                self.end()
                raise StopIteration
            assert isinstance(found, Delivery)
            self._pending = delivery = found
        if self._prefetch is None:
            self._deliveries.advance()
        else:
            self._prefetch.advance(delivery)
        self._note_delivery(delivery)
        self._clock.leave(len(delivery.repeated), delivery.nbytes)
        content = delivery.content
        # There is no call between it and `return`, because a Ctrl-C comes after a call.
        self._pending = None
        return content

    def __len__(self) -> int:
        return self._left

    def supersede(self) -> None:
        """Ends the iterator because a later one continues. `next` raises from now on, unless it had ended before."""
        self._is_superseded = not self._has_ended
        self.end()

    def end(self) -> None:
        """Ends the iterator: `next` raises StopIteration from now on."""
        self._has_ended = True
        self._pending = None
        self._prefetch = None


class _Deliveries:
    """Yields the batches of an epoch from the supply. A batch stays the next one until `advance`.

    After the error of a batch it continues with the following one.
    """

    def __init__(self, supply: SupplyOwner, left: int, clock: TrainerClock) -> None:
        self._supply = supply
        self._left = left
        self._clock = clock
        # The batch that is not taken yet, and how many are left after it.
        self._untaken: tuple[Delivery, int] | None = None

    def __iter__(self) -> _Deliveries:
        return self

    def __next__(self) -> Delivery:
        if self._left <= 0:
            raise StopIteration
        lost_before = self._supply.lost_batches
        try:
            delivery = self._supply.take(self._clock)
            self._untaken = delivery, self._left - 1
        except Exception:
            # A handler of a signal may raise, too, such as one that limits the time of a step. Then no batch is lost.
            self._left -= self._supply.lost_batches - lost_before
            raise
        return delivery

    def advance(self) -> None:
        """Goes on to the batch after the last one; idempotent."""
        if self._untaken is not None:
            delivery, left = self._untaken
            self._supply.advance(delivery)
            self._left = left
            self._untaken = None


def _transform_content(transform: Callable[[object], object], delivery: object) -> object:
    assert isinstance(delivery, Delivery)
    return delivery.replace_content(transform(delivery.content))
