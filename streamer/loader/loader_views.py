"""The part of a loader that only reads: statistics, reports, skipped samples, members of a mix."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from streamer.batches.samples.sent_code import send_main_by_value
from streamer.batches.skipping import SkipLedger, Skipped
from streamer.errors import StateError
from streamer.loader.delivery import Delivery
from streamer.loader.epoch_dataset import EpochDataset
from streamer.loader.feed.supply import Supply
from streamer.loader.lifecycle import SupplyOwner
from streamer.loader.options.loader_options import LoaderSettings
from streamer.loader.rank.rank_stream import RankStream
from streamer.loader.stall.report import Snapshot, StallReport, compare
from streamer.loader.stall.reporter import advised, named, snapshot
from streamer.loader.stall.stats import EngineView, LoaderStats, MemberStats, TrainerClock

V = TypeVar("V", bound="LoaderViews")
# The values of `pin_memory` of the settings.
_PINS = {"auto": "auto", "required": "required", "off": False}


class LoaderViews:
    """The part of `StreamingDataLoader` that only reads."""

    _settings: LoaderSettings
    _supply_owner: SupplyOwner
    _clock: TrainerClock
    _ledger: SkipLedger
    _reported: Snapshot
    _prepared: RankStream | None
    _position: tuple[int, int]
    _last: Delivery | None
    _loaded: tuple[dict[str, object], bool] | None
    _start: tuple[int, int]
    _dataset: EpochDataset

    def __reduce__(self) -> tuple[object, ...]:
        """Sends the loader to another process, as one that has not begun; workers, ring and engine stay here."""
        loaded = self._loaded is not None
        described = _describe(self._settings, self._start[0], loaded=loaded)
        return rebuild, (type(self), self._dataset, described)

    @property
    def sources(self) -> npt.NDArray[np.int16]:
        """int16 (samples,): of a mix, the number of the member of each sample of the last delivered batch.

        Raises:
            ConfigError: the dataset is not a `MixedDataset`.
        """
        return batch_sources(self._prepare(), self._last)

    @property
    def admissions(self) -> list[int]:
        """Of a growing dataset: how many cohorts of samples each round has added so far. Fixes the order of the run.

        `Growing(..., grow=loader.admissions)` repeats it. A state has them, too.

        Raises:
            ConfigError: the dataset does not grow.
        """
        prepared = self._prepare()
        with self._supply_owner.planning:
            return prepared.admissions

    @property
    def skipped(self) -> list[Skipped]:
        """With on_error="skip": the samples of this rank that could not be made, with key and cause."""
        return list(self._ledger.entries)

    def report(self) -> StallReport:
        """The stall report since the last call: waiting, bottleneck and advice; any thread."""
        report, self._reported = self.report_since(self._reported)
        return report

    def report_since(self, before: Snapshot) -> tuple[StallReport, Snapshot]:
        """The stall report since a snapshot, and the current snapshot; any thread."""
        now = self.snapshot()
        return self.name_samples(compare(before, now)), now

    def snapshot(self) -> Snapshot:
        """The current counts, for `compare`; any thread."""
        stats = self.stats()
        supply = self._supply
        return snapshot(stats, self._clock, None if supply is None else supply.head, self._settings.worker_count)

    def name_samples(self, report: StallReport) -> StallReport:
        """The report with the name of its slowest sample, and advice that depends on the data."""
        if (prepared := self._prepared) is None:
            return report
        return advised(named(report, prepared.sample_key), (each.decode_cost for each in prepared.members.each))

    def stats(self) -> LoaderStats:
        """The statistics so far. Requests the engine's view, and waits for it half a second at most."""
        # The engine first, so that the counts include the time of this request.
        engine = None if (supply := self._supply) is None else supply.engine_view()
        counts = self._supply_owner.counts(self._clock)
        with self._supply_owner.planning:
            members = member_stats(self._prepared, self._position, self._ledger.entries, engine)
            growing = None if self._prepared is None else self._prepared.growing_stats(*self._position)
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

    @property
    def _supply(self) -> Supply | None:
        return self._supply_owner.supply

    @abstractmethod
    def _prepare(self) -> RankStream:
        """Prepares the dataset, once."""


def batch_sources(prepared: RankStream, delivery: Delivery | None) -> npt.NDArray[np.int16]:
    """int16 (samples,): number of the member of each sample of a batch; empty before the first one.

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
    # As `BatchMaker` fills: each missing sample is replaced by the next one that is there.
    missing = np.isin(codes, [code for code, _ in delivery.skipped])
    there = np.flatnonzero(~missing)
    after = np.searchsorted(there, np.flatnonzero(missing)) % len(there)
    sources[missing] = sources[there[after]]
    return sources


def member_stats(
    prepared: RankStream | None, position: tuple[int, int], skipped: Sequence[Skipped], engine: EngineView | None
) -> Mapping[str, MemberStats]:
    """Returns the statistics of each member of a mix at an epoch and its next batch; {} for one dataset."""
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


def _describe(settings: LoaderSettings, epoch: int, *, loaded: bool) -> bytes:
    """Returns what makes the same loader in another process of its dataset.

    Args:
        settings: Arguments of the loader.
        epoch: The epoch of its next `iter()`.
        loaded: Whether it has a state from which it has not read yet.

    Raises:
        StateError: it has.
    """
    if loaded:
        raise StateError(
            "this StreamingDataLoader has loaded a state, and a copy in another process would begin elsewhere: send "
            "the state along, and call load_state_dict there"
        )
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
        "reports": settings.reports,
        "pin_memory": _PINS[settings.pin],
        "multiprocessing_context": None if workers is None else workers.start,
    }
    send_main_by_value()
    # cloudpickle: functions may be lambdas or live in a notebook.
    described: bytes = cloudpickle.dumps((arguments, epoch))
    return described


def rebuild(kind: type[V], dataset: EpochDataset, described: bytes) -> V:
    """Makes the loader of another process again."""
    arguments: dict[str, Any]
    arguments, epoch = cloudpickle.loads(described)
    loader: Any = kind(dataset, **arguments)  # type: ignore[call-arg]
    if epoch:
        loader.set_epoch(epoch)
    return loader  # type: ignore[no-any-return]
