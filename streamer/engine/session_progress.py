"""Keeps one session's schedule and its place in it: which uses of chunks are held, open and finished. Pure, no clock.

A *use* is one entry of the schedule: a chunk, and the steps from `first` to `last` in which it is read. Uses are in the
order of `first`. A use has these states:

    future --hold--> held --(chunk is local, want >= first)--> open --(done > last)--> finished

The reader may read the steps up to `last_ready_step`, whose uses are all open. `session.py` records the consumer's
progress here, and `scheduler.py` the rest. `tools/planning/simulate.py` uses it without an engine.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections import Counter, OrderedDict, deque

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.errors import ProtocolError
from streamer.wire.schedule import EpochSchedule

# Bytes of memory of an epoch without entries: three empty arrays and the object that has them (CPython 3.11).
_EPOCH_BYTES = 512
# Number of calls of `EpochUses.ahead` before the uses are sorted by chunk, which takes as long as 50 calls.
_LOOKS = 16
# The look-ahead of all sessions may take this share of the limit, so that the rest of the cache makes hits.
LOOKAHEAD_SHARE = 1 / 16


class Use(msgspec.Struct, frozen=True, order=True):
    """One entry of the schedule. Uses are compared by their first step.

    Attributes:
        first: first step that reads the chunk.
        number: number among the session's uses, or -1 if a chunk is needed again at once.
        last: last step that reads the chunk.
        epoch: epoch of the schedule.
        chunk: number of the chunk in the session's collection.
        pass_number: number of its part's pass, or of the epoch if each epoch is one pass.
    """

    first: int
    number: int
    last: int
    epoch: int
    chunk: int
    pass_number: int


class EpochUses:
    """The uses of one epoch, in the order of the schedule.

    Attributes:
        epoch: number of the epoch.
        complete: whether no more of its schedule follows.
        cursor: number of the first use that is neither held nor skipped.
        chunk: chunk of each use, uint32, (uses,).
        first, last: first and last step of each use, int64, (uses,).
        passes: number of the pass of each use, uint32, (uses,), or None if the epoch is one pass.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.complete = False
        self.cursor = 0
        self.chunk: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
        self.first: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.last: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.passes: npt.NDArray[np.uint32] | None = None
        # Number of calls of `ahead`.
        self._looks = 0
        # Indices of the uses in the order of their chunks, and these chunks.
        self._by_chunk: npt.NDArray[np.uint32] | None = None
        self._sorted: npt.NDArray[np.uint32] = np.empty(0, np.uint32)

    def extend(self, part: EpochSchedule, complete: bool) -> None:
        """Appends a part of the schedule, which is the last one if `complete`.

        Raises:
            ProtocolError: the uses are not in the order of their steps, or only some parts have passes.
        """
        first = part.first
        last = part.last
        passes = part.passes
        if len(self.chunk) and len(part.chunk) and (self.passes is None) != (passes is None):
            raise ProtocolError(f"only a part of the schedule of epoch {self.epoch} has passes")
        # Steps are compared, because a difference may wrap around. Only the new ones are, because a schedule may come
        # in many messages.
        in_order = bool((first[1:] >= first[:-1]).all()) and bool((last >= first).all())
        if not in_order or (len(first) and len(self.first) and first[0] < self.first[-1]):
            raise ProtocolError(f"the schedule of epoch {self.epoch} is not in order of its steps")
        if passes is not None:
            self.passes = passes if self.passes is None else np.concatenate([self.passes, passes])
        self._by_chunk = None
        self._sorted = self._sorted[:0]
        self.chunk = np.concatenate([self.chunk, part.chunk])
        self.first = np.concatenate([self.first, first])
        self.last = np.concatenate([self.last, last])
        self.complete = complete

    @property
    def exhausted(self) -> bool:
        """Whether all its uses are held or finished."""
        return self.cursor >= len(self.chunk)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        return _EPOCH_BYTES + sum(
            column.nbytes for column in (self.chunk, self.first, self.last, self.passes) if column is not None
        )

    def ahead(self, span: tuple[int, int], last_pass: int) -> npt.NDArray[np.uint32]:
        """Returns the chunks of uses that are not held yet, in the order of the schedule.

        Args:
            span: half-open range of chunk numbers; chunks outside are left out.
            last_pass: uses of later passes are left out.
        """
        if self.passes is None and self.epoch > last_pass:
            return self.chunk[:0]
        self._looks += 1
        if self._looks <= _LOOKS:
            chunk = self.chunk[self.cursor :]
            here = (chunk >= span[0]) & (chunk < span[1])
            return chunk[here if self.passes is None else here & (self.passes[self.cursor :] <= last_pass)]
        if self._by_chunk is None:  # without it, each of 4,096 parts would look at the uses of all, which took 3 s
            self._by_chunk = np.argsort(self.chunk, kind="stable").astype(np.uint32)
            self._sorted = self.chunk[self._by_chunk]
        # The span has the column's type, because for another type numpy would copy the whole column.
        first, stop = np.searchsorted(self._sorted, np.array(span, np.uint32))
        uses = np.sort(self._by_chunk[first:stop])
        uses = uses[np.searchsorted(uses, np.uint32(self.cursor)) :]
        return self.chunk[uses] if self.passes is None else self.chunk[uses[self.passes[uses] <= last_pass]]


def affordable_lookahead(wanted_bytes: int, limit_bytes: int, live_bytes: int) -> int:
    """Returns the bytes of look-ahead of all sessions together: `wanted_bytes`, unless that would cost too many hits.

    The most is `LOOKAHEAD_SHARE` of the limit, divided by the share of the live data that does not fit into the limit.

    Args:
        wanted_bytes: look-ahead by the configuration.
        limit_bytes: limit of the cache.
        live_bytes: bytes of all data that sessions use.
    """
    missing = max(0.0, 1.0 - limit_bytes / max(1, live_bytes))
    return min(wanted_bytes, int(limit_bytes * LOOKAHEAD_SHARE / missing)) if missing else wanted_bytes


def count_open_bytes(
    chunk: npt.NDArray[np.uint32],
    first: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    file_bytes: npt.NDArray[np.int64],
) -> int:
    """Returns the maximum number of bytes that the uses of a schedule have open at one step.

    Args:
        chunk: number of the chunk of each use, (uses,).
        first: first step of each use, (uses,).
        last: last step of each use, (uses,).
        file_bytes: bytes of each chunk, (chunks,).
    """
    if not len(chunk):
        return 0
    size = file_bytes[chunk]
    steps = np.concatenate([first, last + 1])
    change = np.concatenate([size, -size])
    # Within one step chunks are closed before others are opened.
    order = np.lexsort((change, steps))
    return int(np.cumsum(change[order]).max())


class SessionProgress:
    """Keeps one session's schedule and progress, which only its methods change.

    Args:
        chunk_bytes: bytes that each chunk takes, int64, (chunks,).

    Attributes:
        done: number of consumed steps: all steps below it are consumed.
        want: last step that the consumer has asked for, -1 if none.
        ahead_bytes: bytes of the chunks of held uses that begin after `want`, as of the last `openable`.
    """

    def __init__(self, chunk_bytes: npt.NDArray[np.int64]) -> None:
        self.ahead_bytes = 0
        self.done = 0
        self.want = -1
        self._chunk_bytes = chunk_bytes
        self._numbers = 0
        self._epochs: deque[EpochUses] = deque()
        # Sum of the epochs' bytes. To add up many short epochs at each new one took seconds.
        self._schedule_bytes = 0
        self._next: Use | None = None
        self._known_step = -1
        self._ahead: deque[Use] = deque()
        # Wanted uses that are held and not open, by number. `OrderedDict`, because the first one is looked up again and
        # again while those before it are deleted: a dict would step over the deleted places each time.
        self._urgent: OrderedDict[int, Use] = OrderedDict()
        # Uses of each held chunk, as a heap by number. Open and finished ones are removed when they come first.
        self._uses: dict[int, list[tuple[int, Use]]] = {}
        self._open: list[tuple[int, Use]] = []
        self._held: Counter[int] = Counter()
        self._local: set[int] = set()
        self._broken: set[int] = set()
        self._to_ask: list[Use] = []

    def __repr__(self) -> str:
        ready = self.last_ready_step()
        return f"SessionProgress(done={self.done}, ready={ready}, want={self.want}, holds={len(self._held)})"

    # ------------------------------------------------------------ messages of the consumer

    def extend(self, part: EpochSchedule, complete: bool) -> None:
        """Adds the schedule of an epoch, or a part of it, which is the last one if `complete`. Epochs come in order.

        Raises:
            ProtocolError: it is no schedule of this dataset in the order of its steps, or belongs to another epoch than
                the one that is incomplete.
        """
        chunk = part.chunk
        if not len(chunk) == len(part.first) == len(part.last):
            raise ProtocolError(f"schedule columns of {len(chunk)}, {len(part.first)} and {len(part.last)} entries")
        if part.passes is not None and len(part.passes) != len(chunk):
            raise ProtocolError(f"schedule columns of {len(chunk)} chunks and {len(part.passes)} passes")
        if len(chunk) and int(chunk.max()) >= len(self._chunk_bytes):
            raise ProtocolError(
                f"the schedule names chunk {int(chunk.max())}; the dataset has {len(self._chunk_bytes)}"
            )
        if not self._epochs or self._epochs[-1].complete:
            self._epochs.append(EpochUses(part.epoch))
            self._schedule_bytes += self._epochs[-1].nbytes
        current = self._epochs[-1]
        if current.epoch != part.epoch:
            raise ProtocolError(f"the schedule of epoch {current.epoch} is not complete, epoch {part.epoch} follows")
        before = current.nbytes
        current.extend(part, complete)
        self._schedule_bytes += current.nbytes - before
        if complete and len(current.last):
            self._known_step = max(self._known_step, int(current.last.max()))

    def advance(self, done: int, want: int) -> None:
        """Records that steps below `done` are consumed and steps up to `want` are asked for; neither goes back."""
        self.done = max(self.done, done)
        self.want = max(self.want, want, self.done - 1)

    # ------------------------------------------------------------ called by the scheduler, in this order

    def take_done(self, most: int = sys.maxsize) -> list[Use]:
        """Ends at most `most` uses whose last step is done, read or skipped, and returns them.

        They are not held any more. If there are more, the next call returns them.
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
            self._held[use.chunk] -= 1
            if not self._held[use.chunk]:
                del self._held[use.chunk]
                del self._uses[use.chunk]
                self._local.discard(use.chunk)
                self._broken.discard(use.chunk)
            else:
                # It removes the chunk's finished uses from its heap, which a chunk that is used often would keep.
                self._first_use(use.chunk)
        return finished

    def next_use(self) -> Use | None:
        """Returns the first use that is not held yet, or None if no complete schedule has one.

        Uses that the consumer has skipped are dropped.
        """
        if (known := self._next) is None or known.last < self.done:
            self._next = self._find_next()
        return self._next

    def _find_next(self) -> Use | None:
        """Returns what `next_use` does; drops skipped uses, and epochs that have none left."""
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
        """Holds a use, which must be `next_use()`; if its chunk is not local, `take_request` will return it."""
        self._epochs[0].cursor += 1
        self._numbers += 1
        self._next = None
        self._held[use.chunk] += 1
        self._ahead.append(use)
        # Numbers come in order, so that the list stays a heap.
        self._uses.setdefault(use.chunk, []).append((use.number, use))
        self.ahead_bytes += int(self._chunk_bytes[use.chunk])
        if use.chunk not in self._local:
            heapq.heappush(self._to_ask, use)

    def take_request(self) -> Use | None:
        """Returns the first held use whose chunk is to be asked for, which counts as asked for then, or None."""
        while self._to_ask:
            use = heapq.heappop(self._to_ask)
            if use.chunk in self._held and use.chunk not in self._local:
                return use
        return None

    def ask_later(self, use: Use) -> None:
        """Lets `take_request` return a use again, because there was no room."""
        heapq.heappush(self._to_ask, use)

    def has_requests(self) -> bool:
        """Whether a chunk is still to be asked for, as one that waits for room."""
        return bool(self._to_ask)

    def mark_local(self, chunk: int) -> None:
        """Records that the chunk is local; does nothing if this session does not hold it."""
        if chunk in self._held:
            self._local.add(chunk)
            self._broken.discard(chunk)

    def mark_absent(self, chunk: int, *, broken: bool = False) -> bool:
        """Records that the chunk is not local (any more) and must be asked for; returns whether this session holds it.

        If it is `broken`, its reader found it corrupt: no step is ready until it is back.
        """
        if chunk not in self._held:
            return False
        self._local.discard(chunk)
        if broken:
            self._broken.add(chunk)
        heapq.heappush(self._to_ask, self._use_now(chunk) if broken else self._first_use(chunk))
        return True

    def openable(self, most: int = sys.maxsize) -> list[Use]:
        """Returns at most `most` held uses that the consumer has asked for, in order, up to the first not local one.

        Uses after that gap stay held: if they were open, they could not be evicted for the chunk that closes the gap.
        """
        while self._ahead and self._ahead[0].first <= self.want:
            use = self._leave_ahead()
            self._urgent[use.number] = use
        local = itertools.takewhile(lambda use: use.chunk in self._local, self._urgent.values())
        return list(itertools.islice(local, most))

    def mark_open(self, use: Use) -> None:
        """Records that a use of `openable` is open: it is leased until its last step is done."""
        del self._urgent[use.number]
        heapq.heappush(self._open, (use.last, use))

    # ------------------------------------------------------------ state

    def last_ready_step(self) -> int:
        """Returns the last step, at most `want`, up to which all uses are open; `done` - 1 if there is none."""
        if self._broken:
            return self.done - 1
        limit = min(self.want, self._known_step)
        if self._urgent:
            # Uses come in order, so the first one counts.
            limit = min(limit, next(iter(self._urgent.values())).first - 1)
        if self._ahead:
            limit = min(limit, self._ahead[0].first - 1)
        if (use := self.next_use()) is not None:
            limit = min(limit, use.first - 1)
        return max(limit, self.done - 1)

    def is_blocking(self, use: Use) -> bool:
        """Whether the consumer has read everything that is open and cannot continue without this use."""
        return use.number < 0 or (use.first <= self.done and self.last_ready_step() < self.done)

    def holds(self, chunk: int) -> bool:
        """Whether the session has a use of the chunk that is held or open."""
        return chunk in self._held

    def is_local(self, chunk: int) -> bool:
        """Whether the session holds the chunk, and the chunk is local."""
        return chunk in self._local

    def is_wanted(self, chunk: int) -> bool:
        """Whether the consumer has asked for a step that needs the chunk, and waits for it."""
        return chunk in self._broken or self._first_use(chunk).number in self._urgent

    def find_first_step(self, chunk: int) -> int:
        """Returns the first step that needs a held chunk which is not open; `done` if its reader found it corrupt."""
        return self.done if chunk in self._broken else self._first_use(chunk).first

    def schedule_bytes(self) -> int:
        """Returns the bytes of memory that the schedules take that are still needed."""
        return self._schedule_bytes

    def count_grants(self) -> int:
        """Returns the number of held chunks that were asked for with success: they are local or in flight."""
        return max(0, len(self._held) - len(self._to_ask))

    def open_chunks(self) -> int:
        """Returns the number of uses that are open."""
        return len(self._open)

    def find_chunks_ahead(self, span: tuple[int, int], last_pass: int) -> npt.NDArray[np.uint32]:
        """Returns chunks that are neither open nor finished in the passes of a part up to `last_pass`.

        Args:
            span: half-open range of the part's chunk numbers.
            last_pass: number of the running pass. An earlier one may have a few chunks left, since lanes end at
                different steps.
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
        """Returns the first use of a chunk that is held and not open; a new one at `done` if there is none."""
        uses = self._uses.get(chunk, [])
        first_ahead = self._ahead[0].number if self._ahead else self._numbers
        while uses and uses[0][0] < first_ahead and uses[0][0] not in self._urgent:
            heapq.heappop(uses)
        return uses[0][1] if uses else self._use_now(chunk)

    def _use_now(self, chunk: int) -> Use:
        return Use(first=self.done, number=-1, last=self.done, epoch=-1, chunk=chunk, pass_number=-1)
