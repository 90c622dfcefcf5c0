"""What a loader shows of itself: statistics, reports, skipped samples, members of a mix."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamer.errors import ConfigError
from streamer.loader.contracts import PreparedStream
from streamer.loader.delivery import Delivery
from streamer.loader.feed.supply import Supply
from streamer.loader.lifecycle import SupplyOwner
from streamer.loader.mix_view import batch_sources, member_stats
from streamer.loader.options import LoaderSettings
from streamer.loader.rank.growing.prepared import GrowingPrepared
from streamer.loader.skipping import SkipLedger, Skipped
from streamer.loader.stall.report import Snapshot, StallReport, compare
from streamer.loader.stall.reporter import engine_view, named, snapshot
from streamer.loader.stall.stats import LoaderStats, TrainerClock


class LoaderViews:
    """The part of `StreamingDataLoader` that only reads."""

    _settings: LoaderSettings
    _supply_owner: SupplyOwner
    _clock: TrainerClock
    _ledger: SkipLedger
    _reported: Snapshot
    _prepared: PreparedStream | None
    _position: tuple[int, int]
    _last: Delivery | None

    @property
    def sources(self) -> npt.NDArray[np.int16]:
        """int16 (samples,): of a mix, the number of the member of each sample of the last delivered batch.

        Raises:
            ConfigError: the dataset is no `MixedDataset`.
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
        if not isinstance(prepared, GrowingPrepared):
            raise ConfigError("admissions is for a dataset with growing=", field="admissions")
        with self._supply_owner.planning:
            return prepared.admissions

    @property
    def skipped(self) -> list[Skipped]:
        """With on_error="skip": the samples of this rank that were replaced, with key and cause."""
        return list(self._ledger.entries)

    def report(self) -> StallReport:
        """The stall report since the last call: waiting, bottleneck and advice; any thread."""
        before, self._reported = self._reported, self.snapshot()
        return self.name_samples(compare(before, self._reported))

    def snapshot(self) -> Snapshot:
        """The current counts, for `compare`; any thread."""
        return snapshot(self.stats(), self._clock, self._supply, self._settings.worker_count)

    def name_samples(self, report: StallReport) -> StallReport:
        """The report with the name of its slowest sample."""
        return report if self._prepared is None else named(report, self._prepared.sample_key)

    def stats(self) -> LoaderStats:
        """The statistics so far. Requests the engine's view, and waits for it half a second at most."""
        # The engine first, so that the counts include the time of this request.
        engine = engine_view(supply) if (supply := self._supply) is not None else None
        counts = self._supply_owner.counts(self._clock)
        with self._supply_owner.planning:
            members = member_stats(self._prepared, self._position, self._ledger.entries, engine)
            prepared, place = self._prepared, self._position
            growing = prepared.statistics(*place) if isinstance(prepared, GrowingPrepared) else None
        return replace(counts, engine=engine, skipped=len(self._ledger.entries), members=members, growing=growing)

    @property
    def _supply(self) -> Supply | None:
        return self._supply_owner.supply

    @abstractmethod
    def _prepare(self) -> PreparedStream:
        """Prepares the dataset, once."""
