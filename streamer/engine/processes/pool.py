"""Starts and ends an engine's fetch processes by load, gives them chunks by due time; used by `engine/bring.py`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Self

import msgspec

from streamer.base.cgroup import idle_core_seconds, usable_cores
from streamer.base.child import RestartPauses
from streamer.cache.folder import CacheFolder
from streamer.config import FetchConfig
from streamer.engine.processes.messages import Bring, OpenDataset, Setup
from streamer.engine.processes.policy import (
    Load,
    ProcessCount,
    Refusals,
    count_max_processes,
    limit_loop,
    limit_process,
)
from streamer.engine.processes.process import FetchProcess, LocalError, ProcessEndedError, SharedBytes
from streamer.errors import BrokenError, StreamerError
from streamer.fetch.concurrency import FetchLimits
from streamer.fetch.endpoint import AGAIN_SECONDS
from streamer.fetch.fair_gate import Due, FairGate, Owner, WaitQueue
from streamer.fetch.fetcher_set import FetcherSet
from streamer.fetch.statistics import COUNTS, Histogram, sum_statistics

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
# A process that has chunks and sends nothing for this long is killed, because it should report once a second. The time
# is counted in looks, of which there are none while this process is stopped.
SILENT_SECONDS = 6.0
# A process that is not ready after this time is killed. It takes 0.4 s of CPU (2026-11-25), longer if cores are busy.
START_SECONDS = 60.0
# A process is given chunks with so many windows of requests at once: a window grows only while requests wait for it.
HANDED_WINDOWS = 2
# Waiting chunks are ordered again after this time; with 0.05 s, 250 of them took half of the loop's work (2026-11-26).
QUEUE_FRESH_SECONDS = 0.25
# The engine's loop fetches a chunk by itself after this many processes ended while they had it. After the first one,
# such chunks are tried one at a time. After CRASHES_IN_COMPANY, a process without other chunks tries (isolated try).
MAX_CRASHES = 6
CRASHES_IN_COMPANY = 2
# A chunk fails after this many crashes in isolated tries: the engine itself, which would be next, might crash as well.
MAX_ISOLATED_CRASHES = 2
# The engine's loop fetches by itself after this many processes in a row ended without an answer for a chunk.
MAX_FAILED_STARTS = 3


class WantedChunk(msgspec.Struct, frozen=True):
    """Names a chunk that the engine wants.

    Attributes:
        dataset: the dataset with its present storage options.
        chunk: number of the chunk in the dataset.
        requests: number of requests to the store that the chunk takes, about.
        due: returns when its first reader needs it, in seconds on the loop's clock, which may change.
        owner: returns the job whose share it takes, which may change.
    """

    dataset: OpenDataset
    chunk: int
    requests: int
    due: Due
    owner: Owner


class Reading(msgspec.Struct, frozen=True):
    """The counters and levels at the time `at`, in seconds and numbers of requests, from which `Load` is made."""

    at: float
    loop_seconds: float
    idle_seconds: float
    process_share: float
    fetching: bool
    waiting: bool
    requests: int
    throttled: int

    def compare(self, before: Reading) -> Load:
        """Returns the load between an earlier reading and this one."""
        seconds = max(self.at - before.at, 1e-3)
        return Load(
            loop_share=(self.loop_seconds - before.loop_seconds) / seconds,
            process_share=self.process_share,
            fetching=self.fetching,
            waiting=self.waiting,
            idle_cores=(self.idle_seconds - before.idle_seconds) / seconds,
        )


class FetchPool:
    """Brings chunks by fetch processes. The engine has one, on its loop, inside its `async with`.

    Args:
        config: limits of all processes and the engine's own fetchers together.
        processes: number of processes. None means that the load decides.
        fetchers: the engine's own fetchers, which get their part of the limits.
        folder: the cache folder, in which chunks are published.
        notify: called with the key of storage options and a sentence, when a store has served nothing for a while.
        refuse_local: whether stores refuse what is of this machine (`UrlAllowlist`).

    Attributes:
        crashes: number of processes that ended by themselves, or were killed because they did not answer.
        loop_share: share of a core that the engine's loop took between the last two looks.
    """

    def __init__(
        self,
        config: FetchConfig,
        processes: int | None,
        fetchers: FetcherSet,
        folder: CacheFolder,
        notify: Callable[[str, str], None],
        *,
        refuse_local: bool = False,
    ) -> None:
        self.crashes = 0
        self.loop_share = 0.0
        self._config = config
        self._fetchers = fetchers
        self._folder = folder
        self._notify = notify
        self._refuse_local = refuse_local
        self._limits = FetchLimits(config.window_max, fetchers.memory.gate.limit)
        self._count = ProcessCount(processes, count_max_processes(usable_cores()))
        self._refusals = Refusals()
        # Whether the processes that take chunks are to find out anew which rates stores permit.
        self._unpaced = False
        self._processes: list[FetchProcess] = []
        self._queue = FairGate(0, QUEUE_FRESH_SECONDS)
        self._one_by_one = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._past = Counter[str]()
        self._past_first_bytes = Histogram()
        self._past_cpu_seconds = 0.0
        self._noticed: dict[str, float] = {}
        self._pauses = RestartPauses()
        self._not_before = 0.0
        self._bringing = 0

    def __repr__(self) -> str:
        return f"FetchPool({self._processes}, waiting={self._queue.waiting})"

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._first = self._last = self._read_counters()
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._watching = self._tasks.create_task(self._watch(), name="fetch processes")
        self._look()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._watching.cancel()
        for process in self._processes:
            process.retire()
        await self._tasks.__aexit__(None, None, None)

    # ------------------------------------------------------------ chunks

    @property
    def ready(self) -> bool:
        """Whether a process takes chunks now."""
        return any(process.ready for process in self._processes)

    async def publish(self, wanted: WantedChunk) -> None:
        """Lets a process write the file of a chunk; returns when it is there. The caller has reserved its bytes.

        Raises:
            LocalError: the disk, the folder or the manifest is at fault, or processes end again and again. The engine
                should bring the chunk by itself.
            BrokenError: processes crash over the chunk.
            StreamerError: the chunk cannot be fetched.
        """
        await self._fetch_chunk(wanted, publish=True)

    async def fetch(self, wanted: WantedChunk) -> SharedBytes:
        """Returns the bytes of a chunk as its store has them; the caller closes them.

        Raises:
            LocalError, StreamerError: as `publish`.
        """
        return await self._fetch_chunk(wanted, publish=False)

    async def _fetch_chunk(self, wanted: WantedChunk, *, publish: bool) -> SharedBytes:
        self._bringing += 1
        try:
            return await self._fetch_in_tries(wanted, publish)
        finally:
            self._bringing -= 1

    async def _fetch_in_tries(self, wanted: WantedChunk, publish: bool) -> SharedBytes:
        """Tries again with another process if one ends, as `MAX_CRASHES` and the constants below it say."""
        crashes = isolated_crashes = 0
        while True:
            isolated = crashes >= CRASHES_IN_COMPANY
            async with self._one_by_one if crashes else contextlib.nullcontext():
                try:
                    return await self._try(wanted, publish, isolated=isolated)
                except ProcessEndedError as error:
                    crashes += 1
                    isolated_crashes += isolated and error.crashed
                    if isolated_crashes == MAX_ISOLATED_CRASHES:
                        raise BrokenError(
                            f"chunk {wanted.chunk} of dataset {wanted.dataset.dataset} cannot be fetched: "
                            f"{isolated_crashes} fetch processes crashed that had no other chunk, the last one: "
                            f"{error}; see the engine's log"
                        ) from error
                    if crashes == MAX_CRASHES or self._pauses.useless >= MAX_FAILED_STARTS:
                        text = (
                            f"fetch processes end again and again (the last one: {error}): the engine fetches by "
                            "itself until they do not; see the engine's log"
                        )
                        if self._pass_notice("", text):  # the warning would come for each chunk
                            logger.warning("%s", text)
                        raise LocalError(f"fetch processes end again and again: {error}") from error

    async def _try(self, wanted: WantedChunk, publish: bool, *, isolated: bool) -> SharedBytes:
        """Waits for a turn, then lets the process with the least load bring the chunk, or an isolated one."""
        weight = min([wanted.requests, *(process.window for process in self._find_active())])
        owner = await self._queue.acquire(WaitQueue(wanted.due, wanted.owner), weight)
        process = None
        try:
            if isolated:
                process = await self._reserve()
            else:
                taking = self._find_active() or await self._wait_for_start()
                process = min(taking, key=lambda one: one.load / one.window)
            asked = Bring(
                number=next(self._numbers),
                dataset=wanted.dataset.dataset,
                chunk=wanted.chunk,
                due=wanted.due(),
                owner=wanted.owner(),
                publish=publish,
            )
            return await process.bring(asked, wanted.dataset, weight)
        finally:
            if isolated and process is not None:
                process.reserved = False
            self._changed.set()
            self._queue.release(weight, owner)
            self._resize_queue()

    async def _reserve(self) -> FetchProcess:
        """Reserves a process for one chunk, waits until it has no others, and returns it.

        Raises:
            ProcessEndedError: processes end at their start.
        """
        while True:
            process = min(self._find_active() or await self._wait_for_start(), key=lambda one: one.load)
            process.reserved = True
            while process.load and process.ready:
                self._changed.clear()
                await self._changed.wait()
            if process.ready:
                return process

    async def _wait_for_start(self) -> list[FetchProcess]:
        """Returns the processes that take chunks, once there are some; `_look` starts one.

        Raises:
            ProcessEndedError: processes end at their start.
        """
        while not (taking := self._find_active()):
            if self._pauses.useless >= MAX_FAILED_STARTS:
                raise ProcessEndedError("none of the last ones has brought a chunk")
            self._changed.clear()
            await self._changed.wait()
        return taking

    def _find_active(self) -> list[FetchProcess]:
        """Returns the processes that take chunks now: while a store refuses requests, only the first one."""
        ready = [process for process in self._processes if process.ready and not process.reserved]
        return ready[:1] if self._refusals.single else ready

    def _resize_queue(self) -> None:
        limit = HANDED_WINDOWS * sum(process.window for process in self._find_active())
        if limit != self._queue.limit:
            self._queue.resize(limit)

    # ------------------------------------------------------------ processes

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look()

    def _look(self) -> None:
        """Ends processes that do not answer, and starts and ends others by load."""
        now = self._loop.time()
        before = self._last
        self._last = reading = self._read_counters()
        for process in self._processes:
            process.look()
            if process.silent_looks * LOOK_SECONDS > (SILENT_SECONDS if process.ready else START_SECONDS):
                logger.warning("%r does not answer: it is killed, and its chunks are fetched by others", process)
                process.end()
        load = reading.compare(before)
        self.loop_share = load.loop_share
        self._look_for_refusals(reading.requests - before.requests, reading.throttled - before.throttled)
        # A chunk that the pool has is not given back to the loop, so that it needs a process.
        wanted = max(self._count.decide(load, len(self._processes), now), min(self._bringing, 1))
        if len(self._processes) < wanted and now >= self._not_before:
            for _ in range(wanted - len(self._processes)):
                self._start(wanted)
        for process in self._processes[wanted:]:
            if not self._bringing:
                process.retire()
        self._resize_queue()

    def _look_for_refusals(self, requests: int, throttled: int) -> None:
        """Lets one process alone take chunks, or all again, by what stores refused since the last look.

        After a change, the processes that take chunks are told to pace anew once the others have no chunks left.
        """
        reports = [process.report for process in self._find_active()]
        limited = any(report.statistics.get("limited_per_second") for report in reports)
        by_chance = not self._unpaced and any(report.by_chance for report in reports)
        before = self._refusals.single
        now = self._loop.time()
        is_single = self._refusals.look(requests, throttled, limited=limited, by_chance=by_chance, now=now)
        if is_single != before:
            logger.info("a store refuses requests: %s", "one asks it" if is_single else "all processes ask it again")
            self._unpaced = True
            self._divide()
        taking = self._find_active()
        # While the others end their chunks, too low a rate is measured: 128 instead of 200 requests/s (2026-11-26).
        if self._unpaced and not any(process.load for process in self._processes if process not in taking):
            self._unpaced = False
            for process in taking:
                process.pace_anew()

    def _read_counters(self) -> Reading:
        """Returns the counters and levels of now, of all processes since the start."""
        counts = self._past.copy()
        for process in self._processes:
            counts.update(process.counts)
        processes = [process for process in self._processes if process.ready]
        own = self._fetchers.statistics()
        now = time.monotonic()
        return Reading(
            at=now,
            loop_seconds=time.thread_time(),
            idle_seconds=(idle_core_seconds(now) or 0.0) if self._count.by_load else 0.0,
            process_share=sum(process.share for process in processes) / max(1, len(processes)),
            fetching=bool(own["in_flight"] or self._bringing),
            waiting=bool(own["waiting"]) or self._queue.waiting > 0,
            requests=counts["requests"],
            throttled=counts["throttled"],
        )

    def _start(self, count: int) -> None:
        """Starts one process, with the limits of one of `count`."""
        # All begin with a part of a window: with a whole one each, four processes held 560 instead of 80 MB of buffers
        # at a start, and took at least 1.4 times the page faults (tars from a near store, 2026-11-26).
        config = replace(self._config, window_start=max(self._config.window_min, self._config.window_start // count))
        setup = Setup(
            environment=dict(os.environb),
            folder=str(self._folder.path),
            root_id=self._folder.root_id,
            permissions=self._folder.permissions,
            fetch=limit_process(self._limits, count, single=False).apply(config),
            refuse_local=self._refuse_local,
        )
        process = FetchProcess(setup, self._pass_notice)
        self._processes.append(process)
        self._tasks.create_task(self._run(process), name="fetch process")

    async def _run(self, process: FetchProcess) -> None:
        """Runs a process to its end, and adds its counts to those of the past; a crash delays the next start."""
        try:
            how = await process.run(self._divide)
        except (OSError, StreamerError) as error:
            how = f"it cannot be started: {error}"
        self._processes.remove(process)
        self._past.update(process.counts)
        self._past_first_bytes = self._past_first_bytes.plus(process.first_bytes)
        self._past_cpu_seconds += process.report.cpu_seconds
        self._divide()
        if not process.retired:
            self.crashes += 1
            self._not_before = self._loop.time() + self._pauses.count_end(useful=process.answers > 0)
            self._changed.set()
            logger.warning("a fetch process has ended (%s); another one takes its chunks", how)

    def _divide(self) -> None:
        """Divides the limits among the ready processes and the engine's own fetchers; wakes those who wait for one."""
        count = sum(process.ready for process in self._processes)
        for process in self._processes:
            process.limit(limit_process(self._limits, count, single=self._refusals.single))
        self._fetchers.limit(limit_loop(self._limits, count))
        self._changed.set()
        self._resize_queue()

    def _pass_notice(self, options_key: str, text: str) -> bool:
        """Passes a notice on unless one for these options was passed lately; returns whether it did.

        All processes send the same notice about one store.
        """
        now = self._loop.time()
        if now - self._noticed.get(options_key, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return False
        self._noticed[options_key] = now
        self._notify(options_key, text)
        return True

    # ------------------------------------------------------------ statistics

    @property
    def pids(self) -> list[int]:
        """Process ids of the processes that are ready."""
        return [process.pid for process in self._processes if process.ready and process.pid is not None]

    def statistics(self) -> dict[str, int | float]:
        """Returns the statistics of all processes since the start, as `FetcherSet.statistics` does."""
        total = sum_statistics([process.statistics() for process in self._processes])
        total["waiting"] += self._queue.waiting
        return {**total, **{name: total[name] + self._past[name] for name in COUNTS}}

    def first_bytes(self) -> Histogram:
        """Returns the times to the first byte of all processes since the start."""
        return reduce(Histogram.plus, [process.first_bytes for process in self._processes], self._past_first_bytes)

    def process_statistics(self) -> dict[str, int | float]:
        """Returns how many processes are ready and may be, how many crashed, and the CPU time of processes and loop."""
        cpu_seconds = self._past_cpu_seconds + sum(process.report.cpu_seconds for process in self._processes)
        return {
            "fetch_processes": len(self.pids),
            "most_fetch_processes": self._count.max_count,
            "fetch_process_crashes": self.crashes,
            "fetch_process_cpu_seconds": round(cpu_seconds, 3),
            "loop_cpu_seconds": round(time.thread_time() - self._first.loop_seconds, 3),
            "loop_share": round(self.loop_share, 3),
        }
