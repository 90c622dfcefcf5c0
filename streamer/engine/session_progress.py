"""One session's place in its schedule: what it holds, what is open, what is ready. Pure; no I/O, no clock.

A *use* is one entry of the schedule: a chunk and the steps `first..last` in which it is read, in order of `first`.
Its states:

    future --hold--> held --(chunk is local, want >= first)--> open --(done > last)--> finished

Every use of the steps up to `through` is open, so its reader may read them.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections import Counter, deque

import numpy as np
import numpy.typing as npt

from streamer.engine.uses import Columns, EpochUses, Passes, Use
from streamer.errors import ProtocolError


class SessionProgress:
    """One session's schedule and progress. Changed only by these methods, each of which leaves it consistent.

    Args:
        chunk_bytes: (chunks,) what each chunk of the dataset takes.

    Attributes:
        done: steps below it are consumed.
        want: steps up to it are asked for.
        ahead_bytes: of the chunks held beyond what the consumer asked for.
    """

    def __init__(self, chunk_bytes: npt.NDArray[np.int64]) -> None:
        self.ahead_bytes = 0
        self.done = 0
        self.want = -1
        self._chunk_bytes = chunk_bytes
        self._numbers = 0
        self._epochs: deque[EpochUses] = deque()
        # Kept: a sum over many short epochs, at each of them, took seconds.
        self._schedule_bytes = 0
        self._next: Use | None = None
        self._known_step = -1
        self._ahead: deque[Use] = deque()
        self._urgent: dict[int, Use] = {}
        self._open: list[tuple[int, Use]] = []
        self._held: Counter[int] = Counter()
        self._local: set[int] = set()
        self._broken: set[int] = set()
        self._to_ask: list[Use] = []

    def __repr__(self) -> str:
        return f"SessionProgress(done={self.done}, through={self.through()}, want={self.want}, holds={len(self._held)})"

    # ------------------------------------------------------------ messages of the consumer

    def extend(self, epoch: int, columns: Columns, complete: bool, passes: Passes | None = None) -> None:
        """Adds (a part of) the schedule of an epoch; epochs come in order.

        Raises:
            ProtocolError: not a schedule of this dataset.
        """
        self._check(columns, passes)
        if not self._epochs or self._epochs[-1].complete:
            self._epochs.append(EpochUses(epoch))
            self._schedule_bytes += self._epochs[-1].nbytes
        current = self._epochs[-1]
        if current.epoch != epoch:
            raise ProtocolError(f"the schedule of epoch {current.epoch} is not complete, epoch {epoch} follows")
        before = current.nbytes
        current.extend(columns, complete, passes)
        self._schedule_bytes += current.nbytes - before
        if complete and len(current.last):
            self._known_step = max(self._known_step, int(current.last.max()))

    def advance(self, done: int, want: int) -> None:
        """Steps below `done` are consumed, steps up to `want` are asked for; neither goes back."""
        self.done = max(self.done, done)
        self.want = max(self.want, want, self.done - 1)

    # ------------------------------------------------------------ steps of the scheduler, in this order

    def take_finished(self, most: int = sys.maxsize) -> list[Use]:
        """Uses that finished since the last call: read to their last step, or skipped. They are not held any more.

        No more than `most` of them: the rest is for the next call.
        """
        finished: list[Use] = []
        while self._open and self._open[0][0] < self.done and len(finished) < most:
            finished.append(heapq.heappop(self._open)[1])
        skipped = (use for use in self._urgent.values() if use.last < self.done)
        finished += itertools.islice(skipped, most - len(finished))
        while self._ahead and self._ahead[0].last < self.done and len(finished) < most:
            finished.append(self._leave_ahead())
        for use in finished:
            self._urgent.pop(use.number, None)
            self._drop(use.chunk)
        return finished

    def next_use(self) -> Use | None:
        """The first use that is not held yet; uses that the consumer has skipped are left out."""
        if (known := self._next) is None or known.last < self.done:
            self._next = self._find_next()
        return self._next

    def _find_next(self) -> Use | None:
        while self._epochs and self._epochs[0].complete:
            uses = self._epochs[0]
            while not uses.exhausted and int(uses.last[uses.cursor]) < self.done:
                uses.cursor += 1
            if not uses.exhausted:
                i = uses.cursor
                first = int(uses.first[i])
                last = int(uses.last[i])
                chunk = int(uses.chunk[i])
                of_pass = uses.epoch if uses.passes is None else int(uses.passes[i])
                return Use(first, self._numbers, last, uses.epoch, chunk, of_pass)
            self._schedule_bytes -= self._epochs.popleft().nbytes
        return None

    def hold(self, use: Use) -> None:
        """The session now holds `next_use()`; the cursor advances."""
        self._epochs[0].cursor += 1
        self._numbers += 1
        self._next = None
        self._held[use.chunk] += 1
        self._ahead.append(use)
        self.ahead_bytes += int(self._chunk_bytes[use.chunk])
        if use.chunk not in self._local:
            heapq.heappush(self._to_ask, use)

    def take_request(self) -> Use | None:
        """The first held use whose chunk is neither local nor requested; it counts as requested now."""
        while self._to_ask:
            use = heapq.heappop(self._to_ask)
            if use.chunk in self._held and use.chunk not in self._local:
                return use
        return None

    def ask_later(self, use: Use) -> None:
        """Keeps the request: there was no room."""
        heapq.heappush(self._to_ask, use)

    def has_requests(self) -> bool:
        """A chunk waits for room."""
        return bool(self._to_ask)

    def arrived(self, chunk: int) -> None:
        """The chunk is local."""
        if chunk in self._held:
            self._local.add(chunk)
            self._broken.discard(chunk)

    def lost(self, chunk: int, *, broken: bool = False) -> bool:
        """The chunk is not local (any more) and must be asked for again; True if this session holds it.

        With `broken` its reader found it corrupt: no step is ready until it is back.
        """
        if chunk not in self._held:
            return False
        self._local.discard(chunk)
        if broken:
            self._broken.add(chunk)
        heapq.heappush(self._to_ask, self._use_now(chunk) if broken else self._first_use(chunk))
        return True

    def openable(self, most: int = sys.maxsize) -> list[Use]:
        """Returns at most so many held uses that the consumer wants, in order, up to the first that is not local.

        What comes after a gap stays look-ahead: an open chunk could not be evicted for the one that closes the gap.
        """
        while self._ahead and self._ahead[0].first <= self.want:
            use = self._leave_ahead()
            self._urgent[use.number] = use
        local = itertools.takewhile(lambda use: use.chunk in self._local, self._urgent.values())
        return list(itertools.islice(local, most))

    def opened(self, use: Use) -> None:
        """The use is open: leased until its last step is done."""
        del self._urgent[use.number]
        heapq.heappush(self._open, (use.last, use))

    # ------------------------------------------------------------ state

    def through(self) -> int:
        """Returns the last step, at most `want`, up to which all chunks are open."""
        if self._broken:
            return self.done - 1
        limit = min(self.want, self._known_step)
        if self._urgent:
            # The first one: uses come in order.
            limit = min(limit, next(iter(self._urgent.values())).first - 1)
        if self._ahead:
            limit = min(limit, self._ahead[0].first - 1)
        if (use := self.next_use()) is not None:
            limit = min(limit, use.first - 1)
        return max(limit, self.done - 1)

    def is_blocking(self, use: Use) -> bool:
        """Whether the consumer has read everything that is open and cannot continue without this use."""
        return use.number < 0 or (use.first <= self.done and self.through() < self.done)

    def holds(self, chunk: int) -> bool:
        """Whether the chunk is held or open."""
        return chunk in self._held

    def is_local(self, chunk: int) -> bool:
        """Whether the chunk is held or open, and local."""
        return chunk in self._local

    def is_wanted(self, chunk: int) -> bool:
        """Whether the chunk is held, asked for by the consumer, and not open yet."""
        return chunk in self._broken or any(use.chunk == chunk for use in self._urgent.values())

    def first_need(self, chunk: int) -> int:
        """The first step that waits for a held chunk that is not open."""
        return self.done if chunk in self._broken else self._first_use(chunk).first

    def schedule_bytes(self) -> int:
        """The bytes of the schedules of its unfinished epochs."""
        return self._schedule_bytes

    def granted_chunks(self) -> int:
        """Number of its chunks that are local or in flight."""
        return max(0, len(self._held) - len(self._to_ask))

    def open_chunks(self) -> int:
        """Number of uses that are open."""
        return len(self._open)

    def remaining(self, span: tuple[int, int], last_pass: int) -> npt.NDArray[np.uint32]:
        """Chunks that are neither open nor finished in the passes of a part up to `last_pass`.

        Args:
            span: half-open range of the part's chunk numbers.
            last_pass: the running one. An earlier one may have a few chunks left: lanes do not end at the same step.
        """
        held = [
            use.chunk
            for use in (*self._urgent.values(), *self._ahead)
            if span[0] <= use.chunk < span[1] and use.pass_number <= last_pass
        ]
        return np.concatenate([np.asarray(held, np.uint32), *(uses.ahead(span, last_pass) for uses in self._epochs)])

    def _leave_ahead(self) -> Use:
        use = self._ahead.popleft()
        self.ahead_bytes -= int(self._chunk_bytes[use.chunk])
        return use

    def _first_use(self, chunk: int) -> Use:
        for use in (*self._urgent.values(), *self._ahead):
            if use.chunk == chunk:
                return use
        return self._use_now(chunk)

    def _use_now(self, chunk: int) -> Use:
        return Use(self.done, -1, self.done, -1, chunk, -1)

    def _drop(self, chunk: int) -> None:
        self._held[chunk] -= 1
        if not self._held[chunk]:
            del self._held[chunk]
            self._local.discard(chunk)
            self._broken.discard(chunk)

    def _check(self, columns: Columns, passes: Passes | None) -> None:
        chunk, first, last = columns
        if not len(chunk) == len(first) == len(last):
            raise ProtocolError(f"schedule columns of {len(chunk)}, {len(first)} and {len(last)} entries")
        if passes is not None and len(passes) != len(chunk):
            raise ProtocolError(f"schedule columns of {len(chunk)} chunks and {len(passes)} passes")
        if len(chunk) and int(chunk.max()) >= len(self._chunk_bytes):
            raise ProtocolError(
                f"the schedule names chunk {int(chunk.max())}; the dataset has {len(self._chunk_bytes)}"
            )
