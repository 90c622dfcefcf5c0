"""Looks at an engine once a second for the curves of the page, and saves their history to the cache folder.

`service/lifecycle.py` calls `keep_history` if the service has a page. A look takes a tenth of a millisecond.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

from streamer.cache.policy.answers import PolicyStatistics
from streamer.engine.engine import Engine
from streamer.engine.session import EngineSession
from streamer.fetch.statistics import sum_statistics
from streamer.service.history.history import History, RankKey, RankSample
from streamer.service.recent_warnings import RecentWarnings

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
SAVE_SECONDS = 60.0
# A look that comes late, because the machine was busy, also counts for the seconds before it. It counts only for its
# own second if it comes after more than so many.
_MAX_LATE_SECONDS = 20
# Time for which a loader's report counts. Loaders report every 30 s unless they are told otherwise.
_REPORT_SECONDS = 90.0
_MAX_NAME_LETTERS = 120
# The name begins like that of the cache folder's marker, so that earlier versions ignore the file.
FILE_NAME = "streamer-cache.history"
_MAX_FILE_BYTES = 2 << 20


class StepPace:
    """Measures steps per second, so that the rate does not jump between 0 and 1 where a step takes several seconds.

    Args:
        steps: number of steps done at the beginning.
        now_seconds: time of the beginning, of any clock.
    """

    def __init__(self, steps: int, now_seconds: float) -> None:
        self._steps = steps
        self._at_seconds = now_seconds
        self._last = math.nan
        self._rate = math.nan

    def update(self, steps: int, now_seconds: float) -> float:
        """Returns the steps per second between the last two changes of their number; NaN before the first.

        While the number does not change, the rate falls once the last change would have been due again.

        Args:
            steps: number of steps done now.
            now_seconds: time, of the same clock.
        """
        elapsed = max(1e-9, now_seconds - self._at_seconds)
        if steps <= self._steps:
            return min(self._rate, self._last / elapsed)
        self._last = steps - self._steps
        self._rate = self._last / elapsed
        self._steps = steps
        self._at_seconds = now_seconds
        return self._rate


class SessionWatch:
    """Measures the rates of one session between two looks.

    Args:
        session: open session.

    Attributes:
        key: job, consumer and dataset, which name the rank on the page.
        loader: job, stream and dataset, which all ranks of a loader have in common.
    """

    def __init__(self, session: EngineSession) -> None:
        request = session.request
        names = (request.job, request.consumer, request.stream, request.dataset)
        job, consumer, stream, dataset = (name[:_MAX_NAME_LETTERS] for name in names)
        self.key: RankKey = (job, consumer, dataset)
        self.loader = (job, stream, dataset)
        now = session.engine_now()
        # Samples of a batch of this consumer, which is a step; 0 if the client has not told them.
        self._batch_samples = request.global_batch / request.world_size if request.world_size else 0.0
        self._pace = StepPace(session.progress.done, now)
        self._looked_at = now
        self._waited_seconds = session.waiting.seconds(now)

    def look(self, session: EngineSession) -> RankSample:
        """Returns the rates since the last look, and the loader's last report if it is not too old."""
        now = session.engine_now()
        waited_seconds = session.waiting.seconds(now)
        elapsed = now - self._looked_at
        share = (waited_seconds - self._waited_seconds) / elapsed if elapsed > 0 else math.nan
        self._waited_seconds = waited_seconds
        self._looked_at = now
        steps = self._pace.update(session.progress.done, now)
        finding = session.finding
        fresh = finding is not None and now - session.finding_at < _REPORT_SECONDS
        return RankSample(
            samples=steps * self._batch_samples if self._batch_samples else math.nan,
            waiting=share,
            loader=finding.waiting_share if finding is not None and fresh else math.nan,
        )


class Recorder:
    """Fills a history with what an engine does. Lives on the engine's loop.

    Args:
        engine: open engine.
        history: history to fill.
        warnings: warnings of this process.
        clock: returns the Unix time.
    """

    def __init__(
        self, engine: Engine, history: History, warnings: RecentWarnings, clock: Callable[[], float] = time.time
    ) -> None:
        self._engine = engine
        self._history = history
        self._warnings = warnings
        self._clock = clock
        self._counters: dict[str, float] = self._count(self._sum_fetchers(), engine.policy.statistics())
        self._looked_at = engine.now()
        self._second = int(clock())
        self._watches: dict[str, SessionWatch] = {}
        # The newest epoch of each loader.
        self._epochs: dict[tuple[str, str, str], int] = {}
        self._warned = warnings.newest()[0]

    def __repr__(self) -> str:
        return f"Recorder({self._history!r}, sessions={len(self._watches)})"

    def look(self) -> None:
        """Adds to the history what has happened since the last look: values, new epochs, and the newest warning."""
        second = int(self._clock())
        ranks = self._look_at_sessions(second)
        row = self._look_at_engine()
        row["waiting"] = max_known(rank.waiting for rank in ranks.values())
        row["samples"] = sum_known(rank.samples for rank in ranks.values())
        missed = range(self._second + 1, second) if second - self._second <= _MAX_LATE_SECONDS else ()
        for each in (*missed, second):
            self._history.add(each, row, ranks)
        self._second = second
        number, newest = self._warnings.newest()
        if newest is not None and number > self._warned:
            text = f"{newest['level']} {newest['text']}"
            self._history.marks.add(float(str(newest["at_seconds"])), "warning", text, number - self._warned)
        self._warned = number

    def _sum_fetchers(self) -> dict[str, int | float]:
        return sum_statistics([self._engine.fetchers.statistics(), self._engine.fetch_pool.statistics()])

    def _count(self, fetched: dict[str, int | float], policy: PolicyStatistics) -> dict[str, float]:
        """Returns the counters, which only grow, by the names of their series; NaN for those of peers without peers."""
        engine = self._engine
        first_bytes = engine.fetchers.first_bytes().plus(engine.fetch_pool.first_bytes())
        peers = engine.peer_statistics() if engine.peer_statistics is not None else {}
        return {
            "store_bytes": fetched["received_bytes"] - engine.manifests.traffic.read_bytes,
            "hit_bytes": policy.needed_bytes - policy.admitted_bytes,
            "needed_bytes": policy.needed_bytes,
            "peer_bytes": peers.get("peer_received_bytes", math.nan),
            "first_bytes": sum(first_bytes.counts),
            "first_byte_seconds": first_bytes.sum_seconds,
            "throttled": fetched["throttled"],
            "retries": fetched["retries"],
            "failures": fetched["failures"],
        }

    def _look_at_engine(self) -> dict[str, float]:
        """Returns the rates of the counters since the last look, requests in flight, and how full the cache is."""
        now = self._engine.now()
        seconds = max(1e-9, now - self._looked_at)
        fetched = self._sum_fetchers()
        policy = self._engine.policy.statistics()
        counters = self._count(fetched, policy)
        rates = {name: (count - self._counters[name]) / seconds for name, count in counters.items()}
        self._counters = counters
        self._looked_at = now
        taken = policy.kept_bytes + policy.transit_bytes
        return {
            **rates,
            "in_flight": float(fetched["in_flight"]),
            "fill": taken / policy.limit_bytes if policy.limit_bytes else math.nan,
        }

    def _look_at_sessions(self, second: int) -> dict[RankKey, RankSample]:
        """Returns the rates of each connected rank, over all its sessions. Adds a mark for each new epoch."""
        watches: dict[str, SessionWatch] = {}
        ranks: dict[RankKey, RankSample] = {}
        for name, session in self._engine.sessions.items():
            watch = self._watches.get(name) or SessionWatch(session)
            watches[name] = watch
            sample = watch.look(session)
            other = ranks.get(watch.key)
            ranks[watch.key] = sample if other is None else merge_samples(sample, other)
            # An epoch of a loader begins with the first of its ranks.
            epoch = session.running_epoch
            if epoch is not None and epoch > self._epochs.get(watch.loader, -1):
                self._epochs[watch.loader] = epoch
                self._history.marks.add(second, "epoch", f"epoch {epoch} of {watch.key[0] or 'a job without a name'}")
        self._watches = watches
        connected = {watch.loader for watch in watches.values()}
        self._epochs = {loader: epoch for loader, epoch in self._epochs.items() if loader in connected}
        return ranks


def merge_samples(one: RankSample, other: RankSample) -> RankSample:
    """Returns the rates of a rank with two sessions: the sum of their samples per second, the larger of each share."""
    return RankSample(
        samples=sum_known([one.samples, other.samples]),
        waiting=max_known([one.waiting, other.waiting]),
        loader=max_known([one.loader, other.loader]),
    )


def sum_known(values: Iterable[float]) -> float:
    """Returns the sum of the values that are not NaN; NaN if there are none."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) if known else math.nan


def max_known(values: Iterable[float]) -> float:
    """Returns the largest of the values that are not NaN; NaN if there are none."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)


@contextlib.asynccontextmanager
async def keep_history(engine: Engine, folder: Path, warnings: RecentWarnings) -> AsyncIterator[History]:
    """Keeps the history of an engine while the context lasts: reads it from the folder, fills it, and saves it.

    Two tasks look at the engine and write the file, which is also written at the end. If a look fails, that is logged,
    and the curves end.

    Args:
        engine: open engine.
        folder: cache folder, in which the history outlives a restart.
        warnings: warnings of this process.
    """
    history = History()
    path = folder / FILE_NAME
    again = read_history(path, history)
    history.marks.add(time.time(), "engine", "the engine started again" if again else "the engine started")
    recorder = Recorder(engine, history, warnings)

    async def look() -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                recorder.look()
            except Exception:  # an engine serves its readers, whatever is wrong with its curves
                logger.exception("the curves of the page end here")
                return

    async def save() -> None:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await asyncio.to_thread(write_history, path, history.encode())

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(work(), name=f"history: {work.__name__}") for work in (look, save)]
        try:
            yield history
        finally:
            for task in running:
                task.cancel()
            write_history(path, history.encode())


def read_history(path: Path, history: History) -> bool:
    """Fills a history from the file of an earlier engine; returns whether that could be done. Logs why it could not."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise ValueError(f"it has more than {_MAX_FILE_BYTES} bytes")
        history.restore(content)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        logger.info("the curves begin anew: %s is not used: %s", path, error)
        return False
    return True


def write_history(path: Path, content: bytes) -> None:
    """Replaces the file of a history, which only this user can read; a failure is logged, and the old file stays."""
    unfinished = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(unfinished, path)
    except OSError as error:
        logger.info("the curves will not outlive this engine: %s: %s", path, error.strerror)
        with contextlib.suppress(OSError):
            unfinished.unlink()
