"""Keeps the state of one consumer's session with the engine: which steps it wants, which are ready, which are done.

`client/engine_client.py` makes sessions and passes the engine's messages to them. The loader, scans and `streamer warm`
use them (`loader/kinds/step_session.py`, `loader/scan_reader.py`, `cli/warming.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec

from streamer.errors import CacheFullError, ClosedError, StreamerError
from streamer.wire.messages import Advance, CloseSession, Message, OpenSession, Reject
from streamer.wire.schedule import EpochSchedule


class Transport(Protocol):
    """Describes the `EngineClient` as its sessions use it; a protocol, because the client imports its sessions.

    The methods are those of `EngineClient` with these names.
    """

    def post(self, message: Message, quietly: bool = False) -> None:
        """Sends a message; with `quietly` only if a connection is open."""
        ...

    def post_all(self, messages: Iterable[Message]) -> None:
        """Does the same as `post` for several messages."""
        ...

    def pump_until(self, reached: Callable[[], bool], timeout_seconds: float | None, what: str) -> None:
        """Handles messages until `reached()` is true; raises TimeoutError with `what` after the timeout."""
        ...

    def forget(self, session: Session) -> None:
        """Removes a closed session."""
        ...


class Session:
    """Represents one consumer's session with the engine. Used by the thread of its client.

    Steps are consecutive integers over all epochs of the session. The engine keeps the chunks of the steps from the
    first one that is not done to the last one that is ready on this machine. If the engine is replaced, the client
    opens the session again at the same step. The methods that tell the engine something raise the errors of
    `EngineClient.post`, and ClosedError after `close`.

    Args:
        transport: the client.
        request: the message that opens the session.
        cache_full_hint: a sentence that says what else helps if the cache is too small, or "".

    Attributes:
        number: number of the session, which its messages have.
        request: see Args.
    """

    def __init__(self, transport: Transport, request: OpenSession, cache_full_hint: str = "") -> None:
        self._transport = transport
        self.number = request.session
        self.request = request
        self._cache_full_hint = cache_full_hint
        self._epochs: list[EpochSchedule] = []
        self._done = self._sent = 0
        self._want = -1
        self._ready = self._furthest = -1
        self._rejects = 0
        self._error: StreamerError | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"Session({self.request.consumer}, done={self._done}, ready={self._ready}, want={self._want})"

    @property
    def ready(self) -> int:
        """Last step of which all chunks, and those of all steps before, are on this machine; -1 if there is none.

        Raises:
            StreamerError: the engine could not bring a wanted chunk, or has refused the session.
        """
        if self._error is not None:
            raise self._error
        return self._ready

    @property
    def idle(self) -> bool:
        """Whether all steps that were asked for are ready; raises as `ready` does."""
        return self.ready >= self._want

    def extend(self, schedule: EpochSchedule) -> None:
        """Sends the engine the schedule of the next epoch, and forgets the schedules of epochs that are done."""
        self._check_open()
        # Values that are left out are those of the epoch before, which a new engine may not have been sent.
        if self._epochs and not schedule.values:
            schedule = msgspec.structs.replace(schedule, values=self._epochs[-1].values)
        self._epochs = [known for known in self._epochs if known.final_step >= self._done]
        self._epochs.append(schedule)
        self._transport.post_all(schedule.cut(self.number))

    def want(self, step: int) -> None:
        """Asks for all steps up to and including `step`; returns at once. A step asked for before changes nothing."""
        self._check_open()
        if step > self._want:
            self._want = step
            self._advance()

    def done(self, step: int, *, flush: bool = True) -> None:
        """Records that the steps below `step` are consumed: the engine may evict their chunks.

        Without `flush` the engine is told only with the next `want`, or the next `done` with `flush`.
        """
        self._check_open()
        self._done = max(self._done, step)
        if flush and self._done > self._sent:
            self._advance()

    def wait(self, step: int, timeout_seconds: float | None = None) -> None:
        """Asks for all steps up to and including `step`, and blocks until they are ready.

        Raises:
            StreamerError: as `ready`, or the engine cannot be reached.
            TimeoutError: the steps were not ready within `timeout_seconds` (None means no limit).
        """
        self.want(step)
        self._transport.pump_until(lambda: self.ready >= step, timeout_seconds, f"step {step} of {self!r}")

    def reject(self, chunk: int, reason: str) -> None:
        """Reports that a chunk has wrong bytes: the engine drops it and fetches it again.

        Until the engine has it again, no step counts as ready that is not done.

        Args:
            chunk: number of the chunk in the session.
            reason: what is wrong, of which 4,096 letters are sent.
        """
        self._check_open()
        # Steps that were ready before the rejection do not count until the engine reports them again.
        self._ready = min(self._ready, self._done - 1)
        self._rejects += 1
        self._transport.post(Reject(self.number, chunk, reason[:4096]))

    def close(self) -> None:
        """Ends the session and its leases; idempotent."""
        if not self._closed:
            self._closed = True
            self._transport.forget(self)
            self._transport.post(CloseSession(self.number), quietly=True)

    # ------------------------------------------------------------ called by the client

    def handle_ready(self, through: int, rejects: int) -> bool:
        """Handles the engine's report of progress.

        Args:
            through: the last step that is ready.
            rejects: number of rejections that the engine had handled. A report from before the last one is ignored.

        Returns:
            Whether a step is ready that was never ready before.
        """
        if rejects == self._rejects:
            self._ready = through
        further = self._ready > self._furthest
        self._furthest = max(self._furthest, self._ready)
        return further

    def handle_error(self, error: StreamerError) -> None:
        """Keeps an error of the engine, which `ready` raises from now on; adds the hint to a CacheFullError."""
        if isinstance(error, CacheFullError) and self._cache_full_hint:
            error = CacheFullError(f"{error.message}. {self._cache_full_hint}", **error.details)
        self._error = error

    def reopen_messages(self) -> Iterator[Message]:
        """Yields the messages that open this session at its present step in a new engine.

        It forgets what the engine before had made ready, and which rejections that one was told of.
        """
        self._ready = self._done - 1
        self._rejects = 0
        self._sent = self._done
        yield self.request
        for schedule in self._epochs:
            yield from schedule.from_step(self._done).cut(self.number)
        if self._want >= 0 or self._done > 0:
            yield Advance(self.number, self._done, self._want)

    def _advance(self) -> None:
        self._sent = self._done
        self._transport.post(Advance(self.number, self._done, self._want))

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"session of {self.request.consumer} is closed")
