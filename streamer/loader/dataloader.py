"""`StreamingDataLoader`: what the training loop iterates over."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Never

import numpy as np
import numpy.typing as npt

from streamer.base.system_limits import name_limits
from streamer.batches.checks import at_least, check_state, flag, function, refuse_method, seconds
from streamer.batches.checks import epoch as check_epoch
from streamer.batches.contracts import Collate
from streamer.batches.skipping import SkipLedger
from streamer.batches.torch_arguments import check_torch_arguments
from streamer.batches.workers.fork_server import fork_server
from streamer.batches.workers.pool import WorkerType
from streamer.errors import ClosedError, StreamerError
from streamer.loader.accelerate_state import AccelerateEpochs, refuse_other_loader
from streamer.loader.agreement.epoch_cell import check_same_rank
from streamer.loader.delivery import Delivery
from streamer.loader.device.prefetcher import check_device, check_device_step
from streamer.loader.epoch_dataset import EpochDataset, opening_of
from streamer.loader.epoch_iterator import EpochIterator, EpochOwner
from streamer.loader.lifecycle import SupplyOwner
from streamer.loader.loader_views import LoaderViews
from streamer.loader.options.loader_options import (
    LoaderSettings,
    no_batch,
    ragged_of,
    ring_bytes_of,
    span_of,
    worker_config,
)
from streamer.loader.rank.audit_records import AuditRecords
from streamer.loader.rank.rank_stream import RankStream
from streamer.loader.stall.report import Snapshot
from streamer.loader.stall.reporter import OnReport, Reports, StallReporter
from streamer.loader.stall.stats import TrainerClock
from streamer.loader.torch_attributes import TorchAttributes

if TYPE_CHECKING:
    import torch


class StreamingDataLoader(LoaderViews, TorchAttributes):
    """Iterates over a `StreamingDataset` in batches, made by worker processes, delivered in order.

    The batches are those of `default_collate` over the dataset's own order, for any number of workers. Their tensors
    are views on a ring of shared memory; a slot is reused when the last tensor on it is deleted. Keeping many batches
    costs speed, never correctness: `clone()` tensors that are kept for long.

    Every `iter()` is the next epoch, unless `set_epoch` was called, or no batch of the last one was requested; workers
    look ahead into it. The constructor starts the fork server of the workers, which imports their modules meanwhile,
    and does no other I/O; the first `iter()` starts the workers and, if there is none, the engine. One iterator at a
    time: a new one ends the last, whose `next` then raises; for two iterators make two loaders. Used by one thread.
    Close it, or use it as a context manager; garbage collection closes it too.

    Args:
        dataset: the samples. Several loaders may iterate over it at the same time.
        batch_size: samples per batch of this rank.
        num_workers: worker processes; 0: everything happens in `next()`. One starts at once, each further one when a
            batch could be made and all workers are busy.
        drop_last: leave out an incomplete last batch, as `Order(last_batch="drop")` of the dataset, which also has
            other choices: by default it is short on one rank, and filled with repeats on several.
        device: the target of the batches; copies run on a separate stream, two batches ahead. None: no copies.
        device_transform: called with each batch on the device, e.g. `streamer.loader.device.Normalize`.
        collate_fn: list of samples -> batch; default: like `default_collate`. Runs in the workers.
        ragged: fields that come as `Ragged`, all values one after the other: arrays of different lengths, as boxes, or
            encoded files for decoders on the GPU, with `decode={"jpg": None}`.
        worker_type: "process", or "thread" for threads of the trainer's own process: only `rng` is then reproducible,
            because the threads share the global generators, which are not seeded; and they share one transform.
        prefetch_batches: batches begun and not yet taken; default 8 per worker, at most 48.
        ring_bytes: memory of the ring; default: a twentieth of the machine's or cgroup's, at most 2 GiB.
        timeout: seconds that one sample may take before its worker is replaced; 0: no limit.
        reports: seconds between two stall reports in the log (`streamer.loader.stall`); None: no report; a function,
            which is called with each report; or both: `Reports`.
        torch_arguments: others of torch's DataLoader. `pin_memory`: None, "auto" or True: the ring is registered with
            CUDA where there is CUDA; "required": an error if that fails; False: not. `multiprocessing_context`:
            "forkserver" (the default): processes are forked in milliseconds from one that has imported the modules of
            your code, and share its memory; "spawn": they are new interpreters. Of the rest the error names the
            replacement.

    Raises:
        ConfigError: an invalid value; `device="cuda"` without CUDA.
    """

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
        reports: Reports | OnReport | float | None = 30.0,
        **torch_arguments: object,
    ) -> None:
        taken = check_torch_arguments(torch_arguments)
        self._dataset = dataset
        self._source = opening_of(dataset)
        workers = worker_config(num_workers, worker_type, taken.start, (*self._source.user_code, collate_fn))
        if workers is not None and workers.start == "forkserver" and workers.worker_type == "process":
            fork_server(workers.modules)
        self._settings = LoaderSettings(
            batch_size=at_least("batch_size", batch_size, 1),
            workers=workers,
            last_batch="drop" if flag("drop_last", drop_last) else self._source.last_batch,
            device=check_device(device),
            device_transform=check_device_step(device_transform),
            collate_fn=function("collate_fn", collate_fn),
            ragged=ragged_of(ragged, collate_fn),
            span=span_of(prefetch_batches, workers),
            ring_bytes=ring_bytes_of(ring_bytes),
            timeout=seconds("timeout", timeout),
            pin=taken.pin,
            reports=Reports.of(reports),
        )
        self.repeated: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        """bool (samples,): which samples of the last delivered batch are repeats."""
        self._ledger = SkipLedger(0)
        self._audit = AuditRecords()
        self._delivered = 0
        self._last: Delivery | None = None
        # The state that was loaded, and whether strictly, until a batch was delivered.
        self._loaded: tuple[dict[str, object], bool] | None = None
        # The error that the next iter() raises on all ranks; and whether the ranks have compared since.
        self._failure: StreamerError | None = None
        self._compared = self._resumed = False
        self._prepared: RankStream | None = None
        # The stream before the data changed.
        self._before: RankStream | None = None
        self._edition = 0
        self._supply_owner = SupplyOwner(self._settings)
        self._clock = TrainerClock()
        self._reported = Snapshot()
        self._pid = os.getpid()
        self._closed = False
        self._position = (0, 0)  # of the next batch to be delivered
        # Where the next iter() begins, and whether it was set by `set_epoch`.
        self._start = (0, 0)
        self._epoch_requested = False
        self._begun: tuple[int, int] | None = None  # where the last iter() began
        # The last iterator. It holds the loader, which ends at once when both are dropped.
        self._running: Callable[[], EpochIterator | None] = lambda: None
        self._accelerate = AccelerateEpochs()

    def __repr__(self) -> str:
        s, (epoch, batch) = self._settings, self._position
        state = "closed" if self._closed else f"epoch={epoch}, batch={batch}"
        return f"StreamingDataLoader(batch_size={s.batch_size}, workers={s.workers}, {state})"

    @property
    def dataset(self) -> EpochDataset:
        """The samples.

        Raises:
            ConfigError: accelerate asks for them, to make a loader of its own.
        """
        refuse_other_loader()
        return self._dataset

    def __len__(self) -> int:
        """Batches of this rank in an epoch. Does not need the other ranks."""
        self._decide_rank()
        return self._batches(self._start[0])

    def __enter__(self) -> StreamingDataLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @name_limits()
    def __iter__(self) -> Iterator[object]:
        """Begins the next epoch, or continues from a loaded state. Collective, the first time and after a load.

        Raises:
            StreamerError: dataset, order or state do not match; on every rank if torch.distributed is initialised.
        """
        self._check_usable()
        if (requested := self._source.take_requested_epoch()) is not None:
            self.set_epoch(requested)
        self._check_changes()
        self._decide_rank()
        self._make_ready()
        epoch, batch = self._beginning()
        self._begun = self._position = epoch, batch
        self._accelerate.begin()
        self._start, self._epoch_requested = (epoch + 1, 0), False
        if (running := self._running()) is not None:
            running.supersede()
        self._clock.pause()
        reporter = self._begin_supply()
        self._supply_owner.enter(epoch, batch, self._batches)
        if reporter is not None:
            # After the first request for a batch: with all cores busy a thread takes 6 ms to start (2026-11-22).
            reporter.start()
        s, left = self._settings, self._batches(epoch) - batch
        owner = EpochOwner(
            self._ready, self._take, self._supply_owner.took, self._arrived, self._finished, self._supply_owner.failed
        )
        iterator = EpochIterator(owner, left, self._clock, self._supply_owner.mover, s.device_transform)
        self._running = weakref.ref(iterator)
        return iterator

    def _beginning(self) -> tuple[int, int]:
        """The start of the next epoch iterator."""
        if self._epoch_requested:
            return self._start
        if self._begun == self._position:
            # No batch was requested of the last iterator: the same epoch again. Lightning makes one iterator before its
            # first epoch, and one more when it resumes from a checkpoint.
            return self._begun
        epoch, batch = self._start
        return (epoch + 1, 0) if 0 < self._batches(epoch) <= batch else (epoch, batch)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next `iter()`; a loaded state inside it is kept."""
        epoch = check_epoch(epoch)
        if epoch != self._start[0]:
            self._start = (epoch, 0)
        self._epoch_requested = True

    def state_dict(self) -> dict[str, object]:
        """The position after the last delivered batch, and records for `streamer audit`. O(1)."""
        if self._last is None:
            self._decide_rank()
        prepared = self._prepare()
        state = prepared.state(*self._position)
        self._audit.log(state, self._position)
        return self._audit.save(state)

    def load_state_dict(self, state: Mapping[str, object], strict: bool = True) -> None:
        """Continues where the state was saved, on any number of ranks with a matching batch size.

        Args:
            state: State of an earlier run.
            strict: the order must be the same; False, for a `MixedDataset`: see its `load_state_dict`.

        Raises:
            StateError: the state is of another dataset, order or seed. With several ranks, the next `iter()` raises it,
                on all of them.
        """
        self._check_usable()
        check_state(state)
        self._end_supply()
        self._compared, self._resumed, self._failure = False, True, None
        self._last = self._loaded = None
        self._decide_rank()
        self._loaded = dict(state), strict
        self._resume()
        self._epoch_requested, self._begun = False, None

    def _resume(self) -> None:
        """Begins at the loaded state. An error of one rank is raised by the next `iter()`, on all of them."""
        assert self._loaded is not None
        state, strict = self._loaded
        try:
            self._supply_owner.start_workers()
            prepared = self._prepare()
            self._start = self._position = prepared.resume(state) if strict else prepared.adopt(state)
            # A mix that has changed begins another order.
            self._audit.load(state if strict else {})
        except StreamerError as error:
            if not self._source.compares:
                raise
            self._failure = error

    def headspace(self, *arguments: object, **options: object) -> Never:
        """Raises ConfigError, which says what to write instead."""
        refuse_method("StreamingDataLoader", "headspace")

    def close(self) -> None:
        """Ends workers, thread and session; batches already delivered stay valid. Idempotent."""
        self._closed = True
        self._end_supply()

    # ------------------------------------------------------------ inside

    def _decide_rank(self) -> None:
        """Prepares again where the process has become another rank since: the group came after `len`, or a state.

        After the first batch that is an error, which the next comparison raises on every rank.
        """
        self._check_usable()
        if self._prepared is None or self._prepared.rank_config == (found := self._source.rank_config()):
            return
        if self._last is not None:
            self._compared = False
            if self._source.compares:
                return
            check_same_rank("This StreamingDataLoader", self._prepared.place, (found.rank, found.world_size))
        self._end_supply()
        if self._begun is not None and self._begun == self._position:
            self._start = self._begun
        self._prepared, self._compared, self._failure, self._begun = None, False, None, None
        if self._loaded is not None:
            start, requested = self._start, self._epoch_requested
            self._resume()
            if requested and start[0] != self._start[0]:
                self._start = start

    def _begin_supply(self) -> StallReporter | None:
        """Begins the supply, if it has not begun; returns its new reporter, if any."""
        if self._supply is not None:
            return None
        prepared, rules = self._prepare(), self._settings.reports
        self._supply_owner.begin(prepared)
        if rules.seconds is None:
            return None
        reporter = StallReporter(self.report_since, rules, prepared.rank_config.rank, self.snapshot())
        self._supply_owner.until_end(reporter.stop)
        return reporter

    def _ready(self) -> int:
        self._check_usable()
        self._prepare().check_rank()
        return supply.ready if (supply := self._supply) is not None else 0

    def _take(self) -> Delivery:
        return self._supply_owner.take(self._clock)

    def _finished(self) -> None:
        self._accelerate.end()
        self._position = self._position[0] + 1, 0
        self._audit.log(self._prepare().state(*self._position), self._position)

    def _arrived(self, delivery: Delivery) -> None:
        """Delivers the next batch, unless too many samples were skipped."""
        if self._position == (delivery.epoch, delivery.batch + 1):
            return  # by a call that was interrupted
        skipped = [self._prepare().skipped(at, cause) for at, cause in delivery.skipped]
        if self._prepare().skip_rules.on_error == "skip":
            self._ledger.note(skipped, self._delivered, packed=not self._prepare().packing.replaces)
            self._ledger.check(self._delivered)
        self._delivered += 1
        self._position = delivery.epoch, delivery.batch + 1
        self.repeated = delivery.repeated
        self._last, self._loaded = delivery.without_content(), None
        self._audit.note(self._prepare(), delivery, skipped)
        with self._supply_owner.planning:
            self._accelerate.note(self._prepare(), delivery.epoch, delivery.batch)

    def _end_supply(self) -> None:
        self._accelerate.end()
        if (running := self._running()) is not None:
            running.end()
        self._supply_owner.end()

    def _check_changes(self) -> None:
        """Between epochs: prepares a dataset that has changed again, and ends its supply."""
        if self._start[1]:
            return
        # The first epoch of a later loader is not the first one of the data; a state must fit the data as they are.
        if self._source.refreshes and self._source.begun and not self._resumed:
            self._source.refresh()
        # Also if `refresh` was called elsewhere: by the user, or by another loader of this dataset.
        if self._prepared is not None and self._edition != self._source.edition:
            self._end_supply()
            self._before = self._prepared
            self._prepared, self._compared = None, False

    def _make_ready(self) -> None:
        """Prepares engine, manifest and order on all ranks, while the worker processes start."""
        if self._compared:
            return
        try:
            self._compare()
        except BaseException:
            self._end_supply()
            raise

    def _compare(self) -> None:
        self._source.compare(self._prepare_to_compare, "epoch {}, batch {}".format(*self._start))
        self._compared, self._resumed, self._source.begun = True, False, True
        self._source.note_rank(self._prepare())
        rules = self._prepare().skip_rules
        shared = self._prepare().shared_budget() if rules.on_error == "skip" else None
        if shared is not None:
            shared.spend(len(self._ledger.entries))
        self._ledger, self._delivered = SkipLedger(rules.budget, shared, self._ledger.entries), 0

    def _prepare_to_compare(self) -> RankStream:
        # Start workers inside the collective, so that a failure to start is raised on every rank.
        self._supply_owner.start_workers()
        if self._failure is not None:
            # Raised at each iter() until another state is loaded: its traceback must not grow.
            raise self._failure.with_traceback(None)
        prepared = self._prepare()
        prepared.check_rank()
        if not self._batches(self._start[0]):
            raise no_batch(self._settings.batch_size)
        return prepared

    def _batches(self, epoch: int) -> int:
        prepared = self._prepare()
        with self._supply_owner.planning:
            return prepared.plan(epoch).batches

    def _prepare(self) -> RankStream:
        self._check_usable()
        if self._prepared is None:
            self._edition = self._source.edition
            with name_limits():
                self._prepared = self._source.prepare(self._settings.batch_size, self._settings.last_batch)
            before, self._before = self._before, None
            # Of data that has changed.
            self._audit.load({})
            if before is not None:
                self._prepared.follow(before, self._start[0])
        return self._prepared

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError("this StreamingDataLoader is closed")
        if self._pid != os.getpid():
            raise ClosedError("this StreamingDataLoader belongs to the process that made it; make one after the fork")
