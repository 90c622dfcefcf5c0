"""Runs a consumer's session with the engine in steps: the batches of one process, numbered over all epochs.

The chunks of steps are asked for, leased and given back. `kind.py` opens the sessions of a rank's stream, for a loader
(`loader/feed/`) or a bare loop (`loader/rank/sample_iterator.py`); `loader/scan_reader.py` uses `read_leased` and
`open_bytes` for packs.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.batches.samples.cached_bytes import REREADS, ChunkUnreadableError
from streamer.batches.skipping import SkipRules
from streamer.client.connection import read_statistics, report
from streamer.client.engine_client import EngineClient
from streamer.client.session import Session
from streamer.config import RankConfig
from streamer.errors import BrokenError
from streamer.wire.messages import OpenSession, ReportFinding
from streamer.wire.schedule import EpochSchedule
from streamer.wire.store_options import StoreOptions

logger = logging.getLogger(__name__)

Integers = npt.NDArray[np.int64]
Found = TypeVar("Found")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the identity of a consumer, and those arguments of the user that its session needs; `RankStream` keeps it.

    Attributes:
        rank_config: Rank and world size.
        stream: Name that distinguishes the loaders of one job.
        skip_rules: Rules for samples that cannot be made.
        share_caches: Whether the ranks' engines share their caches, as the user says it.
        options: Storage options of each member, then of each join, encoded.
        given: Whether the user has given rank and world size, so that no process group is asked.
    """

    rank_config: RankConfig
    stream: str
    skip_rules: SkipRules
    share_caches: str = "off"
    options: tuple[StoreOptions, ...] = ()
    given: bool = False


class Share(msgspec.Struct, frozen=True):
    """Says which batches of a rank one process makes: numbers `first + worker`, `first + worker + workers`, ...

    Attributes:
        worker, workers: Number of the process and of all processes; the rank itself is 0 of 1.
        first: Number of the batch of the epoch at which the rank begins.
    """

    worker: int = 0
    workers: int = 1
    first: int = 0

    def batch(self, step: int) -> int:
        """Returns the batch of this share's `step`-th step in its epoch."""
        return self.first + self.worker + step * self.workers

    def steps(self, batches: int) -> int:
        """Returns the number of the epoch's batches in this share."""
        return max(0, -(-(batches - self.first - self.worker) // self.workers))

    def steps_from(self, batch: Integers) -> Integers:
        """Returns the first step at or after each batch, an array of the same shape."""
        return np.maximum(0, -(-(batch - self.first - self.worker) // self.workers))

    def steps_until(self, batch: Integers) -> Integers:
        """Returns the last step at or before each batch, an array of the same shape; below 0 where there is none."""
        return (batch - self.first - self.worker) // self.workers


class StepSession(ABC):
    """Lets the engine make the chunks of steps local, and leases them. Used by one thread, unless a method says more.

    Steps number the batches since the session began, continuously over epochs. `EpochSession` asks the engine for
    whole epochs, `growing.session.GrowingSession` for the cohorts of a growing dataset.

    Args:
        client: Connection to the engine, used by this session only; stays open when the session closes.
        spec: The consumer, as the engine is told.
        on_close: Called once, when the session is closed; not if the session cannot begin.
        cache_full_hint: Text for the error of a cache that is too small: what else helps.

    Raises:
        StreamerError: the engine cannot be reached, or the first schedule cannot be made. If the engine refuses the
            session, the first `ready` or `wait` raises its error.
    """

    _session: Session

    def __init__(
        self, client: EngineClient, spec: OpenSession, on_close: Callable[[], None], cache_full_hint: str = ""
    ) -> None:
        self._client = client
        self._spec = spec
        self._on_close = [on_close]
        self._resources = contextlib.ExitStack()
        try:
            self._session = client.open_session(spec, cache_full_hint)
            self._resources.callback(self._session.close)
            self._ask_first()
        except BaseException:
            self._resources.close()
            raise

    @abstractmethod
    def _ask_first(self) -> None:
        """Asks for the first chunks; called by the constructor when the session is open."""

    @property
    @abstractmethod
    def ready(self) -> int:
        """The last step up to which all chunks are local and leased, or -1 if there is none.

        Raises:
            StreamerError: the engine's error.
        """

    @property
    def poll_seconds(self) -> float | None:
        """Seconds after which `ready` may change without a message, because of other ranks, or None if it cannot."""
        return None

    @abstractmethod
    def step_of(self, epoch: int, batch: int) -> int:
        """Returns the step of a batch at or after the session's start; callers ask for no earlier one.

        Raises:
            ValueError: an epoch that `EpochSession` has forgotten, or after the session's last.
            StreamerError: the schedule of the epoch cannot be made or sent.
        """

    @abstractmethod
    def want(self, step: int) -> None:
        """Requests the chunks of all steps up to and including this one; does not wait for them.

        Raises:
            StreamerError: the engine's error.
        """

    def wait(self, step: int, timeout_seconds: float | None = None) -> None:
        """Requests the chunks of all steps up to this one, and blocks until they are local (`ready >= step`).

        Args:
            step: Number of the step.
            timeout_seconds: Longest wait, or None for no limit.

        Raises:
            StreamerError: the engine's error; of a growing dataset also where another rank does not answer.
            TimeoutError: the time is over.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self.want(step)
        while self.ready < step:
            left = self.poll_seconds
            if deadline is not None:
                until = deadline - time.monotonic()
                if until <= 0:
                    raise TimeoutError(f"step {step} of {self!r}: not ready after {timeout_seconds} s")
                left = until if left is None else min(left, until)
            self.pump(left)

    @abstractmethod
    def finish(self, step: int, *, flush: bool = True) -> None:
        """Records the steps below this one as consumed, so that their chunks may leave.

        Args:
            step: Number of the first step that is not consumed.
            flush: Whether the engine is told now, or else with the next `want`.

        Raises:
            StreamerError: the engine's error.
        """

    def rounds(self, step: int) -> tuple[tuple[int, ...], ...]:
        """Returns the rounds that a ready step is in, for `set_rounds` of a maker; empty if no dataset grows."""
        return ()

    def reject(self, chunk: int, reason: str) -> None:
        """Rejects a chunk that is missing or wrong; `ready` falls below its steps until it is leased again.

        Raises:
            StreamerError: the engine's error.
        """
        self._session.reject(chunk, reason)

    def fileno(self) -> int:
        """Returns a descriptor that is readable when `pump` has something to receive; may change in `pump`."""
        return self._client.fileno()

    def pump(self, timeout_seconds: float | None = 0.0) -> None:
        """Receives the engine's messages; waits at most `timeout_seconds` for one, or without a limit for None.

        Raises:
            StreamerError: the engine's error.
        """
        self._client.pump(timeout_seconds)

    def engine_values(self, timeout_seconds: float) -> Mapping[str, object] | None:
        """Asks for the engine's counters over a connection of its own; any thread.

        Returns:
            The counters by name, with `consumer`, `job` and `dataset` of this session. It is None if there is no
            engine, or no answer within `timeout_seconds`.
        """
        values = read_statistics(self._client.settings, timeout_seconds)
        if values is None:
            return None
        spec = self._spec
        return {**values, "consumer": spec.consumer, "job": self._client.job, "dataset": spec.dataset}

    def send_report(self, finding: ReportFinding | Exception, timeout_seconds: float) -> None:
        """Sends a loader's finding, or an error of it, to the engine over a connection of its own; any thread.

        An engine that does not answer in time is no error.
        """
        report(replace(self._client.settings, job=self._client.job), self._spec, timeout_seconds, finding)

    def close(self) -> None:
        """Ends the session and its leases; idempotent."""
        self._resources.close()
        while self._on_close:
            self._on_close.pop()()


class EpochSession(StepSession):
    """Runs an engine session in steps of one share of a rank's batches, over all epochs.

    The next epoch's schedule is sent to the engine when three quarters of the last one are requested: early enough for
    the look-ahead, late enough that a short run does not plan an epoch that it never trains.

    Args:
        client, spec: See `StepSession`.
        schedule: Returns, for epoch and share, the epoch's chunks by step of the share, and the number of its steps.
        start: The first epoch, and the share to begin with; later epochs have the same share from batch 0 on.
        endless: Whether the session continues into the next epochs.
        on_close, cache_full_hint: See `StepSession`.
    """

    def __init__(
        self,
        client: EngineClient,
        spec: OpenSession,
        schedule: Callable[[int, Share], tuple[EpochSchedule, int]],
        start: tuple[int, Share],
        *,
        endless: bool = True,
        on_close: Callable[[], None] = lambda: None,
        cache_full_hint: str = "",
    ) -> None:
        self._schedule = schedule
        self._endless = endless
        self._bases: dict[int, tuple[int, Share]] = {}
        self._next_epoch, self._share = start
        self._steps = 0
        self._done = 0
        self._extend_at = 0
        super().__init__(client, spec, on_close, cache_full_hint)

    def __repr__(self) -> str:
        return f"EpochSession({self._session!r}, steps={self._steps}, next_epoch={self._next_epoch})"

    def _ask_first(self) -> None:
        self._extend()

    @property
    def ready(self) -> int:
        """See `StepSession`."""
        return self._session.ready

    def step_of(self, epoch: int, batch: int) -> int:
        """See `StepSession`; without `endless` there is one epoch."""
        while epoch not in self._bases and self._endless and epoch >= self._next_epoch:
            self._extend()
        if epoch not in self._bases:
            raise ValueError(f"epoch {epoch} is not in this session (epochs {sorted(self._bases)})")
        base, share = self._bases[epoch]
        return base + (batch - share.first - share.worker) // share.workers

    def want(self, step: int) -> None:
        """See `StepSession`."""
        while self._endless and step >= self._extend_at:
            self._extend()
        self._session.want(step)

    def finish(self, step: int, *, flush: bool = True) -> None:
        """See `StepSession`."""
        self._done = step
        self._session.done(step, flush=flush)

    def _extend(self) -> None:
        """Sends the schedule of the next epoch to the engine, and forgets the epochs that are done.

        Raises:
            BrokenError: the schedule does not end with the last step of the epoch.
        """
        epoch = self._next_epoch
        share = self._share
        schedule, steps = self._schedule(epoch, share)
        base = self._steps
        if schedule.final_step != steps - 1:
            raise BrokenError(
                f"epoch {epoch} has {steps} batches for this reader, and its schedule names chunks up to batch "
                f"{schedule.final_step} of them: the engine would be waited for, and is asked for nothing. Please "
                "report it, with the arguments of the dataset and the loader",
                epoch=epoch,
                steps=steps,
                final_step=schedule.final_step,
            )
        # Few epochs are kept in a long job: those before the running one go.
        running = max((known for known, (begin, _) in self._bases.items() if begin <= self._done), default=None)
        self._bases = {known: at for known, at in self._bases.items() if running is None or known >= running}
        self._bases[epoch] = (base, share)
        first = schedule.first + base
        last = schedule.last + base
        self._session.extend(msgspec.structs.replace(schedule, first=first, last=last))
        self._steps = base + steps
        self._extend_at = base + (steps * 3) // 4
        self._next_epoch = epoch + 1
        self._share = msgspec.structs.replace(share, first=0)


def open_bytes(schedule: EpochSchedule, chunk_bytes: Integers, first_chunks: Sequence[int]) -> Integers:
    """Returns the maximum number of bytes of each part that are open at the same time: int64, (parts,).

    Args:
        schedule: Chunks of all parts, with the first and the last step of each.
        chunk_bytes: (chunks,) bytes of each chunk, part after part.
        first_chunks: (parts + 1,) number of the first chunk of each part.
    """
    sizes = chunk_bytes[schedule.chunk]
    owner = np.searchsorted(np.array(first_chunks), schedule.chunk, side="right") - 1
    # A chunk is open through its last step; at equal steps the new ones count before the old ones go. The changes of
    # each member add up to 0 where the next one begins.
    changes = np.concatenate([sizes, -sizes])
    goes = np.repeat([0, 1], len(sizes))
    owners = np.tile(owner, 2)
    order = np.lexsort((goes, np.concatenate([schedule.first, schedule.last]), owners))
    largest = np.zeros(len(first_chunks) - 1, np.int64)
    np.maximum.at(largest, owners[order], np.cumsum(changes[order]))
    return largest


class Leases(Protocol):
    """Says what `read_leased` needs of a session: a `StepSession`, or the client's `Session` alone."""

    def reject(self, chunk: int, reason: str) -> None:
        """Rejects a chunk that is missing or wrong."""
        ...

    def wait(self, step: int) -> None:
        """Blocks until the chunks of a step are leased."""
        ...


def read_leased(session: Leases, step: int, read: Callable[[], Found]) -> Found:
    """Calls `read` and returns its result; if a chunk is missing or wrong, leases it again, and calls `read` again.

    Args:
        session: Session that has leased the chunks.
        step: Step of the session that is read.
        read: Function that reads the chunks of this step.

    Raises:
        FileNotFoundError, IntegrityError: a chunk is still missing or wrong after `REREADS` new leases, counted over
            all chunks of this call.
        StreamerError: the engine's error.
        Exception: what else `read` raises.
    """
    rereads = 0
    while True:
        try:
            return read()
        except ChunkUnreadableError as error:
            rereads += 1
            if rereads > REREADS and error.__cause__ is not None:
                raise error.__cause__ from error
            # The error is logged as a text: a handler that keeps its records would keep the frames of the
            # traceback, and so the dataset.
            logger.warning("%s; leasing it again", str(error))
            session.reject(error.chunk, error.reason)
            session.wait(step)
