"""Creates and ends the supply of a loader, its workers, ring and mover."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace

from streamer.batches.ring.pinning import Pinner
from streamer.batches.samples.sent_code import SentCode
from streamer.batches.workers.batch_maker import MakerRules
from streamer.loader.delivery import Delivery
from streamer.loader.device.copying import Mover, mover_for
from streamer.loader.feed.feeder import Feeder, FeedPlan
from streamer.loader.feed.supply import FedSupply, InlineSupply, Supply
from streamer.loader.feed.waits import who
from streamer.loader.options.loader_options import LoaderSettings
from streamer.loader.rank.rank_stream import RankStream
from streamer.loader.stall.stats import LoaderStats, TrainerClock


class SupplyOwner:
    """Owns the supply of one loader, which begins at its first use. Used by the trainer's thread.

    Garbage collection ends it. After `end` it can begin again, e.g. with a loaded state.

    Attributes:
        supply: None: not begun, or ended.
        planning: held while the prepared stream is used.
    """

    def __init__(self, settings: LoaderSettings) -> None:
        self.settings = settings
        self.supply: Supply | None = None
        self.planning = threading.Lock()
        self._feeder: Feeder | None = None
        self._pinner: Pinner | None = None
        self._mover: Mover | None = None
        # The next batch of the running supply.
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

    def start_workers(self) -> None:
        """Starts the first worker process before the dataset is prepared, so that it imports in parallel."""
        if self._feeder is None and self.settings.starts_early:
            self._feeder = self._build_feeder()
            self._feeder.start()

    def begin(self, prepared: RankStream) -> Supply:
        """The supply, built if there is none yet."""
        if self.supply is None:
            self.supply = self._build(prepared)
        return self.supply

    @property
    def mover(self) -> Mover | None:
        """The mover to the device, the same for all epochs, or None if batches are neither copied nor transformed."""
        s = self.settings
        if self._mover is None and (s.device is not None or s.device_transform is not None):
            self._mover = mover_for(s.device)
        return self._mover

    def until_end(self, end: Callable[[], object]) -> None:
        """Registers a function that is called before the supply ends."""
        self._resources.callback(end)

    def enter(self, epoch: int, batch: int, batches: Callable[[int], int]) -> None:
        """Continues at a batch, unless it is the next one anyway; `batches` maps an epoch to its number of batches."""
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
        """The next batch, which stays the next one until `took`; blocks.

        Raises its error if it failed; the following batch is next then.
        """
        assert self.supply is not None
        if self._pinner is not None and self._feeder is not None and self._feeder.ring.fencing:
            self._feeder.ring.fence(self._pinner.fence)
        clock.begin()
        try:
            delivery = self.supply.take(clock.arrive)
        except BaseException:
            clock.opened(None)
            # The same iterator continues with the following batch; a new one may begin with this batch again.
            self._next = None
            raise
        clock.opened(delivery.trace)
        return delivery

    def took(self, delivery: Delivery) -> None:
        """Goes on to the batch after this one; idempotent."""
        if self.supply is not None:
            self.supply.took()
        self._next = delivery.epoch, delivery.batch + 1

    def failed(self, error: Exception) -> None:
        """Tells the engine of an error that the trainer gets, for its log and page; of one that comes again, once."""
        if self.supply is None or self._reported == (text := repr(error)):
            return
        self._reported = text
        view = self.supply.engine_view()
        if view is not None and view.reply is not None:
            view.reply(error)

    def counts(self, clock: TrainerClock) -> LoaderStats:
        """The statistics so far; any thread."""
        # Read once: the trainer may end the supply concurrently.
        if (supply := self.supply) is None:
            return LoaderStats()
        return replace(supply.counted(clock.stats()), pinned=self.pinned)

    def end(self) -> None:
        """Ends workers, thread and session. Idempotent."""
        if self._closer is not None:
            self._closer()
        self.supply = self._feeder = self._pinner = self._mover = self._next = self._sent = self._closer = None
        self._resources = contextlib.ExitStack()

    def _build(self, prepared: RankStream) -> Supply:
        s = self.settings
        prepared.packing.check_ragged(s.ragged)
        rules = MakerRules(
            prepared.seed, s.collate_fn, prepared.skip_rules.on_error, s.own_generators, s.ragged, prepared.packing
        )
        if s.workers is None:
            supply = InlineSupply(prepared, rules, s.span)
            self._own(supply.close)
            return supply
        if self._feeder is None:
            self._feeder = self._build_feeder()
        self._feeder.configure(prepared, rules)
        if s.workers.worker_type == "process":
            self._sent = SentCode((prepared.recipe(), rules))
        return FedSupply(self._feeder, who(prepared))

    def _build_feeder(self) -> Feeder:
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
            self._closer = weakref.finalize(self, _close_in, os.getpid(), self._resources)


def _close_in(pid: int, resources: contextlib.ExitStack) -> None:
    """Closes the resources, except in a forked child, which does not own the workers."""
    if pid == os.getpid():
        resources.close()
