"""`StreamingDataLoader`: what the training loop iterates over."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from streamer.config import MiB, parse_bytes
from streamer.errors import ClosedError, ConfigError, StreamerError
from streamer.loader.counters import LoaderStats, TrainerClock
from streamer.loader.delivery import Delivery, FedSupply, InlineSupply, Supply, counted
from streamer.loader.device import DevicePrefetcher, check_device
from streamer.loader.feeder import Feeder, FeedPlan
from streamer.loader.keeper import RingRules
from streamer.loader.maker import MakerRules
from streamer.loader.pinning import Pinner
from streamer.loader.pool import WorkerType
from streamer.loader.report import Snapshot, StallReport, compare
from streamer.loader.skipping import OnError, SkipLedger, Skipped, SkipRules
from streamer.loader.source import Collate, Preparable, PreparedStream
from streamer.loader.stall import (
    Headspace,
    OnReport,
    ReportRules,
    StallReporter,
    detached,
    engine_view,
    named,
    rank_of,
    report_rules,
    snapshot,
)

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

# 61 % of waiting become 23-29 % when one item in 20 takes 16x and 32-48 batches may be begun by 4 workers
# (2026-11-20); 8 per worker, and no more than 48.
_SPAN_PER_WORKER, _SPAN_MAX = 8, 48
# Locked and counted against the container: a twentieth of it, at most 2 GiB.
_RING_SHARE, _RING_MAX_BYTES = 20, 2048 * MiB

T = TypeVar("T")
Pin = bool | Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class _Settings:
    batch_size: int
    num_workers: int
    drop_last: bool
    device: torch.device | None
    device_transform: Callable[[object], object] | None
    collate_fn: Collate | None
    worker_type: WorkerType
    span: int
    ring_bytes: int
    timeout: float
    pin: Pin
    on_error: OnError | None
    error_budget: int | None
    reports: ReportRules


class StreamingDataLoader:
    """Iterates over a `StreamingDataset` in batches, made by worker processes, delivered in order.

    The batches are those of `default_collate` over the data set's own order, whatever the number of workers. Their
    tensors are views on a ring of shared memory: a slot is used again when the last tensor on it is gone, so keeping
    many batches costs speed (they then go around the ring), never correctness; `clone()` what is to be kept for long.

    Every `iter()` is the next epoch, unless `set_epoch` says otherwise; workers look ahead into it. Constructing does
    no I/O. Used by one thread. Close it, or use it as a context manager; garbage collection closes it too.

    Args:
        dataset: what to load.
        batch_size: samples per batch of this rank.
        num_workers: worker processes; 0: everything happens in `next()`.
        drop_last: leave out the last, incomplete batch; otherwise it is filled with repeats (`repeated` marks them).
        device: where batches are wanted; copies run on a stream of their own, two batches ahead. None: leave them
            where they are.
        device_transform: called with each batch on the device, e.g. `streamer.loader.device.Normalize`.
        collate_fn: list of samples -> batch; default: as `default_collate`. Runs in the workers.
        worker_type: "process", or "thread" for transforms that release the GIL (only `rng` is then reproducible, the
            global generators are not seeded).
        prefetch_batches: batches begun and not yet taken; default 8 per worker, at most 48.
        ring_bytes: memory of the ring; default a twentieth of the machine's, at most 2 GiB.
        timeout: seconds that one sample may take before its worker is replaced; 0: any time.
        pin: register the ring with CUDA: "auto" where there is CUDA, True: an error where that fails, False.
        on_error: "raise", or "skip": another sample of the batch takes the place of one that cannot be made, marked in
            `repeated` and listed in `skipped`. None: as the data set says.
        error_budget: samples that may be skipped, over all epochs and ranks, before all ranks raise. None: as the data
            set says.
        report_seconds: between two lines of the stall report in the log (`streamer.loader.stall`); None: no lines.
        on_report: called with each report, on a thread of its own.

    Raises:
        ConfigError: a value that cannot be; `device="cuda"` without CUDA.
    """

    def __init__(
        self,
        dataset: Preparable,
        batch_size: int = 1,
        num_workers: int = 0,
        *,
        drop_last: bool = False,
        device: str | torch.device | None = None,
        device_transform: Callable[[object], object] | None = None,
        collate_fn: Collate | None = None,
        worker_type: WorkerType = "process",
        prefetch_batches: int | None = None,
        ring_bytes: int | str | None = None,
        timeout: float = 0,
        pin: Pin = "auto",
        on_error: OnError | None = None,
        error_budget: int | None = None,
        report_seconds: float | None = 30.0,
        on_report: OnReport | None = None,
    ) -> None:
        self.dataset = dataset
        self._settings = _Settings(
            batch_size=_at_least("batch_size", batch_size, 1),
            num_workers=_at_least("num_workers", num_workers, 0),
            drop_last=drop_last,
            device=check_device(device),
            device_transform=device_transform,
            collate_fn=collate_fn,
            worker_type=_one_of("worker_type", worker_type, ("process", "thread")),
            span=_at_least("prefetch_batches", _span(prefetch_batches, num_workers), 1),
            ring_bytes=_default_ring() if ring_bytes is None else parse_bytes(ring_bytes, "ring_bytes"),
            timeout=timeout,
            pin=pin,
            on_error=None if on_error is None else _one_of("on_error", on_error, ("raise", "skip")),
            error_budget=None if error_budget is None else _at_least("error_budget", error_budget, 0),
            reports=report_rules(report_seconds, on_report),
        )
        self.repeated: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        """bool (samples,): which samples of the last delivered batch only fill a place."""
        self._ledger = SkipLedger(0)
        self._delivered = 0
        # What all ranks are to hear at the next iter(); and whether they have compared since.
        self._failure: StreamerError | None = None
        self._compared = False
        self._prepared: PreparedStream | None = None
        self._supply: Supply | None = None
        self._pinner: Pinner | None = None
        self._planning = threading.Lock()
        self._clock = TrainerClock()
        self._reported = Snapshot()
        self._pid = os.getpid()
        self._closed = False
        self._closer: weakref.finalize[..., StreamingDataLoader] | None = None
        # The next batch to be delivered; the next that the running supply will give.
        self._position = (0, 0)
        self._supplied: tuple[int, int] | None = None
        # Where the next iter() begins, and whether it was told to.
        self._start = (0, 0)
        self._told = False
        self._epoch: _Epoch | None = None

    def __repr__(self) -> str:
        s, (epoch, batch) = self._settings, self._position
        state = "closed" if self._closed else f"epoch={epoch}, batch={batch}"
        return f"StreamingDataLoader(batch_size={s.batch_size}, num_workers={s.num_workers}, {state})"

    def __len__(self) -> int:
        """Batches of this rank in an epoch. Does not need the other ranks."""
        return self._batches(self._start[0])

    def __enter__(self) -> StreamingDataLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[object]:
        """Begins the next epoch, or goes on where a loaded state stands. Collective, the first time and after a load.

        Raises:
            StreamerError: data set, order or state do not fit; on every rank, where torch.distributed is initialised.
        """
        self._check_usable()
        if (told := self.dataset.take_told_epoch()) is not None:
            self.set_epoch(told)
        self._compare()
        epoch, batch = self._start
        if not self._told and 0 < self._batches(epoch) <= batch:
            epoch, batch = epoch + 1, 0
        self._position, self._start, self._told = (epoch, batch), (epoch + 1, 0), False
        if self._epoch is not None:
            self._epoch.end()
        self._clock.pause()
        self._epoch = _Epoch(self, self._batches(epoch) - batch)
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` is this epoch; a loaded state inside it is kept."""
        if epoch != self._start[0]:
            self._start = (epoch, 0)
        self._told = True

    def state_dict(self) -> dict[str, object]:
        """Where the training stands: after the last batch that it was given. O(1)."""
        return self._prepare().state(*self._position)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Goes on where the state was saved, on any number of ranks whose batch fits.

        Raises:
            StateError: the state is of another data set, order or seed. With other ranks, the next `iter()` raises it,
                on all of them.
        """
        self._end_supply()
        self._compared, self._failure = False, None
        try:
            self._start = self._position = self._prepare().resume(state)
        except StreamerError as error:
            if not self.dataset.compares:
                raise
            self._failure = error
        self._told = False

    @property
    def skipped(self) -> list[Skipped]:
        """With on_error="skip": the samples of this rank whose place another one took, with key and cause."""
        return list(self._ledger.entries)

    def report(self) -> StallReport:
        """Where the trainer's time went since the last call, and what to do about it; any thread."""
        before, self._reported = self._reported, self.snapshot()
        return self.name_samples(compare(before, self._reported))

    def headspace(self, k: int = 16, steps: int = 200) -> Headspace:
        """The step's own ceiling: train on what this returns, then look at its `ceiling`.

        Loads the next `k` batches and replays them `steps` times in all, so that no step waits for data. The place in
        the data set stays where it was: the next `iter()` delivers these batches again.
        """
        before = self._position, self._start, self._told
        batches, samples = [], []
        for batch in itertools.islice(self, _at_least("k", k, 1)):
            batches.append(detached(batch))
            samples.append(len(self.repeated))
        if self._epoch is not None:
            self._epoch.end()
        self._clock.pause()
        self._position, self._start, self._told = before
        return Headspace(batches, samples, _at_least("steps", steps, 1))

    def snapshot(self) -> Snapshot:
        """The counts of this moment, for `compare`; any thread."""
        return snapshot(self.stats(), self._clock, self._supply, self._settings.num_workers)

    def name_samples(self, report: StallReport) -> StallReport:
        """The report with the name of its slowest sample."""
        return report if self._prepared is None else named(report, self._prepared.sample_key)

    def stats(self) -> LoaderStats:
        """What happened so far. The engine is asked for its view, half a second at most."""
        # The engine first: what the trainer does meanwhile is in the counts.
        engine = engine_view(supply) if (supply := self._supply) is not None else None
        return replace(self._counts(), engine=engine)

    def _counts(self) -> LoaderStats:
        # Read once: the trainer may end the supply while the reporter counts.
        if (supply := self._supply) is None:
            return LoaderStats()
        pinned = (pinner := self._pinner) is not None and pinner.pinned
        return replace(counted(supply, self._clock.stats()), skipped=len(self._ledger.entries), pinned=pinned)

    def close(self) -> None:
        """Ends workers, thread and session; batches already delivered stay valid. Idempotent."""
        self._closed = True
        self._end_supply()

    # ------------------------------------------------------------ for the epoch's iterator
    def _arrived(self, delivery: Delivery) -> None:
        """The next batch is here; it is delivered unless too much was skipped."""
        if self._skip_rules.on_error == "skip":
            key = self._prepare().sample_key
            self._ledger.note([Skipped(at, key(at), cause) for at, cause in delivery.skipped], self._delivered)
            self._ledger.check(self._delivered)
        self._delivered += 1
        self._position = delivery.epoch, delivery.batch + 1
        self.repeated = delivery.repeated

    def _next(self) -> Delivery:
        """The next batch of the running epoch, from the supply."""
        supply = self._running_supply()
        if self._pinner is not None:
            self._pinner.fence()
        self._clock.begin()
        try:
            delivery = supply.take(self._clock.arrive)
        except BaseException:
            self._clock.opened(None)
            raise
        self._clock.opened(delivery.trace)
        self._supplied = delivery.epoch, delivery.batch + 1
        return delivery

    def _running_supply(self) -> Supply:
        if self._supply is None:
            self._supply = self._build_supply()
            reporter = StallReporter(self, self._settings.reports, rank_of(self._prepare()))
            self._closer = weakref.finalize(self, _close_in, os.getpid(), self._supply, self._pinner, reporter)
            if self._settings.reports.seconds is not None:
                reporter.start()
        return self._supply

    def _enter_epoch(self, epoch: int, batch: int) -> None:
        supply, supplied = self._running_supply(), self._supplied
        if supplied is not None and supplied[1] >= self._batches(supplied[0]):
            supplied = supplied[0] + 1, 0
        if supplied != (epoch, batch):
            supply.begin(epoch, batch)
        self._supplied = epoch, batch

    def _build_supply(self) -> Supply:
        s, prepared = self._settings, self._prepare()
        own_generators = s.worker_type == "process" or s.num_workers == 0
        rules = MakerRules(prepared.seed, s.collate_fn, self._skip_rules.on_error, own_generators)
        if s.num_workers == 0:
            return InlineSupply(prepared, rules, s.span)
        self._pinner = Pinner.for_mode(s.pin, fencing=s.device is None)
        plan = FeedPlan(
            workers=s.num_workers,
            worker_type=s.worker_type,
            rules=rules,
            span=s.span,
            planning=self._planning,
            ring=RingRules(budget_bytes=s.ring_bytes, on_ring=self._pinner.register if self._pinner else None),
            timeout_seconds=s.timeout,
        )
        return FedSupply(Feeder(prepared, plan))

    def _end_supply(self) -> None:
        if self._epoch is not None:
            self._epoch.end()
        if self._closer is not None:
            self._closer()
        self._supply = self._supplied = self._closer = self._pinner = None

    @property
    def _skip_rules(self) -> SkipRules:
        told, s = self._prepare().skip_rules, self._settings
        return SkipRules(s.on_error or told.on_error, told.budget if s.error_budget is None else s.error_budget)

    def _compare(self) -> None:
        if self._compared:
            return
        self.dataset.compare(self._prepare_to_compare, "epoch {}, batch {}".format(*self._start))
        self._compared = True
        rules = self._skip_rules
        shared = self._prepare().shared_budget() if rules.on_error == "skip" else None
        if shared is not None:
            shared.spend(len(self._ledger.entries))
        self._ledger, self._delivered = SkipLedger(rules.budget, shared, self._ledger.entries), 0

    def _prepare_to_compare(self) -> PreparedStream:
        if self._failure is not None:
            raise self._failure
        return self._prepare()

    def _batches(self, epoch: int) -> int:
        prepared = self._prepare()
        with self._planning:
            return prepared.plan(epoch).batches

    def _prepare(self) -> PreparedStream:
        self._check_usable()
        if self._prepared is None:
            self._prepared = self.dataset.prepare(self._settings.batch_size, self._settings.drop_last)
        return self._prepared

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError("this StreamingDataLoader is closed")
        if self._pid != os.getpid():
            raise ClosedError("this StreamingDataLoader belongs to the process that made it; make one after the fork")


class _Epoch:
    """One pass over an epoch; a later `iter()` or `close()` ends it."""

    def __init__(self, loader: StreamingDataLoader, left: int) -> None:
        self._loader: StreamingDataLoader | None = loader
        self._left = left
        self._clock = loader._clock
        settings = loader._settings
        loader._enter_epoch(*loader._position)
        self._batches: Iterator[object] = self._deliveries()
        if settings.device is not None or settings.device_transform is not None:
            self._batches = iter(
                DevicePrefetcher(self._batches, settings.device, transform=_on_content(settings.device_transform))
            )

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> object:
        loader = self._loader
        if loader is None:
            raise StopIteration
        loader._check_usable()
        self._clock.ask(loader._supply.ready if loader._supply else 0)
        delivery = next(self._batches, None)
        if delivery is None:
            self._clock.pause()
            loader._position = loader._position[0] + 1, 0
            self.end()
            raise StopIteration
        assert isinstance(delivery, Delivery)
        loader._arrived(delivery)
        self._clock.leave(len(delivery.repeated), delivery.nbytes)
        return delivery.content

    def __len__(self) -> int:
        return self._left

    def end(self) -> None:
        """Stops it."""
        self._loader = None
        self._batches = iter(())

    def _deliveries(self) -> Iterator[Delivery]:
        return _Deliveries(self)


class _Deliveries:
    """The batches of the epoch as the supply gives them; survives the error of a single batch."""

    def __init__(self, epoch: _Epoch) -> None:
        self._epoch = epoch
        self._left = epoch._left

    def __iter__(self) -> _Deliveries:
        return self

    def __next__(self) -> Delivery:
        loader = self._epoch._loader
        if loader is None or self._left <= 0:
            raise StopIteration
        self._left -= 1
        return loader._next()


def _on_content(transform: Callable[[object], object] | None) -> Callable[[object], object] | None:
    if transform is None:
        return None

    def apply(delivery: object) -> object:
        assert isinstance(delivery, Delivery)
        return delivery.with_content(transform(delivery.content))

    return apply


def _close_in(pid: int, supply: Supply, pinner: Pinner | None, reporter: StallReporter) -> None:
    """In a forked child the workers are somebody else's."""
    if pid == os.getpid():
        reporter.stop()
        supply.close()
        if pinner is not None:
            pinner.close()


def _at_least(name: str, value: int, least: int) -> int:
    if value < least:
        raise ConfigError(f"{name}={value} is below {least}", field=name)
    return value


def _one_of(name: str, value: T, allowed: tuple[T, ...]) -> T:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is none of {', '.join(map(repr, allowed))}", field=name)
    return value


def _span(prefetch_batches: int | None, num_workers: int) -> int:
    if prefetch_batches is not None:
        return prefetch_batches
    return min(_SPAN_PER_WORKER * max(num_workers, 1), _SPAN_MAX)


def _default_ring() -> int:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(machine // _RING_SHARE, _RING_MAX_BYTES)
