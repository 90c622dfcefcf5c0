"""Reports at intervals why a loader waits: a line in the log, a finding for the engine, a call of the user's function.

`loader/dataloader.py` starts a `StallReporter`; `loader/loader_views.py` makes the reports, those on demand, too. With
TensorBoard (`writer`) and W&B (`wandb`):

    steps = itertools.count()
    loader = StreamingDataLoader(..., on_report=lambda report: [
        writer.add_scalar(name, value, next(steps)) for name, value in report.scalars().items()])

    loader = StreamingDataLoader(..., on_report=lambda report: wandb.log(report.scalars()))
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from streamer.base.cgroup import idle_core_seconds, usable_cores
from streamer.batches.causes import BatchTimeline, so_far
from streamer.loader.stall.advice import Bottleneck
from streamer.loader.stall.report import Snapshot, StallReport
from streamer.loader.stall.stats import LoaderStats, TrainerClock
from streamer.wire.messages import PackedRows, ReportFinding

if TYPE_CHECKING:
    from streamer.formats.base import DecodeCost

logger = logging.getLogger("streamer.loader.stall")

# A report of a larger share of waiting is a warning, and is logged by all ranks, not by rank 0 alone.
REPORTED_SHARE = 0.1
# `stop` waits for the thread at most this long, in which a function of the user may be running.
_JOIN_SECONDS = 1.0

OnReport = Callable[[StallReport], None]
ReportSince = Callable[[Snapshot], tuple[StallReport, Snapshot]]


def snapshot(stats: LoaderStats, clock: TrainerClock, head: BatchTimeline | None, workers: int) -> Snapshot:
    """Returns a snapshot of a loader; any thread.

    Args:
        stats: Statistics of the loader.
        clock: Clock of its trainer.
        head: Timeline of the next batch while it is being made, or None.
        workers: Number of workers.
    """
    waited = int(clock.measure_wait_seconds() * 1e9)
    now = time.monotonic()
    return Snapshot(
        stats=stats,
        waits=clock.takes.tail(),
        steps=clock.steps.tail(),
        timings=clock.ledger.timings.tail(),
        ongoing=so_far(head, waited, time.perf_counter_ns()) if waited else {},
        workers=workers,
        cores=usable_cores(),
        at=now,
        idle_core_seconds=idle_core_seconds(now),
    )


@dataclass(frozen=True)
class Reports:
    """Holds `report_every=` and `on_report=` of a loader together, as its old argument `reports=` had them.

    Args:
        seconds: Interval of the reports, or None for no report.
        call: Function that is called with each report.
    """

    seconds: float | None = 30.0
    call: OnReport | None = None


class StallReporter:
    """Reports at intervals, on a thread of its own, so that it reports also while the trainer blocks in `next()`.

    It holds only a weak reference to the loader. The thread ends with `stop`, or when the loader is gone.

    Args:
        report_since: Method of the loader that returns the report since a snapshot, and the current snapshot.
        rank: Number of this rank: 0 always logs, others if they wait for more than `REPORTED_SHARE`.
        every_seconds: Interval of the reports.
        on_report: Function that is called with each report.
        send_report: Function that sends a finding to the engine, or None if there is no engine to tell.
        before: Snapshot at which the first report begins, or None for the begin of the loader.
    """

    def __init__(
        self,
        report_since: ReportSince,
        rank: int,
        *,
        every_seconds: float = 30.0,
        on_report: OnReport | None = None,
        send_report: Callable[[ReportFinding], object] | None = None,
        before: Snapshot | None = None,
    ) -> None:
        self._report_since = weakref.WeakMethod(report_since)
        self._every_seconds = every_seconds
        self._on_report = on_report
        self._send_report = send_report
        self._rank = rank
        self._before = before or Snapshot()
        self._warned: Bottleneck | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="streamer-report", daemon=True)

    def __repr__(self) -> str:
        return f"StallReporter(every {self._every_seconds} s, rank {self._rank}, alive={self._thread.is_alive()})"

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the reports; waits a second at most for one that is being made. Idempotent."""
        self._stopped.set()
        # A garbage collection may call this on any thread, including this one.
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def report(self) -> StallReport | None:
        """Reports the time since the last report to engine, log and `on_report`; raises what that function raises.

        Returns the report, or None if the loader is gone.
        """
        if (report_since := self._report_since()) is None:
            return None
        report, self._before = report_since(self._before)
        if report.engine is not None and self._send_report is not None:
            made = report.packing
            all_rows = self._before.stats.packing
            rows = None
            if made is not None and all_rows is not None:
                # The tokens are those of all rows so far.
                rows = PackedRows(max(0.0, made.padding), made.cost_spread, all_rows.tokens, made.left_out)
            self._send_report(
                ReportFinding.make(report.share, bottleneck=str(report.bottleneck), advice=report.advice, rows=rows)
            )
        if self._rank == 0 or report.share > REPORTED_SHARE:
            # A bottleneck is a warning once, until there is another one.
            bottleneck = report.bottleneck if report.share > REPORTED_SHARE else None
            level = logging.INFO if bottleneck in (None, self._warned) else logging.WARNING
            self._warned = bottleneck
            logger.log(level, "rank %d: %s", self._rank, report, extra=report.attributes())
        if self._on_report is not None:
            self._on_report(report)
        return report

    def _serve(self) -> None:
        """Reports at intervals until `stop`, or until the loader is gone; an error of a report is logged."""
        while not self._stopped.wait(self._every_seconds):
            try:
                if self.report() is None:
                    return
            except Exception:
                # A report must never end a training; the next one may succeed.
                logger.exception("the stall report failed")


def name_sample(report: StallReport, name: Callable[[int], str]) -> StallReport:
    """Returns a report with the name of its slowest sample.

    Args:
        report: Report of one loader.
        name: Returns the name of a sample by its code.
    """
    sample = report.slowest_sample
    return report if sample is None else replace(report, slowest_sample=replace(sample, name=name(sample.ordinal)))


def add_decode_advice(report: StallReport, costs: Iterable[DecodeCost | None]) -> StallReport:
    """Returns the report with what would make samples cheaper to decode, if decoding limits the training.

    Args:
        report: Report of one loader.
        costs: Cost of decoding a sample of each dataset, or None if it is not known; read only if decoding limits.
    """
    if report.bottleneck is not Bottleneck.DECODE:
        return report
    found = [cost.advice for cost in costs if cost is not None and cost.advice]
    return replace(report, advice="; ".join([report.advice, *found]))
