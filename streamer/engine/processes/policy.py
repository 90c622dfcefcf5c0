"""Decides how many fetch processes there are, whether one alone takes chunks, and what each may use. Pure.

`pool.py` asks it at intervals, and passes the time. `streamer bench` reports by it.
"""

from __future__ import annotations

import msgspec

from streamer.fetch.concurrency import FetchLimits

# There is at most one process for so many cores by default: the trainer's workers and the loop need the others.
CORES_EACH = 4
# Most processes by default. They fetch 8 GB/s, which is more than the loop can schedule with chunks of 2 MB.
MAX_PROCESSES = 8
# Another process is started when the loop, or, if there are processes, the mean of them, has taken this share of a core
# for this long while requests waited. All are ended after `IDLE_SECONDS` without a fetch.
BUSY_SHARE = 0.5
BUSY_SECONDS = 3.0
IDLE_SECONDS = 60.0
# The engine's own fetchers keep this share of windows and memory, for indexes and single samples.
LOOP_SHARE = 1 / 8
# Refusals (429, 503) since the last look mean a limit of the store, and not chance, if they are at least this many, and
# more than this share of the requests (see `fetch/pacing.py`). The share that is known to be chance is added twice,
# because chance may refuse more than that of the hundred requests between two looks.
REFUSED_SHARE = 0.02
MIN_REFUSED = 8
CHANCE_FACTOR = 2.0
# If a process alone has found no limit after this time, the others take chunks again. Pacing finds chance sooner.
TRIAL_SECONDS = 5.0
# The share that is known to be chance is forgotten after this time, because the trial may have been wrong.
REPEAT_SECONDS = 30.0


class Load(msgspec.Struct, frozen=True):
    """Describes what happened since the last look.

    Attributes:
        loop_share: share of a core that the engine's loop took.
        process_share: share of a core that each process took in the mean.
        fetching: whether anything is being fetched.
        waiting: whether requests wait for their turn.
        idle_cores: number of cores that no process used.
    """

    loop_share: float
    process_share: float
    fetching: bool
    waiting: bool
    idle_cores: float


def count_max_processes(cores: int) -> int:
    """Returns how many processes there may be by default on so many cores; 0 on few cores."""
    return min(MAX_PROCESSES, cores // CORES_EACH)


class ProcessCount:
    """Decides how many processes there are.

    Args:
        fixed: number of processes at all times. None means that the load decides.
        max_count: largest number if the load decides.
    """

    def __init__(self, fixed: int | None, max_count: int) -> None:
        self._fixed = fixed
        self._max_count = max_count
        self._busy_since: float | None = None
        self._fetched_at = float("-inf")

    def __repr__(self) -> str:
        return f"ProcessCount(fixed={self._fixed}, max_count={self._max_count})"

    @property
    def max_count(self) -> int:
        """Largest number of processes."""
        return self._max_count if self._fixed is None else self._fixed

    @property
    def by_load(self) -> bool:
        """Whether the load decides how many there are."""
        return self._fixed is None and self._max_count > 0

    def decide(self, load: Load, running: int, now: float) -> int:
        """Returns how many processes there are to be from now on: `fixed`, or by the load 0, `running` or one more.

        Args:
            load: load since the last call.
            running: number of processes that there are.
            now: time in seconds.
        """
        if self._fixed is not None:
            return self._fixed
        if load.fetching:
            self._fetched_at = now
        if now - self._fetched_at >= IDLE_SECONDS:
            return 0
        return running + self._another(load, running, now)

    def _another(self, load: Load, running: int, now: float) -> bool:
        """Whether one more process is to be started, by `BUSY_SHARE` and `BUSY_SECONDS`; a core must be idle, too."""
        share = load.process_share if running else load.loop_share
        if not (load.waiting and share >= BUSY_SHARE and load.idle_cores >= 1.0 and running < self._max_count):
            self._busy_since = None
            return False
        if self._busy_since is None:
            self._busy_since = now
        if now - self._busy_since < BUSY_SECONDS:
            return False
        self._busy_since = None
        return True


class Refusals:
    """Decides whether one process alone takes chunks, because a store refuses requests.

    Each process paces itself, and cannot find a limit that several exceed together: if one of them slows down for a
    trial, the others still exceed it. A process that is alone sees all refusals.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._requests = self._throttled = 0
        # Share of requests that was refused by chance in the last trial; 0 if it is not known.
        self._chance = 0.0
        self._forget_at = float("-inf")

    def __repr__(self) -> str:
        return f"Refusals(single={self.single}, chance={self._chance:.3f})"

    @property
    def single(self) -> bool:
        """Whether one process alone takes chunks."""
        return self._since is not None

    def look(self, requests: int, throttled: int, limited: bool, by_chance: bool, now: float) -> bool:
        """Returns whether one process alone takes chunks from now on.

        Args:
            requests: number of requests that were sent since the last look.
            throttled: number of them that were refused.
            limited: whether a process that takes chunks holds requests back.
            by_chance: whether such a process has found chance, and no limit, since it was told to pace anew.
            now: time in seconds.
        """
        if self._since is not None:
            self._requests += requests
            self._throttled += throttled
            if limited and not by_chance:
                self._begin(now)
            elif by_chance or now - self._since >= TRIAL_SECONDS:
                self._since = None
                if self._throttled > REFUSED_SHARE * self._requests:
                    self._chance = self._throttled / self._requests
                    self._forget_at = now + REPEAT_SECONDS
            return self.single
        if now >= self._forget_at:
            self._chance = 0.0
        explained = (REFUSED_SHARE + CHANCE_FACTOR * self._chance) * requests
        if (throttled >= MIN_REFUSED and throttled > explained) or (limited and not self._chance):
            self._begin(now)
        return self.single

    def _begin(self, now: float) -> None:
        self._since = now
        self._requests = 0
        self._throttled = 0


def limit_loop(limits: FetchLimits, processes: int) -> FetchLimits:
    """Returns the share of the engine's own fetchers beside this many fetch processes; without any, all."""
    return limits.scale(LOOP_SHARE, LOOP_SHARE) if processes else limits


def limit_process(limits: FetchLimits, processes: int, *, single: bool) -> FetchLimits:
    """Returns the share of each fetch process.

    Args:
        limits: limits of all fetchers of the engine together.
        processes: number of fetch processes.
        single: whether one of them alone takes chunks: it asks stores for as much as all of them together would.
    """
    share = 1 - LOOP_SHARE
    memory_share = share / max(1, processes)
    return limits.scale(share if single else memory_share, memory_share)
