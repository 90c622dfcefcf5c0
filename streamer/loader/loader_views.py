"""Gives what can be read of a loader: statistics, reports, skipped samples, members of a mix, torch's attributes.

`LoaderViews` is the base class of `StreamingDataLoader` (`dataloader.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from streamer.batches.samples.sent_code import send_main_by_value
from streamer.batches.samples.units import Collate
from streamer.batches.skipping import SkipLedger, Skipped
from streamer.errors import StateError
from streamer.loader.delivery import Delivery
from streamer.loader.epoch import EpochCursor, SupplyOwner
from streamer.loader.epoch_dataset import EpochDataset
from streamer.loader.feed.supply import Supply
from streamer.loader.options.loader_options import LoaderSettings
from streamer.loader.rank.rank_stream import RankStream
from streamer.loader.stall.report import Snapshot, StallReport, compare
from streamer.loader.stall.reporter import add_decode_advice, name_sample, snapshot
from streamer.loader.stall.stats import EngineView, LoaderStats, MemberStats, TrainerClock

if TYPE_CHECKING:
    from torch.utils.data import BatchSampler

V = TypeVar("V", bound="LoaderViews")
# The values of `pin_memory` of the settings.
_PINS = {"auto": "auto", "required": "required", "off": False}


class LoaderViews:
    """Has the methods of `StreamingDataLoader` that only read. `StreamingDataLoader` sets the attributes named below.

    It has the attributes of torch's loader for an iterable dataset, with the values that fit: Lightning, DeepSpeed,
    Composer and others read batch size, workers and samplers. There is no sampler: the order belongs to the dataset, so
    they must not replace or wrap one.
    """

    _settings: LoaderSettings
    _supply_owner: SupplyOwner
    _clock: TrainerClock
    _ledger: SkipLedger
    _reported: Snapshot
    _prepared: RankStream | None
    _cursor: EpochCursor
    _last: Delivery | None
    _loaded: tuple[dict[str, object], bool] | None
    _dataset: EpochDataset

    sampler = None
    worker_init_fn = None
    generator = None
    multiprocessing_context = None
    pin_memory_device = ""
    in_order = True

    def __reduce__(self) -> tuple[object, ...]:
        """Sends the loader to another process, as one that has not begun; workers, ring and engine stay here.

        Raises:
            StateError: it has a state from which it has not read yet.
        """
        if self._loaded is not None:
            raise StateError(
                "this StreamingDataLoader has loaded a state, and a copy in another process would begin elsewhere: "
                "send the state along, and call load_state_dict there"
            )
        settings = self._settings
        workers = settings.workers
        arguments: dict[str, object] = {
            "batch_size": settings.batch_size,
            "num_workers": settings.worker_count,
            "drop_last": settings.last_batch == "drop",
            "device": settings.device,
            "device_transform": settings.device_transform,
            "collate_fn": settings.collate_fn,
            "ragged": settings.ragged,
            "worker_type": "process" if workers is None else workers.worker_type,
            "prefetch_batches": settings.span,
            "ring_bytes": settings.ring_bytes,
            "timeout": settings.timeout,
            "report_every": settings.report_every,
            "on_report": settings.on_report,
            "pin_memory": _PINS[settings.pin],
            "multiprocessing_context": None if workers is None else workers.start,
        }
        send_main_by_value()
        # cloudpickle: functions may be lambdas or live in a notebook.
        described = cloudpickle.dumps((arguments, self._cursor.start[0]))
        return rebuild_loader, (type(self), self._dataset, described)

    @property
    def sources(self) -> npt.NDArray[np.int16]:
        """The number of the member of each sample of the last delivered batch of a mix: int16 (samples,).

        Raises:
            ConfigError: the dataset is not a `MixedDataset`.
        """
        return batch_sources(self._prepare(), self._last)

    @property
    def admissions(self) -> list[int]:
        """Number of cohorts that each round of a growing dataset has added so far. These fix the order of the run.

        `Growing(..., round_bytes=loader.admissions)` repeats it. A state has them, too.

        Raises:
            ConfigError: the dataset does not grow.
        """
        prepared = self._prepare()
        with self._supply_owner.planning:
            return prepared.admissions

    @property
    def skipped(self) -> list[Skipped]:
        """Samples of this rank that could not be made and were skipped, with key and cause (`on_error="skip"`)."""
        return list(self._ledger.entries)

    def report(self) -> StallReport:
        """Returns the stall report since the last call, or since the loader began; any thread.

        Waits at most half a second for the engine, as `stats` does.
        """
        report, self._reported = self.report_since(self._reported)
        return report

    def report_since(self, before: Snapshot) -> tuple[StallReport, Snapshot]:
        """Returns the stall report since a snapshot, and the current snapshot; any thread."""
        now = self.snapshot()
        return self.name_samples(compare(before, now)), now

    def snapshot(self) -> Snapshot:
        """Returns the counts at this moment; `compare` makes a report of two of them. Any thread."""
        stats = self.stats()
        supply = self._supply
        return snapshot(stats, self._clock, None if supply is None else supply.head, self._settings.worker_count)

    def name_samples(self, report: StallReport) -> StallReport:
        """Returns a report with the name of its slowest sample, and advice that depends on the data."""
        if (prepared := self._prepared) is None:
            return report
        named = name_sample(report, prepared.sample_key)
        return add_decode_advice(named, (each.decode_cost for each in prepared.members.each))

    def stats(self) -> LoaderStats:
        """Returns the statistics so far. Requests the engine's view, and waits at most half a second for it."""
        # The engine comes first, so that the counts include the time of this request.
        engine = None if (supply := self._supply) is None else supply.engine_view()
        counts = self._supply_owner.count(self._clock)
        with self._supply_owner.planning:
            members = member_stats(self._prepared, self._cursor.position, self._ledger.entries, engine)
            growing = None if self._prepared is None else self._prepared.measure_growth(*self._cursor.position)
            if (packing := counts.packing) is not None and self._prepared is not None:
                packing = replace(packing, left_out=self._prepared.members.left_out)
        return replace(
            counts,
            engine=engine,
            skipped=len(self._ledger.entries),
            members=members,
            growing=growing,
            packing=packing,
        )

    # ------------------------------------------------------------ attributes of torch's loader

    @property
    def batch_size(self) -> int:
        """Samples per batch of this rank."""
        return self._settings.batch_size

    @property
    def num_workers(self) -> int:
        """Number of workers, or 0 if the trainer's thread makes the batches."""
        return self._settings.worker_count

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last batch is left out."""
        return self._settings.last_batch == "drop"

    @property
    def batch_sampler(self) -> BatchSampler:
        """A sampler with batch size and `drop_last`; like torch's for an iterable dataset, it has no indices."""
        from torch.utils.data import BatchSampler

        return BatchSampler(None, self.batch_size, self.drop_last)  # type: ignore[arg-type]

    @property
    def collate_fn(self) -> Collate:
        """The user's `collate_fn`, or torch's; with `ragged=` or `packing=` batches are made in another way."""
        from torch.utils.data import default_collate

        return self._settings.collate_fn or default_collate

    @property
    def pin_memory(self) -> bool:
        """Whether the ring shall be registered with CUDA (`stats().pinned`: whether it is); never without workers."""
        import torch

        return self._settings.worker_count > 0 and self._settings.pin != "off" and torch.cuda.is_available()

    @property
    def persistent_workers(self) -> bool:
        """Whether there are workers: they run as long as the loader."""
        return self._settings.worker_count > 0

    @property
    def prefetch_factor(self) -> int | None:
        """Number of batches per worker that may be begun and not yet taken, or None without workers."""
        workers = self._settings.worker_count
        return max(1, self._settings.span // workers) if workers else None

    @property
    def timeout(self) -> float:
        """Seconds that one sample may take, or 0 without a limit."""
        return self._settings.timeout

    # ------------------------------------------------------------ inside

    @property
    def _supply(self) -> Supply | None:
        return self._supply_owner.supply

    @abstractmethod
    def _prepare(self) -> RankStream:
        """Returns the stream of this rank; the first call prepares it, which does I/O."""


def batch_sources(prepared: RankStream, delivery: Delivery | None) -> npt.NDArray[np.int16]:
    """Returns the number of the member of each sample of a batch, int16 (samples,); empty before the first one.

    Raises:
        ConfigError: this is not a mix.
    """
    prepared.check_sources()
    if delivery is None:
        return np.empty(0, np.int16)
    codes = prepared.ordinals(delivery.epoch, delivery.batch)
    sources = prepared.sources(delivery.epoch, delivery.batch)
    if not delivery.skipped or not prepared.packing.replaces:
        return sources
    # A missing sample is replaced by the next one that is there, as `BatchMaker` does.
    missing = np.isin(codes, [code for code, _ in delivery.skipped])
    there = np.flatnonzero(~missing)
    after = np.searchsorted(there, np.flatnonzero(missing)) % len(there)
    sources[missing] = sources[there[after]]
    return sources


def member_stats(
    prepared: RankStream | None, position: tuple[int, int], skipped: Sequence[Skipped], engine: EngineView | None
) -> Mapping[str, MemberStats]:
    """Returns the statistics of each member of a mix, by name; empty for one dataset, or before it is prepared.

    Args:
        prepared: The stream, or None if it is not prepared.
        position: Epoch, and number of the batch that is delivered next.
        skipped: Samples that this rank has skipped.
        engine: The engine's view, or None if it has not answered.
    """
    if prepared is None:
        return {}
    drawn = prepared.count_drawn(*position)
    total = max(1, sum(count.drawn for count in drawn.values()))
    counts = Counter(entry.member for entry in skipped)
    return {
        name: MemberStats(
            drawn=count.drawn,
            passes=count.drawn / count.samples,
            share=count.drawn / total,
            skipped=counts[name],
            engine=None if engine is None else engine.parts.get(name),
        )
        for name, count in drawn.items()
    }


def rebuild_loader(kind: type[V], dataset: EpochDataset, described: bytes) -> V:
    """Makes the loader that another process has sent; pickle calls it.

    Args:
        kind: Class of the loader.
        dataset: Dataset of the loader.
        described: Its other arguments and its epoch, pickled.
    """
    arguments: dict[str, Any]
    arguments, epoch = cloudpickle.loads(described)
    loader: Any = kind(dataset, **arguments)  # type: ignore[call-arg]
    if epoch:
        loader.set_epoch(epoch)
    return loader  # type: ignore[no-any-return]
