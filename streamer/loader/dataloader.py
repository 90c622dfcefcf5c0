"""Defines `StreamingDataLoader`, over which the user's training loop iterates."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Never

import numpy as np
import numpy.typing as npt

from streamer.base.system_limits import name_limits
from streamer.batches.checks import at_least, check_state, flag, function, seconds
from streamer.batches.checks import epoch as check_epoch
from streamer.batches.samples.units import Collate
from streamer.batches.skipping import SkipLedger
from streamer.batches.torch_arguments import check_torch_arguments
from streamer.batches.workers.fork_server import fork_server
from streamer.batches.workers.pool import WorkerType
from streamer.errors import ClosedError, StreamerError
from streamer.loader.accelerate_state import AccelerateEpochs, refuse_other_loader
from streamer.loader.delivery import Delivery
from streamer.loader.device.prefetcher import check_device, check_device_step
from streamer.loader.epoch import Epoch, EpochCursor, SupplyOwner
from streamer.loader.epoch_cell import check_same_rank
from streamer.loader.epoch_dataset import EpochDataset, find_opening
from streamer.loader.loader_views import LoaderViews
from streamer.loader.options.loader_options import (
    LoaderSettings,
    check_ragged,
    choose_ring_bytes,
    choose_span,
    make_no_batch_error,
    make_worker_config,
)
from streamer.loader.rank.audit_records import AuditRecords
from streamer.loader.rank.rank_stream import RankStream
from streamer.loader.stall.report import Snapshot
from streamer.loader.stall.reporter import OnReport, StallReporter
from streamer.loader.stall.stats import TrainerClock
from streamer.removed import check_arguments, refuse_method

if TYPE_CHECKING:
    import torch


class Agreement(Enum):
    """Says whether the ranks have compared what they train on; `iter()` compares unless they have.

    PENDING to AGREED: `iter()`, where all ranks train on the same.
    AGREED to PENDING: the data have changed, or this process has become another rank.
    Any to RESUMED: `load_state_dict()`. Objects are not listed again then, because a state must fit the data.
    RESUMED to AGREED: `iter()`.
    """

    PENDING = "pending"
    RESUMED = "resumed"
    AGREED = "agreed"


class StreamingDataLoader(LoaderViews):
    """Iterates over a `StreamingDataset` in batches, made by worker processes, delivered in order.

    The batches are those of `default_collate` over the dataset's own order, for any number of workers. Their tensors
    are views on a ring of shared memory; a slot is reused when the last tensor on it is deleted. Keeping many batches
    costs speed, never correctness: `clone()` tensors that are kept for long.

    Every `iter()` is the next epoch, unless `set_epoch` was called, or no batch of the last one was requested; workers
    look ahead into it. The constructor starts the fork server of the workers, which imports their modules meanwhile,
    and does no other I/O; the first `iter()` starts the workers and, if there is none, the engine. One iterator at a
    time: a new one ends the last, whose `next` then raises; for two iterators make two loaders. Used by one thread.
    Close it, or use it as a context manager; garbage collection closes it too. Closed or forked, it raises ClosedError.

    Args:
        dataset: Samples that are read. Several loaders may iterate over it at the same time.
        batch_size: Samples per batch of this rank.
        num_workers: Number of worker processes; with 0 everything happens in `next()`. One starts at once, each
            further one when a batch could be made and all workers are busy.
        drop_last: Whether an incomplete last batch is left out, as `Order(last_batch="drop")` of the dataset, which
            also has other choices: by default it is short on one rank, and filled with repeats on several.
        device: Target of the batches, or None for no copies. Copies run on a separate stream, two batches ahead.
        device_transform: Function that is called with each batch on the device, e.g.
            `streamer.loader.device.Normalize`.
        collate_fn: Function that makes a batch of a list of samples, by default like `default_collate`, in the workers.
        ragged: Fields that come as `Ragged`, all values one after the other: arrays of different lengths, as boxes, or
            encoded files for decoders on the GPU, with `decode={"jpg": None}`.
        worker_type: "process", or "thread" for threads of the trainer's own process: only `rng` is then reproducible,
            because the threads share the global generators, which are not seeded; and they share one transform.
        prefetch_batches: Number of batches begun and not yet taken, by default 8 per worker, at most 48.
        ring_bytes: Memory of the ring, by default a twentieth of the machine's or cgroup's, at most 2 GiB.
        timeout: Seconds for a sample before its process is replaced, or its thread ends the run; 0 means never.
        report_every: Seconds between two stall reports in the log (`streamer.loader.stall`), or None for no report.
        on_report: Function that is called with each report, on a thread of its own. Its errors are logged.
        torch_arguments: Other arguments of torch's DataLoader. With `pin_memory=` None, "auto" or True the ring is
            registered with CUDA if there is CUDA; with "required" it is an error if that fails; with False it is not.
            With `multiprocessing_context="forkserver"`, the default, processes are forked in milliseconds from one that
            has imported the modules of your code, and share its memory; with "spawn" they are new interpreters. For any
            other argument the error names the replacement.

    Raises:
        ConfigError: an invalid value, `device="cuda"` without CUDA, or workers that this system cannot start.
    """

    @check_arguments("StreamingDataLoader")
    def __init__(
        self,
        dataset: EpochDataset,
        batch_size: int = 1,
        num_workers: int = 0,
        *,
        drop_last: bool = False,
        device: str | torch.device | None = None,
        device_transform: Callable[[object], object] | None = None,
        collate_fn: Collate | None = None,
        ragged: Sequence[str] = (),
        worker_type: WorkerType = "process",
        prefetch_batches: int | None = None,
        ring_bytes: int | str | None = None,
        timeout: float = 0,
        report_every: float | None = 30.0,
        on_report: OnReport | None = None,
        **torch_arguments: object,
    ) -> None:
        taken = check_torch_arguments(torch_arguments)
        self._dataset = dataset
        self._source = find_opening(dataset)
        workers = make_worker_config(num_workers, worker_type, taken.start, (*self._source.user_code, collate_fn))
        if workers is not None and workers.start == "forkserver" and workers.worker_type == "process":
            fork_server(workers.modules)
        self._settings = LoaderSettings(
            batch_size=at_least("batch_size", batch_size, 1),
            workers=workers,
            last_batch="drop" if flag("drop_last", drop_last) else self._source.last_batch,
            device=check_device(device),
            device_transform=check_device_step(device_transform),
            collate_fn=function("collate_fn", collate_fn),
            ragged=check_ragged(ragged, collate_fn),
            span=choose_span(prefetch_batches, workers),
            ring_bytes=choose_ring_bytes(ring_bytes),
            timeout=seconds("timeout", timeout),
            pin=taken.pin,
            report_every=report_every,
            on_report=on_report,
        )
        self.repeated: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        """bool (samples,): which samples of the last delivered batch are repeats."""
        self._ledger = SkipLedger(0)
        self._audit = AuditRecords()
        self._delivered = 0
        self._last: Delivery | None = None
        # The state that was loaded, and whether strictly; None once a batch was delivered.
        self._loaded: tuple[dict[str, object], bool] | None = None
        self._agreement = Agreement.PENDING
        # The error of a loaded state, which the next iter() raises on all ranks.
        self._failure: StreamerError | None = None
        self._prepared: RankStream | None = None
        # The stream before the data changed.
        self._before: RankStream | None = None
        self._edition = 0
        self._cursor = EpochCursor()
        self._supply_owner = SupplyOwner(self._settings)
        self._clock = TrainerClock()
        self._reported = Snapshot()
        self._pid = os.getpid()
        self._closed = False
        # A weak reference to the last iterator, which holds the loader: both end at once when they are dropped.
        self._running: Callable[[], Epoch | None] = lambda: None
        self._accelerate = AccelerateEpochs()

    def __repr__(self) -> str:
        epoch, batch = self._cursor.position
        state = "closed" if self._closed else f"epoch={epoch}, batch={batch}"
        return f"StreamingDataLoader(batch_size={self.batch_size}, workers={self._settings.workers}, {state})"

    @property
    def dataset(self) -> EpochDataset:
        """The dataset that is read.

        Raises:
            ConfigError: accelerate asks for it, to make a loader of its own.
        """
        refuse_other_loader()
        return self._dataset

    def __len__(self) -> int:
        """Returns the number of batches of this rank in the next epoch. Does not need the other ranks."""
        self._drop_for_new_rank()
        return self._count_batches(self._cursor.start[0])

    def __enter__(self) -> StreamingDataLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @name_limits()
    def __iter__(self) -> Iterator[object]:
        """Begins the next epoch, or continues from a loaded state.

        Collective the first time, after a load, after the data changed, and always with `Index(on_change="refresh")`.

        Raises:
            StreamerError: dataset, order or state do not match or cannot be read; on all ranks of torch.distributed.
        """
        self._check_usable()
        if (requested := self._source.take_epoch()) is not None:
            self.set_epoch(requested)
        self._check_changes()
        self._drop_for_new_rank()
        if self._agreement is not Agreement.AGREED:
            try:
                self._compare_ranks()
            except BaseException:
                self._end_supply()
                raise
        epoch, batch = self._cursor.find_start(self._count_batches)
        self._cursor.begin(epoch, batch)
        self._accelerate.begin()
        if (running := self._running()) is not None:
            running.supersede()
        self._clock.pause()
        reporter = self._begin_supply()
        self._supply_owner.enter(epoch, batch, self._count_batches)
        if reporter is not None:
            # It starts after the first request for a batch: with all cores busy a thread takes 6 ms (2026-11-22).
            reporter.start()
        iterator = Epoch(
            self._supply_owner,
            self._count_batches(epoch) - batch,
            self._clock,
            check=self._check_rank,
            note_delivery=self._note_delivery,
            finish=self._finish_epoch,
        )
        self._running = weakref.ref(iterator)
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next `iter()`, 0 to 2^32 - 1 (else ConfigError); a loaded state inside it is kept."""
        self._cursor.set_epoch(check_epoch(epoch))

    def state_dict(self) -> dict[str, object]:
        """Returns the state to save: the position after the last delivered batch, and records for `streamer audit`."""
        if self._last is None:
            self._drop_for_new_rank()
        state = self._prepare().state(*self._cursor.position)
        self._audit.log(state, self._cursor.position)
        return self._audit.save(state)

    def load_state_dict(self, state: Mapping[str, object], strict: bool = True) -> None:
        """Continues where the state was saved, on any number of ranks with a matching batch size.

        Args:
            state: State of an earlier run.
            strict: Whether the order must be the same; for a `MixedDataset`, see its `load_state_dict`.

        Raises:
            StreamerError: the state is of another dataset, order or seed (StateError), or the dataset cannot be opened.
                With several ranks, the next `iter()` raises it, on all of them.
            StateError: `state` is no state, or with `strict` that of a loop inside a batch.
        """
        self._check_usable()
        check_state(state, between_batches=strict)
        self._end_supply()
        self._agreement = Agreement.RESUMED
        self._failure = None
        self._last = None
        self._loaded = None
        self._drop_for_new_rank()
        self._loaded = dict(state), strict
        self._resume(*self._loaded)
        self._cursor.drop_request()

    def headspace(self, *arguments: object, **options: object) -> Never:
        """Raises ConfigError, which says what to write instead."""
        refuse_method("StreamingDataLoader", "headspace")

    def close(self) -> None:
        """Ends workers, thread and session; batches already delivered stay valid. Idempotent."""
        self._closed = True
        self._end_supply()

    # ------------------------------------------------------------ before an epoch

    def _resume(self, state: dict[str, object], strict: bool) -> None:
        """Begins at a loaded state. With several ranks an error is raised by the next `iter()`, on all of them."""
        try:
            self._supply_owner.start_workers()
            prepared = self._prepare()
            self._cursor.resume(prepared.resume(state) if strict else prepared.adopt(state))
            # A mix that has changed has another order, which its old records do not fit.
            self._audit.load(state if strict else {})
        except StreamerError as error:
            if not self._source.compares:
                raise
            self._failure = error

    def _check_changes(self) -> None:
        """Drops what was prepared, and ends the supply, if the data have changed; may list them first (`refresh`)."""
        if self._cursor.start[1]:
            return
        # The first epoch of a later loader is not the first one of the data; a state must fit the data as they are.
        if self._source.refreshes and self._source.begun and self._agreement is not Agreement.RESUMED:
            self._source.refresh()
        # It may be that `refresh` was called elsewhere: by the user, or by another loader of this dataset.
        if self._prepared is not None and self._edition != self._source.edition:
            self._end_supply()
            self._before = self._prepared
            self._drop_stream()

    def _drop_for_new_rank(self) -> None:
        """Drops what was prepared for another rank: a process group may begin after `len` or `load_state_dict`.

        A loaded state is then loaded again. After the first batch another rank is a StateError: it is raised here, or
        on every rank by the next comparison, if there is one.
        """
        self._check_usable()
        if self._prepared is None or self._prepared.rank_config == (now := self._source.rank_config()):
            return
        if self._last is not None:
            self._drop_agreement()
            if self._source.compares:
                return
            check_same_rank("This StreamingDataLoader", self._prepared.place, (now.rank, now.world_size))
        self._end_supply()
        self._cursor.forget_iterator()
        self._drop_stream()
        self._failure = None
        if self._loaded is not None:
            requested = self._cursor.requested
            self._resume(*self._loaded)
            self._cursor.restore_request(requested)

    def _drop_stream(self) -> None:
        self._prepared = None
        self._drop_agreement()

    def _drop_agreement(self) -> None:
        """Lets the next `iter()` compare the ranks; that a state was loaded since the last comparison stays known."""
        if self._agreement is Agreement.AGREED:
            self._agreement = Agreement.PENDING

    def _compare_ranks(self) -> None:
        """Prepares and compares the ranks, while workers start; begins the ledger of skipped samples. Collective."""
        self._source.prepare_and_share(self._prepare_to_compare, "epoch {}, batch {}".format(*self._cursor.start))
        self._agreement = Agreement.AGREED
        self._source.begun = True
        prepared = self._prepare()
        self._source.note_rank(prepared)
        rules = prepared.skip_rules
        shared = prepared.open_budget() if rules.on_error == "skip" else None
        if shared is not None:
            shared.spend(len(self._ledger.entries))
        self._ledger = SkipLedger(rules.budget, shared, self._ledger.entries)
        self._delivered = 0

    def _prepare_to_compare(self) -> RankStream:
        """Starts the workers, and returns the stream; raises the error of a loaded state, or of an empty epoch."""
        # Workers start inside the collective, so that a failure to start is raised on every rank.
        self._supply_owner.start_workers()
        if self._failure is not None:
            # Raised at each iter() until another state is loaded: its traceback must not grow.
            raise self._failure.with_traceback(None)
        self._check_rank()
        if not self._count_batches(self._cursor.start[0]):
            raise make_no_batch_error(self._settings.batch_size)
        return self._prepare()

    def _count_batches(self, epoch: int) -> int:
        prepared = self._prepare()
        with self._supply_owner.planning:
            return prepared.plan(epoch).batches

    def _prepare(self) -> RankStream:
        """See `LoaderViews`; the stream goes on from the one before the data changed, if there was one."""
        self._check_usable()
        if self._prepared is None:
            self._edition = self._source.edition
            with name_limits():
                self._prepared = self._source.prepare(self._settings.batch_size, self._settings.last_batch)
            before = self._before
            self._before = None
            # Records of an earlier stream are of data that has changed, and are dropped.
            self._audit.load({})
            if before is not None:
                self._prepared.follow(before, self._cursor.start[0])
        return self._prepared

    def _begin_supply(self) -> StallReporter | None:
        """Begins the supply, if it has not begun. Returns its reporter, not started, or None if there is no new one."""
        if self._supply_owner.supply is not None:
            return None
        prepared = self._prepare()
        supply = self._supply_owner.begin(prepared)
        settings = self._settings
        if settings.report_every is None:
            return None
        reporter = StallReporter(
            self.report_since,
            prepared.rank_config.rank,
            every_seconds=settings.report_every,
            on_report=settings.on_report,
            send_report=supply.send_report,
            before=self.snapshot(),
        )
        self._supply_owner.call_before_end(reporter.stop)
        return reporter

    def _end_supply(self) -> None:
        """Ends the last iterator, the workers and the session; a later `iter()` begins them anew."""
        self._accelerate.end()
        if (running := self._running()) is not None:
            running.end()
        self._supply_owner.end()

    # ------------------------------------------------------------ during an epoch

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError("this StreamingDataLoader is closed")
        if self._pid != os.getpid():
            raise ClosedError("this StreamingDataLoader belongs to the process that made it; make one after the fork")

    def _check_rank(self) -> None:
        self._prepare().check_rank()

    def _note_delivery(self, delivery: Delivery) -> None:
        """Notes a batch that the trainer gets; raises DecodeError if more samples were skipped than the budget has."""
        if self._cursor.position == (delivery.epoch, delivery.batch + 1):
            return  # noted already, by a `next` that was interrupted (KeyboardInterrupt)
        prepared = self._prepare()
        skipped = [prepared.describe_skip(at, cause) for at, cause in delivery.skipped]
        if prepared.skip_rules.on_error == "skip":
            self._ledger.note(skipped, self._delivered, packed=not prepared.packing.replaces)
            self._ledger.check(self._delivered)
        self._delivered += 1
        self._cursor.note_delivery(delivery.epoch, delivery.batch)
        self.repeated = delivery.repeated
        self._last = delivery.drop_content()
        self._loaded = None
        self._audit.note(prepared, delivery, skipped)
        with self._supply_owner.planning:
            self._accelerate.note(prepared, delivery.epoch, delivery.batch)

    def _finish_epoch(self) -> None:
        self._accelerate.end()
        self._cursor.finish_epoch()
        self._audit.log(self._prepare().state(*self._cursor.position), self._cursor.position)
