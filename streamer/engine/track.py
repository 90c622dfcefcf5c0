"""Where one session stands in its schedule: what it holds, what is open, what is ready. Pure; no I/O, no clock.

A *use* is one entry of the schedule: a chunk and the steps `first..last` in which it is read, in order of `first`.
Its life:

    future --hold--> held --(chunk is there, want >= first)--> open --(done > last)--> over

`through` is the line: every use of the steps up to it is open, so its reader may read.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.errors import ProtocolError

# Three empty arrays and what holds them (CPython 3.11): an epoch without entries is not free.
_EPOCH_BYTES = 512

Columns = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.int64]]


class Use(msgspec.Struct, frozen=True, order=True):
    """One entry of the schedule; ordered by first need. `number` counts the session's uses."""

    first: int
    number: int
    last: int
    epoch: int
    chunk: int


class EpochUses:
    """The uses of one epoch, as they came."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.complete = False
        self.cursor = 0
        self.chunk: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
        self.first: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.last: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def extend(self, columns: Columns, complete: bool) -> None:
        """Appends a frame of the schedule.

        Raises:
            ProtocolError: not in order of the steps.
        """
        self.chunk = np.concatenate([self.chunk, columns[0]])
        self.first = np.concatenate([self.first, columns[1]])
        self.last = np.concatenate([self.last, columns[2]])
        self.complete = complete
        if bool((np.diff(self.first) < 0).any()) or bool((self.last < self.first).any()):
            raise ProtocolError(f"the schedule of epoch {self.epoch} is not in order of its steps")

    @property
    def exhausted(self) -> bool:
        """All its uses are held or over."""
        return self.cursor >= len(self.chunk)


class Track:
    """One session's schedule and progress. Changed only by these methods, each of which leaves it whole.

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
        self._known_step = -1
        self._ahead: deque[Use] = deque()
        self._urgent: dict[int, Use] = {}
        self._open: list[tuple[int, Use]] = []
        self._held: Counter[int] = Counter()
        self._there: set[int] = set()
        self._broken: set[int] = set()
        self._to_ask: list[Use] = []

    def __repr__(self) -> str:
        return f"Track(done={self.done}, through={self.through()}, want={self.want}, holds={len(self._held)})"

    # ------------------------------------------------------------ what the consumer says

    def extend(self, epoch: int, columns: Columns, complete: bool) -> None:
        """Takes in (a part of) the schedule of an epoch; epochs come in order.

        Raises:
            ProtocolError: not a schedule of this dataset.
        """
        self._check(columns)
        if not self._epochs or self._epochs[-1].complete:
            self._epochs.append(EpochUses(epoch))
        current = self._epochs[-1]
        if current.epoch != epoch:
            raise ProtocolError(f"the schedule of epoch {current.epoch} is not complete, epoch {epoch} follows")
        current.extend(columns, complete)
        if complete and len(current.last):
            self._known_step = max(self._known_step, int(current.last.max()))

    def advance(self, done: int, want: int) -> None:
        """Steps below `done` are consumed, steps up to `want` are asked for; neither goes back."""
        self.done = max(self.done, done)
        self.want = max(self.want, want, self.done - 1)

    # ------------------------------------------------------------ what the engine does, in this order

    def take_over(self) -> list[Use]:
        """Uses that ended since the last call: read to their last step, or passed over. They are not held any more."""
        over = []
        while self._open and self._open[0][0] < self.done:
            over.append(heapq.heappop(self._open)[1])
        over += [use for use in self._urgent.values() if use.last < self.done]
        while self._ahead and self._ahead[0].last < self.done:
            over.append(self._leave_ahead())
        for use in over:
            self._urgent.pop(use.number, None)
            self._let_go(use.chunk)
        return over

    def next_use(self) -> Use | None:
        """The first use that is not held yet; uses that the consumer has passed are left out."""
        while self._epochs and self._epochs[0].complete:
            uses = self._epochs[0]
            while not uses.exhausted and int(uses.last[uses.cursor]) < self.done:
                uses.cursor += 1
            if not uses.exhausted:
                i = uses.cursor
                first, last, chunk = int(uses.first[i]), int(uses.last[i]), int(uses.chunk[i])
                return Use(first, self._numbers, last, uses.epoch, chunk)
            self._epochs.popleft()
        return None

    def hold(self, use: Use) -> None:
        """The session now holds `next_use()`; the cursor moves on."""
        self._epochs[0].cursor += 1
        self._numbers += 1
        self._held[use.chunk] += 1
        self._ahead.append(use)
        self.ahead_bytes += int(self._chunk_bytes[use.chunk])
        if use.chunk not in self._there:
            heapq.heappush(self._to_ask, use)

    def take_question(self) -> Use | None:
        """The first held use whose chunk is neither there nor known to be on its way; it counts as asked now."""
        while self._to_ask:
            use = heapq.heappop(self._to_ask)
            if use.chunk in self._held and use.chunk not in self._there:
                return use
        return None

    def ask_later(self, use: Use) -> None:
        """There was no room: the question stays."""
        heapq.heappush(self._to_ask, use)

    def has_questions(self) -> bool:
        """Something waits for room."""
        return bool(self._to_ask)

    def arrived(self, chunk: int) -> None:
        """The chunk is local."""
        if chunk in self._held:
            self._there.add(chunk)
            self._broken.discard(chunk)

    def lost(self, chunk: int, *, broken: bool = False) -> bool:
        """The chunk is not local (any more) and must be asked for again; True if this session holds it.

        With `broken` its reader found it wrong: nothing is ready until it is back.
        """
        if chunk not in self._held:
            return False
        self._there.discard(chunk)
        if broken:
            self._broken.add(chunk)
        heapq.heappush(self._to_ask, Use(self.done, -1, self.done, -1, chunk) if broken else self._first_use(chunk))
        return True

    def openable(self) -> list[Use]:
        """Held uses that the consumer wants, in the order of the line, up to the first whose chunk is not there.

        What lies behind a gap stays look-ahead: opened, it could not give way to the chunk that closes the gap.
        """
        while self._ahead and self._ahead[0].first <= self.want:
            use = self._leave_ahead()
            self._urgent[use.number] = use
        return list(itertools.takewhile(lambda use: use.chunk in self._there, self._urgent.values()))

    def opened(self, use: Use) -> None:
        """The use is open: leased until its last step is done."""
        del self._urgent[use.number]
        heapq.heappush(self._open, (use.last, use))

    # ------------------------------------------------------------ where it stands

    def through(self) -> int:
        """Every chunk of the steps up to and including this one, and not beyond `want`, is open."""
        if self._broken:
            return self.done - 1
        limit = min(self.want, self._known_step)
        if self._urgent:
            limit = min(limit, min(use.first for use in self._urgent.values()) - 1)
        if self._ahead:
            limit = min(limit, self._ahead[0].first - 1)
        if (use := self.next_use()) is not None:
            limit = min(limit, use.first - 1)
        return max(limit, self.done - 1)

    def blocks_line(self, use: Use) -> bool:
        """The consumer has read all that is open and cannot go on without it."""
        return use.number < 0 or (self.through() < self.done and use.first <= self.done)

    def holds(self, chunk: int) -> bool:
        """Held or open."""
        return chunk in self._held

    def is_there(self, chunk: int) -> bool:
        """Held or open, and local."""
        return chunk in self._there

    def is_wanted(self, chunk: int) -> bool:
        """Held, asked for by the consumer, and not open yet."""
        return chunk in self._broken or any(use.chunk == chunk for use in self._urgent.values())

    def first_need(self, chunk: int) -> int:
        """The first step that waits for a held chunk that is not open."""
        return self.done if chunk in self._broken else self._first_use(chunk).first

    def schedule_bytes(self) -> int:
        """What the schedules of its epochs take that are not used up."""
        return sum(_EPOCH_BYTES + uses.chunk.nbytes + uses.first.nbytes + uses.last.nbytes for uses in self._epochs)

    def granted_chunks(self) -> int:
        """How many of its chunks are there, or on their way."""
        return max(0, len(self._held) - len(self._to_ask))

    def open_chunks(self) -> int:
        """How many uses are open."""
        return len(self._open)

    def remaining(self, epoch: int) -> npt.NDArray[np.uint32]:
        """Chunks of an epoch that are neither open nor over."""
        held = [use.chunk for use in (*self._urgent.values(), *self._ahead) if use.epoch == epoch]
        future = [uses.chunk[uses.cursor :] for uses in self._epochs if uses.epoch == epoch]
        return np.concatenate([np.asarray(held, np.uint32), *future])

    def _leave_ahead(self) -> Use:
        use = self._ahead.popleft()
        self.ahead_bytes -= int(self._chunk_bytes[use.chunk])
        return use

    def _first_use(self, chunk: int) -> Use:
        for use in (*self._urgent.values(), *self._ahead):
            if use.chunk == chunk:
                return use
        return Use(self.done, -1, self.done, -1, chunk)

    def _let_go(self, chunk: int) -> None:
        self._held[chunk] -= 1
        if not self._held[chunk]:
            del self._held[chunk]
            self._there.discard(chunk)
            self._broken.discard(chunk)

    def _check(self, columns: Columns) -> None:
        chunk, first, last = columns
        if not len(chunk) == len(first) == len(last):
            raise ProtocolError(f"schedule columns of {len(chunk)}, {len(first)} and {len(last)} entries")
        if len(chunk) and int(chunk.max()) >= len(self._chunk_bytes):
            raise ProtocolError(
                f"the schedule names chunk {int(chunk.max())}; the dataset has {len(self._chunk_bytes)}"
            )
