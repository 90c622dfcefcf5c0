"""The always-on stall report: a line in the log per interval, the report on demand, and the step's own ceiling.

TensorBoard and W&B take two lines, `writer` and `wandb` being the user's:

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
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import msgspec

from streamer.cgroup import usable_cores
from streamer.client.oneshot import Finding
from streamer.errors import ConfigError
from streamer.loader.contracts import PreparedStream, RankedStream
from streamer.loader.stall.causes import BatchTimeline, so_far
from streamer.loader.stall.report import Snapshot, StallReport, compare
from streamer.loader.stall.stats import EngineView, LoaderStats, TrainerClock

logger = logging.getLogger("streamer.loader.stall")

# An engine on the same machine answers in milliseconds; a stopped one must not hold the trainer up for long.
ENGINE_SECONDS = 0.5
# Ranks other than the first say something when they wait for more than this.
REPORTED_SHARE = 0.1
# A callback may be at work when the loader closes.
_JOIN_SECONDS = 1.0

OnReport = Callable[[StallReport], None]


class Observed(Protocol):
    """What the report needs of a supply of batches."""

    @property
    def head(self) -> BatchTimeline | None:
        """The timeline of the batch that comes next, while it is being made."""
        ...

    def engine_values(self, timeout_seconds: float) -> Mapping[str, object] | None:
        """What the engine counts; any thread. None: there is none, or it does not answer in time."""
        ...


def engine_view(supply: Observed) -> EngineView | None:
    """What the engine says now; None: there is none, or it does not answer in time."""
    values = supply.engine_values(ENGINE_SECONDS)
    return None if values is None else EngineView.of(values)


def snapshot(stats: LoaderStats, clock: TrainerClock, supply: Observed | None, workers: int) -> Snapshot:
    """The loader at this moment; any thread."""
    waited = int(clock.waiting_seconds() * 1e9)
    head = supply.head if supply is not None else None
    return Snapshot(
        stats=stats,
        waits=clock.takes.tail(),
        steps=clock.steps.tail(),
        timings=clock.ledger.timings.tail(),
        ongoing=so_far(head, waited, time.perf_counter_ns()) if waited else {},
        workers=workers,
        cores=usable_cores(),
    )


class Reported(Protocol):
    """What the reporter asks of a loader; `StreamingDataLoader` is one."""

    def snapshot(self) -> Snapshot:
        """The loader at this moment, the engine's view included; any thread."""
        ...

    def name_samples(self, report: StallReport) -> StallReport:
        """The same report, its slowest sample with a name."""
        ...


class ReportRules(msgspec.Struct, frozen=True, kw_only=True):
    """When the reporter speaks.

    Attributes:
        seconds: between two reports; None: never.
        on_report: called with each, on the reporter's thread; what it raises is logged.
    """

    seconds: float | None = 30.0
    on_report: OnReport | None = None


class StallReporter:
    """Writes a line per interval; keeps no loader alive. Its thread ends with `stop`, or with the loader.

    A thread of its own: it also speaks while the trainer stands still in `next()`.

    Args:
        loader: what it reports on.
        rules: when.
        rank: the first one speaks always, others when they wait for more than `REPORTED_SHARE`.
        before: from where the first report counts.
    """

    def __init__(self, loader: Reported, rules: ReportRules, rank: int, before: Snapshot | None = None) -> None:
        self._loader = weakref.ref(loader)
        self._rules = rules
        self._rank = rank
        self._before = before or Snapshot()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="streamer-report", daemon=True)

    def __repr__(self) -> str:
        return f"StallReporter(every {self._rules.seconds} s, rank {self._rank}, alive={self._thread.is_alive()})"

    def start(self) -> None:
        """From now on."""
        self._thread.start()

    def stop(self) -> None:
        """No line after this; idempotent."""
        self._stopped.set()
        # A garbage collection may run this on any thread, this one's included.
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def report(self) -> StallReport | None:
        """Since the last one: logs it, tells the engine, calls `on_report`. None: the loader is gone."""
        loader = self._loader()
        if loader is None:
            return None
        before, self._before = self._before, loader.snapshot()
        report = loader.name_samples(compare(before, self._before))
        if report.engine is not None and report.engine.reply is not None:
            report.engine.reply(Finding(report.share, str(report.bottleneck), report.advice))
        if self._rank == 0 or report.share > REPORTED_SHARE:
            logger.info("rank %d: %s", self._rank, report)
        if self._rules.on_report is not None:
            self._rules.on_report(report)
        return report

    def _serve(self) -> None:
        while not self._stopped.wait(self._rules.seconds):
            try:
                if self.report() is None:
                    return
            except Exception:
                # A report must never end a training; the next one is tried again.
                logger.exception("the stall report failed")


def named(report: StallReport, name: Callable[[int], str]) -> StallReport:
    """The report with the name of its slowest sample."""
    sample = report.slowest_sample
    return report if sample is None else replace(report, slowest_sample=replace(sample, name=name(sample.ordinal)))


def rank_of(prepared: PreparedStream) -> int:
    """Its rank; 0 of a stream that knows no seat."""
    return prepared.rank_config.rank if isinstance(prepared, RankedStream) else 0


def report_rules(seconds: float | None, on_report: OnReport | None) -> ReportRules:
    """The rules, checked.

    Raises:
        ConfigError: an interval that is not above 0.
    """
    if seconds is not None and seconds <= 0:
        raise ConfigError(f"report_seconds={seconds:g} is not above 0", field="report_seconds")
    return ReportRules(seconds=seconds, on_report=on_report)
